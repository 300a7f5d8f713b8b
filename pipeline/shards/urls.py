"""Turns what a user writes (directories, braces, globs, lists, urls) into paths and urls of shards, in a fixed order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path

from ..errors import ConfigError, did_you_mean
from ..paths import natural_key
from .remote.transport import Access, is_remote, list_remote, local_name

Spec = str | PathLike[str] | Sequence[str | PathLike[str]]

MAX_SHARDS = 1_000_000  # a range beyond it is a slip of the keyboard, and would fill the memory
ENDING = ".tar"

_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?\}")
_PLAIN = re.compile(r"[^/\\\0:?#]+")
_GLOB = re.compile(r"[*?\[]")


def expand(spec: Spec, access: Access | None = None, *, most: int = MAX_SHARDS) -> list[str]:
    """Return the files or urls that ``spec`` names, each once, in natural order (``shard-2`` before ``shard-10``).

    A spec is a path or url, with braces (``train-{000000..000127}.tar``) and wildcards, a directory (its ``.tar`` files),
    or a list of these. The order depends on the names alone, not on the list or the file system, so that all ranks agree
    on it. Local files must exist; of a url without wildcards that is known when it is opened.

    Raises ``ConfigError`` where nothing matches, a file of a range is missing, one is named twice, there are more than
    ``most``, or a url's scheme is unknown (``pipe:`` among them: nothing is ever run).

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for number in (10, 9, 1):
    ...     _ = Path(folder.name, f"train-{number}.tar").touch()
    >>> [Path(path).name for path in expand(f"{folder.name}/train-*.tar")]
    ['train-1.tar', 'train-9.tar', 'train-10.tar']
    """
    specs = [spec] if isinstance(spec, str | PathLike) else list(spec)
    if not specs:
        raise ConfigError("an empty list of shards; give at least one path, pattern or url")
    found: dict[str, str] = {}
    for one in (os.fspath(each) for each in specs):
        for name in _expand_one(one, access, most):
            if name in found:
                raise ConfigError(
                    f"{name} is named twice, by {found[name]!r} and {one!r}; its documents would be read twice"
                )
            found[name] = one
            if len(found) > most:
                raise ConfigError(f"{one!r} brings the shards to more than {most:,}; is a range mistyped?")
    return sorted(found, key=natural_key)


def join(directory: str, name: str) -> str:
    """Return the path or url of ``name`` in ``directory``; a name that would lead out of it raises ``ConfigError``.

    >>> join("s3://bucket/data/", "train-000000.tar")
    's3://bucket/data/train-000000.tar'
    >>> join("data", "../secret.tar")
    Traceback (most recent call last):
        ...
    pipeline.errors.ConfigError: '../secret.tar' is not a plain file name; a shard must lie in its dataset's directory
    """
    return join_all(directory, [name])[0]


def join_all(directory: str, names: Sequence[str]) -> list[str]:
    """Return what `join` does for each of ``names``."""
    if names and ({"", ".", ".."} & {*names} or not _PLAIN.fullmatch("".join(names))):
        name = next(name for name in names if name in (".", "..") or not _PLAIN.fullmatch(name))
        raise ConfigError(f"{name!r} is not a plain file name; a shard must lie in its dataset's directory")
    prefix = f"{directory.rstrip('/')}/" if is_remote(directory) else os.path.join(directory, "")
    return [prefix + name for name in names]


def _expand_one(spec: str, access: Access | None, most: int) -> list[str]:
    if not spec:
        raise ConfigError("an empty path among the shards; give a path, pattern or url")
    remote = is_remote(spec)
    if not remote:
        spec = local_name(spec)
        if os.path.isfile(spec):  # a name with braces or brackets of its own
            return [spec]
    names = _braces(spec, most)
    if remote:
        return [url for name in names for url in _expand_remote(name, access)]
    literal = [name for name in names if not _GLOB.search(name)]
    missing = [name for name in literal if not os.path.exists(name)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        of = f" of the {len(names)} that {spec!r} names" if len(names) > 1 else ""
        raise ConfigError(f"{missing[0]}{more}{of} not found{_nearby(missing[0])}")
    found: list[str] = []
    for name in names:
        if os.path.isdir(name):
            found += _tars(name)
        elif _GLOB.search(name):
            matches = [path for path in glob.glob(name, recursive=True) if os.path.isfile(path)]
            if not matches:
                raise ConfigError(f"no file matches {name!r}{_nearby(name)}")
            found += matches
        else:
            found.append(name)
    return found


def _expand_remote(url: str, access: Access | None) -> list[str]:
    path = url.split("://", 1)[1]
    web = url.lower().startswith("http")  # where ? begins a query, and nothing can be listed
    if "*" in path or (_GLOB.search(path) and not web):
        names = list_remote(url, access)
        if not names:
            raise ConfigError(f"no object matches {url!r}")
        return names
    if web or (not path.endswith("/") and Path(path).suffix):
        return [url]
    names = list_remote(f"{url.rstrip('/')}/*{ENDING}", access)
    if not names:
        raise ConfigError(f"no object below {url!r} ends in {ENDING}; name the shards, or give the right directory")
    return names


def _braces(spec: str, most: int) -> list[str]:
    """Expand braces, having bounded every range before the first of them is unrolled."""
    if "{" not in spec:
        return [spec]
    from braceexpand import braceexpand

    for first, last, step in _RANGE.findall(spec):
        if abs(int(last) - int(first)) // max(1, int(step or 1)) >= most:
            raise ConfigError(f"{spec!r}: {{{first}..{last}}} names more than {most:,} shards; is it mistyped?")
    try:
        names = list(islice(braceexpand(spec, escape=False), most + 1))
    except ValueError as error:
        raise ConfigError(f"{spec!r}: {error}; write a range as {{000000..000127}}") from error
    if len(names) > most:
        raise ConfigError(f"{spec!r} names more than {most:,} shards; is a range mistyped?")
    return names


def _tars(directory: str) -> list[str]:
    names = [entry.path for entry in os.scandir(directory) if entry.name.endswith(ENDING) and entry.is_file()]
    names = [name for name in names if not os.path.basename(name).startswith(".")]
    if not names:
        raise ConfigError(f"no {ENDING} files in {directory}, which{_listing(os.listdir(directory))}")
    return names


def _nearby(path: str) -> str:
    """Say what is there instead: the nearest names in the deepest directory that exists."""
    parent = Path(path).parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    names = sorted((entry.name for entry in os.scandir(parent)), key=natural_key)
    if parent != Path(path).parent:
        return f": the directory {Path(path).parent} is not there; {parent}{_listing(names)}"
    hint = did_you_mean(Path(path).name, names) if names else ""
    return f"; {parent}{_listing(names)}" + (hint if "did you mean" in hint else "")


def _listing(names: Iterable[str]) -> str:
    shown = sorted((name for name in names if not name.startswith(".")), key=natural_key)
    if not shown:
        return " is empty"
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return f" holds {', '.join(shown[:5])}{more}"
