"""Compiled functions, loaded from numba's cache; they also work if no cache can be written.

Compile at module level only. The cache's key of an inner function includes its cells, which differ in each process: the function
would be compiled again every time, and the cache would grow.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
from contextlib import suppress
from types import ModuleType
from typing import Any

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys

# Raised if neither the package's folder nor the user's cache folder can be written, or a file in them cannot be loaded.
_CACHE_TROUBLE = (RuntimeError, OSError, ImportError, EOFError, pickle.UnpicklingError)


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(signature: Any) -> Any:
    """Return a decorator that loads a function from the cache, or compiles it at import."""
    signatures = signature if isinstance(signature, list) else [signature]

    def decorate(function: Any) -> Any:
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return function
        try:
            return _loaded(function, signatures) or _compiled(_with_cache(function), signatures)
        except _CACHE_TROUBLE:
            _log_compiling()
            return numba.njit(signatures, **_OPTIONS)(function)

    return decorate


def _with_cache(function: Any) -> Any:
    """Return a numba function, not compiled yet, whose cache is valid until its code, or a loop or value that it reads, changes.

    By itself, numba compares the size and time of the function's file. Both are equal if two releases have files of one size
    and are installed with a fixed time. And numba misses a change of a loop that is in another file, but compiled into this one.
    """
    loop = numba.njit(cache=True, **_OPTIONS)(function)
    with suppress(AttributeError):  # another release of numba may lack these
        loop._cache._cache_file._source_stamp = hashlib.sha256(repr(_contents(function)).encode()).hexdigest()
    return loop


def _contents(function: Any) -> object:
    """Return everything that decides the machine code of a function: its code, and the loops and values that it reads.

    Equal contents have an equal ``repr`` in every process. Raises ``TypeError`` if a value has no such ``repr``.
    """
    code, known = function.__code__, function.__globals__
    read = {name: _value(name, known[name]) for name in sorted(code.co_names) if name in known}
    constants = _value(function.__qualname__, (code.co_consts, function.__defaults__))
    return code.co_code, code.co_names, constants, read, _OPTIONS


def _value(name: str, value: object) -> object:
    if isinstance(value, numba.core.dispatcher.Dispatcher):
        return _contents(value.py_func)
    if isinstance(value, tuple):
        return tuple(_value(name, item) for item in value)
    if isinstance(value, ModuleType) and value in (numba, np):
        return value.__name__, getattr(value, "__version__", "")
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, int | float | str | np.generic | None):
        return repr(value)
    raise TypeError(
        f"{name}: a compiled loop reads {value!r}, whose changes the cache would miss: make it a number or a tuple"
    )


@functools.cache
def _log_compiling() -> None:
    """Log, once in a process, why the next seconds are quiet."""
    logging.getLogger("pipeline").warning("compiling loops: some seconds, once after an installation")


def _compiled(loop: Any, signatures: list[Any]) -> Any:
    _log_compiling()
    for signature in signatures:
        loop.compile(signature)
    loop.disable_compile()
    return loop


def _loaded(function: Any, signatures: list[Any]) -> Any:
    """Return a function from the cache; None if it is missing, or if this release of numba has another kind of cache.

    numba's own dispatchers first load everything that numba can compile, and every extension of other packages, which takes
    a second and more. A compiled function needs only the runtime, so only the runtime is loaded here.
    """
    try:
        with global_compiler_lock:
            loop = _with_cache(function)
            context = loop.targetctx
            rtsys.initialize(context)
            for signature in signatures:
                compiled = loop._cache._load_overload(signature, context)
                if compiled is None:
                    return None
                context.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
                loop.add_overload(compiled)
            loop.disable_compile()
            return loop
    except (AttributeError, TypeError):  # another release of numba may lack these
        return None
