"""Weights -> the source of each row, and how many rows each source serves before any row (section 8 of the definition)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from heapq import heapify, heappop, heappush
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, did_you_mean
from ...notices import say_once
from ...weak_methods import weak_lru_cache
from .shuffle import derive_key, permutation

PERIOD = 4096
_FAR_BELOW, _FAR_OFF = Fraction(1, 10), Fraction(1, 100)  # a tenth of the smallest share; a hundredth of the rows
_SMALLEST = Decimal("1e-30")
_SMALLEST_SHARE = Fraction(1, 10**30)
Weights = Mapping[str, Fraction]
Changes = tuple[tuple[int, Weights], ...]  # the weights from each sequence index on
# For each lane, the rows of each source before the first change, if earlier ones are forgotten.
Served = Sequence[Sequence[int]]


def exact_weights(weights: Mapping[str, Any], names: Sequence[str]) -> dict[str, Fraction]:
    """Return weights as exact rationals with sum 1. A float is read as it is printed: 0.1 is 1 / 10.

    >>> exact_weights({"web": 0.9, "wiki": 0.1}, ["web", "wiki"])["wiki"]
    Fraction(1, 10)
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(f"weights must be a dict of shares by the name of the source, got {weights!r}")
    for name in weights:
        if name not in names:
            raise ConfigError(f"weights name no source {name!r}{did_you_mean(name, names)}")
    if missing := sorted({*names} - {*weights}):
        raise ConfigError(
            f"weights name no share of source {missing[0]!r}; write {missing[0]!r}: 0 to leave it out, or its share"
        )
    for name, value in weights.items():
        if not isinstance(value, Real | Decimal) or isinstance(value, bool):
            raise ConfigError(f"weights must be numbers, got {value!r} for {name!r}")
    try:
        exact = {name: Fraction(str(weights[name])) for name in sorted(names)}
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"weights must be numbers: {error}") from error
    total = sum(exact.values())
    if total <= 0 or min(exact.values()) < 0:
        raise ConfigError(f"weights must be at least 0 and not all 0, got {dict(weights)}")
    return {name: value / total for name, value in exact.items()}


def temperature_weights(tokens: Mapping[str, int], temperature: Any) -> dict[str, Fraction]:
    """Return shares proportional to tokens to the power of 1 / ``temperature``, rounded by `quotas`.

    Each is a multiple of 1 / 4,096, and at least that. Decimal arithmetic of 50 digits makes them equal on every machine.

    >>> temperature_weights({"web": 9_000_000, "wiki": 1_000_000, "tiny": 1}, temperature=1)["tiny"]
    Fraction(1, 4096)
    """
    if isinstance(temperature, bool) or not isinstance(temperature, Real) or not 0 < float(temperature) < math.inf:
        raise ConfigError(f"temperature must be a number above 0, got {temperature!r}")
    with localcontext(Context(prec=50, Emin=MIN_EMIN, Emax=MAX_EMAX, rounding=ROUND_HALF_EVEN, traps=[])):
        inverse = 1 / _decimal(temperature)
        largest = Decimal(max(tokens.values()))
        # The power of the largest source is 1, so no power overflows. A power that vanishes gets one row of a period.
        powers = {name: ((Decimal(count) / largest).ln() * inverse).exp() for name, count in tokens.items()}
        ratios = {name: Fraction(power.quantize(_SMALLEST)) + _SMALLEST_SHARE for name, power in powers.items()}
    if temperature == 1:
        ratios = {name: Fraction(count) for name, count in tokens.items()}
    total = sum(ratios.values())
    rows = quotas({name: ratio / total for name, ratio in ratios.items()})
    return {name: Fraction(rows[name], PERIOD) for name in tokens}


def _decimal(number: Any) -> Decimal:
    return Decimal(number.numerator) / number.denominator if isinstance(number, Fraction) else Decimal(str(number))


def weights_to_json(changes: Changes, served: Served = ()) -> list[list[Any]]:
    """Return changes as plain JSON, with weights as exact fractions; ``served`` goes with the first one."""
    written: list[list[Any]] = [
        [sequence, {name: str(share) for name, share in weights.items()}] for sequence, weights in changes
    ]
    if served:
        written[0].append(served)
    return written


def weights_from_json(value: Sequence[Sequence[Any]]) -> tuple[Changes, Served]:
    """Return the arguments of `weights_to_json`."""
    changes = tuple(
        (sequence, {name: Fraction(share) for name, share in weights.items()}) for sequence, weights, *_ in value
    )
    return changes, value[0][2] if len(value[0]) > 2 else ()


