"""The plan of a mix before its run: rows, tokens and epochs of each source, and weights that keep epochs within caps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Any

from ..errors import ConfigError, did_you_mean
from .arguments import check_choice
from .assemble import make_mixture
from .order.interleave import GROUP
from .order.mixture import PERIOD, Changes, Weights, quotas, weights_to_json
from .position import MAX_NUMBER
from .schedule import Schedule, parse_tokens
from .stream_plan import StreamPlan

_COLUMNS = 40  # of the chart
_LEVELS = " ▁▂▃▄▅▆▇█"
_ROUNDS = 32  # of lowering weights
_LEAST_STEP = Fraction(257, 256)  # the least factor by which a round after the first lowers a source above its cap
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class MixPlan:
    """The rows, tokens and epochs that a run of a mix will read; ``print`` shows them as a table and a chart.

    - ``tokens`` and ``rows`` of the run, over all sources.
    - ``exact``: whether rows and tokens are exact; else they are expectations.
    - ``sources``: for each source its ``share`` of the rows, its ``rows``, ``tokens`` and ``epochs``, and ``second_pass``: the
      tokens of the run before the source begins its second epoch; None if it does not.
    - ``phases``: a dict for each phase of the weights, with its ``begin`` and ``end`` in tokens of the run, and its ``sources``.
    - ``course``: for each source its ``share`` and its ``epochs`` so far, at 40 equal parts of the run.
    - ``weights``: the weights of the plan, for ``pipeline.mix``; ``capped``: the sources whose weights were lowered.
    """

    tokens: int
    rows: int
    exact: bool
    sources: dict[str, Row]
    phases: list[dict[str, Any]]
    course: dict[str, dict[str, list[float]]]
    weights: Any
    capped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON, weights as fractions."""
        weights = self.weights if isinstance(self.weights, Schedule | tuple) else ((0, self.weights),)
        written = weights.to_json() if isinstance(weights, Schedule) else weights_to_json(weights)
        return {**vars(self), "weights": written, "capped": list(self.capped)}

    def __str__(self) -> str:
        lines = [f"{self.tokens:,} tokens, {self.rows:,} rows{'' if self.exact else '; numbers are expectations'}"]
        for number, phase in enumerate(self.phases if len(self.phases) > 1 else []):
            if phase["begin"] < phase["end"]:  # two points at one position are a jump
                lines += [
                    "",
                    f"phase {number}: tokens {phase['begin']:,} to {phase['end']:,}",
                    *_table(phase["sources"]),
                ]
        lines += ["", *(["the whole run"] if len(self.phases) > 1 else []), *_table(self.sources)]
        width = max(map(len, self.course))
        lines += ["", "share of the rows over the run, and the pass that a source is in"]
        for name, course in self.course.items():
            bars = "".join(_LEVELS[min(8, math.ceil(8 * share))] for share in course["share"])
            passes = "".join(str(min(9, 1 + int(epochs))) for epochs in course["epochs"])
            lines.append(f"{name:{width}}  {bars}  {passes}")
        if self.capped:
            lines += ["", f"weights that keep {', '.join(self.capped)} within max_epochs: {_shown(self.weights)}"]
        return "\n".join(lines)


def _table(sources: Mapping[str, Row]) -> list[str]:
    """Return the lines of a table with a row for each source."""
    has_passes = any("second_pass" in row for row in sources.values())
    cells = [["source", "share", "rows", "tokens", "epochs", *["second pass at"] * has_passes]]
    for name, row in sources.items():
        cells.append([name, f"{row['share']:.2%}", f"{row['rows']:,}", f"{row['tokens']:,}", f"{row['epochs']:.3f}"])
        if has_passes:
            cells[-1].append("" if row["second_pass"] is None else f"{row['second_pass']:,}")
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in cells]


