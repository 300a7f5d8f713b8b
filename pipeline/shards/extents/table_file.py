"""Tables of extents: the file of a table, and the table of the shards that a stream reads.

The file is ``extents.npz`` beside ``manifest.json``, which names it with its size and SHA-256.

The file describes all shards of a dataset: splits in the order of their names, the shards of each in the order of the
manifest. `pipeline.shards.extents.extent_table` defines what an extent is. It is an uncompressed npz of 1-D arrays::

    dtype         of the tokens, as text: <u2 or <u4
    extents       <i8, per shard: how many it has
    sizes         <u4 (<u8 if a value needs it), per extent: bytes, at least 1
    tokens        the same, per extent
    documents     the same, per extent: at least 1
    index_crc32   <u4, per extent: CRC-32 (zlib's) of its items of `__index__/starts` as <u8, then of `__index__/lengths` as <u4
    crc32         <u4, per extent: CRC-32 of its bytes; left out if not known

Everything else is a sum. The offset of an extent in its shard is the sum of the sizes of the shard's extents before it; the
number of its first document is the sum of their documents. Equal tables give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import logging
import time
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ...atomic import atomic_file
from ...errors import ConfigError, ManifestError
from ...objects.urls import is_remote, shown
from ..dataset_folder import REPAIR, DatasetFolder
from ..format import BLOCK, padding
from ..index import ShardIndex
from ..manifest import EXTENTS_NAME, FileInfo, Manifest
from ..shard_access import ShardAccess
from ..shard_list import ShardList
from .extent_table import CHECKSUMS, COUNTS, ExtentTable

REMOTE_THREADS = 16  # they mostly wait for the network
LOCAL_THREADS = 2
REPORT_SECONDS = 5.0

log = logging.getLogger("pipeline")


def encode_table(table: ExtentTable) -> bytes:
    """Return the bytes of a table's file. They do not state ``indexed``, which the reader must know.

    >>> table = ExtentTable.of_documents(np.array([3, 4]), "<u2")
    >>> decode_table(encode_table(table), indexed=False).tokens.tolist()
    [7]
    """
    columns: dict[str, Any] = {"dtype": np.array(table.dtype.str), "extents": table.extents.astype("<i8")}
    columns |= {name: getattr(table, name) for name in COUNTS}
    columns |= {name: column for name in CHECKSUMS if (column := getattr(table, name)) is not None}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **columns)
    return file.getvalue()


def decode_table(raw: bytes, name: str = EXTENTS_NAME, *, indexed: bool = True) -> ExtentTable:
    """Return the table in the bytes of a file. ``indexed``: whether its shards hold their index, as shards of datasets do.

    Raises ``ManifestError``, which calls the file ``name``, if the file is no table.
    """
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            dtype, extents = np.dtype(str(file["dtype"])), file["extents"]
            columns = {key: file[key] for key in (*COUNTS, *CHECKSUMS) if key in file or key != "crc32"}
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ManifestError(f"{name}: no table of extents: {type(error).__name__}: {error}; {REPAIR}") from error
    unlike = [key for key, column in columns.items() if column.dtype.kind != "u" or column.shape != (extents.sum(),)]
    if unlike or extents.dtype != np.int64 or extents.ndim != 1 or (len(extents) and extents.min() < 0):
        raise ManifestError(
            f"{name}: {unlike[0] if unlike else 'extents'} is no column of the table's extents; {REPAIR}"
        )
    return ExtentTable(dtype, extents, np.full(len(extents), indexed), **columns)


def write_table(folder: Path, tables: Iterable[ExtentTable], dtype: str, name: str = EXTENTS_NAME) -> FileInfo:
    """Write the tables of shards, in the order of `Manifest.shards`, as one file; return its entry for the manifest."""
    raw = encode_table(ExtentTable.join(list(tables), dtype))
    with atomic_file(folder / name) as file:
        file.write(raw)
    return FileInfo(name, len(raw), hashlib.sha256(raw).hexdigest())


def load_extent_table(parts: Sequence[ShardList], access: ShardAccess) -> ExtentTable:
    """Return the table of the shards that `resolve` found, in their order.

    If a directory has a manifest, the manifest names the file of its table: one read gets the table, and no shard is opened.
    The table of tars without a manifest is made from their indexes, without ``crc32``.

    Raises ``ManifestError`` if a table is missing, damaged, or disagrees with the manifest. Raises ``ConfigError`` if shards
    have several dtypes. Raises the errors of `ShardAccess.index` if the index of a shard is damaged.
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
    """Return the table of all shards of a folder's manifest; raises ``ManifestError`` as `load_extent_table` does."""
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
    """Return the table of one shard from its index, without ``crc32``; errors call the shard ``name``."""
    payload = payload_bytes(index)
    return ExtentTable.of_shard(
        index.starts, index.lengths, index.dtype, payload, indexed=bool(index.footer), name=name
    )


def payload_bytes(index: ShardIndex) -> int:
    """Return the bytes of a shard before its index; without an index, to the end of the last document, rounded up."""
    if index.footer:
        return int(index.footer["starts"][0]) - BLOCK
    end = int(index.starts[-1] + index.lengths[-1] * index.dtype.itemsize) if len(index.starts) else 0
    return end + padding(end)


def load_tars(urls: list[str], access: ShardAccess) -> tuple[ExtentTable, list[str]]:
    """Return the table of tars without a manifest, and for each tar a hash that identifies its contents.

    Several threads read indexes; every few seconds a message says how many are done.
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
