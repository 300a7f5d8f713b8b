"""The endless shuffled token stream of one source, with random access.

``TokenStream.fill`` fills all rows of a batch in one compiled call, where each lies in a window that is loaded, and leaves the
others to ``read``, which copies any range of tokens across document, window and epoch borders. ``prepare`` says what will be
read next: windows are asked for and loaded ahead in threads, and given back once nothing needs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import RowBuffer
from ..order import Sequences, Shuffle
from .windows import gather as kernels
from .windows.block_pool import BlockPool, Read
from .windows.loaded_windows import EpochTable, Key, LoadedWindows
from .windows_ahead import LaneRuns, WindowsAhead

Tokens = NDArray[Any]
_LateRow = tuple[int, Tokens, list[NDArray[np.int64]]]

_ASIDE = 8  # windows that stay in memory although nothing that was prepared needs them


class Piece(NamedTuple):
    """Rows of a batch that lie in one epoch: their numbers, tokens (or documents) of the epoch before each, their lanes.

    A lane is named by its sequence indices modulo the number of lanes, which is the same in every epoch. All are int64.
    """

    epoch: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    lanes: NDArray[np.int64]


class TokenStream:
    """Random access to the endless stream of one source's tokens and documents.

    ``order`` says which document comes when, ``pool`` brings windows. ``sequences`` are what will be read, of ``width`` units:
    tokens, or whole ``documents``. Tokens from epoch ``end`` on (None: there is no end) are zeros, and nothing is loaded for
    them. ``aside``: how many windows stay that nothing prepared.
    """

    masks = False  # whether rows have loss masks

    def __init__(
        self,
        order: Shuffle,
        pool: BlockPool,
        dtype: np.dtype[Any],
        sequences: Sequences | None = None,
        *,
        width: int = 1,
        documents: bool = False,
        end: int | None = None,
        aside: int = _ASIDE,
    ) -> None:
        self.order = order
        self.dtype = dtype
        self.tokens_per_epoch = order.tokens
        self.documents_per_epoch = order.documents
        self.bytes_read = 0
        self._pool = pool
        self._width = width
        self._by_document = documents
        self._end = end
        self._loaded = LoadedWindows(order, pool, aside)
        self._ahead: WindowsAhead | None = None
        if sequences is not None and pool.waits:
            far, copies = pool.coming is not None, pool.source.copies
            self._ahead = WindowsAhead(order, sequences, documents=documents, far=far, copies=copies, end=end)

    @property
    def window(self) -> int:
        """How many tokens, or documents, a window holds; where an epoch is one window, all of an epoch."""
        return (self.documents_per_epoch if self._by_document else self.tokens_per_epoch) // self.order.windows

    def prepare(self, pieces: Iterable[Piece]) -> None:
        """Have the windows of these rows, which are read next, loaded soon; give back others.

        Their blocks, and those of the windows behind them, are asked for once some rows have been read: these come first.
        """
        next_read: dict[Key, None] = {}
        ahead: dict[Key, bool] = {}
        for epoch, _, places, lanes in pieces:
            assert self._end is None or epoch < self._end, (epoch, self._end)
            if not len(places):
                continue
            order, runs = self.order.epoch(epoch), LaneRuns.of(places, lanes)
            starts = order.document_starts if self._by_document else order.starts
            next_read |= dict.fromkeys((epoch, window) for window in runs.windows(starts, self._width))
            if self._ahead is not None:
                ahead |= self._ahead.behind(epoch, runs, len(places))
        self._loaded.prepare(next_read, ahead)

    # Reading

    def read(self, start: int, out: Tokens, ends: list[NDArray[np.int64]] | None = None) -> None:
        """Fill ``out`` (1-D, stored dtype) with the tokens from ``start`` of the endless stream.

        ``ends``, if given, is extended by arrays of where documents end in it, ascending, from 1 to its length.
        """
        self.bytes_read += out.nbytes
        absent: list[Read] = []
        self._read(start, out, ends, absent)
        self._pool.read_all(absent)

    def _read(self, start: int, out: Tokens, ends: list[NDArray[np.int64]] | None, absent: list[Read]) -> None:
        """Do what `read` does, but for blocks that are not in memory, which are added to ``absent``."""
        filled, stop = 0, self._before_end(start, len(out))
        out[stop:] = 0
        while filled < stop:
            epoch, token = divmod(start + filled, self.tokens_per_epoch)
            filled += self._copy(epoch, token, out[:stop], filled, ends, absent)

    def _before_end(self, start: int, count: int) -> int:
        """Return how many of the ``count`` tokens from ``start`` lie before the end of the stream."""
        return count if self._end is None else min(count, max(0, self._end * self.tokens_per_epoch - start))

    def fill(self, buffer: RowBuffer, pieces: Iterable[Piece], hints: NDArray[np.int64]) -> None:
        """Fill the rows of pieces in a buffer, each from its token on.

        ``hints[lanes]`` is where to look first for their documents; what was found is left there.
        """
        for piece in pieces:
            self._fill_piece(buffer, piece, hints)

    def _fill_piece(self, buffer: RowBuffer, piece: Piece, hints: NDArray[np.int64]) -> None:
        epoch, rows, tokens, lanes = piece
        done, tried, count, item = 0, -1, len(rows), self.dtype.itemsize
        self.bytes_read += count * buffer.width * item
        absent: list[Read] = []
        late: list[_LateRow] = []
        while done < count:
            table = self._table(epoch)
            done = kernels.gather(
                done, tokens, lanes, hints, table.order.starts, table.windows, item, rows,
                buffer.width, buffer.bytes, buffer.lag, buffer.late_bytes, buffer.wide, buffer.places, buffer.spans, buffer.notes,
            )  # fmt: skip
            if done == count:
                break
            if done > tried:  # what the row needs may be on its way
                tried = done
                self._bring(epoch, table, int(tokens[done]), buffer.width)
                continue
            # It goes on in the next epoch, or in a document that is not in memory.
            out = np.empty(buffer.width, self.dtype)
            ends: list[NDArray[np.int64]] | None = [] if len(buffer.places) else None
            self._read(epoch * self.tokens_per_epoch + int(tokens[done]), out, ends, absent)
            late.append((int(rows[done]), out, ends or []))
            done += 1
        if absent:
            self._pool.read_all(absent)
        for row, out, found in late:
            buffer.put(row, out, np.concatenate([buffer.places[:0], *found]))
        self._continue_ahead()

    def _bring(self, epoch: int, table: EpochTable, token: int, width: int) -> None:
        """Bring the windows of an epoch that hold ``width`` tokens from ``token`` on to memory."""
        starts = table.order.starts
        first, last = np.searchsorted(starts, (token, min(token + width, int(starts[-1])) - 1), side="right") - 1
        for number in (first + np.flatnonzero(np.diff(starts[first : last + 2]))).tolist():  # others have no tokens
            if (coming := self._loaded.completing.pop((epoch, number), None)) is not None:
                coming.result()
            self._loaded.window((epoch, number))

    def joined(
        self, epoch: int, documents: NDArray[np.int64], most: int | None = None
    ) -> tuple[Tokens, NDArray[np.int64]]:
        """Return the tokens of documents of an epoch one after the other, read-only, and how many each has, at most ``most``.

        They are given by their places in its shuffled order.
        """
        found, windows = self._look_up(epoch, documents)
        self._continue_ahead()
        lengths = found[2] if most is None else np.minimum(found[2], most)
        ends = np.cumsum(lengths)
        out = np.empty(int(ends[-1]) if len(ends) else 0, self.dtype)
        self.bytes_read += out.nbytes
        done = 0
        absent: list[Read] = []
        while (done := kernels.join(done, found, windows, self.dtype.itemsize, out.view(np.uint8), ends)) < len(
            documents
        ):
            window = self._loaded.window((epoch, int(found[0, done])))
            place, end = int(found[1, done]), int(ends[done])
            block, begin = place >> kernels.PLACE_BITS, place & ((1 << kernels.PLACE_BITS) - 1)
            absent.append((window, block, begin, out[end - int(lengths[done]) : end]))
            done += 1
        self._pool.read_all(absent)
        out.flags.writeable = False
        return out, lengths

    def documents(
        self, epoch: int, documents: NDArray[np.int64], most: int | None = None
    ) -> tuple[list[Tokens], list[NDArray[np.uint8]] | None]:
        """Return each of what `joined` joins, and their loss masks where there are some."""
        tokens, lengths = self.joined(epoch, documents, most)
        ends = np.cumsum(lengths).tolist()
        return [tokens[begin:end] for begin, end in zip([0, *ends], ends, strict=False)], None

    def lengths(self, epoch: int, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens documents of an epoch have, given by their places in its shuffled order."""
        found: NDArray[np.int64] = self._look_up(epoch, documents)[0][2]
        return found

    def _look_up(self, epoch: int, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return window, place and tokens of each document (``[3, documents]``), and the table that they lie in."""
        found, done = np.empty((3, len(documents)), np.int64), 0
        held, numbers = self._loaded.needed, documents[:0]  # numbers: the window of each, once one must be loaded
        try:
            while True:
                table = self._table(epoch)
                done = kernels.look_up(done, documents, table.order.document_starts, table.windows, found)
                if done == len(documents):
                    return found, table.windows
                if (
                    self._loaded.needed is held
                ):  # no window of theirs goes while others load, not one loaded long before
                    numbers = np.searchsorted(table.order.document_starts, documents, side="right") - 1
                    self._loaded.needed = held | {(epoch, number) for number in np.unique(numbers).tolist()}
                self._loaded.window((epoch, int(numbers[done])), whole=True)
        finally:
            self._loaded.needed = held

    def _copy(
        self, epoch: int, token: int, out: Tokens, at: int, found: list[NDArray[np.int64]] | None, absent: list[Read]
    ) -> int:
        """Copy as many tokens into ``out[at:]`` as the window at this place can give; return how many."""
        order = self._table(epoch).order
        number = int(np.searchsorted(order.starts, token, side="right")) - 1
        window, inside = self._loaded.window((epoch, number)), token - int(order.starts[number])
        stop = min(inside + len(out) - at, int(order.starts[number + 1] - order.starts[number]))
        first, last = window.cut(inside, stop)
        for j in range(first, last):
            begin, end = max(inside, int(window.ends[j])), min(stop, int(window.ends[j + 1]))
            place = int(window.places[j])
            block = place >> kernels.PLACE_BITS
            skipped = (place & ((1 << kernels.PLACE_BITS) - 1)) + begin - int(window.ends[j])
            target = out[at + begin - inside : at + end - inside]
            if window.blocks[block, 0]:
                kernels.copy_tokens(int(window.blocks[block, 0]) + skipped * out.itemsize, target.view(np.uint8))
            else:
                absent.append((window, block, skipped, target))
        count = stop - inside
        if found is not None:
            stops = np.unique(window.ends[first + 1 : last + 1]) - inside  # documents of no tokens end where others do
            found.append(stops[stops <= count] + at)
        return count

    def _table(self, epoch: int) -> EpochTable:
        return self._loaded.tables.get(epoch) or self._loaded.table(epoch)

    def _continue_ahead(self) -> None:
        if self._loaded.unfinished:
            self._loaded.continue_ahead()

    def close(self) -> None:
        """Stop threads and give back files."""
        self._loaded.close()
