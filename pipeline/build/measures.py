"""Names in rule files -> functions, with their parameters bound; and both as plain JSON for the recipe."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, did_you_mean


def find_function(name: str, known: Mapping[str, Callable[..., Any]], home: str, what: str) -> Callable[..., Any]:
    """Return the function that is known as `name`, or the one that ``module:function`` names.

    Raises ConfigError with the nearest name; `what` says in it what the function was wanted for.
    """
    if ":" not in name:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"unknown {what}: {name!r}{hint}; name one of your own as module:function")
        return known[name]
    module_name, _, function_name = name.partition(":")
    module = _module(module_name, home, what)
    function = getattr(module, function_name, None)
    if not callable(function):
        hint = did_you_mean(function_name, [n for n, _ in inspect.getmembers(module, inspect.isfunction)] or ["none"])
        raise ConfigError(f"{what}: module {module_name!r} has no function {function_name!r}{hint}")
    return function


def _module(name: str, home: str, what: str) -> Any:
    """Import a user's module, looked for beside the rule file and in the working directory too."""
    for folder in (home, str(Path.cwd())):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise
        raise ConfigError(
            f"{what}: no module {name!r} beside the rule file ({home}), in {Path.cwd()} or installed"
        ) from error


def bind(function: Callable[..., Any], name: str, parameters: Mapping[str, Any], home: str) -> Callable[..., Any]:
    """Return `function` with its parameters filled in; a parameter annotated Path is a file seen from `home`."""
    _, *accepted = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in accepted]
    for key in parameters:
        if key not in names:
            raise ConfigError(
                f"rule {name!r}: unknown key {key!r}{did_you_mean(key, [*names, 'min', 'max', 'measure'])}"
            )
    missing = [p.name for p in accepted if p.default is p.empty and p.name not in parameters]
    if missing:
        raise ConfigError(f"rule {name!r} needs {', '.join(missing)}")
    paths = _path_parameters(function)
    values = {key: Path(home, value) if key in paths else value for key, value in parameters.items()}
    for key in paths & values.keys():
        if not values[key].is_file():
            raise ConfigError(f"rule {name!r}: {key} {str(values[key])!r} does not exist")
    return functools.partial(function, **values) if values else function


def _path_parameters(function: Callable[..., Any]) -> set[str]:
    hints = typing.get_type_hints(function)
    return {name for name, hint in hints.items() if hint is Path or Path in typing.get_args(hint)} - {"return"}


def full_name(function: Callable[..., Any], name: str) -> str:
    """Return where a function is defined; of a user's module also a hash, so that editing it changes the recipe."""
    if ":" not in name:
        return f"{function.__module__}.{function.__name__}"
    source = inspect.getsourcefile(function)
    return f"{name}@{_sha256(Path(source))[:16]}" if source else name


def describe_parameters(parameters: Mapping[str, Any], function: Callable[..., Any], home: str) -> dict[str, Any]:
    """Return parameters as JSON: files by name and hash, those that the function reads by default too."""
    paths = _path_parameters(function)
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values() if p.name in paths}
    given = {**{name: path for name, path in defaults.items() if isinstance(path, Path)}, **parameters}
    return {
        key: {"file": Path(value).name, "sha256": _sha256(Path(home, value))} if key in paths else value
        for key, value in sorted(given.items())
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
