"""Readers of data whose counts are known in advance: they compute where a sequence is, and cut it out of its window.

Rows are sequences of tokens (`PackedSequences`) or whole documents (`DocumentSequences`, `BucketedDocuments`), of one source or
of a mix. Sources say where each row begins: in the order of the epochs, or at random (`RandomOffsets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..weak_methods import weak_lru_cache
from .batch.rows import DocumentRows, Rows
from .order import RankStep, Sequences, Shuffle, derive_key, mix64
from .order.interleave import GROUP, arrange
from .order.mixture import Mixture
from .windows.indexed_source import IndexedSource
from .windows.row_buffer import RowBuffer, WindowOffset
from .windows.token_rows import DocumentMaps, TokenRows
from .windows.window import WindowCache, WindowMaker

Int = NDArray[np.int64]
_SPREAD = 0x9E3779B97F4A7C15
_LISTINGS = 64  # of windows of all sources that stay in memory: neighbouring rows of a lane are in one window
_DRAWN = 1 << 20  # indices whose draws are compared at a time


class ReaderOptions(NamedTuple):
    """Options of readers: ``dtype`` is that of ids, ``maps`` change documents; in a mix, ``mixture`` chooses a row's source.

    ``end`` is the number of sequences after which a stopping strategy ends the mix.
    """

    dtype: np.dtype[Any]
    seed: int | None = None
    maps: DocumentMaps | None = None
    mixture: Mixture | None = None
    end: int | None = None


class ServedRows(NamedTuple):
    """The rows of a batch that one ``source`` serves, with their sequence indices and positions in that source."""

    source: int
    rows: list[int]
    indices: Int
    positions: Int


class IndexedReader:
    """A reader of one source, or of a mix."""

    cursors: None = None

    def __init__(self, sources: Sequence[IndexedSource], options: ReaderOptions) -> None:
        self.sources = sources
        self._mixture, self._maps = options.mixture, options.maps
        self.tokens_read = [0] * len(sources)  # of each source
        listing = lru_cache(_LISTINGS)(WindowMaker.listing)
        for source in sources:
            source.listing = partial(listing, source.windows.maker)

    def places(self, indices: Int) -> list[tuple[int, int]]:
        """Return the number of the source of each sequence, and the position there at which the sequence begins."""
        places = [(0, 0)] * len(indices)
        for source, rows, _, positions in self._served(indices):
            for row, position in zip(rows, positions.tolist(), strict=True):
                places[row] = source, position
        return places

    def _requested(self, indices: Int) -> list[ServedRows]:
        """Return the rows that each source serves. In a mix, request the windows of all sources at the same time."""
        served = self._served(indices)
        for source, _, *where in served if self._mixture is not None else ():
            self.sources[source].request(*where)
        return served

    def _served(self, indices: Int) -> list[ServedRows]:
        if self._mixture is None:
            return [ServedRows(0, list(range(len(indices))), indices, self.sources[0].positions(indices))]
        served: dict[int, tuple[list[int], list[int]]] = {}
        for row, index in enumerate(indices.tolist()):
            lane_row, lane = divmod(index, self._mixture.lanes)
            source, draw = self._mixture.source(lane_row, lane)
            rows, in_source = served.setdefault(source, ([], []))
            rows.append(row)
            in_source.append(draw * self._mixture.lanes + lane)
        by_source = []
        for source, (rows, in_source) in served.items():
            of_source = np.array(in_source, np.int64)
            by_source.append(ServedRows(source, rows, of_source, self.sources[source].positions(of_source)))
        return by_source

    def index_of(self, source: int, index: int, position: int) -> int | None:
        """Return the sequence index of the stream at which a source serves its own ``index``, at ``position``.

        None if the weights of a mix never let the source serve it.
        """
        if self._mixture is None:
            return index
        draw, lane = divmod(index, self._mixture.lanes)
        row = self._mixture.row_of(source, lane, draw)
        return None if row is None else row * self._mixture.lanes + lane

    def stats(self) -> dict[str, Any]:
        return {"bytes_read": sum(source.windows.bytes_read for source in self.sources)}

    def tokens_left(self) -> int:
        return 0

    def refuse_nothing(self) -> None:
        return  # data without a row was refused before

    def close(self) -> None:
        """Stop threads."""
        for source in self.sources:
            source.windows.close()


# Rows of tokens


class PackedSequences(IndexedReader):
    """Sequences of ``seq_len`` tokens and their labels; ``with_ends``, rows say where documents end."""

    def __init__(
        self, sources: Sequence[IndexedSource], options: ReaderOptions, *, seq_len: int, with_ends: bool
    ) -> None:
        super().__init__(sources, options)
        self._seq_len = seq_len
        self._rows = [TokenRows(source, options.maps) for source in sources]
        self._buffer = RowBuffer(sources[0].width, options.dtype, with_ends=with_ends)

    def read(self, step: RankStep) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        indices, existing = step.indices(), None
        self._buffer.begin(len(indices))
        sources = [0] * len(indices)
        for source, rows, in_source, positions in self._requested(indices):
            existing = self._rows[source].fill(self._buffer, rows, in_source, positions)
            self.tokens_read[source] += len(rows) * self._seq_len
            for row in rows if source else ():
                sources[row] = source
        return self._buffer.rows(existing, sources)  # existing: None in a mix, whose sources are endless


# Whole documents


class DocumentSequences(IndexedReader):
    """Whole documents, one a sequence. A row has at most the first ``longest`` tokens of its document (None: all)."""

    def __init__(self, sources: Sequence[IndexedSource], options: ReaderOptions, longest: int | None) -> None:
        super().__init__(sources, options)
        self._longest = longest

    def read(self, step: RankStep) -> DocumentRows:
        """Return the token ids of a rank's documents of a step."""
        indices = step.indices()
        located: dict[int, tuple[int, WindowOffset]] = {}
        for source, rows, in_source, positions in self._requested(indices):
            locations = self.sources[source].locations(in_source, positions)
            located.update(zip(rows, zip(repeat(source), locations), strict=True))
        return self._documents([located[row] for row in range(len(indices))])

    def _documents(self, located: list[tuple[int, WindowOffset]]) -> DocumentRows:
        """Return the documents at these offsets in windows of their sources."""
        documents = [window.document(number) for _, (window, number) in located]
        self.sources[0].windows.bytes_read += sum([document.nbytes for document in documents])
        offsets = [offset for _, offset in located]
        if self._maps is None:
            masks = [window.mask_of(number) for window, number in offsets]
            made = list(zip(documents, masks, strict=True))
        else:
            made = [self._maps.document(window, number) for window, number in offsets]
        for (source, _), (document, _) in zip(located, made, strict=True):
            self.tokens_read[source] += len(document[: self._longest])
        sources = [s if w.sources is None else int(w.sources[number]) for s, (w, number) in located]
        return DocumentRows.of(made, sources=sources)


