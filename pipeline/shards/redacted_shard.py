"""A copy of a shard with documents redacted or left out.

A redacted document becomes as many end-of-text ids, so no other document moves.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..atomic import atomic_file
from .extents.extent_table import ExtentTable
from .extents.table_file import table_of_index
from .format import BLOCK, END, FOOTER_NAME, KEY_COLUMN, TABLE_NAME, TAIL, footer_payload
from .index import index_of, parse_table
from .manifest import ShardInfo
from .shard_access import ShardAccess
from .tar_members import opened
from .writer import WRITE_BYTES, TarStream, TokenBlocks, write_shard

KEPT_COLUMNS = (KEY_COLUMN, "source", "language")  # columns that redacted documents keep


def write_redacted(
    source: Path, target: Path, info: ShardInfo, numbers: Sequence[int], eos_id: int
) -> tuple[ShardInfo, ExtentTable]:
    """Write the shard ``source`` to ``target`` with documents redacted; return its new entry for the manifest, and its extents.

    ``numbers``: the redacted documents. A redacted document keeps its key, length, source and language, and its fields that
    are fractions, such as scores; other fields become null. Redacting it again changes nothing.
    """
    with opened(source) as (handle, size):
        data = mmap.mmap(handle, 0, access=mmap.ACCESS_COPY)  # the file stays as it is
    index = index_of(lambda start, count: data[start : start + count], size, str(source))
    assert index is not None
    at, length = index.footer["table"]
    columns = parse_table(data[at : at + length], str(source), at)
    for number in numbers:
        start, tokens = int(index.starts[number]), int(index.lengths[number])
        ids = np.full(tokens, eos_id, index.dtype).tobytes()
        data[start : start + len(ids)] = ids
        for name, column in columns.items():
            if name == "crc32":
                column[number] = zlib.crc32(ids)
            elif name not in KEPT_COLUMNS and not isinstance(column[number], float):  # orders may depend on scores
                column[number] = None
    table = json.dumps(columns, separators=(",", ":"), ensure_ascii=False).encode()
    with atomic_file(target) as file:
        tar = TarStream(file)
        for begin in range(0, at - BLOCK, WRITE_BYTES):
            tar.put(data[begin : min(begin + WRITE_BYTES, at - BLOCK)])
        tar.member(TABLE_NAME, table)
        footer = {**index.footer, "bytes": tar.size + TAIL, "table": [at, len(table)], "table_crc32": zlib.crc32(table)}
        tar.member(FOOTER_NAME, footer_payload(footer))
        tar.put(END)
        tar.flush()
    extents = table_of_index(index, str(source)).with_checksums(memoryview(data))
    return info._replace(bytes=tar.size, sha256=tar.sha256.hexdigest(), table_crc32=zlib.crc32(table)), extents


def write_remaining(
    source: Path, target: Path, info: ShardInfo, numbers: Sequence[int], tokens_per_sample: int
) -> tuple[ShardInfo, ExtentTable] | None:
    """Write the shard ``source`` to ``target`` without documents.

    Return what `write_redacted` returns, or None if no document is left: then no file is written.
    """
    index, columns = ShardAccess(use_cache=False).index_and_table(str(source), info)
    kept = np.delete(np.arange(len(index)), numbers)
    if not len(kept):
        return None
    data = np.memmap(source, np.uint8, "r")
    starts, lengths = index.starts[kept], index.lengths[kept]
    ends = starts + lengths * index.dtype.itemsize
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    table = {name: [column[number] for number in kept.tolist()] for name, column in columns.items() if name != "crc32"}
    written, extents = write_shard(
        target,
        tokens=TokenBlocks(index.dtype, (np.array(data[start:end]).view(index.dtype) for start, end in spans)),
        lengths=lengths,
        keys=table.pop(KEY_COLUMN),
        table=table,
        tokens_per_sample=tokens_per_sample,
    )
    return written._replace(name=info.name, source=info.source), extents