def quotas(weights: Weights) -> dict[str, int]:
    """Return how many of a period's rows each source gets: largest remainders, at least 1 for a positive weight.

    >>> quotas({"a": Fraction(1, 3), "b": Fraction(2, 3), "c": Fraction(0)})
    {'a': 1365, 'b': 2731, 'c': 0}
    """
    positive = [name for name in sorted(weights) if weights[name] > 0]
    if len(positive) > PERIOD:
        raise ConfigError(f"a mix holds at most {PERIOD} sources, got {len(positive)}")
    ideal = {name: weights[name] * PERIOD for name in positive}
    rows = {name: max(1, int(ideal[name])) for name in positive}
    missing = PERIOD - sum(rows.values())
    step = 1 if missing > 0 else -1
    # The source furthest from its ideal share comes first; among equals, the first by name.
    furthest = [(step * (rows[name] - ideal[name]), name) for name in positive if step > 0 or rows[name] > 1]
    heapify(furthest)
    for _ in range(abs(missing)):
        name = heappop(furthest)[1]
        rows[name] += step
        if rows[name] > 1:
            heappush(furthest, (step * (rows[name] - ideal[name]), name))
    return {name: rows.get(name, 0) for name in sorted(weights)}


def _say_rounded(weights: Weights, rows: Mapping[str, int]) -> None:
    """Log once that the smallest share of a mix is far above some weights."""
    small = {name: share for name, share in weights.items() if 0 < share * PERIOD < 1}
    least, most = min(small, key=small.__getitem__, default=""), max(weights, key=weights.__getitem__)
    if small and (small[least] * PERIOD < _FAR_BELOW or weights[most] - Fraction(rows[most], PERIOD) > _FAR_OFF):
        share = f"{rows[most] / PERIOD:.2%} of the rows in place of {float(weights[most]):.2%}"
        say_once(
            f"{len(small):,} weights of this mix are below 1 / {PERIOD:,}, its smallest share, so each of these sources gets "
            f"that: {least!r} gets {float(1 / small[least] / PERIOD):,.0f} times its weight, and {most!r} gets {share}; join "
            "small sources to one, or give them the weight 0"
        )


