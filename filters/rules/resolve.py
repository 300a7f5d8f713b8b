"""Names in rule files -> functions; checks of the functions' parameters, some of which are files."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from filters.rules.named_files import NamedFile
from filters.rules.user_modules import UserModule
from pipeline.errors import ConfigError, did_you_mean


def find_function(
    name: str, known: Mapping[str, Callable[..., Any]], module: UserModule | None, what: str
) -> Callable[..., Any]:
    """Return the function that is known as `name`, or the one that ``module:function`` names in `module`.

    Raises ConfigError with the nearest name if there is none. Its message calls the function `what`.
    """
    if module is None:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"unknown {what}: {name!r}{hint}; name one of your own as module:function")
        return known[name]
    function_name = name.partition(":")[2]
    loaded = module.load()
    function: Callable[..., Any] | None = getattr(loaded, function_name, None)
    if not callable(function):
        hint = did_you_mean(function_name, [n for n, _ in inspect.getmembers(loaded, inspect.isfunction)] or ["none"])
        raise ConfigError(f"{what}: module {module.name!r} has no function {function_name!r}{hint}")
    return function


def check_parameters(
    function: Callable[..., Any], name: str, parameters: Mapping[str, Any], files: Collection[str]
) -> None:
    """Raise ConfigError if `parameters` or `files` do not fit the function of the rule `name`."""
    _, *accepted = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in accepted]
    for key in [*parameters, *files]:
        if key not in names:
            raise ConfigError(
                f"rule {name!r}: unknown key {key!r}{did_you_mean(key, [*names, 'min', 'max', 'measure'])}"
            )
    hints = typing.get_type_hints(function, include_extras=True)
    for key, value in parameters.items():
        if wanted := _misfit(value, hint := hints.get(key)):
            choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
            near = did_you_mean(str(value), map(str, choices), else_known=False)
            raise ConfigError(f"rule {name!r}: {key} must be {wanted}, not {value!r}{near}")
    missing = [p.name for p in accepted if p.default is p.empty and p.name not in {*parameters, *files}]
    if missing:
        raise ConfigError(f"rule {name!r} needs {', '.join(missing)}")


def _misfit(value: object, hint: Any) -> str:
    """Return what an annotation asks for; '' if the value fits, or if the annotation cannot be checked."""
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "" if value in members else f"one of {', '.join(map(str, members))}"
    if origin in (typing.Union, types.UnionType):
        misfits = [_misfit(value, member) for member in members if member is not types.NoneType]  # TOML has none
        return " or ".join(misfits) if all(misfits) else ""
    if origin is typing.Annotated and isinstance(members[1], int):  # `filters.text_view.Count` or `Positive`
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= members[1]
        return "" if fits else f"a whole number of at least {members[1]}"
    if origin in (list, tuple, Sequence):
        fits = isinstance(value, list | tuple) and bool(value) and not any(_misfit(item, members[0]) for item in value)
        return "" if fits else f"a list of one or more entries, each {_misfit(None, members[0]) or 'of any kind'}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    kind = {float: int | float}.get(hint, hint)
    if hint not in names or (isinstance(value, kind) and isinstance(value, bool) == (hint is bool)):
        return "" if not isinstance(value, float) or math.isfinite(value) else "a finite number"
    return names[hint]


def named_files(
    function: Callable[..., Any], name: str, parameters: Mapping[str, Any], home: str
) -> dict[str, NamedFile]:
    """Return the files among the parameters (annotated Path); their paths are relative to the folder `home`."""
    files = {}
    for key in _path_parameters(function) & parameters.keys():
        path = Path(home, parameters[key]) if isinstance(parameters[key], str) else None
        if path is None or not path.is_file():
            raise ConfigError(f"rule {name!r}: {key} {str(path or parameters[key])!r} does not exist")
        files[key] = NamedFile.read(path)
    return files


def _path_parameters(function: Callable[..., Any]) -> set[str]:
    hints = typing.get_type_hints(function)
    return {name for name, hint in hints.items() if hint is Path or Path in typing.get_args(hint)} - {"return"}


def default_files(function: Callable[..., Any]) -> dict[str, NamedFile]:
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    paths = {key: defaults[key] for key in _path_parameters(function)}
    return {key: NamedFile.read(path) for key, path in paths.items() if isinstance(path, Path)}
