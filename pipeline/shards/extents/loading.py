"""The table of extents of the shards that a stream reads: from the file beside the manifest, or computed and kept."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import ConfigError, ManifestError, MissingObjectError
from ...user_cache import keep, made_by_one, read_kept
from ..foreign import tar_mark
from ..format import BLOCK, TAIL, padding
from ..index import Index, parse_footer
from ..manifest import FileInfo, Manifest, ShardInfo
from ..remote.access import identity
from ..remote.store import Store
from ..remote.transport import describe, is_remote, local_name, read_parts, shown
from ..resolve import Resolved
from ..tar import map_open, opened
from ..urls import join
from .file import COMMAND, EXTENTS_VERSION, decode_table, encode_table
from .table import ExtentTable

REMOTE_THREADS = 16  # reading an index over the network is waiting
LOCAL_THREADS = 2
_TABLE = "the table of extents"

log = logging.getLogger("pipeline")


class Limits(NamedTuple):
    """How a table is computed: progress goes to ``say`` every ``report_seconds``; it is kept from ``keep_bytes`` of shards on.

    The indexes of fewer bytes are read again in less than half a second; tables of remote shards are always kept.
    """

    say: Callable[[str], None] = log.warning
    report_seconds: float = 5.0
    keep_bytes: int = 1 << 30


def load_extent_table(parts: Sequence[Resolved], store: Store, limits: Limits | None = None) -> ExtentTable:
    """Return the table of the shards that `resolve` found, in their order: those of each directory have one.

    A manifest of version 2 names the file that holds it: one read, and no shard is opened. Otherwise the table is computed
    from the indexes of the shards, without ``crc32``, and kept in the cache directory, under the hashes of the shards where
    a manifest has them, else under what tells one tar from another (footer, or size, time and edges; of a remote tar its
    version). ``limits`` says from which size on, and where progress is reported.

    Raises ``ManifestError`` for a table that is missing, damaged, or disagrees with the manifest, ``ConfigError`` for shards
    of more than one dtype, and what `Store.index` raises for a shard whose index is damaged.
    """
    tables = [_load_part(part, store, limits or Limits()) for part in parts]
    return tables[0] if len(tables) == 1 else ExtentTable.join(tables, tables[0].dtype)


def _load_part(shards: Resolved, store: Store, limits: Limits) -> ExtentTable:
    manifest, infos = shards.manifest, shards.infos
    if manifest is None or infos is None:
        return load_tars(shards.urls, store, limits)[0]
    if manifest.extents is None:
        key = _digest([manifest.dtype, *(info.sha256 for info in infos)])
        worth = _is_worth_keeping(shards.urls, sum(info.bytes for info in infos), limits)
        return _kept(key if worth else None, shards, store, limits)
    path = join(shards.directory, manifest.extents.name)
    table = read_table(path, manifest, _fetch(path, manifest.extents, shards.directory, store))
    numbers = {info.name: number for number, info in enumerate(manifest.shards)}
    return table.select([numbers[info.name] for info in infos])


def read_table(path: str, manifest: Manifest, raw: bytes | memoryview) -> ExtentTable:
    """Return the table of all shards of a manifest from the bytes of its file, compared with the manifest.

    Raises ``ManifestError`` where they disagree in hash, dtype, shards, documents, tokens or bytes.
    """
    table = decode_table(raw, shown(path), manifest.extents.sha256 if manifest.extents is not None else None)
    hold_to_shards(table, manifest.shards, manifest.token_dtype, shown(path))
    return table


def hold_to_shards(table: ExtentTable, infos: Sequence[ShardInfo], dtype: np.dtype[Any], name: str) -> None:
    """Raise ``ManifestError`` unless a table has the counts that the manifest's entries of its shards have."""
    if (table.dtype, table.shards) != (dtype, len(infos)):
        raise ManifestError(
            f"{name}: {table.shards} shards of {table.dtype}, but the manifest has {len(infos)} of {dtype}; "
            f"write it again: {COMMAND}"
        )
    documents = table.per_shard(table.document_sums)
    sums = {"documents": documents, "tokens": table.per_shard(table.token_sums)}
    for field, found in sums.items():
        wanted = np.fromiter(map(attrgetter(field), infos), np.int64, len(infos))
        if (found != wanted).any():
            at = int(np.argmax(found != wanted))
            raise ManifestError(
                f"{name}: its extents of {infos[at].name} have {found[at]} {field}, but the manifest says {wanted[at]}; "
                f"write it again: {COMMAND}"
            )
    ends = table.lengths_at + 4 * documents + TAIL
    sizes = np.fromiter(map(attrgetter("bytes"), infos), np.int64, len(infos))
    if (outside := (ends > sizes) | (table.starts_at == 0)).any():
        at = int(np.argmax(outside))
        raise ManifestError(
            f"{name}: it puts the index of {infos[at].name} before byte {ends[at]}, but the manifest says {sizes[at]} bytes; "
            f"write it again: {COMMAND}"
        )


