"""Finds the shards of a split that a user names, and their entries in the manifests beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError, ManifestError, MissingObjectError, ShardError
from ..objects.request_options import RequestOptions
from ..objects.request_threads import side_by_side
from ..objects.urls import is_remote, shown
from ..paths import is_hidden, named_twice, natural_key
from .dataset_folder import DatasetFolder, size_of
from .manifest import EXTENTS_NAME, MANIFEST_NAME, OWNER_NAME, PLAN_NAME, REDACTING_NAME, WORK_NAME, Manifest, ShardInfo
from .shard_access import ShardAccess
from .shard_names import ENDING, ShardPattern, Spec, expand_in_order, join, join_all, refuse_twice

_SPLIT = re.compile(r"(train|val|dev|test|eval)(?:ing|id|idation|uation)?(?![a-z])", re.IGNORECASE)

ManifestOf = Callable[[str], Manifest | None]


class ShardList(NamedTuple):
    """Shards in order: their ``urls`` or paths.

    If a manifest covers them, also the ``manifest``, the shards' entries in it (``infos``), and its ``directory``.
    """

    urls: list[str]
    manifest: Manifest | None = None
    infos: list[ShardInfo] | None = None
    directory: str = ""


def resolve(source: Spec, split: str | None, access: ShardAccess) -> list[ShardList]:
    """Return the shards of a split that ``source`` names: one item for each directory with a manifest, in the order given.

    However shards are named, the manifest beside them says to which split they belong. A directory or a pattern with
    wildcards names its shards of ``split``, in the order of the manifest. If ``split`` is None, it names all splits in the
    order of their names. Tars without a manifest have no splits: they are one item, in natural order.

    Raises ``ManifestError`` if a directory has neither manifest nor shards, a build is unfinished, a split is unknown, or the
    manifest does not name a shard beside it. Raises ``ConfigError`` if a listed shard belongs to another split, or a split of
    tars without a manifest is asked for. Raises it, too, if directories differ in dtype, tokenizer or end-of-text id.
    """
    manifest_of = cache(lambda folder: _manifest_of(folder, access.requests))
    items = expand_in_order(source, access.requests, is_dataset=lambda folder: _is_dataset(folder, manifest_of))
    named: dict[str, list[ShardPattern]] = {}  # by their folders
    real_path = cache(os.path.realpath)
    for item in items:
        folder, shard = _follow(item, manifest_of, real_path)
        named.setdefault(folder, []).append(shard)
    remote = [folder for folder in named if folder and is_remote(folder)]
    manifests = {folder: None if folder in remote else manifest_of(folder) for folder in named}
    if remote:
        manifests |= zip(remote, side_by_side(partial(manifest_of, folder) for folder in remote), strict=True)
    unnamed = [item for folder in named if manifests[folder] is None for item in named[folder]]
    _refuse_several_splits(unnamed, split)
    bare = [item.path for item in unnamed]
    parts = [
        _select_shards(manifest, named[folder], split) for folder, manifest in manifests.items() if manifest is not None
    ]
    if bare and parts:
        raise ConfigError(
            f"{shown(bare[0])} has no {MANIFEST_NAME} beside it, but {shown(parts[0].directory)} has one, so nothing says "
            "whether their tokens agree; stream them apart, and join them with pipeline.mix"
        )
    if bare and split not in (None, "train"):
        raise ConfigError(
            f"{shown(bare[0])}: no {MANIFEST_NAME} is beside it, so it belongs to no split {split!r}; leave split out, or "
            "name a dataset's directory"
        )
    for one, other in pairwise(parts):
        _refuse_unlike(one, other)
    refuse_twice(bare)
    return parts or [ShardList(sorted(bare, key=natural_key))]


def latest(shards: ShardList, access: ShardAccess) -> tuple[ShardList, bool]:
    """Return the shards with the entries of their newest redaction, and whether all of these shards hold it by now.

    While a redaction runs, a shard that is not yet replaced keeps its entry. If another dataset is there by now, the shards
    are returned as they were.
    """
    manifest, infos = shards.manifest, shards.infos
    if manifest is None or infos is None:
        return shards, True
    folder = DatasetFolder(shards.directory, access.requests)
    running = folder.read(REDACTING_NAME)  # first, since a redaction writes the manifest and then removes this file
    new = folder.manifest() if running is None else Manifest.parse(running, REDACTING_NAME)
    entries = {info.name: info for info in new.shards}
    found = [entries.get(info.name) for info in infos]
    if new.redactions[: len(manifest.redactions)] != manifest.redactions or any(
        entry is None or new.original_sha256(entry) != manifest.original_sha256(info)
        for entry, info in zip(found, infos, strict=True)
    ):
        return shards, True
    current = []
    for url, info, entry in zip(shards.urls, infos, found, strict=True):
        assert entry is not None
        with suppress(ShardError):
            if running is not None and entry != info:
                access.index(url, entry)
            info = entry
        current.append(info)
    return shards._replace(manifest=new, infos=current), current == found


def _follow(item: ShardPattern, manifest_of: ManifestOf, real_path: Callable[[str], str]) -> tuple[str, ShardPattern]:
    """Return the folder of a shard, and the shard. A link is followed if a manifest covers its target."""
    path = item.path
    if is_remote(path):  # the folder is not known for a url with a query (a signature)
        return path.rstrip("/") if item.whole else "" if "?" in path else path.rpartition("/")[0], item
    folder = real_path(path if item.whole else os.path.dirname(path))
    if not item.whole and manifest_of(folder) is None and os.path.islink(path):
        real = os.path.realpath(path)
        if manifest_of(os.path.dirname(real)) is not None:
            return os.path.dirname(real), ShardPattern(real, real if item.pattern == path else item.pattern)
    return folder, item


def _select_shards(manifest: Manifest, named: Sequence[ShardPattern], split: str | None) -> ShardList:
    """Return the named shards of one directory that belong to a split, in the order of its manifest."""
    first = named[0].path
    directory = first if named[0].whole else first.rpartition("/")[0] if is_remote(first) else os.path.dirname(first)
    try:
        splits = sorted(manifest.splits) if split is None else [split]
        wanted = [info for name in splits for info in manifest.split(name).shards]
    except ManifestError as error:
        raise ManifestError(f"{shown(directory or '.')}: {error}") from None
    split_of = {info.name: name for name, entry in manifest.splits.items() for info in entry.shards}
    split_of |= {info.name: split for info in wanted if split is not None}
    chosen: list[str] = []
    useful: set[str] = set()
    others: list[ShardPattern] = []
    for item in named:
        name = item.path.rpartition("/")[2]
        if item.whole:
            chosen += [info.name for info in wanted]
        elif name not in split_of:
            raise ManifestError(
                f"{shown(item.path)}: the {MANIFEST_NAME} beside it does not name it; list only shards that it names"
            )
        elif split is None or split_of[name] == split:
            chosen.append(name)
            useful.add(item.pattern)
        else:
            others.append(item)
    # These were named one by one, or by a pattern that matches no shard of the split.
    if wrong := [item for item in others if item.pattern not in useful]:
        other = split_of[wrong[0].path.rpartition("/")[2]]
        raise ConfigError(
            f"{shown(wrong[0].path)}: a shard of split {other!r}, but split {split!r} was asked for; write split={other!r} "
            "for that split alone, or split=None to read all splits on purpose"
        )
    if (message := named_twice(join_all(directory, chosen), chosen)) is not None:
        raise ConfigError(message)
    kept = {*chosen}
    infos = [info for info in wanted if info.name in kept]
    return ShardList(join_all(directory, [info.name for info in infos]), manifest, infos, directory)


def _refuse_unlike(one: ShardList, other: ShardList) -> None:
    """Raise ``ConfigError`` unless equal tokens of two directories mean equal texts."""
    assert one.manifest is not None
    assert other.manifest is not None
    first, second = one.manifest.tokenizer, other.manifest.tokenizer
    for field, a, b in (
        ("dtype", one.manifest.dtype, other.manifest.dtype),
        ("tokenizer (sha256)", first.get("sha256"), second.get("sha256")),
        ("end-of-text id", first.get("eos_id"), second.get("eos_id")),
    ):
        if a != b:
            raise ConfigError(
                f"shards of one stream need one {field}, but {shown(one.directory)} has {a}, {shown(other.directory)} has "
                f"{b}; stream them apart, or build them the same way"
            )


def _is_dataset(directory: str, manifest_of: ManifestOf) -> bool:
    """Whether a directory has a manifest; raises ``ManifestError`` if it can have neither a manifest nor a shard."""
    if is_remote(directory):
        if manifest_of(directory.rstrip("/")) is not None:
            return True
        if directory.lower().startswith("http") and not Path(directory).suffix:
            raise ManifestError(
                f"{directory}: no {MANIFEST_NAME} there, and http servers list nothing; give the directory of a complete "
                f"dataset, or name the shards: {directory.rstrip('/')}/name-{{000000..000127}}{ENDING}"
            )
        return False
    if manifest_of(os.path.realpath(directory)) is not None:
        return True
    if not any(name.endswith(ENDING) and not is_hidden(name) for name in os.listdir(directory)):
        Manifest.read(directory)  # raises; its message says what a complete dataset needs
    return False


def _manifest_of(folder: str, requests: RequestOptions) -> Manifest | None:
    """Return the manifest of a folder; None if it has none and needs none.

    Raises ``ManifestError`` if the folder has a dangling link, a table of extents without a manifest, or the plan of an
    unfinished build: as tars without a manifest, train and val would be streamed as one.
    """
    if not folder:
        return None
    if not is_remote(folder):
        signs = (MANIFEST_NAME, EXTENTS_NAME, os.path.join(WORK_NAME, PLAN_NAME))
        return Manifest.read(folder) if any(os.path.lexists(os.path.join(folder, sign)) for sign in signs) else None
    try:
        return Manifest.read(folder, requests)
    except MissingObjectError as error:
        if size_of(join(folder, OWNER_NAME), requests) is not None:
            raise ManifestError(
                f"{folder}: the build that writes there has not finished; run its command again"
            ) from None
        if size_of(join(folder, EXTENTS_NAME), requests) is None:
            return None
        raise ManifestError(
            f"{error}: {EXTENTS_NAME} is there, so these shards belong to a dataset; upload its {MANIFEST_NAME}, too"
        ) from None


def _refuse_several_splits(shards: Sequence[ShardPattern], split: str | None) -> None:
    """Raise ``ManifestError`` if the names of tars without a manifest show several splits, unless all are asked for."""
    found = {match[1].lower(): item.path for item in shards if (match := _SPLIT.match(item.path.rpartition("/")[2]))}
    if split is not None and len(found) > 1:
        raise ManifestError(
            f"{', '.join(shown(path) for path in found.values())}: the names of these shards show several splits, and no "
            f"{MANIFEST_NAME} beside them says which belong to {split!r}; copy it there, name the shards of one split "
            "(train-*.tar), or write split=None to read all on purpose"
        )
