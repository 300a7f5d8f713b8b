"""Turns what a user writes into paths and urls of shards, in a fixed order.

a list                     each of its items, in turn
name-{000..127}.tar        each name; local files must exist
a directory                the dataset whose manifest is in it, else its files that end in .tar
a url that ends in /, or   the same; over http, which lists nothing, only a dataset with a manifest
has no ending
a*.tar, a?.tar, a[0-9]     the files or objects that match: those that end in .tar if there are any, else all
any other name             one shard; a local file must exist

The name of an existing file or folder may contain braces, brackets and stars: there, they stand for themselves.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError, did_you_mean
from ..notices import warn
from ..objects.remote_object import list_objects
from ..objects.request_options import RequestOptions
from ..objects.urls import expand_braces, is_remote, local_name
from ..paths import (
    WILDCARD,
    glob_root,
    has_wildcard,
    is_hidden,
    matching,
    named_twice,
    natural_key,
    read_once,
    real_paths,
    shortened,
)

Spec = str | PathLike[str] | Sequence[str | PathLike[str]]

ENDING = ".tar"

_PLAIN = re.compile(r"[^/\\\0:?#]+")
_TAR_LIKE = re.compile(r"\.(tar|tgz)(\.|$)")  # names of compressed tars and of parts of a tar


class ShardPattern(NamedTuple):
    """The path of a shard, and the ``pattern`` that names it: the path itself, a directory, or a pattern with wildcards.

    With ``whole``, the path is a dataset's directory.
    """

    path: str
    pattern: str
    whole: bool = False


def expand(spec: Spec, requests: RequestOptions | None = None) -> list[str]:
    """Return the files or urls that ``spec`` names, each once, in natural order (``shard-2`` before ``shard-10``).

    A spec is a path or url, with braces (``train-{000000..000127}.tar``) and wildcards, a directory (its ``.tar`` files),
    or a list of these. The order depends on the names alone, not on the list or the file system, so that all ranks agree
    on it. Local files must exist; a url without wildcards is looked up when it is opened. A directory or wildcard skips
    hidden files, and links to files that it already names. A warning counts skipped files that look like tars.

    Raises ``ConfigError`` if nothing matches, a file of a range is missing, a file is named twice, or a range has more than a
    million names. It also raises ``ConfigError`` if the scheme of a url is unknown (as ``pipe:``: no command is ever run).

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for number in (10, 9, 1):
    ...     _ = Path(folder.name, f"train-{number}.tar").touch()
    >>> [Path(path).name for path in expand(f"{folder.name}/train-*.tar")]
    ['train-1.tar', 'train-9.tar', 'train-10.tar']
    """
    named = [item.path for item in expand_in_order(spec, requests)]
    refuse_twice(named)
    return sorted(named, key=natural_key)


def expand_in_order(
    spec: Spec, requests: RequestOptions | None = None, *, is_dataset: Callable[[str], bool] = lambda directory: False
) -> list[ShardPattern]:
    """Return the shards that `expand` returns, with their patterns, in the order given; a file may appear twice.

    A directory for which ``is_dataset`` is true becomes one item, which is ``whole``.
    """
    specs = [spec] if isinstance(spec, str | PathLike) else list(spec)
    if not specs:
        raise ConfigError("an empty list of shards; give at least one path, pattern or url")
    named: list[ShardPattern] = []
    for one in (os.fspath(path) for path in specs):
        for name in _names(one):
            if may_be_directory(name) and is_dataset(name):
                named.append(ShardPattern(name, name, whole=True))
            elif is_remote(name):
                named += _expand_remote(name, requests)
            elif os.path.isdir(name):
                named += [ShardPattern(path, name) for path in _tars(name)]
            elif has_wildcard(name):
                named += [ShardPattern(path, name) for path in _matches(name)]
            else:
                named.append(ShardPattern(name, name))
    return named


def refuse_twice(paths: Sequence[str]) -> None:
    """Raise ``ConfigError`` if two paths or urls name one shard."""
    remote = [is_remote(path) for path in paths]
    local = iter(real_paths(path for path, is_url in zip(paths, remote, strict=True) if not is_url))
    identities = [path if is_url else next(local) for path, is_url in zip(paths, remote, strict=True)]
    if (message := named_twice(paths, identities)) is not None:
        raise ConfigError(message)


def may_be_directory(spec: str) -> bool:
    """Whether a spec may name a directory: an existing local one, or a url that is neither pattern nor shard."""
    if not is_remote(spec):
        return os.path.isdir(local_name(spec))
    path = spec.partition("://")[2].partition("/")[2]  # without the host: an IPv6 address has brackets
    return not any(sign in path for sign in "*?[{") and not spec.endswith(ENDING)


def join(directory: str, name: str) -> str:
    """Return the path or url of ``name`` in ``directory``; raises ``ConfigError`` if the name leads out of it.

    >>> join("s3://bucket/data/", "train-000000.tar")
    's3://bucket/data/train-000000.tar'
    >>> join("data", "../secret.tar")
    Traceback (most recent call last):
        ...
    pipeline.errors.ConfigError: '../secret.tar' is not a plain file name; a shard must be in its dataset's directory
    """
    return join_all(directory, [name])[0]


def join_all(directory: str, names: Sequence[str]) -> list[str]:
    """Return the paths or urls of several names, as `join` does."""
    for name in names:
        if name in (".", "..") or not _PLAIN.fullmatch(name):
            raise ConfigError(f"{name!r} is not a plain file name; a shard must be in its dataset's directory")
    prefix = f"{directory.rstrip('/')}/" if is_remote(directory) else os.path.join(directory, "")
    return [prefix + name for name in names]


def _names(spec: str) -> list[str]:
    """Return the names that the braces of a spec stand for; local names without wildcards must exist."""
    if not spec:
        raise ConfigError("an empty path among the shards; give a path, pattern or url")
    if is_remote(spec):
        return expand_braces(spec)
    spec = local_name(spec)
    if os.path.exists(spec):  # its name may contain braces or brackets
        return [spec]
    names = expand_braces(spec)
    missing = [name for name in names if not os.path.exists(name) and not has_wildcard(name)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        of = f" of the {len(names)} files that {spec!r} names" if len(names) > 1 else ""
        verb = "were" if len(missing) > 1 else "was"
        raise ConfigError(f"{missing[0]}{more}{of} {verb} not found{_nearby(missing[0])}")
    return names


def _expand_remote(url: str, requests: RequestOptions | None) -> list[ShardPattern]:
    path = url.split("://", 1)[1]
    web = url.lower().startswith("http")  # there, ? begins a query, and nothing can be listed
    if "*" in path or (WILDCARD.search(path) and not web):
        root = glob_root(url)
        names = _chosen(url, root, list_objects(url, requests), hidden=is_hidden(url[len(root) :]))
        if not names:
            raise ConfigError(f"no object matches {url!r}")
        return [ShardPattern(name, url) for name in names]
    if web or (not path.endswith("/") and Path(path).suffix):
        return [ShardPattern(url, url)]
    base = f"{url.rstrip('/')}/"
    names = _chosen(url, base, list_objects(f"{base}*", requests), folder=True)
    if not names:
        raise ConfigError(f"no object below {url!r} ends in {ENDING}; name the shards, or give the right directory")
    return [ShardPattern(name, url) for name in names]


def _matches(pattern: str) -> list[str]:
    """Return the files that match a local pattern; wildcards match no hidden files."""
    files = sorted(filter(os.path.isfile, matching(pattern)))
    if not files:
        raise ConfigError(f"no file matches {pattern!r}{_nearby(pattern)}")
    return _chosen(pattern, glob_root(pattern), files, hidden=True)


def _tars(directory: str) -> list[str]:
    """Return the tars in a local directory, without those in its folders."""
    files = sorted(entry.path for entry in _entries(directory) if entry.is_file())
    below = glob.glob(f"{glob.escape(directory)}/*/*{ENDING}")  # none in hidden folders
    names = _chosen(directory, directory, files, below, folder=True)
    if not names:
        raise ConfigError(
            f"no {ENDING} files in {directory}, which{_listing(entry.name for entry in _entries(directory))}"
        )
    return names


def _entries(directory: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a directory; raises ``ConfigError`` if this user may not list it."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError as error:
        raise ConfigError(
            f"{directory}: the directory cannot be listed: {error.strerror}; let this user read it, or name the shards"
        ) from error


def _chosen(
    spec: str, root: str, paths: list[str], below: Sequence[str] = (), *, hidden: bool = False, folder: bool = False
) -> list[str]:
    """Return the shards among the paths or urls below ``root`` that a folder or pattern names.

    ``hidden``: the pattern names hidden files, which are then chosen. If a pattern matches no file that ends in ``.tar``, all
    files that it matches are chosen. A warning counts the other files that look like tars.
    """
    depth = len(_parts(root))
    seen = paths if hidden else [path for path in paths if not is_hidden("/".join(_parts(path)[depth:]))]
    tars = [path for path in seen if path.endswith(ENDING)]
    chosen = tars if tars or folder else seen
    if chosen and not is_remote(chosen[0]):
        chosen, _ = read_once(chosen)
    rest = [path for path in seen if _TAR_LIKE.search(path)] + [
        path for path in (*paths, *below) if path.endswith(ENDING)
    ]
    left_out = ["/".join(_parts(path)[depth:]) for path in sorted({*rest} - {*chosen}, key=natural_key)]
    if chosen and left_out:
        warn(
            f"{spec}: {len(chosen)} shards found, {len(left_out)} files left out: {shortened(left_out)}. In a folder, only "
            f"its own {ENDING} files are read; hidden files, and links to files that are read, are skipped"
        )
    return chosen


def _parts(path: str) -> list[str]:
    # Stores may spell a url differently: s3a:// as s3://, memory://a as memory:///a.
    return [part for part in path.rpartition("://")[2].split("/") if part]


def _nearby(path: str) -> str:
    """Return a hint: the names in the deepest directory that exists, and the one nearest to the missing name."""
    parent = Path(path).parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    names = sorted((entry.name for entry in _entries(parent)), key=natural_key)
    if parent != Path(path).parent:
        return f": the directory {Path(path).parent} is not there; {parent}{_listing(names)}"
    return f"; {parent}{_listing(names)}{did_you_mean(Path(path).name, names, else_known=False)}"


def _listing(names: Iterable[str]) -> str:
    shown = sorted((name for name in names if not name.startswith(".")), key=natural_key)
    return f" holds {shortened(shown, 5)}" if shown else " is empty"
