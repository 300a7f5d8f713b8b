"""Blocks of remote datasets, brought one by one, for tests and the processes that they start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.shards.extents.file import decode_table
from pipeline.shards.extents.table import ExtentTable
from pipeline.shards.manifest import Manifest
from pipeline.shards.ranges.remote_ranges import RemoteRanges
from pipeline.shards.remote.access import Access
from pipeline.shards.remote.block_cache import BlockCache

QUICK = Access(
    tries=6, first_delay=0.001, timeout=10, least_patience=10
)  # on a busy machine, too, a request comes once


def table_of(folder: Path) -> ExtentTable:
    return decode_table((folder / "extents.npz").read_bytes())


def ranges_of(
    folder: Path, url: str, cache: BlockCache | None = None, *, checksums: bool = True, access: Access = QUICK
) -> RemoteRanges:
    manifest, table = Manifest.read(folder), table_of(folder)
    urls = [f"{url}/{info.name}" for info in manifest.shards]
    return RemoteRanges(table if checksums else replace(table, crc32=None), urls, manifest.shards, access, cache)


def bring(ranges: RemoteRanges, first: int, last: int) -> bytes:
    sums = ranges.table.size_sums
    memory = bytearray(int(sums[last] - sums[first]))
    ranges.read(first, last, memoryview(memory), 0.0)
    return bytes(memory)


def block(folder: Path, first: int, last: int) -> bytes:
    table = table_of(folder)
    info = Manifest.read(folder).shards[int(table.shard_numbers[first])]
    begin = int(table.offsets[first])
    return (folder / info.name).read_bytes()[begin : begin + int(table.size_sums[last] - table.size_sums[first])]
