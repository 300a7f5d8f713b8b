"""How a recipe names transforms of the user, and how a plan keeps them.

A recipe names a transform ``module:function``, or ``/home/me/module:function`` if the folder of the module is known. A function
that only this process knows is ``name@version``. The plan keeps the source of the module and of every module in its folder that
it imports, as it does for measures.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from filters.rules.resolve import find_function
from filters.rules.user_modules import UserModule, find_module, folder_of

from ...errors import BuildError, ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_local_functions: dict[str, Callable[..., Any]] = {}  # the functions of this process, by name@version


class _Details(TypedDict, total=False):
    name: str | None
    version: str | None
    batch: int | None
    fields: Sequence[str]
    adds: Sequence[str]


@overload
def transform(function: Function, **details: Unpack[_Details]) -> Function: ...


@overload
def transform(function: None = None, **details: Unpack[_Details]) -> Callable[[Function], Function]: ...


def transform(
    function: Any = None,
    *,
    name: str | None = None,
    version: str | None = None,
    batch: int | None = None,
    fields: Sequence[str] = (),
    adds: Sequence[str] = (),
) -> Any:
    """Mark a function or class as a transform, with settings, and return it; also a decorator.

    The transform takes a ``Document``. It returns the document as it is or with another ``text`` or ``metadata``, a list of
    documents that replace it, or a ``Drop``. With ``batch=512`` it takes a list of up to 512 documents, and returns a list
    with one such result for each. ``fields`` are the fields of the record that it reads from ``metadata``, as in
    ``("url:str", "score:float")``. ``adds`` are the fields that it adds to ``metadata``, so that ``keep_fields`` can name
    them. A class is called without arguments. If its object has ``load()``, each worker calls that once.

    A build recognises a transform by its ``version`` or, without one, by the source of its module. A lambda, and a function of
    ``__main__`` or of a notebook, need a version and run only in processes of this machine.

    >>> @transform(fields=("url:str",), version="1")
    ... def drop_without_url(document):
    ...     return document if document.metadata["url"] else Drop("no url")
    >>> drop_without_url.fields
    ('url:str',)
    """
    if function is None:
        return lambda target: transform(target, name=name, version=version, batch=batch, fields=fields, adds=adds)
    noted = {"name": name, "version": version, "batch": batch, "fields": tuple(fields), "adds": tuple(adds)}
    for key, value in noted.items():
        if value not in (None, ()):
            setattr(function, key, value)
    return function


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A transform of the user as the plan keeps it. ``module`` is None if only this process knows the function."""

    name: str
    function: str
    version: str = ""
    module: UserModule | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UserFunction:
        module = value["module"] and UserModule(**value["module"])
        return cls(value["name"], value["function"], value["version"], module)

    def load(self) -> Callable[..., Any]:
        """Return the function, or an object of the class."""
        if self.module is None:
            target = _local_functions.get(f"{self.name}@{self.version}")
            if target is None:
                raise BuildError(
                    f"transform {self.name!r} is a function of the program that started this build; run the same program "
                    "again, or put the function into a module"
                )
            return target
        function: Any = find_function(f"{self.module.name}:{self.function}", {}, self.module, "transform")
        return _instantiated(function, self.name)

    def describe(self) -> dict[str, str]:
        """Return the name, and the version or hash, that identify the transform in the recipe."""
        if self.version:
            return {"name": self.name, "version": self.version}
        return {"name": self.name, "sha256": self.module.sha256 if self.module else ""}


def find_user_function(spec: str, what: str = "transform") -> UserFunction:
    """Find and load the function that a recipe names. Raises ``ConfigError`` if there is none. ``what`` names its kind."""
    if "@" in spec:
        name, _, version = spec.partition("@")
        if spec not in _local_functions:
            raise ConfigError(
                f"transform {spec!r} is a function that a program gave to pipeline.build; give it again in Python, or put it "
                "into a module and name it module:function"
            )
        return UserFunction(name, name, version)
    name = os.path.basename(spec)
    module = find_module(spec, os.curdir, f"{what} {name!r}")
    target = find_function(name, {}, module, what)
    return UserFunction(getattr(target, "name", None) or name, name.partition(":")[2], _version(target), module)


def spec_of(function: object) -> str:
    """Return the name in a recipe of a transform that was given to ``pipeline.build``. A name is returned as it is.

    Raises ``ConfigError`` if it is not callable, or is a function that has neither a module nor a version.
    """
    if isinstance(function, str):
        return function
    if not callable(function):
        raise ConfigError(f"transforms: {function!r} is neither a function nor the name of a transform")
    named = _importable(function)
    if named is not None:
        return named
    version = _version(function)
    name = getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__
    name = "lambda" if name == "<lambda>" else name
    if not version:
        raise ConfigError(
            f"transform {name!r} cannot be imported from a module, so a build that continues cannot tell whether it changed: "
            'give it a version, pipeline.transform(function, version="1"), or put it into a module of its own'
        )
    if not _NAME.fullmatch(name) or "@" in version:
        raise ConfigError(f"transform {name!r}, version {version!r}: write both in letters, digits, dots and dashes")
    spec = f"{name}@{version}"
    _local_functions[spec] = _instantiated(function, name)
    return spec


def _instantiated(function: Any, name: str) -> Callable[..., Any]:
    """Return a function as it is, or an object of a class."""
    target: Callable[..., Any] = function
    if isinstance(function, type):
        try:
            target = function()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise ConfigError(f"transform {name!r}: its class raised {type(error).__name__}: {error}") from error
    return target


def _importable(function: Any) -> str | None:
    """Return the name of a function in a recipe; None if other processes cannot import it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    imported = sys.modules.get(module or "")
    if imported is None or module == "__main__" or "." in name or getattr(imported, name, None) is not function:
        return None
    if not getattr(imported, "__file__", None):
        return None
    folder = folder_of(imported)
    return f"{module}:{name}" if folder is None else f"{folder}/{module}:{name}"


def _version(function: object) -> str:
    version = getattr(function, "version", "")
    if not isinstance(version, str | int) or isinstance(version, bool):
        raise ConfigError(f"transform {function!r}: its version must be text, got {version!r}")
    return str(version)


def local_functions(specs: Sequence[str]) -> list[str]:
    """Return the transforms that only this process and its forks know."""
    return [spec for spec in specs if "@" in spec]


def with_config_folder(specs: object, config: Path) -> object:
    """Return the transforms that a config file names. The name of a module in the file's folder gets that folder in front."""
    listed = specs.split(",") if isinstance(specs, str) else specs
    if not isinstance(listed, list):
        return specs
    folder = config.absolute().parent
    return [with_folder(spec.strip(), folder) if isinstance(spec, str) else spec for spec in listed]


def with_folder(spec: str, folder: Path) -> str:
    """Return a ``module:function`` with the folder in front if the folder has the module; any other spec as it is."""
    if ":" not in spec or os.path.dirname(spec):
        return str(folder / spec) if ":" in spec and not os.path.isabs(spec) else spec
    base = folder.joinpath(*spec.partition(":")[0].split("."))
    there = base.with_name(f"{base.name}.py").is_file() or (base / "__init__.py").is_file()
    return str(folder / spec) if there else spec
