"""Which blocks of text files each lane reads in an epoch, and when: computed from the sizes of files alone.

Pieces are what can be read apart: a file, row groups of Parquet where there are fewer files than lanes, byte ranges of
plain JSON Lines (`FormatReader.part_rows`, `cut_anywhere`). Epoch ``e`` permutes them by (seed, e) and lays them side by side on
a line, as long as their weights. The line is cut into equal parts, one for each group of lanes (the lanes of one row of a
batch).

Every epoch has a turn ``u = key("text turns", seed, e)`` (0 without a seed), so that lanes get other blocks in each epoch.

A piece inside one part belongs to that group. A longer one is shared: its blocks come in turns of ``8 n``, for the ``n`` groups
that it touches; block ``b`` has slot ``k = (b + u) * s % (8 n)`` (``s`` the first number from ``(8 n) * 5 // 8`` on that is
coprime to ``8 n``), and belongs to the group in whose part the middle of slot ``k`` lies, of ``8 n`` equal slots of the piece.

A group reads ``width`` of its pieces at a time: a bundle. Of the piece ``q`` of a bundle, the group's block ``c`` (from 0)
belongs to lane ``(c + q + (u >> 32)) % lanes`` of the group's, which reads it in round ``c // lanes``; so each round gives a lane
a block of each piece. ``width`` is as many as the group has lanes, but at most ``128 // groups``, and at least 1.
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
    from ...data.text import TextData

_TURNS = 8
_PIECES_OPEN = 128  # of all groups together
_PIECE_BYTES = 256 << 10  # of plain JSON Lines, less for little input
_PIECES_A_LANE = 4
_MOST_PIECES = 1 << 17
_REQUESTS_AT_ONCE = 4


class Piece(NamedTuple):
    """What is read apart of a file: all of it, or a span. ``lines``: rows of the file before it; ``weight`` from its bytes."""

    file: int
    span: FileSpan
    weight: int
    lines: int = 0


class Slot(NamedTuple):
    """A piece's turn of blocks: the group of each, its number among the group's in the turn, and how many each group has."""

    groups: list[int]
    numbers: list[int]
    own: dict[int, list[int]]


def cut_pieces(data: TextData, lanes: int) -> list[Piece]:
    """Return the pieces of the files, for ``lanes`` lanes; one lane reads files as they are."""
    sizes = [data.size_of(file) for file in data.files]
    lines = [load_reader(format_of(file)).cut_anywhere and not is_named_compressed(file) for file in data.files]
    plain = sum(size for size, is_plain in zip(sizes, lines, strict=True) if is_plain)
    step = max(1, min(_PIECE_BYTES, plain // (_PIECES_A_LANE * lanes)), plain // _MOST_PIECES)
    parts = _rows_of_parts(data.files) if 1 < lanes > len(data.files) else {}
    pieces = []
    for number, (file, size) in enumerate(zip(data.files, sizes, strict=True)):
        if lanes > 1 and lines[number] and size > step:
            count = -(-size // step)
            cuts = [size * k // count for k in range(count + 1)]
            pieces += [Piece(number, FileSpan(*cut), cut[1] - cut[0]) for cut in pairwise(cuts)]
            continue
        weight = max(1, data.weight_of(file))
        pieces += _parts(number, parts.get(number, []), weight)
    return pieces


def _rows_of_parts(files: list[InputFile]) -> dict[int, list[int]]:
    """Return the rows of each part of the files that have parts, by their numbers; remote ones are asked for together."""
    count = {number: load_reader(format_of(file)).part_rows for number, file in enumerate(files)}
    wanted = [(number, files[number], rows) for number, rows in count.items() if rows]
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="shardwright-footer") as threads:
        apply = threads.map if any(file.stored for _, file, _ in wanted) else map
        return dict(apply(lambda one: (one[0], one[2](one[1])), wanted))


def _parts(number: int, rows: list[int], weight: int) -> list[Piece]:
    if len(rows) < 2:
        return [Piece(number, WHOLE, weight)]
    total, before, pieces = max(1, sum(rows)), 0, []
    for group, count in enumerate(rows):
        pieces.append(Piece(number, FileSpan(group, group + 1), max(1, weight * count // total), before))
        before += count
    return pieces


class Deal:
    """The pieces of a stream's epochs, dealt to ``groups`` groups of ``lanes`` lanes."""

    def __init__(self, pieces: list[Piece], *, groups: int, lanes: int, seed: int | None) -> None:
        self.groups = groups
        self._pieces = pieces
        self._lanes = lanes
        self._seed = seed
        self.epoch = weak_lru_cache(self._epoch, 4)

    def _epoch(self, epoch: int) -> EpochDeal:
        if self._seed is None:
            return EpochDeal(self._pieces, self.groups, self._lanes, 0)
        order = permutation(len(self._pieces), derive_key("text pieces", self._seed, epoch))
        turn = derive_key("text turns", self._seed, epoch)
        return EpochDeal([self._pieces[number] for number in order.tolist()], self.groups, self._lanes, turn)


