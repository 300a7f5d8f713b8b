"""Modules of the user: found once, kept as source text, and loaded from that text in any process and directory.

A module beside its rule file or in the working directory is kept with every module that it imports from the same folder; the
import statements may be anywhere in it. Such modules load under names that hold the hash of their sources: two modules of the
same name, or two versions of one module, are never confused. Every other module is imported by its name. It is refused if
its source is not the one that was found first.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import ConfigError

_PREFIX = "shardwright_user_"
_ROOT = Path(__file__).resolve().parents[2]
_OURS = ("filters", "pipeline")
_LIBRARIES = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}


@dataclass(frozen=True)
class UserModule:
    """A module: its ``name``, the ``folder`` in which it was found, and its sources by their paths in that folder.

    An installed module has no ``files``; ``installed`` is then the sha256 of its source, '' if it has none.
    """

    name: str
    folder: str
    files: Mapping[str, str]
    installed: str = ""

    @functools.cached_property
    def sha256(self) -> str:
        """The hash of all sources, '' if the module has none."""
        if not self.files:
            return self.installed
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def load(self) -> ModuleType:
        """Import the module. Raises ``ConfigError`` if it cannot be imported, or is not the module that was found."""
        name = self.name
        if self.files:
            name = f"{_importable(self)}.{name}"
        module = _imported(name, f"module {self.name!r} of {self.folder or 'the installed packages'}")
        if not self.files and _source_hash(module) != self.installed:
            raise ConfigError(
                f"module {self.name!r} ({module.__file__}): its sha256 was {self.installed}, here it is "
                f"{_source_hash(module)}; install the same version everywhere, or restore it"
            )
        return module


def find_module(spec: str, home: str, what: str) -> UserModule:
    """Return the module that ``spec``, ``[FOLDER/]module:function``, names.

    The module is in ``FOLDER`` (relative to ``home``, the folder of the rule file), in the working directory, or installed.
    """
    named, name = os.path.split(spec.partition(":")[0])
    home = os.path.join(home, named) if named else home
    for folder in (Path(home).absolute(), Path.cwd()):
        if _file_of(folder, name.split(".")) is not None:
            return UserModule(name, str(folder), dict(sorted(_collect(folder, name).items())))
    try:
        return UserModule(name, "", {}, _source_hash(_imported(name, f"{what}: module {name!r}")))
    except ConfigError as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or missing.name not in (name.partition(".")[0], name):
            raise
        raise ConfigError(
            f"{what}: no module {name!r} beside the rule file ({home}), in {Path.cwd()} or installed"
        ) from error


def _imported(name: str, what: str) -> ModuleType:
    """Import a module. Raises ``ConfigError`` if its code raises anything, such as ``SystemExit``; Ctrl-C passes."""
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error


def folder_of(module: ModuleType) -> Path | None:
    """Return the folder from which a module was loaded; None if it is installed or has no source file."""
    path = Path(getattr(module, "__file__", None) or "/").resolve()
    if path.suffix != ".py" or any(path.is_relative_to(folder) for folder in _LIBRARIES):
        return None
    depth = module.__name__.count(".") + (path.name == "__init__.py")
    return path.parents[depth]


def _source_hash(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def _file_of(folder: Path, parts: Sequence[str]) -> Path | None:
    """Return the source file of a module below a folder; None if there is none, or if it belongs to this project."""
    if parts[0] in _OURS and (folder / parts[0]).resolve() == _ROOT / parts[0]:
        return None
    base = folder.joinpath(*parts)
    return next((path for path in (base / "__init__.py", base.with_name(base.name + ".py")) if path.is_file()), None)


def _collect(folder: Path, name: str) -> dict[str, str]:
    """Return the sources of a module and of all modules that it imports from its folder, by their paths in it."""
    sources: dict[str, str] = {}
    waiting = [name]
    while waiting:
        parts = waiting.pop().split(".")
        for depth in range(1, len(parts) + 1):
            path = _file_of(folder, parts[:depth])
            relative = path.relative_to(folder).as_posix() if path else ""
            if path is None or relative in sources:
                continue
            try:
                sources[relative] = importlib.util.decode_source(path.read_bytes())
                package = parts[:depth] if path.name == "__init__.py" else parts[: depth - 1]
                waiting += _imports(ast.parse(sources[relative], str(path)), package)
            except (OSError, SyntaxError, ValueError) as error:
                raise ConfigError(f"module {path} cannot be read: {type(error).__name__}: {error}") from error
    return sources


def _imports(tree: ast.AST, package: Sequence[str]) -> Iterator[str]:
    """Yield the absolute names of all modules that a module of ``package`` may import, except the standard library's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            names = [".".join([*base, alias.name]) for alias in node.names if alias.name != "*"] or [".".join(base)]
        else:
            continue
        yield from (name for name in names if name and name.partition(".")[0] not in sys.stdlib_module_names)


_packages: set[str] = set()


def _importable(module: UserModule) -> str:
    """Return the name of the package from which the sources of a module can be imported."""
    package = _PREFIX + module.sha256[:32]
    if package not in _packages:
        _packages.add(package)
        sys.meta_path.insert(0, _Importer(package, module))
    return package


class _Importer(MetaPathFinder, Loader):
    """Finds the modules of a `UserModule` and runs their sources under the paths of their files."""

    def __init__(self, package: str, module: UserModule) -> None:
        self._package, self._module = package, module
        self._names = {file.partition("/")[0].removesuffix(".py") for file in module.files} - sys.stdlib_module_names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != self._package:
            return None
        base = name.replace(".", "/")
        for file in (f"{base}/__init__.py", f"{base}.py"):
            if file in self._module.files:
                origin = str(Path(self._module.folder, file))
                is_package = file.endswith("/__init__.py")
                spec = ModuleSpec(fullname, self, origin=origin, loader_state=file, is_package=is_package)
                spec.has_location = True
                return spec
        if not name or any(file.startswith(f"{base}/") for file in self._module.files):
            return ModuleSpec(fullname, None, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        code = compile(self._module.files[spec.loader_state], spec.origin or "", "exec", dont_inherit=True)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        exec(code, module.__dict__)

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Import as ``__import__`` does, but import the modules of the user's folder from the kept sources."""
        top = name.partition(".")[0]
        if level or top not in self._names:
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{self._package}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{self._package}.{top}"]
