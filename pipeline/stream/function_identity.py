"""What tells one filter from another in a state: its code, and the values that its code reads.

The code is its source as a syntax tree, so neither comments nor the Python version matter; where there is no source that
fits, as in ``python -c``, it is the bytecode of this Python. Values are defaults, closures, globals and attributes. Python
functions are followed, and those methods of an object that they name, and what they name of the user's modules, as
``settings.LIMIT``. What the standard library and installed packages define stands for itself by name.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import json
import logging
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError

_VERSION = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PLAIN = (bool, int, float, complex, str, bytes, range, Fraction, Decimal, PurePath, type(None), type(...))
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_UNREAD = {"ctx", "kind", "type_comment", "returns", "annotation", "type_params"}  # of syntax: they change nothing


class Filter(NamedTuple):
    """A function of a document, and the name by which a state knows it."""

    function: Callable[..., Any]
    name: str


class DocumentMap(NamedTuple):
    """A function that changes documents, and its name. With ``same_length``, a document keeps its number of tokens."""

    function: Callable[..., Any]
    name: str
    same_length: bool = False


class _Unknown(Exception):
    """Something whose contents cannot be told from those of another."""


def identified(function: Callable[..., Any], name: str | None = None, method: str = "filter") -> Filter:
    """Return a function of ``method`` under ``name``, else under one that its code and the values that it reads give it.

    Raises ``ConfigError`` for a function that reads what cannot be compared.

    >>> identified(lambda ids: len(ids) > 3).name == identified(lambda ids: len(ids) > 4).name
    False
    """
    if name is not None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name given to .{method}() must be a text that is not empty, got {name!r}")
        return Filter(function, name)
    label = _label(function)
    reader = _Reader()
    try:
        told = reader.value(function)
    except _Unknown as error:
        raise ConfigError(
            f"{method} {label} reads {error}, which a state cannot tell from another; give the {method} a name that changes "
            f"whenever what it returns does: .{method}(..., name='long-1')"
        ) from None
    digest = hashlib.blake2b(json.dumps(told).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Filter(function, f"{label}#{digest}" + (f" (bytecode of {_VERSION})" if reader.bytecode else ""))


def _label(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"builtins.{name}" if isinstance(function, _BUILTINS) or type(function) is type else name


class _Reader:
    """Values as nested lists of text. ``bytecode``: whether some function had no source."""

    def __init__(self) -> None:
        self.bytecode = False
        self._open: dict[int, int] = {}  # what is being read, by how deep it lies
        self._names: list[set[str]] = []  # attributes that the functions being read name

    def value(self, value: Any) -> Any:
        if type(value) in _PLAIN or isinstance(value, PurePath):
            return [type(value).__name__, str(value) if isinstance(value, PurePath) else repr(value)]
        if id(value) in self._open:
            return ["above", self._open[id(value)]]
        self._open[id(value)] = len(self._open)
        try:
            return [type(value).__name__, *self._contents(value)]
        finally:
            del self._open[id(value)]

    def _contents(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Enum):
            yield from (str(value), self.value(value.value))
        elif isinstance(value, list | tuple):
            yield from map(self.value, value)
        elif isinstance(value, set | frozenset):
            yield from sorted(map(self.value, value), key=json.dumps)
        elif isinstance(value, dict | types.MappingProxyType):
            yield from sorted(([self.value(key), self.value(item)] for key, item in value.items()), key=json.dumps)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OV":
            yield from (value.dtype.str, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, re.Pattern):
            yield from (self.value(value.pattern), value.flags)
        elif isinstance(value, types.ModuleType | logging.Logger):
            yield getattr(value, "__name__", None) or value.name
        else:
            yield from self._behaviour(value)

    def _behaviour(self, value: Any) -> Iterator[Any]:
        """Tell what is called, and instances of classes written in Python."""
        if isinstance(value, functools.partial):
            yield from (self.value(value.func), self.value(value.args), self.value(value.keywords))
        elif isinstance(value, types.MethodType):
            yield self.value(value.__func__)
            with self._reading(value.__func__):
                yield self.value(value.__self__)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, _BUILTINS):
            owner = getattr(value, "__self__", None)
            yield from (getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__))
            if owner is not None and not isinstance(owner, types.ModuleType):
                yield self.value(owner)
        elif isinstance(value, type):
            yield from self._class(value)
        elif (inner := getattr(value, "py_func", None) or getattr(value, "__wrapped__", None)) is not None:
            yield self.value(inner)  # as numba compiled it, or functools cached it
        elif _is_library(type(value)):
            raise _Unknown(f"an object of type {type(value).__module__}.{type(value).__qualname__}")
        else:
            slots = [name for each in type(value).__mro__ for name in _listed(getattr(each, "__slots__", ()))]
            held = {name: getattr(value, name) for name in slots if hasattr(value, name) and name != "__dict__"}
            yield type(value).__qualname__
            yield [self._methods(type(value), "__call__"), self.value({**held, **getattr(value, "__dict__", {})})]

    def _class(self, found: type) -> Iterator[Any]:
        if _is_library(found):
            yield from (found.__module__, found.__qualname__)
        else:
            yield from (found.__qualname__, self._methods(found, "__init__", "__new__"))

    def _methods(self, kind: type, *always: str) -> list[Any]:
        """Return the methods and other members of a class that functions being read name, and those that these name."""
        wanted = {*always, *(name for names in self._names for name in names)}
        found: dict[str, Any] = {}
        while names := wanted - {*found}:
            for name in names:
                member = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
                found[name] = member
                for function in _functions(member):
                    wanted |= _attributes(function.__code__)
        told = []
        for name, member in sorted(found.items()):
            functions = [
                each for each in _functions(member) if each.__code__.co_filename != "<string>"
            ]  # a dataclass's
            told += [[name, self.value(function)] for function in functions]
            if (
                not _functions(member)
                and type(member) in (*_PLAIN, tuple, list, dict, set, frozenset)
                and member is not None
            ):
                told.append([name, self.value(member)])
        return told

    @contextmanager
    def _reading(self, function: Any) -> Iterator[None]:
        """While it lasts, members that a function names are part of what the objects that it reads are."""
        self._names.append(_attributes(function.__code__) if isinstance(function, types.FunctionType) else set())
        try:
            yield
        finally:
            self._names.pop()

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        if function.__code__.co_filename.startswith(_LIBRARIES):
            yield from (function.__module__, function.__qualname__)
            return
        code = function.__code__
        tree = _source_of(code)
        if tree is None:
            self.bytecode = True
        yield _code(code) if tree is None else tree
        with self._reading(function):
            yield from self._values(function)

    def _values(self, function: types.FunctionType) -> Iterator[Any]:
        """Tell what a function reads beside its arguments."""
        code = function.__code__
        yield from (self.value(function.__defaults__), self.value(function.__kwdefaults__))
        loaded, stored = _names(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name not in stored:  # what a function counts in is no setting of it
                yield [name, self._named(name, functools.partial(getattr, cell, "cell_contents"))]
        builtins = function.__globals__.get("__builtins__", {})
        builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
        for name in sorted(loaded - stored):
            if name in function.__globals__:
                yield [name, self._named(name, functools.partial(function.__globals__.get, name))]
            elif name not in builtins:
                raise _Unknown(f"{name!r}, which is not defined yet")
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for name, *attributes in sorted(_dotted(code)):
            if name in stored or name in code.co_cellvars:
                continue
            value = cells[name].cell_contents if name in cells else function.__globals__.get(name)
            for attribute in attributes:
                if not isinstance(value, types.ModuleType) or _is_library_module(value) or _is_own(value):
                    break
                name = f"{name}.{attribute}"
                if not hasattr(value, attribute):
                    raise _Unknown(f"{name!r}, which is not defined yet")
                value = getattr(value, attribute)
            else:
                yield [name, self._named(name, functools.partial(lambda found: found, value))]

    def _named(self, name: str, get: Callable[[], Any]) -> Any:
        try:
            return self.value(get())
        except ValueError:
            raise _Unknown(f"{name!r}, which is not set yet") from None
        except _Unknown as error:
            raise _Unknown(f"{name!r}: {error}" if "'" not in str(error) else str(error)) from None


def _functions(member: Any) -> list[types.FunctionType]:
    """Return the Python functions that a member of a class runs."""
    parts = (member, *(getattr(member, name, None) for name in ("__func__", "fget", "__wrapped__", "func")))
    return [part for part in parts if isinstance(part, types.FunctionType)]


def _attributes(code: types.CodeType) -> set[str]:
    inner = [_attributes(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return {*code.co_names}.union(*inner)


def _listed(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _is_library(kind: type) -> bool:
    """Whether a class is not written in the user's own Python."""
    return _is_library_module(sys.modules.get(kind.__module__), kind.__module__)


