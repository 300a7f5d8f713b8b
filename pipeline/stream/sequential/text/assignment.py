"""The blocks of text files that each lane reads in an epoch, and their order: computed from the sizes of files alone.

From the largest to the smallest::

    group    the lanes that make one row of every batch; each group reads a part of all files
    cycle    the files that a group reads at a time, as many as it has lanes; when they end, its next cycle begins
    round    one step through the files of a cycle, in which each lane of the group reads one block of each
    block    a run of records of one file, about 32 KiB

An example: four files A to D of 6, 3, 2 and 1 blocks of the same size, and 4 lanes for 2 rows of a batch, without a seed. Lanes
0 and 2 make the first row of every batch, so they are group 0; lanes 1 and 3 are group 1::

    the line    A0 A1 A2 A3 A4 A5 | B0 B1 B2 C0 C1 D0       all files side by side, cut into equal parts, one a group
    cycles      [A]               | [B, C], then [D]        at most two files, as a group has two lanes

                cycle 0                             cycle 1
                round 0     round 1     round 2     round 0
    lane 0      A0          A2          A4
    lane 2      A1          A3          A5
    lane 1      B0 C1       B2                      D0
    lane 3      B1 C0

In each round, neighbouring blocks of a file go to different lanes. A window of a lane is some of its rounds, one after another:
their documents are shuffled together.

The definition
==============
A *file part* is read by itself: a file, row groups of Parquet if there are fewer files than lanes, or a byte range of plain JSON
Lines (`FormatReader.part_rows`, `cut_anywhere`). Epoch ``e`` permutes the file parts by ``key("text pieces", seed, e)`` and puts
them side by side on a line, each as long as its weight. The line is cut into equal parts, one for each group (the lanes of one
row of a batch).

Every epoch has a rotation ``u = key("text turns", seed, e)`` (0 without a seed), so that lanes get other blocks in each epoch.

A file part inside one group's part of the line belongs to that group. A file part that touches the parts of ``n`` groups is
shared. It has ``8 n`` equal slots, and its block ``b`` has slot ``k = (b + u) * s % (8 n)``. The block belongs to the group in
whose part of the line the middle of slot ``k`` is. ``s`` is the first number from ``(8 n) * 5 // 8`` on that is coprime to
``8 n``.

A *cycle* is the ``cycle_length`` file parts that a group reads at a time: as many as the group has lanes, but at most ``128 //
groups``, and at least 1. The group's block ``c`` (from 0) of file part ``q`` of a cycle belongs to the group's lane ``(c + q + (u
>> 32)) % lanes``, which reads it in round ``c // lanes``: in *round* ``r``, each lane reads its block ``r`` of each file part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....text.formats import format_of, is_named_compressed
from ....text.readers.format_reader import WHOLE, FileSpan, load_reader
from ....text.storage.input_file import InputFile
from ....weak_methods import weak_lru_cache
from ...order import derive_key, permutation

if TYPE_CHECKING:
    from ...datasets.sources.text_data import TextData

_BLOCKS_A_GROUP = 8  # of a shared file part, before each group gets blocks again
_PARTS_OPEN = 128  # of all groups together
_PART_BYTES = 256 << 10  # of plain JSON Lines, less for little input
_PARTS_A_LANE = 4
_MOST_PARTS = 1 << 17
_REQUESTS_AT_ONCE = 4


class FilePart(NamedTuple):
    """A part of a file that is read by itself: the whole file, or a span after ``lines`` rows. ``weight`` is about its bytes."""

    file: int
    span: FileSpan
    weight: int
    lines: int = 0


class BlockShare(NamedTuple):
    """How groups divide a run of blocks of a shared file part.

    ``groups`` is the group of each block, ``numbers`` its number among the group's blocks, ``blocks_of`` each group's blocks.
    """

    groups: list[int]
    numbers: list[int]
    blocks_of: dict[int, list[int]]


def cut_file_parts(data: TextData, lanes: int) -> list[FilePart]:
    """Return the parts of the files for ``lanes`` lanes; one lane reads whole files."""
    sizes = [data.size_of(file) for file in data.files]
    lines = [load_reader(format_of(file)).cut_anywhere and not is_named_compressed(file) for file in data.files]
    plain = sum(size for size, is_plain in zip(sizes, lines, strict=True) if is_plain)
    step = max(1, min(_PART_BYTES, plain // (_PARTS_A_LANE * lanes)), plain // _MOST_PARTS)
    rows = _rows_of_parts(data.files) if 1 < lanes > len(data.files) else {}
    parts = []
    for number, (file, size) in enumerate(zip(data.files, sizes, strict=True)):
        if lanes > 1 and lines[number] and size > step:
            count = -(-size // step)
            cuts = [size * k // count for k in range(count + 1)]
            parts += [FilePart(number, FileSpan(*cut), cut[1] - cut[0]) for cut in pairwise(cuts)]
            continue
        weight = max(1, data.weight_of(file))
        parts += _parts(number, rows.get(number, []), weight)
    return parts


def _rows_of_parts(files: list[InputFile]) -> dict[int, list[int]]:
    """Return the rows of each part of the files that have parts, by file number. Remote files are asked all at once."""
    count = {number: load_reader(format_of(file)).part_rows for number, file in enumerate(files)}
    wanted = [(number, files[number], rows) for number, rows in count.items() if rows]
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="shardwright-footer") as threads:
        apply = threads.map if any(file.stored for _, file, _ in wanted) else map
        return dict(apply(lambda one: (one[0], one[2](one[1])), wanted))


def _parts(number: int, rows: list[int], weight: int) -> list[FilePart]:
    if len(rows) < 2:
        return [FilePart(number, WHOLE, weight)]
    total, before, parts = max(1, sum(rows)), 0, []
    for group, count in enumerate(rows):
        parts.append(FilePart(number, FileSpan(group, group + 1), max(1, weight * count // total), before))
        before += count
    return parts


class BlockAssignment:
    """Makes the assignment of each epoch, of blocks of file parts to ``groups`` groups of ``lanes`` lanes."""

    def __init__(self, parts: list[FilePart], *, groups: int, lanes: int, seed: int | None) -> None:
        self.groups = groups
        self._parts = parts
        self._lanes = lanes
        self._seed = seed
        self.epoch = weak_lru_cache(self._epoch, 4)

    def _epoch(self, epoch: int) -> EpochAssignment:
        if self._seed is None:
            return EpochAssignment(self._parts, self.groups, self._lanes, 0)
        order = permutation(len(self._parts), derive_key("text pieces", self._seed, epoch))
        rotation = derive_key("text turns", self._seed, epoch)
        return EpochAssignment([self._parts[number] for number in order.tolist()], self.groups, self._lanes, rotation)


class EpochAssignment:
    """Says for one epoch which lane reads which block. ``parts`` are numbered in the epoch's order.

    In the example of the module, the blocks of B have these lanes, cycles and rounds:

    >>> files = [FilePart(number, WHOLE, blocks) for number, blocks in enumerate([6, 3, 2, 1])]
    >>> assignment = EpochAssignment(files, groups=2, lanes=2, rotation=0)
    >>> assignment.cycle(1, 0), assignment.cycle(1, 1), [assignment.lane_of(1, block) for block in range(3)]
    (range(1, 3), range(3, 4), [(1, 0, 0), (3, 0, 0), (1, 0, 1)])
    """

    def __init__(self, parts: list[FilePart], groups: int, lanes: int, rotation: int) -> None:
        self.parts = parts
        self._groups, self._lanes = groups, lanes
        self._cycle_length = max(1, min(lanes, _PARTS_OPEN // groups))
        self._rotation, self._lane_rotation = rotation, rotation >> 32
        self._weights = np.array([one.weight for one in parts], np.int64)
        self._stops = np.cumsum(self._weights)
        self._total = int(self._stops[-1])
        self._first = (self._stops - self._weights) * groups // self._total
        self._last = (self._stops * groups - 1) // self._total
        self._share: Callable[[int], BlockShare | None] = weak_lru_cache(self._make_share, None)
        self._parts_of: Callable[[int], range] = weak_lru_cache(self._find_parts_of, None)

    def cycle(self, group: int, number: int) -> range:
        """Return the numbers of the file parts of a group's cycle; empty after its last cycle."""
        return self._parts_of(group)[number * self._cycle_length : (number + 1) * self._cycle_length]

    def block(self, group: int, part: int, lane: int, round: int) -> int:
        """Return the number of the block of a part that the ``lane``-th lane of a group reads in a round of the cycle."""
        q = (part - self._parts_of(group).start) % self._cycle_length
        number = round * self._lanes + (lane - q - self._lane_rotation) % self._lanes
        share = self._share(part)
        if share is None:
            return number
        blocks = share.blocks_of[group]
        run, at = divmod(number, len(blocks))
        return run * len(share.groups) + blocks[at]

    def lane_of(self, part: int, block: int) -> tuple[int, int, int]:
        """Return the lane of the stream that reads a block, and the cycle and round of the block."""
        share = self._share(part)
        if share is None:
            group, number = int(self._first[part]), block
        else:
            run, at = divmod(block, len(share.groups))
            group = share.groups[at]
            number = run * len(share.blocks_of[group]) + share.numbers[at]
        cycle, q = divmod(part - self._parts_of(group).start, self._cycle_length)
        round, at = divmod(number, self._lanes)
        return (at + q + self._lane_rotation) % self._lanes * self._groups + group, cycle, round

    def _find_parts_of(self, group: int) -> range:
        """Return the numbers of all file parts of a group. They are neighbours; the first and the last may be shared."""
        first = int(self._last.searchsorted(group, side="left"))
        stop = int(self._first.searchsorted(group, side="right"))
        if first < stop and not self._has(group, first):
            first += 1
        if first < stop and not self._has(group, stop - 1):
            stop -= 1
        return range(first, max(first, stop))

    def _has(self, group: int, part: int) -> bool:
        share = self._share(part)
        return share is None or group in share.blocks_of

    def _make_share(self, part: int) -> BlockShare | None:
        """Return how the blocks of a shared file part are divided; None if a single group reads the part."""
        first, last = int(self._first[part]), int(self._last[part])
        if first == last:
            return None
        count = _BLOCKS_A_GROUP * (last - first + 1)
        weight, begin = int(self._weights[part]), int(self._stops[part] - self._weights[part])
        spread = next(number for number in range(count * 5 // 8, 2 * count) if math.gcd(number, count) == 1)
        slots = ((block + self._rotation) * spread % count for block in range(count))
        groups = [
            (2 * count * begin + weight * (2 * slot + 1)) * self._groups // (2 * count * self._total) for slot in slots
        ]
        blocks_of: dict[int, list[int]] = {}
        numbers = []
        for block, group in enumerate(groups):
            numbers.append(len(blocks_of.setdefault(group, [])))
            blocks_of[group].append(block)
        return BlockShare(groups, numbers, blocks_of)
