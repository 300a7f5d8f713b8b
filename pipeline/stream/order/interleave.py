"""Sequences, lanes, ranks, buckets: the tokens of a sequence index, and the rank that takes it (sections 4, 5 and 7)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .shuffle import permutation

IntOrArray = TypeVar("IntOrArray", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Sequences:
    """Where sequences begin: one every ``stride`` tokens, in ``lanes`` lanes, if an epoch has ``tokens`` tokens.

    For whole documents, ``tokens`` counts documents and ``stride`` is 1. A pass has ``epochs`` epochs, and is cut from its own
    first token (None: the stream is endless). A sequence has a label if its pass has more than ``lag`` tokens from there on.

    >>> endless, passes = Sequences(tokens=10, stride=4, lanes=2), Sequences(tokens=10, stride=4, lanes=2, epochs=1)
    >>> [endless.first(e) for e in range(4)], [passes.first(e) for e in range(4)]
    ([0, 3, 5, 8], [0, 3, 6, 9])
    """

    tokens: int
    stride: int
    lanes: int
    epochs: int | None = None
    lag: int = 0

    def first(self, epoch: int) -> int:
        """Return A(epoch): the first sequence index of an epoch."""
        number, epoch = (0, epoch) if self.epochs is None else divmod(epoch, self.epochs)
        return number * self.pass_size + self._before(epoch)

    def epoch(self, i: int) -> int:
        """Return the epoch in which sequence index ``i`` begins."""
        if self.epochs is None:
            return i * self.stride // self.tokens
        number, i = divmod(i, self.pass_size)
        return number * self.epochs + i * self.stride // self.tokens

    @property
    def pass_size(self) -> int:
        """S: the number of sequence indices of a pass; 0 for an endless stream."""
        return self._before(self.epochs or 0)

    @property
    def labelled(self) -> int:
        """U: the number of sequences of a pass that have a label.

        >>> [Sequences(tokens=10, stride=4, lanes=2, epochs=1, lag=lag).labelled for lag in (0, 1, 2, 10)]
        [3, 3, 2, 0]
        """
        return max(0, -(-((self.epochs or 0) * self.tokens - self.lag) // self.stride))

    def _before(self, epochs: int) -> int:
        """Return how many sequences begin in the first ``epochs`` epochs of a pass."""
        return -(-epochs * self.tokens // self.stride)

    def _first_of_pass(self, epoch: int) -> tuple[int, int]:
        """Return how many sequences and tokens of its pass come before an epoch."""
        in_pass = epoch if self.epochs is None else epoch % self.epochs
        return self._before(in_pass), in_pass * self.tokens

    def begin_of_lane(self, epoch: int, lane: int) -> int:
        """Return the token of ``epoch`` at which ``lane`` begins to read it."""
        share, over = divmod(self.first(epoch + 1) - self.first(epoch), self.lanes)
        return self._token(epoch, lane * share + min(lane, over))

    def _token(self, epoch: int, before: IntOrArray) -> IntOrArray:
        """Return the token of ``epoch`` at which a stream sequence begins, after ``before`` sequences of the epoch."""
        first, tokens = self._first_of_pass(epoch)
        return (first + before) * self.stride - tokens

    def positions(self, epoch: int, inside: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of ``epoch`` at which sequence indices first(epoch) + ``inside`` begin, all in it.

        >>> Sequences(tokens=10, stride=4, lanes=2).positions(0, np.arange(3)).tolist()
        [0, 8, 4]
        """
        before = self._in_lanes(epoch, inside)
        if self.epochs is not None:
            end = self.labelled - self._first_of_pass(epoch)[0]
            if (unlabelled := before >= end).any():
                without_label, cut_off = self._replacements(epoch, end)
                before[unlabelled] = cut_off[without_label.searchsorted(inside[unlabelled])]
        return self._token(epoch, before)

    def _in_lanes(self, epoch: int, inside: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in its epoch of the stream sequence of each index in the epoch, labels not considered."""
        share, over = divmod(self.first(epoch + 1) - self.first(epoch), self.lanes)
        rows, lanes = np.divmod(inside, self.lanes)
        before: NDArray[np.int64] = lanes * share + np.minimum(lanes, over) + rows
        return before

    def _replacements(self, epoch: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices in an epoch whose stream sequences have no label, and the sequences that they take instead.

        The stream sequences from ``end`` on have no label. They are replaced by sequences that the end of the pass would cut off.
        """
        unlabelled = np.arange(end, self.first(epoch + 1) - self.first(epoch))
        cut_off = self._in_lanes(epoch, unlabelled)
        return np.sort(self.indices(epoch, unlabelled)), cut_off[cut_off < end]

    def containing(self, begin: int, end: int, held: int) -> Iterator[tuple[int, int]]:
        """Yield index and first token of each sequence whose ``held`` tokens contain a token from ``begin`` to before ``end``.

        Tokens are counted from the start of the endless stream. ``begin`` and ``end`` are in one epoch.

        >>> list(Sequences(tokens=10, stride=4, lanes=2).containing(10, 13, held=4))
        [(1, 8), (3, 12)]
        """
        first_epoch = 0 if self.epochs is None else begin // self.tokens // self.epochs * self.epochs
        origin = first_epoch * self.tokens  # of the pass
        numbers = np.arange(
            max(0, -(-(begin - origin - held + 1) // self.stride)), (end - 1 - origin) // self.stride + 1
        )
        if self.epochs is not None:
            numbers = numbers[numbers < self.labelled]
        in_pass = numbers * self.stride // self.tokens
        for epoch in np.unique(in_pass).tolist():
            own = numbers[in_pass == epoch]
            indices = self.first(first_epoch + epoch) + self._given_at(first_epoch + epoch, own - self._before(epoch))
            yield from zip(indices.tolist(), (origin + own * self.stride).tolist(), strict=True)

    def _given_at(self, epoch: int, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in an epoch at which each stream sequence is given: the inverse of `_in_lanes` and `_replacements`."""
        inside = self.indices(epoch, before)
        end = self.first(epoch + 1) - self.first(epoch)
        if self.epochs is not None:
            end = min(end, self.labelled - self._first_of_pass(epoch)[0])
        if (late := inside >= end).any():
            without_label, cut_off = self._replacements(epoch, end)
            order = np.argsort(cut_off)
            inside[late] = without_label[order[cut_off[order].searchsorted(before[late])]]
        return inside

    def indices(self, epoch: int, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the inverse of `_in_lanes`: the index in an epoch of each stream sequence, labels not considered.

        >>> Sequences(tokens=10, stride=4, lanes=2).indices(0, np.arange(3)).tolist()
        [0, 2, 1]
        """
        lanes = np.arange(self.lanes + 1)
        share, over = divmod(self.first(epoch + 1) - self.first(epoch), self.lanes)
        starts = lanes * share + np.minimum(lanes, over)
        lane = starts.searchsorted(before, side="right") - 1
        indices: NDArray[np.int64] = (before - starts[lane]) * self.lanes + lane
        return indices


@dataclass(frozen=True, slots=True)
class RankStep:
    """The sequence indices that one rank takes of a global step: ``size`` indices from ``begin`` on, shared among ``ranks``.

    The stream has ``lanes`` lanes, ``pass_begin`` is the first sequence index of the pass. The rank takes only its rows ``first``
    to ``last`` (exclusive; None: all from there). The indices are in the order of the rank's rows.

    >>> list(RankStep(0, 6, rank=1, ranks=2, lanes=64)), list(RankStep(0, 6, rank=1, ranks=3, lanes=4))
    ([1, 3, 5], [3, 2])
    """

    begin: int
    size: int
    rank: int
    ranks: int
    lanes: int
    pass_begin: int = 0
    first: int = 0
    last: int | None = None

    def __len__(self) -> int:
        return len(self.indices())

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices().tolist())

    def rows(self, first: int, last: int | None) -> RankStep:
        """Return the same step with only the rank's rows ``first`` to ``last`` (exclusive)."""
        return replace(self, first=first, last=last)

    def indices(self) -> NDArray[np.int64]:
        """Return the sequence indices, in the order of the rank's rows."""
        begin = self.begin - self.pass_begin
        if self.lanes % self.ranks == 0:
            offsets = np.arange((self.rank - begin) % self.ranks, self.size, self.ranks)
        else:
            part = slice(self.rank * self.size // self.ranks, (self.rank + 1) * self.size // self.ranks)
            offsets = self._spread_offsets()[part]
        return self.begin + offsets[self.first : self.last]

    def rank_and_row(self, index: int) -> tuple[int, int]:
        """Return the rank, of all ranks, that takes a sequence index of the step, and its row there.

        >>> RankStep(0, 6, rank=0, ranks=3, lanes=4).rank_and_row(2)
        (1, 1)
        """
        if self.lanes % self.ranks == 0:
            rank = (index - self.pass_begin) % self.ranks
            return rank, (index - self.begin) // self.ranks
        slot = int(np.argmax(self._spread_offsets() == index - self.begin))
        rank = ((slot + 1) * self.ranks - 1) // self.size
        return rank, slot - rank * self.size // self.ranks

    def _spread_offsets(self) -> NDArray[np.int64]:
        """Return all indices of the step, minus ``begin``, in the order of section 5."""
        # Keys of few bits are sorted by radix, in linear time.
        lanes = ((self.begin - self.pass_begin) % self.lanes + np.arange(self.size)) % self.lanes
        keys = (lanes * _spread(self.lanes) % self.lanes).astype(np.min_scalar_type(self.lanes))
        return np.argsort(keys, kind="stable")


@lru_cache
def _spread(lanes: int) -> int:
    """Return section 5's ``s``."""
    spread = (39 * lanes + 50) // 100
    while math.gcd(spread, lanes) != 1:
        spread += 1
    return spread


GROUP = 64  # buckets: many, so that lengths in a bucket are similar; few, so that a group is arranged in milliseconds


def arrange(lengths: NDArray[np.int64], first: int, bucket: int, key: int | None) -> NDArray[np.int64]:
    """Return the number of the document that each sequence index of a group gets, so that neighbours have similar lengths.

    If the batch size divides ``bucket``, all rows of a batch have similar lengths; neighbouring batches differ. The order stays a
    function of the sequence index: epochs keep their documents, and nothing depends on batch size, ranks or workers.

    ``lengths`` are those of the documents in global order from ``first`` on. Buckets are cut at multiples of ``bucket``. They
    take the sorted documents in an order that ``key`` draws; None: in ascending order.

    >>> arrange(np.array([9, 1, 8, 2, 7]), first=3, bucket=2, key=None).tolist()
    [1, 3, 4, 2, 0]
    """
    stop = first + len(lengths)
    cuts = np.array([first, *range(first - first % bucket + bucket, stop, bucket), stop]) - first
    order = np.arange(len(cuts) - 1) if key is None else permutation(len(cuts) - 1, key)
    slots = np.concatenate(
        [np.arange(cuts[bucket_number], cuts[bucket_number + 1]) for bucket_number in order.tolist()]
    )
    arranged = np.empty(len(lengths), np.int64)
    arranged[slots] = np.argsort(lengths, kind="stable")
    return arranged
