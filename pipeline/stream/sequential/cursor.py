"""Lanes with a cursor: for streams whose counts are unknown in advance, as text on the fly, filters and best fit.

A source deals its documents to ``C`` lanes for good, and gives them in windows (a block of a shard's documents, some
shuffled blocks of text) that can be made again from their place alone. A lane's cursor is five integers:

    epoch, file, block     where its window begins
    document, offset       the document there, in the window's order, and the token in it, that its next sequence begins at

Batch ``k`` of all ranks is ``B`` consecutive sequences of lane ``k % C``. So a place is the number of batches and the
cursors, and to resume is to make each lane's window again; nothing that was made of it is kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, StateError
from ..batch.rows import DocumentRows, Ends, Out, Rows
from ..order import Step

D = TypeVar("D", Rows, DocumentRows)
D_co = TypeVar("D_co", covariant=True)
Place = tuple[int, int, int]  # epoch, file, block
Cursor = list[int]  # epoch, file, block, document, offset

_LEAST = 1 << 14  # tokens that a lane asks for at once


class Chunk(NamedTuple):
    """Documents that were kept: their ids joined, the length of each, its number in the window; and who comes next."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    numbers: list[int]
    next: int


class Window(Protocol):
    """Some documents of one lane, in their order, from ``place`` to before ``following``."""

    place: Place
    following: Place

    def __len__(self) -> int: ...

    def take(self, index: int, tokens: int | None) -> Chunk:
        """Return those to keep from ``index`` on: about as many as make ``tokens`` tokens, or all that are left."""


class Windows(Protocol):
    """What a source offers to lanes; ``counts`` says how many documents were read, rejected and bad."""

    counts: Counter[str]

    def window(self, lane: int, place: Place) -> Window | None:
        """Return the window of ``lane`` that begins at ``place``, or None behind the last epoch."""

    @property
    def bytes_read(self) -> int: ...

    def close(self) -> None: ...


class Reader:
    """The kept documents of one lane, from a place on.

    ``name`` says which lane it is to the error that an ``endless`` one raises where a whole epoch keeps none.
    """

    def __init__(self, windows: Windows, lane: int, cursor: Cursor, name: str, endless: bool) -> None:
        epoch, file, block, self._index, _ = cursor
        self._windows = windows
        self._lane = lane
        self._name = name
        self._endless = endless
        self._place: Place = (epoch, file, block)
        self._window: Window | None = None
        # The last epoch that is known to have kept a token, or that was not gone through from its beginning.
        self._kept = epoch if any(cursor[1:]) else epoch - 1

    @property
    def cursor(self) -> Cursor:
        """Where ``take`` goes on."""
        if self._window is not None and self._index >= len(self._window):
            return [*self._window.following, 0, 0]
        return [*self._place, self._index, 0]

    def take(self, tokens: int | None) -> tuple[Place, Chunk] | None:
        """Return a chunk that holds at least one document and the place of its window, or None at the end.

        With ``tokens`` None it is all that is left of the window. Raises ``ConfigError`` where a whole epoch keeps none.
        """
        while True:
            if self._window is None:
                self._window = self._windows.window(self._lane, self._place)
                if self._window is None:
                    return None
            window = self._window
            if self._index >= len(window):
                self._place, self._index, self._window = window.following, 0, None
                self._refuse_barren()
                continue
            chunk = window.take(self._index, tokens)
            self._index = chunk.next
            if len(chunk.ids):
                self._kept = window.place[0]
            if len(chunk.lengths):
                return window.place, chunk

    def _refuse_barren(self) -> None:
        if not self._endless or self._place[0] - self._kept < 2:
            return
        counts = self._windows.counts
        raise ConfigError(
            f"{self._name} found no document to keep in a whole epoch ({counts['documents']} read so far, "
            f"{counts['rejected']} rejected by filters, {counts['bad_records']} bad); loosen the filter, or give fewer "
            "lanes with .shuffle(lanes=...)"
        )


class Lane(Protocol[D_co]):
    """One lane's sequences; ``cursor`` is where the next one begins."""

    @property
    def cursor(self) -> Cursor: ...

    def draw(self, count: int) -> D_co | None:
        """Return up to ``count`` sequences, None only at the end of a bounded stream."""


