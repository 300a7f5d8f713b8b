"""Compiled functions that are loaded from numba's cache, and work where none can be kept.

Compile at module level only: a function inside another carries its cells into the cache's key, which differ from
process to process, so that it is compiled again every time and the cache grows.
"""

from __future__ import annotations

import pickle
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys

# Neither the package's folder nor the user's cache folder can be written, or what lies there cannot be loaded.
_CACHE_TROUBLE = (RuntimeError, OSError, ImportError, EOFError, pickle.UnpicklingError)


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(signature: Any) -> Any:
    """Return a decorator that compiles at import, from the cache if there is one that can be read or written."""

    def decorate(function: Any) -> Any:
        try:
            return _load(function, signature) or numba.njit(signature, cache=True, **_OPTIONS)(function)
        except _CACHE_TROUBLE:
            return numba.njit(signature, **_OPTIONS)(function)

    return decorate


def _load(function: Any, signature: Any) -> Any:
    """Return a function from the cache; None where it is not there, or where numba keeps its cache in another way.

    As numba's dispatchers do, but for one thing: they first load all that numba can compile, and every extension that other
    packages have installed, which takes a second and more. What is compiled already needs only the runtime.
    """
    try:
        with global_compiler_lock:
            loop = numba.njit(cache=True, **_OPTIONS)(function)
            context = loop.targetctx
            rtsys.initialize(context)
            for each in signature if isinstance(signature, list) else [signature]:
                found = loop._cache._load_overload(each, context)
                if found is None:
                    return None
                context.insert_user_function(found.entry_point, found.fndesc, [found.library])
                loop.add_overload(found)
            loop.disable_compile()
            return loop
    except (AttributeError, TypeError):  # of another release of numba
        return None
