"""Lanes of a sequential stream: their number, the lanes that a rank and a worker read, and the cursor of each lane.

A cursor is the position of a lane: a window, which can be made again from its start alone, and a unit in it. It is four integers:

    epoch, cycle, round     the start of the window; for shards, cycle is 0 and round counts the lane's windows
    unit                    the token of the window at which the next sequence begins; for whole documents and best fit, the
                            number of the sequence in the window

A lane of a mix has four such integers for each source, in the order of their names. For a live source, ``cycle`` counts the
records of the epoch before the window. ``round`` is the source's own state at the window as text, or 0 at the start of an epoch.
All lanes of a rank share one position in a live source: the cursor of the first lane holds that state, the others hold 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, StateError, first_few

WINDOW_BYTES = 256 << 20  # of the windows of all lanes together
_FIRST_BLOCKS = 4  # of a lane's first window of text
_LANES_A_ROW = (4, 12, 24, 48)
_FEWER_A_ROW = (24, 12, 4, 2, 1)
_LEAST_LANES = 64

# For best fit: enough documents that little is padded, few enough to stay in memory.
_LEAST_SEQUENCES = 16  # that a lane has in an epoch; with fewer, more than about 5% may be padding
_WINDOW_SEQUENCES = 32  # that a window has at least, whatever memory that takes
_MOST_SEQUENCES = 256  # that a window has
_MOST_BYTES = 512 << 20  # of all windows if each has `_WINDOW_SEQUENCES`


@dataclass(frozen=True, slots=True)
class Lanes:
    """``count`` lanes make the ``rows`` of a global batch: row ``j`` of step ``k`` comes from lane (k * rows + j) % count.

    ``count`` is a multiple of ``rows``. If it is smaller than ``rows``, one rank without workers reads all lanes.

    >>> lanes = Lanes(rows=4, count=8)
    >>> lanes.local(rank=1, world_size=2), lanes.local(rank=1, world_size=2, step=1, every=2)
    ([2, 3, 6, 7], [6, 7])
    """

    rows: int
    count: int

    @property
    def groups(self) -> int:
        """The number of groups. The lanes of one row form a group: lane ``l`` is in group ``l % groups``."""
        return min(self.rows, self.count)

    @property
    def group_size(self) -> int:
        return self.count // self.groups

    def local(self, rank: int, world_size: int, step: int = 0, every: int = 1) -> list[int]:
        """Return the lanes of a rank, or of its worker that makes step ``step`` and each ``every``-th step after it."""
        if self.count < self.rows or (world_size, every) == (1, 1):
            return list(range(self.count))
        share = self.rows // world_size
        first = range(step % every, self.group_size, every)
        return [number * self.rows + row for number in first for row in range(rank * share, (rank + 1) * share)]

    def check(self, world_size: int, workers: int, *, is_shuffled: bool) -> None:
        """Raise ``ConfigError`` if ranks and workers cannot share the lanes, naming numbers that can."""
        if self.count < self.rows:
            if world_size * workers == 1:
                return
            cause, cure = "an unshuffled stream has one lane", "add .shuffle()"
            if is_shuffled:
                records = "is 1 record" if self.count == 1 else f"are {self.count} records"
                cause = f"there {records} for the {self.rows} rows of a global batch (ranks x batch size)"
                cure = "give more input, take smaller batches"
            raise ConfigError(
                f"{cause}, which {world_size} ranks of {workers} workers cannot share; {cure} or iterate on one rank "
                "without workers"
            )
        if self.group_size % workers:
            allowed = [count for count in range(1, self.group_size + 1) if self.group_size % count == 0]
            rounds = max(1, _LANES_A_ROW[0] // workers)  # lanes of a row for each worker
            raise ConfigError(
                f"each row of a batch comes from {self.group_size} lanes, which {workers} workers cannot share: use "
                f"num_workers of one of {allowed}, or .shuffle(lanes={self.rows * workers * rounds})"
            )


def make_lanes(
    rows: int,
    stated: int | None,
    records: Callable[[int], int],
    most_a_row: int | None = None,
    *,
    is_shuffled: bool = True,
) -> Lanes:
    """Return the lanes of a stream with ``rows`` rows in a global batch: one lane if it is not shuffled.

    ``stated`` is the number that the user asked for. ``records(most)`` counts the records of an epoch up to ``most``;
    ``most_a_row`` bounds the lanes of a row. Raises ``ConfigError`` for stated lanes that are no multiple of ``rows``.

    >>> [make_lanes(rows, None, lambda most: most).count for rows in (1, 2, 8, 16, 100)], make_lanes(4, None, lambda most: 9)
    ([48, 96, 96, 64, 400], Lanes(rows=4, count=8))
    """
    if not is_shuffled:
        return Lanes(rows, 1)
    if stated is not None:
        if stated % rows:
            below, above = stated // rows * rows, -(-stated // rows) * rows
            raise ConfigError(
                f"lanes={stated} is no multiple of the {rows} rows of a global batch (ranks x batch size), and each row needs "
                f"its own lanes; use lanes={above}{f' or {below}' if below else ''}"
            )
        return Lanes(rows, stated)
    wanted = next((count for count in _LANES_A_ROW if count * rows >= _LEAST_LANES), _LANES_A_ROW[-1])
    if most_a_row is not None:
        wanted = min(wanted, most_a_row)
    total = records(wanted * rows)
    if total < rows:
        return Lanes(rows, max(1, total))
    if wanted not in _LANES_A_ROW or total < wanted * rows:
        wanted = next(count for count in _FEWER_A_ROW if count <= min(wanted, total // rows))
    return Lanes(rows, wanted * rows)


def lane_bytes(lanes: int, sources: int) -> int:
    """Return how many bytes the windows of one lane may hold of one source, if all lanes and all sources share the memory."""
    return WINDOW_BYTES // (lanes * max(1, sources))


def best_fit_tokens(seq_len: int, tokens: int) -> int:
    """Return how many tokens best fit packs at a time if memory holds ``tokens`` for each lane.

    >>> best_fit_tokens(2048, 1 << 21) // 2048, best_fit_tokens(131_072, 1 << 20) // 131_072
    (256, 32)
    """
    return seq_len * max(_WINDOW_SEQUENCES, min(_MOST_SEQUENCES, tokens // seq_len))


def best_fit_lanes_a_row(seq_len: int, rows: int, tokens: int, item: int) -> int:
    """Return how many lanes a row of the global batch may have, so that a window of each has enough sequences for best fit.

    An epoch has ``tokens`` tokens of ``item`` bytes.

    >>> [best_fit_lanes_a_row(seq_len, 2, 10**12, 4) for seq_len in (2048, 65_536)], best_fit_lanes_a_row(2048, 2, 1 << 20, 4)
    ([1024, 32], 16)
    """
    fit = _MOST_BYTES // (_WINDOW_SEQUENCES * seq_len * item)
    return max(1, min(tokens // seq_len // _LEAST_SEQUENCES, fit) // rows)


@dataclass(frozen=True, slots=True)
class TextWindowSize:
    """The rule for the end of a lane's window of text. A window consists of whole rounds.

    A window ends with the round that reaches ``bytes`` of blocks, or so many ``blocks`` if these are stated. The first windows
    of an epoch are shorter, so that the first batch is ready soon: a window that starts at cycle ``b``, round ``r`` ends with
    the round that reaches max(4, 4 * (b + r)) blocks and ``least`` bytes.
    """

    bytes: int
    least: int = 0
    blocks: int | None = None

    def reached(self, start: tuple[int, int, int], size: int, blocks: int) -> bool:
        """Say whether a window that begins at ``start`` ends after ``size`` bytes in ``blocks`` blocks."""
        if self.blocks is not None:
            return blocks >= self.blocks and size >= self.least
        if size >= self.bytes:
            return True
        return size >= self.least and blocks >= _FIRST_BLOCKS * max(1, start[1] + start[2])


WindowStart = tuple[int, int, Any]  # epoch, cycle, round
Cursor = list[Any]  # epoch, cycle, round, unit
STATE_OF_SOURCE = 2  # the index of its state in a cursor
NUMBERS = 4  # of a cursor, for each source


def part_of_source(cursor: Cursor, source: int) -> Cursor:
    return cursor[NUMBERS * source : NUMBERS * (source + 1)]


def missing_lanes(missing: list[int], count: int, number: int | None = None) -> StateError:
    """Return the error for a state that lacks lanes: ``missing``, or ``number`` lanes of which ``missing`` are the first."""
    return StateError(
        f"the state lacks lanes {first_few(missing, 8)} ({number or len(missing)} of {count}): each rank saves its own lanes; "
        "join the states of all ranks with pipeline.merge_states([...]) to go on with other ranks"
    )