class Mixture:
    """Says which source serves each row of each lane.

    ``segments`` are pairs of a row and the weights from there on. The first row is 0, unless ``served`` has the rows of each
    source that come before it in each lane. Raises ``ConfigError`` if asked for such a row.
    """

    def __init__(
        self, names: Sequence[str], seed: int, lanes: int, segments: Sequence[tuple[int, Weights]], served: Served = ()
    ) -> None:
        self.names = sorted(names)
        self.seed = seed
        self.lanes = lanes
        # If weights change several times before one row, the last change holds.
        rows = dict(sorted(segments, key=lambda segment: segment[0]))
        self.starts = list(rows)
        counts = [quotas(weights) for weights in rows.values()]
        for weights, of_period in zip(rows.values(), counts, strict=True):
            _say_rounded(weights, of_period)
        self.quotas = [np.array(list(of_period.values())) for of_period in counts]  # by name, as `names`
        self._period = weak_lru_cache(self._make_period, 2 * lanes + 8)
        self.totals = weak_lru_cache(self._count_totals, 64)
        self._before = weak_lru_cache(self._count_before, None)  # every row asks
        # For each lane, the rows of each source before each segment.
        self._counted: dict[int, list[list[int]]] = {lane: [list(rows)] for lane, rows in enumerate(served)}

    def source(self, row: int, lane: int) -> tuple[int, int]:
        """Return the source that serves a lane's row, and how many earlier rows of the lane it serves."""
        segment = self._segment(row)
        block, offset = divmod(row - self.starts[segment], PERIOD)
        sources, earlier = self._period(segment, block, lane)
        source = int(sources[offset])
        before = self._before(segment, lane)[source] + block * int(self.quotas[segment][source])
        return source, before + int(earlier[offset])

    def shares(self, i: int) -> dict[str, dict[str, Any]]:
        """Return how many of the first ``i`` ``sequences`` each source serves, and its ``asked`` and ``served`` shares."""
        return self._named(self.totals(i), i, self.quotas[self._segment(max(0, i - 1) // self.lanes)] / PERIOD)

    def shares_between(self, begin: int, end: int) -> dict[str, dict[str, Any]]:
        """Return the same for the sequences ``begin`` to ``end`` (exclusive), with ``asked`` as the mean over their rows."""
        first, last = begin // self.lanes, -(-end // self.lanes)
        rows = np.diff(np.clip([*self.starts, last], first, last))
        asked = rows @ np.array(self.quotas) / max(1, last - first) / PERIOD
        return self._named(self.totals(end) - self.totals(begin), end - begin, asked)

    def _named(
        self, counts: NDArray[np.int64], sequences: int, asked: NDArray[np.float64]
    ) -> dict[str, dict[str, Any]]:
        return {
            name: {"sequences": int(count), "asked": float(share), "served": int(count) / max(1, sequences)}
            for name, count, share in zip(self.names, counts, asked, strict=True)
        }

    def _count_totals(self, i: int) -> NDArray[np.int64]:
        """Return how many of the first ``i`` sequences each source serves."""
        counts = np.zeros(len(self.names), np.int64)
        for lane in range(min(i, self.lanes)):
            counts += self.counts(-(-(i - lane) // self.lanes), lane)
        return counts

    def counts(self, row: int, lane: int) -> list[int]:
        """Return how many of a lane's rows before ``row`` each source serves."""
        if row == self.starts[0]:
            return list(self._before(0, lane))
        return self._counts_in(self._segment(row - 1), row, lane) if row else [0] * len(self.names)

    def end(self, sizes: Sequence[int], *, of_all: bool) -> int:
        """Return after how many sequences the mix ends, if source ``s`` has ``sizes[s]`` sequences in its first epoch.

        The mix ends before the first source begins its second epoch or, with ``of_all``, when every source has served its first
        epoch. Sources without a row are ignored. Raises ``ConfigError`` if a source never serves all of its first epoch.

        >>> mixture = Mixture(["a", "b"], seed=0, lanes=1, segments=[(0, {"a": Fraction(1, 2), "b": Fraction(1, 2)})])
        >>> end = mixture.end([9, 2000], of_all=False)
        >>> mixture.shares(end)["a"]["sequences"], mixture.shares(end + 1)["a"]["sequences"]
        (9, 10)
        """
        if not of_all:
            begins = [self.begin_of(source, size) for source, size in enumerate(sizes)]
            return min(begin for begin in begins if begin is not None)
        ends = [0]
        for source in range(len(self.names)):
            for lane in range(self.lanes):
                draws = self._draws(sizes[source], lane)
                row = self.row_of(source, lane, draws - 1) if draws else None
                if row is not None:
                    ends.append(row * self.lanes + lane + 1)
                elif draws and any(row_quotas[source] for row_quotas in self.quotas):
                    raise ConfigError(
                        f"source {self.names[source]!r} is never exhausted: its last weight is 0; give it a weight, or end the "
                        "mix by 'first_exhausted' or .take(n)"
                    )
        return max(ends)

    def begin_of(self, source: int, number: int) -> int | None:
        """Return the first sequence index that serves sequence ``number`` or a later one of a source; None without one.

        >>> mixture = Mixture(["a"], seed=0, lanes=2, segments=[(0, {"a": Fraction(1)})])
        >>> mixture.begin_of(0, 7)
        7
        """
        rows = [self.row_of(source, lane, self._draws(number, lane)) for lane in range(self.lanes)]
        return min((row * self.lanes + lane for lane, row in enumerate(rows) if row is not None), default=None)

    def _draws(self, number: int, lane: int) -> int:
        """Return how many of a source's first ``number`` sequences a lane serves."""
        return max(0, -(-(number - lane) // self.lanes))

    def row_of(self, source: int, lane: int, number: int) -> int | None:
        """Return the row of a lane that a source serves after ``number`` earlier ones; None if there is no such row."""
        if number < self._before(0, lane)[source]:
            self._segment(-1)
        for segment, (begin, row_quotas) in enumerate(zip(self.starts, self.quotas, strict=True)):
            left, quota = number - self._before(segment, lane)[source], int(row_quotas[source])
            if quota == 0 or left < 0:
                continue
            block, inside = divmod(left, quota)
            rows = np.flatnonzero(self._period(segment, block, lane)[0] == source)
            row: int = begin + block * PERIOD + int(rows[inside])
            if segment + 1 == len(self.starts) or row < self.starts[segment + 1]:
                return row
        return None

    def _segment(self, row: int) -> int:
        if row < self.starts[0]:
            raise ConfigError(
                f"after many calls of set_weights(), a state keeps the weights since sequence {self.starts[0] * self.lanes} "
                "alone, and earlier ones are asked for: load a state that was saved before that sequence"
            )
        return bisect_right(self.starts, row) - 1

    def _counts_in(self, segment: int, row: int, lane: int) -> list[int]:
        block, offset = divmod(row - self.starts[segment], PERIOD)
        inside = np.bincount(self._period(segment, block, lane)[0][:offset], minlength=len(self.names))
        before = self._before(segment, lane)
        return [b + block * int(q) + int(i) for b, q, i in zip(before, self.quotas[segment], inside, strict=True)]

    def _count_before(self, segment: int, lane: int) -> list[int]:
        """Return how many of a lane's rows before a segment each source serves; each segment is counted once."""
        counted = self._counted.setdefault(lane, [[0] * len(self.names)])
        for number in range(len(counted), segment + 1):
            counted[number:] = [self._counts_in(number - 1, self.starts[number], lane)]
        return counted[segment]

    def _make_period(self, segment: int, block: int, lane: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
        """Return the sources of a period's rows, and how many rows of the same source precede each row in the period."""
        first = self.starts[segment] + block * PERIOD
        listed = np.repeat(np.arange(len(self.names), dtype=np.int16), self.quotas[segment])
        sources = listed[permutation(PERIOD, derive_key("mixture", self.seed, lane, first))]
        earlier = np.empty(PERIOD, np.int16)
        for source in range(len(self.names)):
            of_source = sources == source
            earlier[of_source] = np.arange(np.count_nonzero(of_source))
        return sources, earlier
