"""Mixes of datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ...errors import ConfigError, value_text
from ..arguments import check_choice, check_integer
from ..order.mixture import Changes, exact_weights, temperature_weights
from ..schedule import Schedule
from ..settings import StreamSettings
from ..stream import Stream
from .sources.holdout import parse_share
from .sources.sources import Source, Sources


class Mix(Stream):
    """A mix of datasets, of which a small run can read a part."""

    def proxy(self, share: float) -> Mix:
        """Return the mix of a small run that repeats each source as often as a run of this mix does.

        Every source is its ``subset(share)``, and changes of weights come after ``share`` of the rows. So ``plan(tokens=n)`` of
        this mix and ``plan(tokens=share * n)`` of the proxy show equal epochs. What a mix is worth depends on how often it
        repeats its small sources: without subsets, a small run reads each of them once, or less.

        Raises ``ConfigError`` as ``subset`` does.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(90_000), lengths=[9] * 10_000)
        >>> mixed = pipeline.mix({"web": data, "wiki": data.subset(1 / 20)}, weights={"web": 3, "wiki": 1})
        >>> runs = (mixed, 90_000), (mixed.proxy(1 / 10), 9_000)
        >>> [f"{stream.pack(5).plan(tokens=tokens).sources['wiki']['epochs']:.0f}" for stream, tokens in runs]
        ['5', '5']
        """
        from .parts import subset  # training does not need it

        part, settings = parse_share("share", share), self._settings
        sources = {name: subset(source, part) for name, source in settings.sources.by_name.items()}
        weights: Any = settings.weights
        if isinstance(weights, Schedule):
            weights = weights.scaled(part)
        else:
            weights = tuple((math.ceil(begin * part), shares) for begin, shares in weights)
        return Mix(replace(settings, sources=Sources.of_mix(sources), weights=weights))


def mix(
    sources: Mapping[str, Stream],
    weights: Mapping[str, float] | Schedule | Sequence[tuple[int, Mapping[str, float]]] | None = None,
    *,
    temperature: float | None = None,
    stopping_strategy: str | None = None,
) -> Mix:
    """Mix datasets by their shares of rows. Call ``.shuffle()``, ``.pack()`` and others on the mix, not on the datasets.

    ``sources`` maps names to datasets of any kinds, or is ``ShardDataset(...).sources()``. ``weights`` are shares by name, a
    `Schedule` of shares that change over the run, or ``[(sequence index, shares), ...]`` from 0 on. With ``temperature`` T
    instead, shares are proportional to tokens to the power of 1 / T. Weights name every source; 0 leaves one out. Each source
    repeats by epochs of its own.

    Shares are rounded to multiples of 1 / 4,096; a weight above 0 gets at least that. If this changes the mix
    much, a warning is logged. ``stats()["sources"]`` reports the rounded share as ``asked``, and the ``tokens`` that rows
    were made of.

    A mix of shards and arrays is indexed. A text among its sources makes it sequential (see ``Stream``), as ``.filter``,
    ``.map_documents`` and best fit do. If a source is live, each rank reads its own part of it, and a state loads only on as
    many ranks.

    The mix is endless. In an indexed mix, ``stopping_strategy`` sets an end: ``"first_exhausted"`` before the first source
    begins its second epoch, ``"all_exhausted"`` when the first epoch of every source has been read. The rows are counted in
    advance, as if by ``.take``: the mix has a ``len()``, and ``set_epoch`` moves on by as many rows. Lanes end at different
    times. So if a source has fewer than 30,000 rows, more than 1% of them may stay unread or be read twice;
    ``.shuffle(lanes=1)`` ends exactly.

    Raises ``ConfigError`` for sources that are shuffled, packed or bounded, or differ in dtype or tokenizer, and for a
    ``temperature`` of texts; while iterating, for a ``stopping_strategy`` of a sequential mix.

    >>> import pipeline
    >>> sources = {name: pipeline.ShardDataset.from_tokens(range(64)) for name in ("web", "wiki")}
    >>> stream = pipeline.mix(sources, weights={"web": 0.75, "wiki": 0.25}).shuffle(seed=0).pack(4).batch(2)
    >>> next(iter(stream))["input_ids"].shape
    torch.Size([2, 4])
    """
    if not isinstance(sources, Mapping) or not sources:
        count = f" of {len(sources)}" if isinstance(sources, Sequence | Mapping) else ""
        raise ConfigError(
            f"a mix needs a dict of datasets by their names, got a {type(sources).__name__}{count}; write "
            "pipeline.mix({'web': web, 'wiki': wiki}, {'web': 0.7, 'wiki': 0.3})"
        )
    if stopping_strategy is not None:
        check_choice("stopping_strategy", stopping_strategy, "first_exhausted", "all_exhausted")
    mixed = Sources.of_mix({name: _bare(name, source, stopping_strategy) for name, source in sources.items()})
    if (weights is None) == (temperature is None):
        raise ConfigError("give weights or a temperature, one of them")
    if temperature is not None:
        if not mixed.all_counted:
            raise ConfigError(
                "a temperature needs the tokens of each source, which are not counted in advance for text; give weights"
            )
        counts = {name: source.total_tokens for name, source in mixed.by_name.items()}
        changes: Changes | Schedule = ((0, temperature_weights(counts, temperature)),)
    elif isinstance(weights, Schedule):
        changes = weights.for_sources(list(mixed.by_name))
    else:
        changes = _changes(weights, list(mixed.by_name))
    return Mix(StreamSettings(sources=mixed, weights=changes, stopping_strategy=stopping_strategy))


def _bare(name: object, stream: object, stopping_strategy: str | None) -> Source:
    """Return the source of a stream on which no method was called yet; ``ConfigError`` for any other value."""
    if not isinstance(name, str):
        raise ConfigError(f"sources of a mix have names of type str, got {name!r}")
    if not isinstance(stream, Stream):
        raise ConfigError(
            f"source {name!r} must be a dataset, got {value_text(stream)}; write pipeline.ShardDataset(...)"
        )
    settings = stream._settings
    if settings.epochs is not None and (settings.epochs > 1 or stopping_strategy is None):
        raise ConfigError(
            f"source {name!r} ends after epochs={settings.epochs}, but each source of a mix starts again after its epoch: "
            "remove epochs=, and end the mix by stopping_strategy= or .take(n)"
        )
    if settings.sources.is_mix or settings != StreamSettings(sources=settings.sources, epochs=settings.epochs):
        raise ConfigError(f"source {name!r} must be a bare dataset; .shuffle(), .pack() and the rest follow the mix")
    [source] = settings.sources.by_name.values()
    return source


def _changes(weights: Any, names: list[str]) -> Changes:
    """Return exact weights, each with the global sequence from which they hold."""
    steps = [(0, weights)] if isinstance(weights, Mapping) else weights
    pairs = isinstance(steps, Sequence) and all(isinstance(step, tuple | list) and len(step) == 2 for step in steps)
    if not pairs or isinstance(steps, str):
        raise ConfigError(
            "weights must be a dict of shares by name, as {'web': 0.7, 'wiki': 0.3}, a list of (global sequence, shares), or a "
            f"pipeline.Schedule, got {weights!r}"
        )
    steps = [(check_integer("a global sequence of the schedule", start, least=0), shares) for start, shares in steps]
    if not steps or steps[0][0] != 0 or any(a[0] >= b[0] for a, b in pairwise(steps)):
        raise ConfigError(f"a schedule must begin at global sequence 0 and ascend, got {[start for start, _ in steps]}")
    return tuple((start, exact_weights(shares, names)) for start, shares in steps)