class EpochDeal:
    """The ``pieces`` of one epoch in its order, dealt under its turn. A piece is named by its place in this order."""

    def __init__(self, pieces: list[Piece], groups: int, lanes: int, turn: int) -> None:
        self.pieces = pieces
        self._groups, self._lanes = groups, lanes
        self._width = max(1, min(lanes, _PIECES_OPEN // groups))
        self._turn, self._lane_turn = turn, turn >> 32
        self._weights = np.array([piece.weight for piece in pieces], np.int64)
        self._stops = np.cumsum(self._weights)
        self._total = int(self._stops[-1])
        self._first = (self._stops - self._weights) * groups // self._total
        self._last = (self._stops * groups - 1) // self._total
        self._slot: Callable[[int], Slot | None] = weak_lru_cache(self._make_slot, None)
        self._places: Callable[[int], range] = weak_lru_cache(self._places_of, None)

    def bundle(self, group: int, number: int) -> range:
        """Return the places of the pieces of a group's bundle; none behind its last."""
        return self._places(group)[number * self._width : (number + 1) * self._width]

    def block(self, group: int, place: int, lane: int, round: int) -> int:
        """Return which block of a piece the ``lane``-th of a group's lanes reads in a round of the bundle."""
        q = (place - self._places(group).start) % self._width
        number = round * self._lanes + (lane - q - self._lane_turn) % self._lanes
        slot = self._slot(place)
        if slot is None:
            return number
        own = slot.own[group]
        turn, at = divmod(number, len(own))
        return turn * len(slot.groups) + own[at]

    def reader_of(self, place: int, block: int) -> tuple[int, int, int]:
        """Return the lane of the stream that reads a block, and the bundle and the round in which it does."""
        slot = self._slot(place)
        if slot is None:
            group, number = int(self._first[place]), block
        else:
            turn, at = divmod(block, len(slot.groups))
            group = slot.groups[at]
            number = turn * len(slot.own[group]) + slot.numbers[at]
        bundle, q = divmod(place - self._places(group).start, self._width)
        round, at = divmod(number, self._lanes)
        return (at + q + self._lane_turn) % self._lanes * self._groups + group, bundle, round

    def _places_of(self, group: int) -> range:
        """Return the places of all pieces of a group: neighbours, of which the first and the last may be shared."""
        first = int(self._last.searchsorted(group, side="left"))
        stop = int(self._first.searchsorted(group, side="right"))
        if first < stop and not self._has(group, first):
            first += 1
        if first < stop and not self._has(group, stop - 1):
            stop -= 1
        return range(first, max(first, stop))

    def _has(self, group: int, place: int) -> bool:
        slot = self._slot(place)
        return slot is None or group in slot.own

    def _make_slot(self, place: int) -> Slot | None:
        """Return the slots of a shared piece, None for one that a single group reads."""
        first, last = int(self._first[place]), int(self._last[place])
        if first == last:
            return None
        count = _TURNS * (last - first + 1)
        weight, begin = int(self._weights[place]), int(self._stops[place] - self._weights[place])
        spread = next(number for number in range(count * 5 // 8, 2 * count) if math.gcd(number, count) == 1)
        slots = ((block + self._turn) * spread % count for block in range(count))
        groups = [
            (2 * count * begin + weight * (2 * slot + 1)) * self._groups // (2 * count * self._total) for slot in slots
        ]
        own: dict[int, list[int]] = {}
        numbers = []
        for block, group in enumerate(groups):
            numbers.append(len(own.setdefault(group, [])))
            own[group].append(block)
        return Slot(groups, numbers, own)
