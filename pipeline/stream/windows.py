"""The endless shuffled token stream of one source, with random access.

``TokenStream.read(start, out)`` copies any range of tokens, across document, window and epoch borders: documents are
found by binary search in one array and copied as slices of memory maps by a single ``bytes.join``.
``TokenStream.fill`` fills all rows of a batch in one compiled call, where each lies in a window that is loaded, and
leaves the others to ``read``. Windows are kept, and built ahead in a thread.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptShardError
from . import kernels
from .order import ShardOrder
from .pool import ShardPool
from .rows import RowBuffer
from .window_index import Tokens, WindowIndex

_ROWS_AHEAD = 32
_TOKENS_AHEAD = 1 << 17
# For how many batches after a shard had to be opened again all lanes read ahead, each while those beside it, which need
# the same shards, do: more shards are in use than may be open.
_CROWDED = 512


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What compiled loops need of an epoch: tokens and documents before each of its windows, and its table of windows."""

    starts: NDArray[np.int64]
    document_starts: NDArray[np.int64]
    windows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What was read of a lane at once: ``rows`` rows of tokens from ``start`` of the stream on, and where documents end."""

    start: int
    tokens: Tokens
    ends: NDArray[np.int64]
    rows: int


class TokenStream:
    """Random access to the endless stream of one source's tokens and documents.

    ``order`` says which document comes when; ``pool`` opens shards; ``lanes`` read heads bound how many windows stay.
    """

    def __init__(self, order: ShardOrder, pool: ShardPool, dtype: np.dtype[Any], lanes: int) -> None:
        self.order = order
        self.dtype = dtype
        self.tokens_per_epoch = int(order.tokens.sum())
        self.documents_per_epoch = int(order.documents.sum())
        self.bytes_read = 0
        self._pool = pool
        self._keep = min(lanes, order.windows) + 2
        self._windows: dict[tuple[int, int], WindowIndex] = {}
        self._epochs: dict[int, _Epoch] = {}
        self._ahead: dict[tuple[int, int], Future[WindowIndex]] = {}
        self._held: dict[int, _Ahead] = {}
        self._misses = self._crowded = 0
        self._wanted: list[tuple[int, int]] = []
        self._builder: ThreadPoolExecutor | None = None
        self._stop_building: finalize[Any, Any] | None = None

    def read(self, start: int, out: Tokens, ends: list[NDArray[np.int64]] | None = None) -> None:
        """Fill ``out`` (1-D, stored dtype) with the tokens from ``start`` of the endless stream.

        ``ends``, if given, is extended by arrays of where documents end in it, ascending, from 1 to its length.
        """
        self.bytes_read += out.nbytes
        self._read(start, out, ends)
        if self._wanted:
            self._build_wanted()

    def _read(self, start: int, out: Tokens, ends: list[NDArray[np.int64]] | None) -> None:
        filled = 0
        while filled < len(out):
            epoch, token = divmod(start + filled, self.tokens_per_epoch)
            filled += self._copy(epoch, token, out, filled, ends)

    def fill(
        self,
        buffer: RowBuffer,
        rows: NDArray[np.int64],
        epoch: int,
        tokens: NDArray[np.int64],
        lanes: NDArray[np.int64],
        hints: NDArray[np.int64],
    ) -> None:
        """Fill ``rows`` of a buffer, each from its token of ``epoch`` on.

        ``hints[lanes]`` is where to look first for their documents; what was found is left there.
        """
        done, count, pool, item = 0, len(rows), self._pool, self.dtype.itemsize
        self.bytes_read += count * buffer.width * item
        if pool.misses != self._misses:
            self._misses, self._crowded = pool.misses, _CROWDED
        if self._crowded:
            self._crowded -= 1
            for token, row, lane in zip(tokens.tolist(), rows.tolist(), lanes.tolist(), strict=True):
                self._fill_row(buffer, row, epoch * self.tokens_per_epoch + token, lane)
            done = count
        while done < count:
            found = self._epoch(epoch)
            with pool.lock:
                done = kernels.gather(
                    done, tokens, lanes, hints, found.starts, found.windows, pool.table, pool.tick(), item, rows,
                    buffer.width, buffer.bytes, buffer.lag, buffer.late_bytes, buffer.places, buffer.spans, buffer.notes,
                )  # fmt: skip
            if near := int(buffer.notes[1]):
                for token in tokens[buffer.notes[2 : 2 + near]].tolist():
                    self._want(epoch, self.order.epoch(epoch).window_of_token(token) + 1)
            if done == count:
                break
            start = epoch * self.tokens_per_epoch + int(tokens[done])
            self._fill_row(buffer, int(rows[done]), start, int(lanes[done]))
            done += 1
        if self._wanted:
            self._build_wanted()

    def _fill_row(self, buffer: RowBuffer, row: int, start: int, lane: int) -> None:
        """Fill a row by reading, from what was read ahead of its lane if that reaches so far.

        Where row after row of a lane must be read, more and more are read at once, so that shards are opened for many.
        """
        width = buffer.width
        held = self._held.get(lane)
        if held is None or not held.start <= start <= held.start + len(held.tokens) - width:
            follows = held is not None and held.start < start <= held.start + 2 * _ROWS_AHEAD * width
            rows = min(2 * held.rows, _ROWS_AHEAD, max(1, _TOKENS_AHEAD // width)) if held and follows else 1
            out = np.empty(rows * width, self.dtype)
            ends: list[NDArray[np.int64]] | None = [] if len(buffer.places) else None
            self._read(start, out, ends)
            held = self._held[lane] = _Ahead(start, out, np.concatenate([buffer.places[:0], *(ends or [])]), rows)
        at = start - held.start
        first, last = held.ends.searchsorted([at, at + width], side="right")
        buffer.put(row, held.tokens[at : at + width], held.ends[first:last] - at)

    def documents_at(self, epoch: int, documents: NDArray[np.int64]) -> list[Tokens]:
        """Return documents of an epoch, given by their places in its shuffled order, as read-only views."""
        return [np.asarray(part) for part in self._parts(epoch, documents)[0]]

    def joined(self, epoch: int, documents: NDArray[np.int64]) -> tuple[Tokens, NDArray[np.int64]]:
        """Return the tokens of such documents one after the other, read-only, and how many each has."""
        parts, lengths = self._parts(epoch, documents)
        return np.frombuffer(b"".join(parts), self.dtype), lengths

    def _parts(self, epoch: int, documents: NDArray[np.int64]) -> tuple[list[memoryview], NDArray[np.int64]]:
        done, places = 0, np.empty((3, len(documents)), np.int64)
        while True:
            found = self._epoch(epoch)
            done = kernels.look_up(done, documents, found.document_starts, found.windows, self._pool.tick(), places)
            if done == len(documents):
                break
            self._window(epoch, self.order.epoch(epoch).window_of_document(int(documents[done])))
        lengths = places[2] - places[1]
        self.bytes_read += int(lengths.sum()) * self.dtype.itemsize
        return self._pool.slices(*places.tolist()), lengths

    def lengths(self, epoch: int, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens documents of an epoch have, given by their places in its shuffled order."""
        starts = self.order.epoch(epoch).document_starts
        windows = np.searchsorted(starts, documents, side="right") - 1
        found = np.empty(len(documents), np.int64)
        for number in np.unique(windows).tolist():
            mine = windows == number
            inside, ends = documents[mine] - starts[number], self._window(epoch, number).ends
            found[mine] = ends[inside + 1] - ends[inside]
        return found

    def _place(self, epoch: int, token: int, count: int) -> tuple[tuple[int, int], int, int]:
        """Return the window that holds a token of an epoch, the token's place in it, and the window's size."""
        order = self.order.epoch(epoch)
        number = order.window_of_token(token)
        begin, end = int(order.starts[number]), int(order.starts[number + 1])
        if end - token < kernels.BUILD_AHEAD + count:
            self._want(epoch, number + 1)
        return (epoch, number), token - begin, end - begin

    def _copy(self, epoch: int, token: int, out: Tokens, at: int, found: list[NDArray[np.int64]] | None) -> int:
        """Copy as many tokens into ``out[at:]`` as the window at this place can give; return how many."""
        key, inside, size = self._place(epoch, token, len(out) - at)
        window = self._window(*key)
        stop = min(inside + len(out) - at, size)
        first, last = window.cut(inside, stop)
        shards, begins, stops = window.slices(first, last)
        before = window.ends[first : last + 1] - inside
        begins[0] -= int(before[0])
        stops[-1] -= int(before[-1]) + inside - stop
        count = stop - inside
        joined = np.frombuffer(b"".join(self._pool.slices(shards, begins, stops)), self.dtype)
        if len(joined) < count:
            raise CorruptShardError(
                f"shards {sorted(set(shards))} hold {len(joined)} of {count} tokens that their indexes promise: one was "
                "changed or cut while it was read; copy it again or rebuild it"
            )
        out[at : at + count] = joined
        if found is not None:
            complete = before[1:] if before[-1] == count else before[1:-1]
            if window.empty:  # a document of no tokens ends where another one does
                complete = np.unique(complete)
            found.append(complete + at if at else complete)
        # Through with it, it is the first to go.
        self._epoch(epoch).windows[key[1], kernels.USED] = 0 if stop == size else self._pool.tick()
        return count

    def _epoch(self, number: int) -> _Epoch:
        epoch = self._epochs.get(number)
        if epoch is None:
            windows = np.zeros((self.order.windows, kernels.WINDOW_COLUMNS), np.int64)
            order = self.order.epoch(number)
            epoch = self._epochs[number] = _Epoch(np.array(order.starts), np.array(order.document_starts), windows)
        return epoch

    def _window(self, epoch: int, number: int) -> WindowIndex:
        """Return a window's index, from memory, from the builder thread, or made now."""
        key = (epoch, number)
        window = self._windows.get(key)
        if window is None:
            ahead = self._ahead.pop(key, None)
            window = self._build(epoch, number) if ahead is None or ahead.cancel() else ahead.result()
            while len(self._windows) >= self._keep:
                oldest = min(self._windows, key=lambda key: int(self._epochs[key[0]].windows[key[1], kernels.USED]))
                self._epochs[oldest[0]].windows[oldest[1]] = 0
                del self._windows[oldest]
            self._windows[key] = window
            self._epoch(epoch).windows[number] = *window.addresses, self._pool.tick()
            for unused in {*self._epochs} - {epoch for epoch, _ in self._windows}:
                del self._epochs[unused]
        return window

    def _build(self, epoch: int, number: int) -> WindowIndex:
        numbers = self.order.epoch(epoch).window_shards(number)
        opened = [self._pool.open(shard) for shard in numbers]
        documents = sum(len(shard.lengths) for shard in opened)
        return WindowIndex.of(numbers, opened, self.order.document_order(epoch, number, documents))

    def _want(self, epoch: int, number: int) -> None:
        """Have a window built soon, once the present read is done: it would wait for the interpreter too."""
        if number == self.order.windows:
            epoch, number = epoch + 1, 0
        if (epoch, number) not in self._windows and (epoch, number) not in self._ahead:
            self._wanted.append((epoch, number))
            self._mark((epoch, number), being_built=True)

    def _build_wanted(self) -> None:
        for key in self._wanted:
            if key in self._windows or key in self._ahead:
                continue
            if self._builder is None:
                self._builder = ThreadPoolExecutor(1, thread_name_prefix="shardwright-windows")
                # Also when nobody closes the stream, and before the interpreter takes itself apart.
                self._stop_building = finalize(self, self._builder.shutdown, wait=False, cancel_futures=True)
            for old in list(self._ahead)[: max(0, len(self._ahead) - self._keep)]:
                self._ahead.pop(old).cancel()
                self._mark(old, being_built=False)
            self._ahead[key] = self._builder.submit(self._build, *key)
        self._wanted.clear()

    def _mark(self, key: tuple[int, int], being_built: bool) -> None:
        """Tell the compiled loop not to ask for a window again; one of an epoch that nobody reads yet it never sees."""
        if key[0] in self._epochs:
            self._epochs[key[0]].windows[key[1], 0] = -1 if being_built else 0

    def close(self) -> None:
        """Stop building ahead."""
        if self._stop_building is not None:
            self._stop_building()
