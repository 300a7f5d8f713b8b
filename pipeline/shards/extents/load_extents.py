"""The table of extents of the shards that a stream reads: from the file beside the manifest, or of the tars' own indexes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import numpy as np

from ...errors import ConfigError, ManifestError
from ...objects.urls import is_remote, shown
from ..dataset_folder import REPAIR, DatasetFolder
from ..format import BLOCK, padding
from ..index import ShardIndex
from ..manifest import Manifest
from ..shard_access import ShardAccess
from ..shard_list import ShardList
from .extent_table import ExtentTable
from .table_file import decode_table

REMOTE_THREADS = 16  # reading an index over the network is waiting
LOCAL_THREADS = 2
REPORT_SECONDS = 5.0

log = logging.getLogger("pipeline")


def load_extent_table(parts: Sequence[ShardList], access: ShardAccess) -> ExtentTable:
    """Return the table of the shards that `resolve` found, in their order: those of each directory have one.

    A manifest names the file that holds it: one read, and no shard is opened. That of tars without a manifest is made of
    their indexes, without ``crc32``.

    Raises ``ManifestError`` for a table that is missing, damaged, or disagrees with the manifest, ``ConfigError`` for shards
    of more than one dtype, and what `ShardAccess.index` raises for a shard whose index is damaged.
    """
    tables = [_load_part(part, access) for part in parts]
    return tables[0] if len(tables) == 1 else ExtentTable.join(tables, tables[0].dtype)


def _load_part(shards: ShardList, access: ShardAccess) -> ExtentTable:
    manifest, infos = shards.manifest, shards.infos
    if manifest is None or infos is None:
        return load_tars(shards.urls, access)[0]
    table = read_table(DatasetFolder(shards.directory, access.requests), manifest)
    numbers = {info.name: number for number, info in enumerate(manifest.shards)}
    return table.select([numbers[info.name] for info in infos])


def read_table(folder: DatasetFolder, manifest: Manifest) -> ExtentTable:
    """Return the table of all shards of a manifest in a folder; raises ``ManifestError`` as `load_extent_table` does."""
    name, infos = shown(folder.path(manifest.extents.name)), manifest.shards
    table = decode_table(folder.read_named(manifest.extents), name)
    if (table.dtype, table.shards) != (manifest.token_dtype, len(infos)):
        raise ManifestError(
            f"{name}: {table.shards} shards of {table.dtype}, but the manifest has {len(infos)} of "
            f"{manifest.token_dtype}; {REPAIR}"
        )
    for field, sums in (("documents", table.document_sums), ("tokens", table.token_sums)):
        counts, wanted = table.per_shard(sums), np.fromiter(map(attrgetter(field), infos), np.int64, len(infos))
        if (counts != wanted).any():
            at = int(np.argmax(counts != wanted))
            raise ManifestError(
                f"{name}: its extents of {infos[at].name} have {counts[at]} {field}, but the manifest says {wanted[at]}; {REPAIR}"
            )
    return table


def table_of_index(index: ShardIndex, name: str) -> ExtentTable:
    """Return the table of one shard from its index, without ``crc32``; ``name`` is what errors call the shard."""
    payload = payload_bytes(index)
    return ExtentTable.of_shard(
        index.starts, index.lengths, index.dtype, payload, indexed=bool(index.footer), name=name
    )


def payload_bytes(index: ShardIndex) -> int:
    """Return the bytes of a shard before its index; without one, up to the end of the last document, rounded up."""
    if index.footer:
        return index.footer["starts"][0] - BLOCK
    end = int(index.starts[-1] + index.lengths[-1] * index.dtype.itemsize) if len(index.starts) else 0
    return end + padding(end)


def load_tars(urls: list[str], access: ShardAccess) -> tuple[ExtentTable, list[str]]:
    """Return the table of tars that no manifest describes, and what tells the contents of each from those of others.

    Some indexes are read at once; every few seconds a message says how many are done.
    """

    def load(url: str) -> tuple[ExtentTable, str]:
        index = access.index(url)
        return table_of_index(index, shown(url)), index.contents

    tables, contents = [], []
    reported = time.monotonic()
    threads = REMOTE_THREADS if any(map(is_remote, urls)) else LOCAL_THREADS
    with ThreadPoolExecutor(min(threads, max(1, len(urls)))) as pool:
        for table, mark in pool.map(load, urls):
            tables.append(table)
            contents.append(mark)
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                log.warning(
                    "%s: no manifest; %s of %s indexes read", shown(urls[0]), f"{len(tables):,}", f"{len(urls):,}"
                )
    for url, table in zip(urls, tables, strict=True):
        if table.dtype != tables[0].dtype:
            raise ConfigError(
                f"shards of one stream need one dtype, {shown(url)} holds {table.dtype}, {shown(urls[0])} {tables[0].dtype}"
            )
    return ExtentTable.join(tables, tables[0].dtype), contents