def make_plan(plan: StreamPlan, tokens: Any, max_epochs: Any, on_cap: str) -> MixPlan:
    """Return the plan of a mix for a run of ``tokens`` tokens; ``ConfigError`` if it exceeds a cap, or cannot be counted."""
    check_choice("on_cap", on_cap, "refuse", "renormalize")
    settings, sources = plan.settings, plan.sources
    if not sources.is_mix:
        raise ConfigError("plan() is for streams of pipeline.mix")
    if texts := sorted({*sources.by_name} - {*sources.counted}):
        raise ConfigError(
            f"the tokens of text source {texts[0]!r} are unknown in advance, and a plan counts epochs: build shards of it"
        )
    if tokens is None and isinstance(settings.weights, Schedule):
        tokens = settings.weights.tokens
    if tokens is None:
        raise ConfigError("tokens= is missing: the tokens of the run, as in plan(tokens=10e9)")
    tokens, caps = parse_tokens(tokens), _parse_caps(max_epochs, list(sources.by_name))
    stated = found = _count(plan, tokens)
    if settings.stopping_strategy is not None and found.rows > (end := plan.end_of_mix):
        raise ConfigError(
            f"{tokens:,} tokens are {found.rows:,} rows, but stopping_strategy={settings.stopping_strategy!r} ends the mix after "
            f"{end:,}: plan fewer tokens, or remove stopping_strategy"
        )
    factors: dict[str, Fraction] = {}
    for _ in range(_ROUNDS):
        if not (over := _over(found, caps)):
            break
        for name, excess in over.items():
            factors[name] = factors[name] / max(excess, _LEAST_STEP) if name in factors else 1 / excess
        if (lowered := _lowered(settings.weights, factors)) is None:
            break
        lower = StreamPlan(replace(settings, weights=lowered), plan.world_size)
        found = replace(_count(lower, tokens), capped=tuple(sorted(factors)))
    if not factors or (on_cap == "renormalize" and not _over(found, caps)):
        return found
    read = ", ".join(f"{name!r} {stated.sources[name]['epochs']:.3f} times" for name in _over(stated, caps))
    cure = f"; give the weights that fit, {_shown(found.weights)}, or on_cap='renormalize'"
    if _over(found, caps):
        cure = ", and no other source can take the rows: plan fewer tokens, raise a cap, or add data"
    raise ConfigError(f"{tokens:,} tokens read {read}, above max_epochs {max_epochs}{cure}")