def table_of_index(index: Index, name: str) -> ExtentTable:
    """Return the table of one shard from its index, without ``crc32``; ``name`` is what errors call the shard."""
    payload = payload_bytes(index)
    return ExtentTable.of_shard(
        index.starts, index.lengths, index.dtype, payload, indexed=bool(index.footer), name=name
    )


def payload_bytes(index: Index) -> int:
    """Return the bytes of a shard before its index; without one, up to the end of the last document, rounded up."""
    if index.footer:
        return index.footer["starts"][0] - BLOCK
    end = int(index.starts[-1] + index.lengths[-1] * index.dtype.itemsize) if len(index.starts) else 0
    return end + padding(end)


def _fetch(path: str, info: FileInfo, directory: str, store: Store) -> bytes | memoryview:
    """Return what the file of a table holds; a remote one is kept in the cache, under its hash."""
    try:
        if not is_remote(path):
            return Path(path).read_bytes()
        place = _place(store, info.sha256)
        held = read_kept(place) if store.keeps else None
        if held is not None and hashlib.sha256(held).hexdigest() == info.sha256:
            return held
        raw = read_parts(path, info.bytes, store.access)
        if store.keeps and hashlib.sha256(raw).hexdigest() == info.sha256:
            keep(place, raw, _TABLE)
        return raw
    except (FileNotFoundError, MissingObjectError) as error:
        raise ManifestError(
            f"{shown(path)}: not there, but the manifest names it; copy it again, or write it again: {COMMAND} {shown(directory)}"
        ) from error
    except OSError as error:
        raise ManifestError(f"{shown(path)}: cannot be read: {error}") from error


def load_tars(urls: list[str], store: Store, limits: Limits | None = None) -> tuple[ExtentTable, list[str]]:
    """Return the table of tars that no manifest describes, and what tells the contents of each from those of others.

    That is its footer, or of a tar of another tool on this machine `foreign_contents`, or of any remote tar its size and
    version, '' where the server states none.
    """
    limits = limits or Limits()
    with _open_pool(urls) as pool:
        marks = list(pool.map(lambda url: _mark(url, store), urls))
        sound = all(mark for _, mark, _ in marks) and _is_worth_keeping(urls, sum(size for size, _, _ in marks), limits)
        key = _digest([(size, mark) for size, mark, _ in marks]) if sound else None
        table = _kept(key, Resolved(urls), store, limits)

        def contents(url: str, known: str | None) -> str:
            return store.contents(Path(local_name(url))) if known is None else known

        return table, list(pool.map(contents, urls, [known for _, _, known in marks]))


