"""Weights of a mix that change over a run: points in tokens, steps or shares -> changes at sequence indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Any, TypeAlias

from ..errors import ConfigError
from .arguments import check_choice, check_flag, check_optional
from .order.mixture import Changes, Weights, exact_weights
from .position import MAX_NUMBER

_PIECES = 32  # between two linear points: weights are off by 1/64 of the change at most, and a resume counts 32 pieces
RowTokens: TypeAlias = Callable[[Weights], Fraction]  # the mean tokens of a row under weights


@dataclass(frozen=True, init=False)
class Schedule:
    """Weights of a mix that change over a run: ``points`` are pairs of a position and the weights from there on.

    ``unit`` says what positions count:

    - ``"tokens"``: tokens of the run;
    - ``"steps"``: optimizer steps of ``global_batch`` rows (batch size x ranks x accumulated batches);
    - ``"shares"``: parts, from 0 to 1, of a run of ``tokens`` tokens.

    A packed row counts as ``seq_len`` tokens, with the padding of best fit. A row of ``.documents()`` counts as the mean
    document of its source, cut at ``max_length``, so its positions in tokens are expected values.

    Weights are constant from each point to the next. With ``linear=True`` they follow a straight line instead, in 32 equal
    pieces, each with the weights of its middle. Two points at one position make a jump. After the last point, weights stay.

    Changes are made at global sequences, so ranks, workers and stops do not move them. A change takes effect at the next row of
    all lanes: at most 15 sequences later in an indexed mix, 47 steps in a sequential mix. A mix with another schedule refuses
    the state.

    Raises ``ConfigError`` for positions that do not begin at 0 or do not ascend, and for a missing ``tokens`` or
    ``global_batch``.

    >>> start, end = {"web": 0.9, "wiki": 0.1}, {"web": 0.5, "wiki": 0.5}
    >>> decay = Schedule([(0, start), (0.8, start), (1, end)], unit="shares", tokens=10e9, linear=True)
    >>> decay.begins(lambda weights: Fraction(2048))  # in sequences of 2,048 tokens
    [0, 3906250, 4882813]
    """

    points: tuple[tuple[Fraction, Mapping[str, Any]], ...]
    unit: str
    linear: bool
    tokens: int | None
    global_batch: int | None

    def __init__(
        self,
        points: Sequence[tuple[float, Mapping[str, float]]],
        *,
        unit: str,
        linear: bool = False,
        tokens: float | None = None,
        global_batch: int | None = None,
    ) -> None:
        check_choice("unit", unit, "tokens", "steps", "shares")
        linear = check_flag("linear", linear)
        for name, value, of in (("tokens", tokens, "shares"), ("global_batch", global_batch, "steps")):
            if (value is None) == (unit == of):
                wrong = (
                    f"needs {name}=, which is missing" if value is None else f"has no {name}; remove {name}={value!r}"
                )
                raise ConfigError(f"a schedule with unit={unit!r} {wrong}")
        global_batch = check_optional("global_batch", global_batch, most=None)
        fields: dict[str, Any] = {
            "points": _parse_points(points, unit, is_linear=linear),
            "unit": unit,
            "linear": bool(linear),
            "tokens": None if tokens is None else parse_tokens(tokens),
            "global_batch": global_batch,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def for_sources(self, names: Sequence[str]) -> Schedule:
        """Return the schedule with exact weights; ``ConfigError`` if they do not name these sources."""
        return replace(self, points=tuple((at, exact_weights(weights, names)) for at, weights in self.points))

    def scaled(self, share: Fraction) -> Schedule:
        """Return the schedule of a run of a ``share`` of the tokens or steps."""
        if self.tokens is not None:
            return replace(self, tokens=max(1, round(self.tokens * share)))
        return replace(self, points=tuple((at * share, weights) for at, weights in self.points))

    def begins(self, row_tokens: RowTokens) -> list[int]:
        """Return the sequence index of each point."""
        at, begins = Fraction(0), [0]
        for (here, before), (there, after) in pairwise(self.points):
            if self.global_batch is not None:
                at += (there - here) * self.global_batch
            else:
                mean = (row_tokens(before) + row_tokens(after if self.linear else before)) / 2
                at += (there - here) * (self.tokens or 1) / mean
            begins.append(math.ceil(at))
        return begins

    def changes(self, row_tokens: RowTokens) -> Changes:
        """Return the weights from each sequence index on."""
        begins, weights = self.begins(row_tokens), [weights for _, weights in self.points]
        changes = dict(zip(begins, weights, strict=True))
        for (begin, before), (end, after) in pairwise(zip(begins, weights, strict=True)):
            pieces = min(_PIECES, end - begin) if self.linear and before != after else 0
            for piece in range(pieces):
                part = Fraction(2 * piece + 1, 2 * pieces)
                middle = {name: share + (after[name] - share) * part for name, share in before.items()}
                changes[begin + piece * (end - begin) // pieces] = middle
        return tuple(sorted(changes.items(), key=lambda change: change[0]))

    def to_json(self) -> dict[str, Any]:
        """Return the schedule, whose weights are exact, as plain JSON."""
        points = [[str(at), {name: str(share) for name, share in weights.items()}] for at, weights in self.points]
        return {**vars(self), "points": points}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Schedule:
        """Return the schedule that `to_json` wrote."""
        points: Any = [
            (Fraction(at), {name: Fraction(share) for name, share in weights.items()})
            for at, weights in value["points"]
        ]
        return cls(points, **{name: value[name] for name in ("unit", "linear", "tokens", "global_batch")})


def _parse_points(points: Any, unit: str, *, is_linear: bool) -> tuple[tuple[Fraction, Mapping[str, Any]], ...]:
    """Return points with exact positions; ``ConfigError`` if they do not begin at 0 or do not ascend."""
    pairs = isinstance(points, Sequence) and all(
        isinstance(point, tuple | list) and len(point) == 2 for point in points
    )
    if not pairs or not points:
        raise ConfigError(
            f"points of a schedule are pairs of a position and weights, as (0, {{'web': 1}}), got {points!r}"
        )
    for at, _ in points:
        if not isinstance(at, Real) or isinstance(at, bool) or not math.isfinite(at):
            raise ConfigError(f"a position of a schedule must be a number of {unit}, got {at!r}")
    starts = [Fraction(str(at)) for at, _ in points]
    shown = [at for at, _ in points]
    if starts[0] != 0 or any(a > b or (a == b and not is_linear) for a, b in pairwise(starts)):
        raise ConfigError(f"positions of a schedule must begin at 0 and ascend, got {shown}")
    if unit == "shares" and starts[-1] > 1:
        raise ConfigError(
            f"positions of a schedule in shares are at most 1, got {shown[-1]!r}; for tokens, write unit='tokens'"
        )
    return tuple((at, weights) for at, (_, weights) in zip(starts, points, strict=True))


def parse_tokens(tokens: Any) -> int:
    """Return a number of tokens, as in ``10e9``; ``ConfigError`` unless it is a whole number of at least 1."""
    is_number = isinstance(tokens, Real) and not isinstance(tokens, bool)
    if not is_number or not 1 <= tokens <= MAX_NUMBER or tokens % 1:
        raise ConfigError(f"tokens must be a whole number from 1 to {MAX_NUMBER:.0e}, as 10e9, got {tokens!r}")
    return int(tokens)