def _over(found: MixPlan, caps: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Return the factor by which each source above its cap exceeds it."""
    excess = {name: Fraction(found.sources[name]["epochs"]) / cap for name, cap in caps.items()}
    return {name: factor for name, factor in excess.items() if factor > 1}


def _parse_caps(max_epochs: Any, names: Sequence[str]) -> dict[str, Fraction]:
    """Return the caps of sources; ``ConfigError`` for an unknown source, or a cap that is no number above 0."""
    caps = {} if max_epochs is None else max_epochs
    if not isinstance(caps, Mapping):
        raise ConfigError(f"max_epochs must be a dict of numbers by source, as {{'wiki': 4}}, got {max_epochs!r}")
    for name, cap in caps.items():
        if name not in names:
            raise ConfigError(f"max_epochs names no source {name!r}{did_you_mean(name, names)}")
        if not isinstance(cap, Real) or isinstance(cap, bool) or not 0 < float(cap) < math.inf:
            raise ConfigError(f"max_epochs must be numbers above 0, got {cap!r} for {name!r}")
    # As floats, as the epochs of a plan are: a cap may be copied from one.
    return {name: Fraction(float(cap)) for name, cap in caps.items()}


def _shown(weights: Any) -> str:
    """Return the text of weights as a user writes them, in rows out of 4,096."""
    if isinstance(weights, Schedule):
        return f"points={_shown([(float(at), of_point) for at, of_point in weights.points])}"
    if isinstance(weights, Mapping):
        return str({name: int(share * PERIOD) for name, share in weights.items()})
    return f"[{', '.join(f'({begin:g}, {_shown(of_change)})' for begin, of_change in weights)}]"


def _lowered(weights: Changes | Schedule, factors: Mapping[str, Fraction]) -> Changes | Schedule | None:
    """Return weights of a mix with ``factors`` applied to some sources; None if no other source can take their rows."""
    points: Any = weights.points if isinstance(weights, Schedule) else weights
    lowered: Any = tuple((at, _lowered_at(of_point, factors)) for at, of_point in points)
    if any(of_point is None for _, of_point in lowered):
        return None
    return replace(weights, points=lowered) if isinstance(weights, Schedule) else lowered


def _lowered_at(weights: Weights, factors: Mapping[str, Fraction]) -> Weights | None:
    """Return the lowered weights of one point. The other sources divide the freed rows in their old proportion."""
    fixed = {name: Fraction(int(weights[name] * factor * PERIOD), PERIOD) for name, factor in factors.items()}
    others = sum(share for name, share in weights.items() if name not in fixed)
    free = 1 - sum(fixed.values())
    if free < 0 or (free > 0 and not others):
        return None
    shares = {name: fixed[name] if name in fixed else share * free / (others or 1) for name, share in weights.items()}
    return {name: Fraction(rows, PERIOD) for name, rows in quotas(shares).items()}


def _count(plan: StreamPlan, tokens: int) -> MixPlan:
    """Return the plan of the first ``tokens`` tokens of a mix.

    The rows of an indexed mix are exact. A sequential mix is counted as one lane, since its lanes depend on the batch. The result
    is off by the rows of one period at most.
    """
    lanes = 1 if plan.sequential else plan.lane_count
    mixture = plan.mixture(1) if plan.sequential else make_mixture(plan)
    assert mixture is not None
    names, counted, row_tokens = mixture.names, plan.sources.counted, plan.tokens_of_rows
    epochs = [plan.sequences_of(counted[name]) for name in names]
    rows = _row_at(plan, tokens)

    def tokens_before(row: int) -> int:
        return math.floor(sum(int(n) * row_tokens[name] for name, n in zip(names, mixture.totals(row), strict=True)))

    def between(begin: int, end: int) -> dict[str, Row]:
        found = {}
        for number, name in enumerate(names):
            count = int(mixture.totals(end)[number] - mixture.totals(begin)[number])
            found[name] = {
                "share": count / max(1, end - begin),
                "rows": count,
                "tokens": math.floor(count * row_tokens[name]),
                "epochs": count * epochs[number].stride / epochs[number].tokens,
            }
        return found

    sources = between(0, rows)
    for number, name in enumerate(names):
        row = mixture.begin_of(number, epochs[number].first(1))
        sources[name]["second_pass"] = None if row is None or row >= rows else tokens_before(row)
    phases = [
        {"begin": tokens_before(begin), "end": tokens_before(end), "sources": between(begin, end)}
        for begin, end in plan.phases_until(rows, lanes)
    ]
    bucket = plan.layout.bucket
    group = GROUP * bucket if bucket and not plan.sequential else 1  # counted without reading how long documents are
    ends = [min(rows, -(-(rows * k // _COLUMNS) // group) * group) for k in range(_COLUMNS + 1)]
    parts = [between(begin if begin < end else max(0, end - group), max(1, end)) for begin, end in pairwise(ends)]
    so_far = [between(0, end) for end in ends[1:]]
    course = {
        name: {"share": [part[name]["share"] for part in parts], "epochs": [part[name]["epochs"] for part in so_far]}
        for name in names
    }
    weights: Any = plan.settings.weights
    if not isinstance(weights, Schedule) and len(weights) == 1:
        weights = weights[0][1]
    exact = not plan.sequential and plan.layout.unit == "tokens"
    return MixPlan(
        tokens=tokens, rows=rows, exact=exact, sources=sources, phases=phases, course=course, weights=weights
    )


def _row_at(plan: StreamPlan, tokens: int) -> int:
    """Return how many rows hold ``tokens`` tokens on average under the weights."""
    row, left = 0, Fraction(tokens)
    for (begin, weights), (end, _) in pairwise([*plan.changes, (MAX_NUMBER, {})]):
        size = plan.row_tokens(weights)
        row = begin + math.ceil(left / size)
        if row <= end:
            break
        left -= (end - begin) * size
    return row
