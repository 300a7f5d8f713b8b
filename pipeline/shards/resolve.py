"""Turns what a user names into the shards of one split, with their entries in the manifest."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from ..errors import ManifestError, MissingObjectError
from .manifest import MANIFEST_NAME, Manifest, ShardInfo
from .remote.store import Store
from .remote.transport import Access, is_remote, local_name
from .urls import ENDING, Spec, expand, join_all


class Resolved(NamedTuple):
    """Shards in order: their ``urls`` (or paths), and, where a manifest covers them, it and their entries in it.

    ``directory`` is where that manifest lies.
    """

    urls: list[str]
    manifest: Manifest | None = None
    infos: list[ShardInfo] | None = None
    directory: str = ""


def resolve(source: Spec, split: str, store: Store) -> Resolved:
    """Return the shards that ``source`` means: a dataset directory's split, or the tars of any other spec.

    Shards of one directory that has a manifest are compared with it, whatever the spec. Raises ``ManifestError`` for a
    directory without manifest and shards, an unknown split, and shards that the manifest beside them does not name;
    else as `expand` does.
    """
    if isinstance(source, str | PathLike):
        directory = os.fspath(source)
        manifest = _manifest_of(directory, store.access) if may_be_directory(directory) else None
        if manifest is not None:
            infos = list(manifest.split(split).shards)
            base = directory if is_remote(directory) else local_name(directory)
            return Resolved(join_all(base, [info.name for info in infos]), manifest, infos, base)
        path = Path(directory)
        if not is_remote(directory) and path.is_dir() and not any(path.glob(f"*{ENDING}")):
            Manifest.read(path)  # raises, saying what a complete dataset needs
        if directory.lower().startswith("http") and is_remote(directory) and not Path(directory).suffix:
            raise ManifestError(
                f"{directory}: no {MANIFEST_NAME} there, and http servers list nothing; give the directory of a complete "
                f"dataset, or name the shards: {directory.rstrip('/')}/name-{{000000..000127}}{ENDING}"
            )
    urls = expand(source, store.access)
    folders = {url.rpartition("/")[0] if is_remote(url) else os.path.dirname(url) or "." for url in urls}
    # Of a url with a query (a signature), the directory is not known.
    folder = folders.pop()
    manifest = _manifest_of(folder, store.access) if not folders and "?" not in urls[0] else None
    if manifest is None:
        return Resolved(urls)
    known = {info.name: info for each in manifest.splits.values() for info in each.shards}
    names = [url.rpartition("/")[2] for url in urls]
    unnamed = [url for url, name in zip(urls, names, strict=True) if name not in known]
    if unnamed:
        raise ManifestError(
            f"{unnamed[0]}: the {MANIFEST_NAME} beside it does not name it; list only the shards it names"
        )
    return Resolved(urls, manifest, [known[name] for name in names], folder)


def may_be_directory(spec: str) -> bool:
    """Whether a spec names a directory: a local one that is there, or a url that is neither pattern nor shard."""
    if not is_remote(spec):
        return os.path.isdir(local_name(spec))
    return not any(sign in spec for sign in "*?[{") and not spec.endswith(ENDING)


def _manifest_of(directory: str, access: Access) -> Manifest | None:
    """Read the manifest of a directory, or return None where there is none."""
    if not is_remote(directory):
        present = os.path.isfile(os.path.join(local_name(directory), MANIFEST_NAME))
        return Manifest.read(directory) if present else None
    try:
        return Manifest.read(directory, access)
    except MissingObjectError:
        return None