def join_rows(parts: list[Rows]) -> Rows:
    """Return packed rows that were drawn one after another as one, in arrays of their own."""
    if len(parts) == 1:
        return parts[0]
    tokens = [part.tokens for part in parts if part.tokens is not None]
    ends = [part.document_ends for part in parts if part.document_ends is not None]
    if not parts:
        return Rows(0, None, None)
    before = np.cumsum([0, *(len(each.places) for each in ends)]).tolist()
    spans = [each.spans + start for each, start in zip(ends, before, strict=False)]
    width = tokens[0].shape[1]
    valid = [np.full(part.filled, width) if part.valid is None else part.valid for part in parts]
    cut = any(part.valid is not None for part in parts)
    return Rows(
        sum(part.filled for part in parts),
        np.concatenate(tokens),
        Ends(np.concatenate([each.places for each in ends]), np.concatenate(spans)),
        np.concatenate(valid) if cut else None,
    )


def join_documents(parts: list[DocumentRows]) -> DocumentRows:
    """Return documents that were drawn one after another."""
    documents = [document for part in parts for document in part.documents]
    return DocumentRows(len(documents), documents)


class PackedLane:
    """A lane's kept documents as one token stream: sequences of ``width`` tokens, ``stride`` apart."""

    def __init__(self, reader: Reader, cursor: Cursor, dtype: np.dtype[Any], *, stride: int, width: int) -> None:
        self._reader = reader
        self._stride = stride
        self._width = width
        self._skip = cursor[4]  # tokens of the first document that were handed out before
        self._tokens = np.empty(0, dtype)
        self._at = 0  # where in them the next sequence begins
        # Where each document of `tokens` begins, and its place.
        self._begins = np.empty(0, np.int64)
        self._places: list[tuple[int, ...]] = []

    @property
    def cursor(self) -> Cursor:
        if self._at >= len(self._tokens):
            return self._reader.cursor
        # Of documents that begin at one token, all but the last hold none.
        document = int(self._begins.searchsorted(self._at, side="right")) - 1
        return [*self._places[document], self._at - int(self._begins[document])]

    def draw(self, count: int) -> Rows | None:
        self._fill((count - 1) * self._stride + self._width)
        left = len(self._tokens) - self._at
        count = min(count, -(-left // self._stride))
        if count <= 0:
            return None
        begins = self._at + np.arange(count) * self._stride
        whole = (count - 1) * self._stride + self._width
        valid = None
        tokens = self._tokens[self._at :]
        if left < whole:  # the stream ends here
            valid = np.minimum(left - np.arange(count) * self._stride, self._width)
            tokens = np.concatenate([tokens, np.zeros(whole - left, tokens.dtype)])
        rows = np.lib.stride_tricks.sliding_window_view(tokens[:whole], self._width)[:: self._stride]
        ends = np.unique(self._stops)
        cuts = ends.searchsorted(np.stack([begins, begins + self._width]), side="right").tolist()
        inside = [ends[first:last] - begin for begin, first, last in zip(begins.tolist(), *cuts, strict=True)]
        # Past the end the cursor is the reader's, so that the last sequence leaves nothing behind.
        self._at = min(self._at + count * self._stride, len(self._tokens))
        return Rows(count, rows, Ends.of(inside), valid)

    @property
    def _stops(self) -> NDArray[np.int64]:
        """Where each document of ``tokens`` ends."""
        return np.append(self._begins, len(self._tokens))[1:]

    def _fill(self, size: int) -> None:
        """Have at least ``size`` tokens from the next sequence's first, where the stream has them."""
        have = len(self._tokens) - self._at
        if have >= size:
            return
        going = self._stops > self._at  # documents that are not handed out yet
        self._places = [place for place, still in zip(self._places, going.tolist(), strict=True) if still]
        begins, parts = [self._begins[going] - self._at], [self._tokens[self._at :]]
        while have < size and (found := self._reader.take(max(size - have, _LEAST))) is not None:
            place, chunk = found
            ids, starts = chunk.ids, np.cumsum(chunk.lengths) - chunk.lengths
            begins.append(starts + (have - self._skip))
            parts.append(ids[self._skip :])
            self._skip = 0
            have += len(parts[-1])
            self._places += [(*place, number) for number in chunk.numbers]
        self._tokens, self._at, self._begins = np.concatenate(parts), 0, np.concatenate(begins)


class DocumentLane:
    """A lane's kept documents, one a sequence."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ready: deque[tuple[Cursor, NDArray[Any]]] = deque()

    @property
    def cursor(self) -> Cursor:
        return list(self._ready[0][0]) if self._ready else self._reader.cursor

    def draw(self, count: int) -> DocumentRows | None:
        while len(self._ready) < count and (found := self._reader.take(_LEAST)) is not None:
            place, chunk = found
            documents = np.split(chunk.ids, np.cumsum(chunk.lengths)[:-1])
            self._ready += [([*place, n, 0], ids) for n, ids in zip(chunk.numbers, documents, strict=True)]
        drawn = [self._ready.popleft()[1] for _ in range(min(count, len(self._ready)))]
        return DocumentRows(len(drawn), drawn) if drawn else None


class Lanes(Generic[D]):
    """The reader of a sequential stream: ``own`` of ``count`` lanes, each made when it is first drawn from.

    ``make_lane`` makes a lane from its number and cursor, ``join`` one of the rows that lanes gave. Batch ``k`` of all ranks
    is ``batch_size`` sequences of lane ``k % count``. In a ``bounded`` stream a turn of a lane that ended, or ends, goes on
    with the lanes after it.
    """

    def __init__(
        self,
        windows: Windows,
        make_lane: Callable[[int, Cursor], Lane[D]],
        join: Callable[[list[D]], D],
        *,
        count: int,
        own: range,
        cursors: Mapping[str, Cursor],
        batch_size: int,
        ranks: int,
        bounded: bool,
    ) -> None:
        if missing := [lane for lane in own if str(lane) not in cursors]:
            raise missing_lanes(missing, count)
        self.lanes = ranks  # each rank takes whole batches
        self.alignment = batch_size * ranks
        self._windows = windows
        self._make_lane: Callable[[int, Cursor], Lane[D]] = make_lane
        self._join: Callable[[list[D]], D] = join
        self._count = count
        self._batch_size = batch_size
        self._bounded = bounded
        self._cursors = {str(lane): cursors[str(lane)] for lane in own}
        self._lanes: dict[int, Lane[D]] = {}

    @property
    def cursors(self) -> dict[str, Cursor]:
        """The cursors of our lanes after what was read, by their number, for the state."""
        return dict(self._cursors)

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return what was read, and the epoch of the lane that has come least far."""
        return lane_stats(self._windows.counts, self._windows.bytes_read, self._cursors)

    def read(self, step: Step, out: Out | None = None) -> D:
        """Return the next sequences of the lane whose turn it is; fewer only at the end of the stream."""
        size, batch = self._batch_size, step.begin // self._batch_size
        ahead = (step.rank - batch) % step.ranks
        asked = len(range(min(size, max(0, step.size - ahead * size)))[step.first : step.last])
        rows = self._join(self._draw(batch + ahead, asked))
        return rows if rows.filled == asked else rows._replace(missing=asked - rows.filled)

    def _draw(self, turn: int, count: int) -> list[D]:
        drawn: list[D] = []
        for number in range(turn, turn + (self._count if self._bounded else 1)):
            lane = number % self._count
            while count > 0:
                if lane not in self._lanes:
                    self._lanes[lane] = self._make_lane(lane, self._cursors[str(lane)])
                if (part := self._lanes[lane].draw(count)) is None:
                    break
                drawn.append(part)
                count -= part.filled
            if lane in self._lanes:
                self._cursors[str(lane)] = self._lanes[lane].cursor
            if count == 0:
                break
        return drawn

    def close(self) -> None:
        """Close the files."""
        self._windows.close()


def lane_stats(counts: Counter[str], bytes_read: int, cursors: Mapping[str, Cursor]) -> dict[str, Any]:
    """Return what lanes count, and the epoch of the one that has come least far."""
    told: dict[str, Any] = {name: counts[name] for name in ("documents", "rejected", "bad_records", "damaged_files")}
    epoch = min((cursor[0] for cursor in cursors.values()), default=0)
    return {**told, "bytes_read": bytes_read, "epoch": epoch}


def beginning(epoch: int, lanes: int) -> dict[str, Cursor]:
    """Return the cursors of all lanes at the start of ``epoch``."""
    return {str(lane): [epoch, 0, 0, 0, 0] for lane in range(lanes)}


def missing_lanes(missing: list[int], count: int) -> StateError:
    """Return the error for a state that lacks lanes."""
    named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return StateError(
        f"the state lacks lanes {named} ({len(missing)} of {count}): each rank saves its own; join the states of all "
        "ranks with pipeline.merge_states([...]) to go on with other ranks"
    )
