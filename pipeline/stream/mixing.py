"""Weights -> which source serves a row: counts before any row are arithmetic, so a mix resumes as a source does.

    block       each lane's rows are cut in blocks of 4,096, which hold each source's quota (largest remainder of its share,
                at least 1) in an order hashed by (seed, lane, first row of the block)
    draw        draw k of a source in lane c of C is that source's own global sequence k * C + c
    weights     hold from a row on; a change cuts the block, and blocks begin anew there

So sources, keyed by name, keep their own order whatever joins them, and repeat by epochs of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, did_you_mean
from .data import Data
from .order import Sequences, derive_key, permutation
from .rows import RowBuffer, Rows
from .sequences import PLACES_AHEAD
from .windows import TokenStream

BLOCK = 4096
Weights = Mapping[str, Fraction]
Schedule = tuple[tuple[int, Weights], ...]


def exact_weights(weights: Mapping[str, Any], names: Sequence[str]) -> dict[str, Fraction]:
    """Return weights as exact rationals of sum 1; decimals count as written.

    >>> exact_weights({"web": 0.9, "wiki": 0.1}, ["web", "wiki"])["wiki"]
    Fraction(1, 10)
    """
    for name in weights:
        if name not in names:
            raise ConfigError(f"weights name no source {name!r}{did_you_mean(name, names)}")
    try:
        found = {name: Fraction(str(weights.get(name, 0))) for name in sorted(names)}
    except ValueError as error:
        raise ConfigError(f"weights must be numbers: {error}") from error
    total = sum(found.values())
    if total <= 0 or min(found.values()) < 0:
        raise ConfigError(f"weights must be at least 0 and not all 0, got {dict(weights)}")
    return {name: value / total for name, value in found.items()}


def weights_to_json(schedule: Schedule) -> list[list[Any]]:
    """Return a schedule as plain JSON, its weights as exact fractions."""
    return [[sequence, {name: str(share) for name, share in weights.items()}] for sequence, weights in schedule]


def weights_from_json(value: Sequence[Sequence[Any]]) -> Schedule:
    return tuple((sequence, {name: Fraction(share) for name, share in weights.items()}) for sequence, weights in value)


def quotas(weights: Weights) -> dict[str, int]:
    """Return how many of a block's rows each source gets: largest remainders, at least 1 for a positive weight.

    >>> quotas({"a": Fraction(1, 3), "b": Fraction(2, 3), "c": Fraction(0)})
    {'a': 1365, 'b': 2731, 'c': 0}
    """
    positive = [name for name in sorted(weights) if weights[name] > 0]
    if len(positive) > BLOCK:
        raise ConfigError(f"a mix holds at most {BLOCK} sources, got {len(positive)}")
    ideal = {name: weights[name] * BLOCK for name in positive}
    found = {name: max(1, int(ideal[name])) for name in positive}
    while missing := BLOCK - sum(found.values()):
        step = 1 if missing > 0 else -1
        able = [name for name in positive if step > 0 or found[name] > 1]
        found[max(able, key=lambda name: step * (ideal[name] - found[name]))] += step  # the first by name of equals
    return {name: found.get(name, 0) for name in sorted(weights)}


class Mixture:
    """Which source serves each row of each lane, under weights that hold from given rows on.

    ``segments``: (first row, weights), the first at row 0.
    """

    def __init__(self, names: Sequence[str], seed: int, lanes: int, segments: Sequence[tuple[int, Weights]]) -> None:
        self.names = sorted(names)
        self.seed = seed
        self.lanes = lanes
        # Of several changes before one row the last holds.
        rows = dict(sorted(segments, key=lambda segment: segment[0]))
        self.starts = list(rows)
        self.quotas = [np.array([quotas(weights)[name] for name in self.names]) for weights in rows.values()]
        self._block = lru_cache(maxsize=2 * lanes + 8)(self._make_block)
        self._before = lru_cache(maxsize=None)(self._count_before)

    def draw(self, rows: NDArray[np.int64], lane: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of the source that serves each of a lane's rows, and which of its draws there that is.

        ``rows`` ascend.
        """
        sources, draws = np.empty((2, len(rows)), np.int64)
        at = 0
        while at < len(rows):
            segment = self._segment(int(rows[at]))
            block = (int(rows[at]) - self.starts[segment]) // BLOCK
            first = self.starts[segment] + block * BLOCK
            stop = min([first + BLOCK, *self.starts[segment + 1 : segment + 2]])
            part = slice(at, at + int(rows[at:].searchsorted(stop)))
            served, earlier = (each[rows[part] - first] for each in self._block(segment, block, lane))
            before = np.array(self._before(segment, lane)) + block * self.quotas[segment]
            sources[part], draws[part] = served, before[served] + earlier
            at = part.stop
        return sources, draws

    def counts(self, row: int, lane: int) -> list[int]:
        """Return how many of a lane's rows before ``row`` each source serves."""
        segment = self._segment(max(0, row - 1)) if row else 0
        return self._counts_in(segment, row, lane)

    def asked(self, row: int) -> NDArray[np.int64]:
        """Return the quotas that hold at a row."""
        return self.quotas[self._segment(row)]

    def _segment(self, row: int) -> int:
        return next(k for k in range(len(self.starts) - 1, -1, -1) if self.starts[k] <= row)

    def _counts_in(self, segment: int, row: int, lane: int) -> list[int]:
        block, place = divmod(row - self.starts[segment], BLOCK)
        inside = np.bincount(self._block(segment, block, lane)[0][:place], minlength=len(self.names))
        before = self._before(segment, lane)
        return [b + block * int(q) + int(i) for b, q, i in zip(before, self.quotas[segment], inside, strict=True)]

    def _count_before(self, segment: int, lane: int) -> list[int]:
        if segment == 0:
            return [0] * len(self.names)
        return self._counts_in(segment - 1, self.starts[segment], lane)

    def _make_block(self, segment: int, block: int, lane: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
        """Return the sources of a block's rows, and how many rows of the same source come before each in it."""
        first = self.starts[segment] + block * BLOCK
        dealt = np.repeat(np.arange(len(self.names), dtype=np.int16), self.quotas[segment])
        sources = dealt[permutation(BLOCK, derive_key("mix", self.seed, lane, first))]
        earlier = np.empty(BLOCK, np.int16)
        for source in range(len(self.names)):
            mine = sources == source
            earlier[mine] = np.arange(np.count_nonzero(mine))
        return sources, earlier


class MixedData:
    """Several sources under one plan: what they share, and each by its name."""

    def __init__(self, sources: Mapping[str, Data]) -> None:
        self.sources = dict(sorted(sources.items()))
        first = next(iter(self.sources.values()))
        self.name = ""
        self.split = "+".join(f"{name}:{data.split}" for name, data in self.sources.items())
        self.dtype, self.eos_id, self.tokenizer = first.dtype, first.eos_id, first.tokenizer
        for name, data in self.sources.items():
            for field in ("dtype", "tokenizer", "eos_id"):
                ours, theirs = getattr(first, field), getattr(data, field)
                if ours != theirs:
                    raise ConfigError(f"sources of a mix share one {field}, but {name!r} has {theirs}, others {ours}")


class _Part(NamedTuple):
    """Rows of one batch that one source serves: places in the batch, and where they are read (int64)."""

    source: int
    rows: NDArray[np.int64]
    epoch: int
    tokens: NDArray[np.int64]
    lanes: NDArray[np.int64]


class MixedSequences:
    """Packed sequences of several sources, row by row as the mixture says. Endless."""

    def __init__(
        self,
        streams: Mapping[str, TokenStream],
        mixture: Mixture,
        *,
        seq_len: int,
        stride: int,
        extra: int,
        boundaries: bool,
    ) -> None:
        self.mixture = mixture
        self.stride = stride
        self.width = seq_len + extra
        self._streams = [streams[name] for name in mixture.names]
        self._orders = [Sequences(stream.tokens_per_epoch, stride, mixture.lanes) for stream in self._streams]
        self._hints = np.zeros((len(self._streams), mixture.lanes), np.int64)
        self.buffer = RowBuffer(self.width, self._streams[0].dtype, boundaries)
        self._batches: dict[range, list[_Part]] = {}

    def first(self, epoch: int) -> int:
        """Return the first row of epoch 0; a mix has no epochs beyond its sources'."""
        if epoch:
            raise ConfigError("a mix has no epochs of its own: its sources repeat by theirs; load a state instead")
        return 0

    def epoch(self, i: int) -> int:
        """Return the epoch of the source that has come least far."""
        return min(source["epoch"] for source in self.shares(i).values())

    @property
    def bytes_read(self) -> int:
        return sum(stream.bytes_read for stream in self._streams)

    def shares(self, i: int) -> dict[str, dict[str, Any]]:
        """Return, of the first ``i`` global sequences, each source's ``sequences``, ``served`` share and ``epoch``."""
        lanes = self.mixture.lanes
        counts = np.zeros(len(self._streams), np.int64)
        for lane in range(min(i, lanes)):
            counts += self.mixture.counts(-(-(i - lane) // lanes), lane)
        asked = self.mixture.asked(max(0, i - 1) // lanes)
        return {
            name: {
                "sequences": int(count),
                "asked": int(quota) / BLOCK,
                "served": int(count) / max(1, i),
                "epoch": order.epoch(int(count)),
            }
            for name, count, quota, order in zip(self.mixture.names, counts, asked, self._orders, strict=True)
        }

    def rows(self, numbers: range) -> Iterator[Rows]:
        """Yield the tokens of global sequences ``numbers``, a range with a positive step."""
        if not numbers:
            return
        parts = self._batches.pop(numbers, None) or self._locate(numbers)
        self.buffer.clear(len(numbers))
        for source, rows, epoch, tokens, lanes in parts:
            self._streams[source].fill(self.buffer, rows, epoch, tokens, lanes, self._hints[source])
        yield self.buffer.rows(slice(0, len(numbers)))

    def _locate(self, numbers: range) -> list[_Part]:
        """Return where a batch's rows lie, and find the places of the batches behind it at the same step."""
        size, step = len(numbers), numbers.step
        count = max(1, PLACES_AHEAD // size)
        ahead = np.arange(count * size) * step + numbers.start
        lanes = ahead % self.mixture.lanes
        sources, draws = np.empty((2, len(ahead)), np.int64)
        for lane in np.unique(lanes).tolist():
            mine = lanes == lane
            sources[mine], draws[mine] = self.mixture.draw(ahead[mine] // self.mixture.lanes, lane)
        batches: list[list[_Part]] = [[] for _ in range(count)]
        for source, order in enumerate(self._orders):
            left = np.flatnonzero(sources == source)
            while len(left):
                own = draws[left] * order.lanes + lanes[left]
                epoch = order.epoch(int(own.min()))
                inside = own < order.first(epoch + 1)
                here, left = left[inside], left[~inside]
                tokens, source_lanes = order.places(epoch, own[inside] - order.first(epoch))
                cuts = here.searchsorted(np.arange(count + 1) * size).tolist()
                rows = here % size
                for parts, begin, stop in zip(batches, cuts[:-1], cuts[1:], strict=True):
                    if begin < stop:
                        part = slice(begin, stop)
                        parts.append(_Part(source, rows[part], epoch, tokens[part], source_lanes[part]))
        starts = range(numbers.start, numbers.start + count * size * step, size * step)
        self._batches = {
            range(start, start + size * step, step): parts for start, parts in zip(starts, batches, strict=True)
        }
        return batches[0]

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