def _mark(url: str, store: Store) -> tuple[int, str, str | None]:
    """Return of a tar its size, what tells it from any other and from itself once it changes, and what its contents are.

    The second is '' where nothing tells, the third None where only a scan does.
    """
    if is_remote(url):
        info = describe(url, store.access)
        if not info.version:
            store.without_version.add(url)
            return info.size, "", ""
        return info.size, f"{identity(url)} {info.version}", f"{info.size} {info.version}"
    path = local_name(url)
    with opened(path) as (handle, size):
        tail = os.pread(handle, TAIL, max(0, size - TAIL))
        if parse_footer(tail, path, size) is not None:
            known = hashlib.blake2b(tail, digest_size=16).hexdigest()
            return size, known, known
        with map_open(handle) as data:
            return size, tar_mark(Path(path), data), None


def _is_worth_keeping(urls: list[str], size: int, limits: Limits) -> bool:
    return size >= limits.keep_bytes or any(map(is_remote, urls))


def _kept(key: str | None, shards: Resolved, store: Store, limits: Limits) -> ExtentTable:
    """Return the table that the cache holds under ``key``, or compute it and keep it; one process computes at a time."""
    if key is None or not store.keeps:
        return _compute(shards, store, limits)
    place = _place(store, key)
    table = _load(place, shards)
    if table is not None:
        return table
    with made_by_one(place):
        table = _load(place, shards)
        if table is None:
            table = _compute(shards, store, limits)
            keep(place, encode_table(table), _TABLE)
    return table


def _load(place: Path, shards: Resolved) -> ExtentTable | None:
    """Return a kept table, or None where it is missing, damaged or of other shards: it is only a cache."""
    raw = read_kept(place)
    try:
        table = decode_table(raw, str(place)) if raw is not None else None
        if table is not None and shards.manifest is not None and shards.infos is not None:
            hold_to_shards(table, shards.infos, shards.manifest.token_dtype, str(place))
    except ManifestError:
        return None
    return table if table is not None and table.shards == len(shards.urls) else None


def _compute(shards: Resolved, store: Store, limits: Limits) -> ExtentTable:
    """Compute the table from the indexes of shards, some at once."""
    urls = shards.urls
    infos: Sequence[ShardInfo | None] = shards.infos or [None] * len(urls)
    where = shown(shards.directory or urls[0])
    cure = f"; {COMMAND} {where} writes it for every run" if shards.manifest is not None else ""

    def one(url: str, info: ShardInfo | None) -> ExtentTable:
        return table_of_index(store.index(url, info), shown(url))

    tables: list[ExtentTable] = []
    reported = time.monotonic()
    with _open_pool(urls) as pool:
        pending = [pool.submit(one, url, info) for url, info in zip(urls, infos, strict=True)]
        try:
            while len(tables) < len(pending):
                due = reported + limits.report_seconds - time.monotonic()
                if wait([pending[len(tables)]], timeout=max(0.0, due)).done:
                    tables.append(pending[len(tables)].result())
                if time.monotonic() - reported >= limits.report_seconds:
                    reported = time.monotonic()
                    limits.say(
                        f"{where}: no table of extents; {len(tables):,} of {len(urls):,} indexes read for it{cure}"
                    )
        finally:
            pool.shutdown(cancel_futures=True)
    dtype = shards.manifest.token_dtype if shards.manifest is not None else tables[0].dtype
    for url, table in zip(urls, tables, strict=True):
        if table.dtype != dtype:
            raise ConfigError(f"shards of one stream need one dtype, {shown(url)} holds {table.dtype}, {where} {dtype}")
    return ExtentTable.join(tables, dtype)


def _open_pool(urls: list[str]) -> ThreadPoolExecutor:
    threads = REMOTE_THREADS if any(map(is_remote, urls)) else LOCAL_THREADS
    return ThreadPoolExecutor(min(threads, max(1, len(urls))))


def _place(store: Store, key: str) -> Path:
    return store.directory / "extents" / f"{key}.bin"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps([EXTENTS_VERSION, value], separators=(",", ":")).encode()).hexdigest()
