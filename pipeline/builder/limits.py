"""How much a build reads, holds and sorts at once. Without token quotas, no limit changes a byte of the result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The sizes of units, partitions and buffers, and how long a build waits for another one.

    They are no part of the recipe, because equal inputs and recipes give equal bytes under any limits. The plan keeps
    them: a continued build, and its workers on any machine, use the limits with which it was started. With token quotas, the
    sizes of units and partitions decide how much of a source is read until its quota is filled.

    >>> Limits(unit_bytes=8 << 20).smallest_unit_bytes
    1048576
    """

    unit_bytes: int = 32 << 20  # of input; bounds the memory of a worker and what a killed build loses
    smallest_unit_bytes: int = 1 << 20
    units_wanted: int = 64  # a small input is still cut into about this many, to keep every core busy to the end
    lane_bytes: int = 16 << 20  # of a compressed file, at least, for each of its lanes
    most_lanes: int = 8  # reading takes about a sixteenth of the time of filtering
    partition_characters: int = 32 << 20  # read into one partition; bounds what a kill loses of a compressed file
    partition_records: int = 1 << 17  # read into one partition, with the records that a condition does not select
    file_records: int | None = None  # read from each file, for a sample
    batch_records: int = 512  # filtered together; a partition ends between batches
    batch_characters: int = 1 << 22
    bucket_hashes: int = 1 << 22  # of lines and paragraphs, sorted together in about 130 MB of memory
    bucket_bytes: int = 16 << 20  # of memory for the sorted keys of one bucket of dedup
    group_rows: int = 1 << 15  # documents whose keys are sorted together
    named_documents: int = 1 << 21  # duplicates whose originals' names are in memory at once
    lock_seconds: float = 5.0  # to wait for another build: the last processes of a killed one may still be ending


DEFAULT_LIMITS = Limits()
