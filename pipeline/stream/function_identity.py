"""A name for a function of the user in a state: a hash of its source, and of the values that the source reads.

The source is a syntax tree, so comments, type hints, docstrings and formatting change nothing, and neither does the Python
version. The values are defaults, closures, globals, and what functions name of the user's objects and modules, as
``settings.LIMIT``; functions among them are read in the same way. The standard library and installed packages count by name.
"""

from __future__ import annotations

import ast
import builtins
import copyreg
import functools
import hashlib
import inspect
import json
import logging
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError

_PLAIN = (bool, int, float, complex, str, bytes, range, Fraction, Decimal, type(None), type(...))
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)
_PICKLED = (
    *_BUILTINS,
    re.Pattern,
    functools.partial,
    PurePath,
    logging.Logger,
)  # of libraries, as pickle takes them apart
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_WRAPPED = ("py_func", "__wrapped__", "fget", "func")  # of numba, functools and Python: what was wrapped
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
    """Return a function of ``method`` under ``name``, else under one that its source and the values that it reads give it.

    Raises ``ConfigError`` for a function without source, and for one that reads what has no plain value.

    >>> identified(max).name == identified(min).name, identified(lambda ids: len(ids) > 3, "long-1").name
    (False, 'long-1')
    """
    if name is not None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name given to .{method}() must be a text that is not empty, got {name!r}")
        return Filter(function, name)
    label, count, attributes = getattr(function, "__qualname__", type(function).__qualname__), -1, set[str]()
    try:
        while len(attributes) > count:  # an object may be read before the function that names its methods
            count = len(attributes)
            read = _Reader(attributes).value(function)
    except _UnknownError as error:
        raise ConfigError(
            f"a state cannot identify {method} {label}, because it reads {error}; give it a name that changes whenever what it "
            f"returns does: .{method}(..., name='long-1')"
        ) from None
    digest = hashlib.blake2b(json.dumps(read).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Filter(function, f"{label}#{digest}")


class _Reader:
    """Gives values as nested lists of text. ``attributes`` collects the attributes that functions name."""

    def __init__(self, attributes: set[str]) -> None:
        self._attributes = attributes
        self._seen: dict[int, tuple[int, Any]] = {}  # functions, classes and modules, and what is being read

    def value(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return [type(value).__name__, repr(value)]
        if id(value) in self._seen:
            return ["seen", self._seen[id(value)][0]]
        before = {**self._seen}
        self._seen[id(value)] = len(before), value
        read = [type(value).__qualname__, *self._contents(value)]
        if not isinstance(value, types.FunctionType | type | types.ModuleType):
            self._seen = before  # equal values are equal, shared or not
        return read

    def _contents(self, value: Any) -> Iterator[Any]:
        if isinstance(value, type):
            yield value.__qualname__
            yield value.__module__.partition(".")[0] if _is_library(value.__module__) else [*self._members(value)]
        elif isinstance(value, _PICKLED) or not _is_library(type(value).__module__):
            try:
                reduce: Any = copyreg.dispatch_table.get(type(value))
                parts = reduce(value) if reduce else value.__reduce_ex__(2)
            except TypeError:
                raise _UnknownError(f"an object of type {type(value).__qualname__}, which cannot be pickled") from None
            if not _is_library(getattr(value, "__module__", None) or "builtins") and isinstance(parts, str):
                raise _UnknownError(f"{parts!r}, which is not written in Python")
            yield from map(self.value, (list(part) if isinstance(part, Iterator) else part for part in parts))
        elif isinstance(value, list | tuple):
            yield from map(self.value, value)
        elif isinstance(value, set | frozenset):
            yield from sorted((self.value((each,)) for each in value), key=json.dumps)
        elif isinstance(value, dict | types.MappingProxyType):
            yield from sorted(map(self.value, value.items()), key=json.dumps)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OV":
            yield from (value.dtype.str, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, types.MethodType):
            yield from map(self.value, (value.__func__, value.__self__))
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.ModuleType):
            names = set() if _is_library(value.__name__) else self._attributes & {*vars(value)}
            yield from (value.__name__, [self._named(name, vars(value)) for name in sorted(names)])
        elif inner := next((each for name in _WRAPPED if (each := getattr(value, name, None)) is not None), None):
            yield self.value(inner)
        else:
            raise _UnknownError(f"an object of type {type(value).__module__}.{type(value).__qualname__}")

    def _members(self, kind: type) -> Iterator[Any]:
        """Give the members of a class of the user that functions name, and the methods that Python calls by itself."""
        own = [each for each in kind.__mro__ if not _is_library(each.__module__)]
        for name, member in ((name, member) for each in own for name, member in sorted(vars(each).items())):
            function = getattr(member, "__wrapped__", member)
            # What dataclasses and named tuples make of the fields has no source, and the fields are values.
            made = isinstance(function, types.FunctionType) and (
                function.__code__.co_filename == "<string>" or _is_library(function.__globals__.get("__name__"))
            )
            special = name.startswith("__") and isinstance(member, types.FunctionType | staticmethod)
            if (special or name in self._attributes) and not made and not isinstance(member, _SLOTS):
                yield self._named(name, {name: member})

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        code, scope = function.__code__, function.__globals__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        if _is_library(scope.get("__name__")):
            held = [cell.cell_contents for cell in cells.values()]
            yield from (function.__module__, function.__qualname__, self.value(getattr(function, "__wrapped__", held)))
            return
        tree = _source(code)
        nodes, codes = [*ast.walk(tree)], [*_codes(code)]
        self._attributes |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        yield from (_fields(tree), self.value(function.__defaults__), self.value(function.__kwdefaults__))
        for node in nodes:
            owner = scope.get(getattr(getattr(node, "value", None), "id", ""))
            if (
                isinstance(node, ast.Attribute)
                and isinstance(owner, types.ModuleType)
                and not hasattr(owner, node.attr)
            ):
                raise _UnknownError(f"{owner.__name__}.{node.attr}, which is not defined yet")
        set_inside = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        local = {name for each in codes for name in (*each.co_varnames, *each.co_cellvars)}
        named = {node.id for node in nodes if isinstance(node, ast.Name)} - set_inside
        for name in sorted(named.intersection([*cells, *(name for each in codes for name in each.co_names)])):
            if name in cells or name in scope or (name not in local and not hasattr(builtins, name)):
                yield self._named(name, cells if name in cells else scope)

    def _named(self, name: str, scope: Mapping[str, Any]) -> Any:
        try:
            found = scope[name]
            return [name, self.value(found.cell_contents if isinstance(found, types.CellType) else found)]
        except (KeyError, ValueError):
            raise _UnknownError(f"{name!r}, which is not defined yet") from None
        except _UnknownError as error:
            raise _UnknownError(f"{name!r}: {error}") from None


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