class BucketedDocuments(DocumentSequences):
    """Whole documents; ``bucket`` neighbours have similar lengths."""

    def __init__(
        self, sources: Sequence[IndexedSource], options: ReaderOptions, longest: int | None, bucket: int
    ) -> None:
        super().__init__(sources, options, longest)
        self._bucket = bucket
        self._seed, self._end = options.seed, options.end
        self._group = weak_lru_cache(self._arrange, 4)
        self._listed_ends = weak_lru_cache(self._list_ends, 256)

    def read(self, step: RankStep) -> DocumentRows:
        """Return the token ids of a rank's documents of a step."""
        places = self.places(step.indices(), loads=True)
        return self._documents([(source, self.sources[source].location(at)) for source, at in places])

    def places(self, indices: Int, *, loads: bool = False) -> list[tuple[int, int]]:
        groups = ((index, *self._group_of(index, loads=loads)) for index in indices.tolist())
        return [arranged[index - first] for index, first, arranged in groups]

    def index_of(self, source: int, index: int, position: int) -> int | None:
        if (before := super().index_of(source, index, position)) is None:
            return None
        first, arranged = self._group_of(before)
        return first + arranged.index((source, position))

    def totals(self, i: int) -> Int:
        """Return how many of the first ``i`` sequences of a mix each source serves."""
        assert self._mixture is not None
        if i % (GROUP * self._bucket) == 0 or i % (self._end or i + 1) == 0:
            whole: Int = self._mixture.totals(i)
            return whole
        first, arranged = self._group_of(i)
        inside = [source for source, _ in arranged[: i - first]]
        counts: Int = self._mixture.totals(first) + np.bincount(inside, minlength=len(self.sources))
        return counts

    def begin_of(self, source: int, number: int) -> int | None:
        """Return the first sequence index that serves sequence ``number``, the first of epoch 1, or a later one of a source."""
        assert self._mixture is not None
        if (before := self._mixture.begin_of(source, number)) is None:
            return None
        first, arranged = self._group_of(before)
        again = (k for k, (at, position) in enumerate(arranged) if at == source and position >= self.sources[at].units)
        return first + next(again)

    def _group_of(self, index: int, *, loads: bool = False) -> tuple[int, list[tuple[int, int]]]:
        """Return the result of `_arrange` for the group of a sequence index."""
        of_mix = self._mixture is not None
        epoch = index // (self._end or index + 1) if of_mix else self.sources[0].sequences.epoch(index)
        group: tuple[int, list[tuple[int, int]]] = self._group(epoch, index // (GROUP * self._bucket), loads)
        return group

    def _list_ends(self, source: int, epoch: int, number: int) -> Int:
        return self.sources[source].windows.maker.listing(epoch, number).ends

    def _arrange(self, epoch: int, group: int, loads: bool) -> tuple[int, list[tuple[int, int]]]:
        """Return the first sequence index of a group's part in the epoch, and the source and position of each sequence.

        With ``loads``, the group is read next, so its windows are requested; else no token is read.
        """
        size = GROUP * self._bucket
        first, stop = group * size, (group + 1) * size
        if self._end is not None:
            first, stop = max(epoch * self._end, first), min((epoch + 1) * self._end, stop)
        if self._mixture is None:
            order = self.sources[0].sequences
            first, stop = max(order.first(epoch), first), min(order.first(epoch + 1), stop)
        starts, lengths = [(0, 0)] * (stop - first), np.zeros(stop - first, np.int64)
        for source, rows, indices, positions in self._served(np.arange(first, stop)):
            read, begins = self.sources[source], positions.tolist()
            if loads:  # all windows of the group are needed until the group has been read
                read.prepare(zip((indices % read.sequences.lanes).tolist(), begins, strict=True))
            for row, position in zip(rows, begins, strict=True):
                of_epoch, number, begin, _ = read.window_of(position)
                window, at = (of_epoch, number), position - begin
                ends = read.windows.get(window).ends if loads else self._listed_ends(source, *window)
                lengths[row] = ends[at + 1] - ends[at]
                starts[row] = source, position
        of_mix = self._mixture is not None
        key = None if self._seed is None else derive_key("buckets", self._seed, 0 if of_mix else epoch, group)
        return first, [starts[number] for number in arrange(lengths, first, self._bucket, key).tolist()]


# Sequences from random offsets


def draw(indices: Iterable[int], tokens: int, seed: int, name: str = "") -> list[int]:
    """Return the token, below ``tokens``, at which each sequence index begins; in a mix, for its source ``name``.

    >>> draw(range(3), 1000, seed=0) == [draw(range(i, i + 1), 1000, seed=0)[0] for i in range(3)]
    True
    """
    numbers = np.array([i % 2**64 for i in indices], dtype=np.uint64)
    return [value * tokens >> 64 for value in draw_hashes(numbers, seed, name).tolist()]


def draw_hashes(indices: NDArray[Any], seed: int, name: str = "") -> NDArray[np.uint64]:
    """Return the hashes from which `draw` takes its tokens: ``hash * tokens >> 64``."""
    key = derive_key("sample", seed, name) if name else derive_key("sample", seed)
    hashes: NDArray[np.uint64] = mix64(mix64(indices.astype(np.uint64) * np.uint64(_SPREAD)) ^ np.uint64(key))
    return hashes


class RandomOffsets(IndexedSource):
    """Sequences of ``width`` tokens, labels included, that begin at random tokens of the files.

    The files form a ring of tokens, so every token is equally likely to be a sequence's first. A draw needs only the sequence
    index, so a position resumes on any number of ranks and workers.

    An epoch has as many sequences as hold its tokens once: epoch ``e`` begins at sequence index ceil(e * tokens / seq_len).
    """

    orders_epochs = False

    def __init__(self, name: str, windows: WindowCache, order: Shuffle, *, seq_len: int, width: int, seed: int) -> None:
        super().__init__(name, windows, order, Sequences(order.tokens, seq_len, 1), width=width)
        self._seed = seed

    def positions(self, indices: Int) -> Int:
        return np.array(draw(indices.tolist(), self.units, self._seed, self.name), np.int64)

    def _containing(self, begin: int, end: int, held: int, stop: int) -> Iterator[tuple[int, int, int]]:
        for at in range(begin, self.units + held, self.units):  # a row goes around the ring
            low, high = max(0, at - held + 1), min(at + end - begin, self.units)
            for first in range(0, stop, _DRAWN):
                indices = np.arange(first, min(stop, first + _DRAWN))
                hashes = draw_hashes(indices, self._seed, self.name)
                # Hash h draws token h * units >> 64. This is at least `low` if h is at least ceil(low * 2**64 / units).
                least, most = (-(-(token << 64) // self.units) for token in (low, high))
                drawn = indices[(hashes >= least) & (hashes <= most - 1)] if low < high else indices[:0]
                yield from (
                    (index, position, at)
                    for index, position in zip(drawn.tolist(), self.positions(drawn).tolist(), strict=True)
                )

    def locations(self, indices: Int, positions: Int) -> list[WindowOffset]:
        starts = positions.tolist()
        self.windows.request(dict.fromkeys(key for p in starts for key in self.keys(p, p + self.width - 1)))
        return [self.location(position) for position in starts]