def _is_library_module(module: types.ModuleType | None, name: str = "") -> bool:
    file = getattr(module, "__file__", None)
    if file is None:  # built in, or of a script without a file
        return name not in ("__main__", "__mp_main__")
    return file.startswith(_LIBRARIES) or not file.endswith(".py")


def _is_own(module: types.ModuleType) -> bool:
    """Whether a module is one of this package, which is a library in a checkout, too."""
    return module.__name__.partition(".")[0] == __name__.partition(".")[0]


def _dotted(code: types.CodeType) -> set[tuple[str, ...]]:
    """Return the dotted names that code reads, as ``("settings", "LIMIT")``; the first is a global or a variable around it."""
    found: set[tuple[str, ...]] = set()
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            chain = (step.argval,)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, step.argval)
            found.add(chain)
        elif step.opname != "EXTENDED_ARG":
            chain = ()
    return found.union(*(_dotted(each) for each in code.co_consts if isinstance(each, types.CodeType)))


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the globals that code reads, and the globals and variables around it that it sets."""
    loaded, stored = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(step.argval)
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
            step.opname == "STORE_DEREF" and step.argval in code.co_freevars
        ):
            stored.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more_loaded, more_stored = _names(inner)
            loaded, stored = loaded | more_loaded, stored | (more_stored - set(code.co_cellvars))
    return loaded, stored


def _code(code: types.CodeType) -> list[Any]:
    consts = [_code(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    return [_VERSION, code.co_code.hex(), consts, code.co_names, code.co_varnames, code.co_freevars, code.co_flags]


def _source_of(code: types.CodeType) -> Any:
    """Return the syntax tree of a function, or None where there is no source from which just this code is made."""
    try:
        lines, _ = inspect.findsource(code)
        tree, compiled = _parsed("".join(lines), code.co_filename)
    except (OSError, SyntaxError, ValueError, TypeError, IndexError):
        return None
    if code not in compiled:  # edited since it was imported
        return None
    places = [
        step.positions
        for step in dis.get_instructions(code)
        if step.positions is not None and step.positions.end_col_offset  # of the first steps it is 0
    ]
    found = [node for node in tree if _begins(node, code) and all(_holds(node, place) for place in places)]
    if len(found) > 1 and not places:
        return None
    return _tree(found[-1]) if found else None  # the innermost comes last


@functools.lru_cache(maxsize=16)
def _parsed(source: str, name: str) -> tuple[list[Any], set[types.CodeType]]:
    """Return the functions of a source, outer ones first, and their code."""
    tree = ast.parse(source)

    def inside(code: types.CodeType) -> Iterator[types.CodeType]:
        for each in code.co_consts:
            if isinstance(each, types.CodeType):
                yield from (each, *inside(each))

    compiled = {*inside(compile(source, name, "exec", dont_inherit=True))}
    return [node for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)], compiled


def _begins(node: Any, code: types.CodeType) -> bool:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name


def _holds(node: Any, place: Any) -> bool:
    begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    if isinstance(node, ast.Lambda):
        begin = node.body.lineno, node.body.col_offset
    return begin <= (place.lineno, place.col_offset) and (place.end_lineno, place.end_col_offset) <= end


def _tree(node: Any) -> Any:
    """Return syntax as nested lists: what changes what it does."""
    if isinstance(node, list):
        return [_tree(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _UNREAD and value not in (None, [])}
    if isinstance(node, ast.Constant):
        fields["value"] = node.value
    body = fields.get("body")
    if isinstance(body, list) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        fields["body"] = body[1:]  # the docstring
    return [type(node).__name__, *([name, _tree(value)] for name, value in fields.items())]
