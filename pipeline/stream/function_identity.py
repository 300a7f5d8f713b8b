"""A name for a function of the user in a state: a hash of its source, and of the values that the source names.

The source is a syntax tree, so comments, type hints, docstrings and formatting change nothing, and neither does the Python
version. The values are defaults, closures, globals, and attributes of the user's modules and objects, as ``settings.LIMIT``;
functions among them are read in the same way. The standard library and installed packages count by name.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import inspect
import json
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), type(...))
_CALLABLE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)
_UNREAD = {"ctx", "kind", "type_comment", "returns", "annotation", "type_params"}  # fields of syntax that do nothing


class Filter(NamedTuple):
    """A function of a document, and the name by which a state knows it."""

    function: Callable[..., Any]
    name: str


class DocumentMap(NamedTuple):
    """A function that changes documents, and its name. With ``same_length``, a document keeps its number of tokens."""

    function: Callable[..., Any]
    name: str
    same_length: bool = False


class _UnknownError(Exception):
    """What has no source, or no plain value."""


def identified(function: Callable[..., Any], name: str | None = None, method: str = "filter") -> Filter:
    """Return a function of ``method`` under ``name``, else under one that its source and the values that it names give it.

    Raises ``ConfigError`` for a function without source, and for one that names what has no plain value.

    >>> identified(max).name == identified(min).name, identified(lambda ids: len(ids) > 3, "long-1").name
    (False, 'long-1')
    """
    if name is not None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name given to .{method}() must be a text that is not empty, got {name!r}")
        return Filter(function, name)
    label = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        read = _Reader().value(function)
    except _UnknownError as error:
        raise ConfigError(
            f"a state cannot identify {method} {label}, because it reads {error}; give it a name that changes whenever what it "
            f"returns does: .{method}(..., name='long-1')"
        ) from None
    digest = hashlib.blake2b(json.dumps(read).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Filter(function, f"{label}#{digest}")


class _Reader:
    """Gives values as nested lists of text."""

    def __init__(self) -> None:
        self._functions: list[types.FunctionType] = []  # that were read, or are being read

    def value(self, value: Any) -> Any:
        return [type(value).__qualname__, *self._contents(value)]

    def _contents(self, value: Any) -> Iterator[Any]:
        kind, module = type(value), getattr(value, "__module__", None) or "builtins"
        if kind in _PLAIN:
            yield repr(value)
        elif kind in (list, tuple):
            yield from map(self.value, value)
        elif kind in (dict, set, frozenset):  # sorted, since the order of a set changes from process to process
            if any(isinstance(each, types.FunctionType) for each in value):
                raise _UnknownError("functions in a set, which have no order")
            yield from sorted(map(self.value, value.items() if kind is dict else value), key=json.dumps)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OV":
            yield from (value.dtype.str, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, re.Pattern):
            yield from (self.value(value.pattern), value.flags)
        elif isinstance(value, functools.partial):
            yield from map(self.value, (value.func, value.args, value.keywords))
        elif isinstance(value, types.FunctionType) and not _is_library(value.__globals__.get("__name__")):
            yield from self._function(value)
        elif _is_library(kind.__module__) and (inner := getattr(value, "__wrapped__", getattr(value, "py_func", None))):
            yield self.value(inner)  # of functools, of numba
        elif isinstance(value, types.ModuleType):
            yield value.__name__
        elif isinstance(value, _CALLABLE) and _is_library(module):
            owner = getattr(value, "__self__", None)  # of a method of a value, such as {}.get
            held = [] if isinstance(owner, type | types.ModuleType | None) else [owner]
            held += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
            yield from (module, getattr(value, "__qualname__", value.__name__), *map(self.value, held))
        else:
            raise _UnknownError(f"an object of type {kind.__module__}.{kind.__qualname__}")

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        if function in self._functions:
            yield self._functions.index(function)
            return
        self._functions.append(function)
        code, scope = function.__code__, function.__globals__
        tree, codes = _source(code), [*_codes(code)]
        yield from (_fields(tree), self.value(function.__defaults__), self.value(function.__kwdefaults__))
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        nodes = [*ast.walk(tree)]
        set_inside = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        read = {*cells, *(name for each in codes for name in each.co_names)} - set_inside
        local = {name for each in codes for name in (*each.co_varnames, *each.co_cellvars)}
        owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        chains = {tuple(_chain(node)) for node in nodes if id(node) not in owners}
        for name, *attributes in sorted(chain for chain in chains if chain and chain[0] in read):
            try:
                if name in cells:
                    yield self._named(name, attributes, cells[name].cell_contents)
                elif name in scope or (name not in local and not hasattr(builtins, name)):
                    yield self._named(name, attributes, scope[name])
            except (KeyError, ValueError):  # of a cell that is empty
                raise _UnknownError(f"{name!r}, which is not defined yet") from None

    def _named(self, name: str, attributes: list[str], value: Any) -> Any:
        """Read what a name gives, or its attributes where these are constants of modules, classes and objects of the user."""
        for attribute in attributes:
            is_module = isinstance(value, types.ModuleType)
            if _is_library(value.__name__ if is_module else value.__module__ if isinstance(value, type) else None):
                break
            if is_module and attribute not in vars(value):
                raise _UnknownError(f"{value.__name__}.{attribute}, which is not defined yet")
            if attribute not in getattr(value, "__dict__", ()):
                break
            value = vars(value)[attribute]
        try:
            return [name, self.value(value)]
        except _UnknownError as error:
            raise _UnknownError(f"{name!r}: {error}") from None


def _chain(node: ast.AST) -> list[str]:
    """Return a name and the attributes behind it, as ``["settings", "LIMIT"]``; nothing for other syntax."""
    if isinstance(node, ast.Attribute):
        return [*chain, node.attr] if (chain := _chain(node.value)) else []
    return [node.id] if isinstance(node, ast.Name) else []


def _is_library(module: str | None) -> bool:
    """Say whether a module is of the standard library, of an installed package or of this project."""
    first = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or first in ("pipeline", "filters"):
        return first in (*sys.stdlib_module_names, "pipeline", "filters")
    return file.startswith(sysconfig.get_path("stdlib")) or "site-packages" in file or "dist-packages" in file


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


@functools.lru_cache(maxsize=1024)
def _source(code: types.CodeType) -> ast.AST:
    """Return the syntax of a function; of several lambdas in a line, the one that holds the columns of the code."""
    try:
        tree = ast.parse("".join(inspect.findsource(code)[0]))
    except (OSError, SyntaxError, ValueError):
        raise _UnknownError(f"code that has no source in {code.co_filename!r}") from None
    places = [((top, left), (end, right)) for top, end, left, right in code.co_positions() if right]
    found: list[ast.AST] = []
    for node in ast.walk(tree):  # outer ones come first
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        lines = [node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]
        body: Any = node.body if isinstance(node, ast.Lambda) else node
        begin, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
        if (min(lines), getattr(node, "name", "<lambda>")) == (code.co_firstlineno, code.co_name):
            found += [node] * all(begin <= first and last <= end for first, last in places)
    if not found or (len(found) > 1 and not places):
        raise _UnknownError(f"code that {code.co_filename!r} does not hold any more")
    return found[-1]


def _fields(node: Any) -> Any:
    """Return syntax as nested lists: what changes what it does."""
    if isinstance(node, list):
        return [_fields(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _UNREAD and value not in (None, [])}
    body = fields.get("body")
    if isinstance(body, list) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        fields["body"] = body[1:]  # the docstring
    return [type(node).__name__, *([name, _fields(value)] for name, value in fields.items())]
