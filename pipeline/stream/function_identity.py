"""A name for a function of the user in a state: a hash of its source, and of the values that it reads.

The source is hashed without comments and formatting. The values are defaults, closure, globals, and constants of the user's
modules, such as ``settings.LIMIT``; functions among them are hashed in the same way. An object of the standard library or of an
installed package is hashed by its name alone.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import inspect
import json
import re
import symtable
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), type(...))
_LIBRARY_KINDS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)


class Filter(NamedTuple):
    """A function of a document, and its name in states."""

    function: Callable[..., Any]
    name: str


class DocumentMap(NamedTuple):
    """A function that changes documents, and its name. With ``same_length``, a document keeps its number of tokens.

    Ids below ``vocab_size`` are allowed even if the tokenizer lacks them. None allows the ids of the tokenizer.
    """

    function: Callable[..., Any]
    name: str
    same_length: bool = False
    vocab_size: int | None = None


class _UnknownError(Exception):
    """A value that is neither plain nor a function with source code."""


def identified(function: Callable[..., Any], name: str | None = None, method: str = "filter") -> Filter:
    """Return a function of ``method`` with its ``name``, which defaults to a hash of its source and of the values that it reads.

    Raises ``ConfigError`` for an unnamed function that has no source, or reads a value that is not plain.

    >>> identified(max).name == identified(min).name, identified(lambda ids: len(ids) > 3, "long-1").name
    (False, 'long-1')
    """
    if name is not None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name given to .{method}() must be a text that is not empty, got {name!r}")
        return Filter(function, name)
    label = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        identity = _Identity().of(function)
    except _UnknownError as error:
        raise ConfigError(
            f"a state cannot identify {method} {label}, because it reads {error}; give it a name, to be changed whenever its "
            f"results change: .{method}(..., name='long-1')"
        ) from None
    digest = hashlib.blake2b(json.dumps(identity).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Filter(function, f"{label}#{digest}")


class _Identity:
    """Values and functions as nested lists of text."""

    def __init__(self) -> None:
        self._functions: list[types.FunctionType] = []  # in the order in which they are read

    def of(self, value: Any) -> Any:
        return [type(value).__qualname__, *self._contents(value)]

    def _contents(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        if kind in _PLAIN:
            yield repr(value)
        elif kind in (list, tuple):
            yield from map(self.of, value)
        elif kind in (dict, set, frozenset) and all(type(key) in _PLAIN for key in value):
            for key in sorted(value, key=repr):  # the order of a set changes from process to process
                yield [repr(key), self.of(value[key]) if kind is dict else None]
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OV":
            yield from (value.dtype.str, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, re.Pattern):
            yield from (self.of(value.pattern), value.flags)
        elif isinstance(value, functools.partial):
            yield from map(self.of, (value.func, value.args, value.keywords))
        elif isinstance(value, types.FunctionType) and not _is_library(value.__globals__.get("__name__")):
            yield from self._function(value)
        elif _is_library(kind.__module__) and (inner := getattr(value, "__wrapped__", getattr(value, "py_func", None))):
            yield self.of(inner)  # a wrapper of functools or numba
        elif isinstance(value, types.ModuleType):
            yield value.__name__
        elif isinstance(value, _LIBRARY_KINDS) and _is_library(
            module := getattr(value, "__module__", None) or "builtins"
        ):
            owner = getattr(value, "__self__", None)
            if getattr(value, "__closure__", None) or not isinstance(owner, type | types.ModuleType | None):
                raise _UnknownError(f"the values that {value.__qualname__} is bound to")
            yield from (module, getattr(value, "__qualname__", value.__name__))
        else:
            raise _UnknownError(f"an object of type {kind.__module__}.{kind.__qualname__}")

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        if function in self._functions:
            yield self._functions.index(function)
            return
        self._functions.append(function)
        tree = _source(function.__code__)
        source = ast.unparse(tree)
        yield from (source, self.of(function.__defaults__), self.of(function.__kwdefaults__))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        names = {*cells, *_globals_of(symtable.symtable(source, "<source>", "exec"))}
        chains = {chain for node in ast.walk(tree) if (chain := _chain(node)) and chain[0] in names}
        for name, *attributes in sorted(chains):
            try:
                value = cells[name].cell_contents if name in cells else function.__globals__[name]
            except (KeyError, ValueError):  # ValueError: the cell is empty
                if not hasattr(builtins, name):
                    raise _UnknownError(f"{name!r}, which is not defined yet") from None
                continue
            yield [name, self._named(name, value, attributes)]

    def _named(self, name: str, value: Any, attributes: list[str]) -> Any:
        """Return the identity of a value, or of the constant that ``attributes`` name if it is a module of the user."""
        for attribute in attributes:
            if not isinstance(value, types.ModuleType) or _is_library(value.__name__):
                break
            if attribute not in vars(value):
                raise _UnknownError(f"{value.__name__}.{attribute}, which is not defined yet")
            value = vars(value)[attribute]
        try:
            return self.of(value)
        except _UnknownError as error:
            raise _UnknownError(f"{name!r}: {error}") from None


def _globals_of(table: symtable.SymbolTable) -> set[str]:
    """Return the globals that functions read but do not set."""
    names = set().union(*map(_globals_of, table.get_children()))
    if table.get_type() == "function":
        symbols = [symbol for symbol in table.get_symbols() if symbol.is_global() and not symbol.is_assigned()]
        names |= {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
    return names


def _chain(node: ast.AST) -> tuple[str, ...]:
    """Return a name and its attributes, as in ``("settings", "LIMIT")``; empty for other syntax."""
    if isinstance(node, ast.Attribute):
        return (*chain, node.attr) if (chain := _chain(node.value)) else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


def _is_library(module: str | None) -> bool:
    """Say whether a module belongs to the standard library, an installed package or this project."""
    first = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or first in ("pipeline", "filters"):
        return first in (*sys.stdlib_module_names, "pipeline", "filters")
    return file.startswith(sysconfig.get_path("stdlib")) or "site-packages" in file or "dist-packages" in file


def _source(code: types.CodeType) -> ast.AST:
    """Return the syntax tree of a function; columns tell several lambdas of a line apart."""
    try:
        tree = ast.parse("".join(inspect.findsource(code)[0]))
    except (OSError, SyntaxError, ValueError):
        raise _UnknownError(f"code that has no source in {code.co_filename!r}") from None
    spans = [((top, left), (end, right)) for top, end, left, right in code.co_positions() if right]
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):  # outer ones come first
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        lines = [node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]
        body: Any = node.body if isinstance(node, ast.Lambda) else node
        begin, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
        if (min(lines), getattr(node, "name", "<lambda>")) == (code.co_firstlineno, code.co_name):
            nodes += [node] * all(begin <= first and last <= end for first, last in spans)
    if not nodes or (len(nodes) > 1 and not spans):
        raise _UnknownError(f"code that {code.co_filename!r} does not hold any more")
    return nodes[-1]
