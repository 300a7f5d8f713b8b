"""What a stream is: its lanes, its windows, its mixture and its passes, from settings, data and the number of ranks.

`StreamSettings` is what the user asked for. A `StreamPlan` is what that amounts to on this data and so many ranks. Readers,
states, traces and counts all read one plan, so they mean the same stream. The plan makes each part when it is first asked for,
since some parts read data, and keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

from ..errors import ConfigError
from .datasets.sources.counted_data import CountedData
from .insertions import InsertedTexts, place_texts
from .lanes import NUMBERS, Cursor, Lanes, best_fit_lanes_a_row, make_lanes
from .layout import DocumentLayout, Layout
from .order import RankStep, Sequences
from .order.interleave import GROUP
from .order.mixture import Changes, Mixture, Served, Weights, weights_from_json, weights_to_json
from .position import MAX_NUMBER, Position, Topology
from .schedule import Schedule
from .settings import StreamSettings

ORDER = 2  # the version of the order of documents; a state of another version is refused
_UNEVEN = 0.05  # part of an epoch: a mix that ends further from an epoch's end logs so
_LEAST_OF_LANE = 4 << 20  # bytes for each lane: if lanes have fewer, more lanes shuffle worse
_MOST_TOKENS_OF_ESTIMATE = 4  # times the estimate of a text's tokens: about one for each byte


class StreamPlan:
    """What the stream of ``settings`` is on ``world_size`` ranks.

    After ``set_weights``, ``changed_weights`` replace the weights of the settings; ``served`` has the rows before the first
    of them, unless it begins at 0. Parts raise ``ConfigError`` if the data does not allow what the settings ask for.
    """

    def __init__(
        self, settings: StreamSettings, world_size: int, changed_weights: Changes = (), served: Served = ()
    ) -> None:
        self.settings, self.world_size = settings, world_size
        self.sources = settings.sources
        self.sequential = settings.sequential
        self.step_rows = settings.batch_size or 1  # of each rank
        self.step_size = self.step_rows * world_size
        # A bounded sequential stream ends when its ranks agree, since no rank knows the lanes of others.
        self.ranks_agree = self.sequential and settings.epochs is not None and world_size > 1
        self.served = served
        self._changed_weights = changed_weights

    def under(self, weights: list[list[Any]] | None) -> StreamPlan:
        """Return the plan under the weights of a position; None: those of the settings."""
        return self if weights is None else StreamPlan(self.settings, self.world_size, *weights_from_json(weights))

    @property
    def layout(self) -> Layout:
        """The kind of samples; ``ConfigError`` if no method chose one."""
        return self.settings.stated_layout()

    # Lanes and passes

    @cached_property
    def lanes(self) -> Lanes:
        """The lanes of a sequential stream. The source with most documents decides; text is read to count documents.

        Raises ``ConfigError`` for lanes that the rows of a global batch cannot share, or that documents are too few for.
        """
        rows, sources, stated = self.step_size, self.sources.by_name.values(), self.settings.lanes
        if not self.sources.is_mix and any(self.sources.live):
            if stated is not None:
                raise ConfigError(
                    f"lanes={stated}: a live source has one lane on each rank; leave lanes out of .shuffle()"
                )
            return Lanes(rows, rows)
        most = None
        if self.settings.best_fit:  # each lane holds a window of each source
            tokens, item = max(source.total_tokens for source in sources), sum(source.token_bytes for source in sources)
            most = best_fit_lanes_a_row(self.layout.sequence_stride, rows, tokens, item)

        def records(most: int) -> int:
            return max(source.records(most) for source in sources)

        endless = self.settings.epochs is None and self.sources.counted and not self.sources.is_mix
        if endless and stated and (count := records(stated)) < stated:
            raise ConfigError(
                f"lanes={stated}: an epoch has {count:,} documents, so a lane would have none and wait for ever; leave lanes "
                "out of .shuffle()"
            )
        return make_lanes(rows, stated, records, most, is_shuffled=self.settings.seed is not None)

    @cached_property
    def lane_count(self) -> int:
        """How many lanes the stream interleaves over all ranks."""
        return self.lanes.count if self.sequential else self._indexed_lanes

    @property
    def _indexed_lanes(self) -> int:
        if not self._is_shuffled:
            return 1
        return self.sources.default_lanes if self.settings.lanes is None else self.settings.lanes

    @property
    def rank_period(self) -> int:
        """`RankStep.lanes`: ranks divide a step by lanes, or in a sequential stream into runs of neighbouring rows."""
        return self.world_size if self.sequential else self.lane_count

    def cursors(self, position: Position) -> dict[str, Cursor]:
        """Return the cursors of a position by lane; those of all lanes if the position is the start of its pass."""
        if position.lanes is not None:
            return position.lanes
        epoch = position.pass_number * (self.settings.epochs or 1)
        return {str(lane): [epoch, 0, 0, 0] * len(self.sources.by_name) for lane in range(self.lane_count)}

    def window(self, source: Any) -> Any:
        """Return how many blocks of a source are shuffled together, as in a state."""
        options = {"is_shuffled": self._is_shuffled, "is_sequential": self.sequential}
        return source.window(self.lane_count, mixed=self.sources.mixed, stated=self.settings.window, **options)

    @property
    def _is_shuffled(self) -> bool:
        layout = self.settings.layout
        return self.settings.seed is not None and (layout is None or layout.interleaved)

    def sequences_of(self, source: CountedData) -> Sequences:
        """Return where the epochs of an indexed source begin, in its own order."""
        layout = self.layout
        count = source.total_tokens if layout.unit == "tokens" else source.total_documents
        source.raise_if_empty(count, layout.unit)
        lanes, epochs = self._indexed_lanes, self.settings.epochs
        return Sequences(count, layout.sequence_stride, lanes, epochs, layout.tokens_before_labels)

    @cached_property
    def sequences(self) -> Sequences | None:
        """Where epochs begin; None for a sequential stream, and for a mix, in which each source has its own epochs."""
        if self.sources.is_mix or self.sequential:
            return None
        [source] = self.sources.counted.values()
        sequences = self.sequences_of(source)
        if self.settings.epochs is not None and not sequences.labelled:
            raise ConfigError(
                f"the data is too short for a label: split {source.split!r} holds {sequences.tokens} tokens, epochs="
                f"{self.settings.epochs}, and labels are {sequences.lag} tokens ahead; give more input, or a smaller shift"
            )
        return sequences

    @property
    def passes(self) -> Passes:
        """The first and the last sequence of each pass."""
        return Passes(self)  # not kept, since it would keep the plan in a cycle

    # The mixture

    @cached_property
    def changes(self) -> Changes:
        """The weights of a mix from each global sequence on."""
        weights = self._changed_weights or self.settings.weights
        return weights.changes(self.row_tokens) if isinstance(weights, Schedule) else weights

    @cached_property
    def phases(self) -> list[int]:
        """The global sequence at which each phase of the stated weights begins; a phase lasts from one point to the next."""
        weights = self.settings.weights
        return weights.begins(self.row_tokens) if isinstance(weights, Schedule) else [begin for begin, _ in weights]

    @cached_property
    def tokens_of_rows(self) -> dict[str, Fraction]:
        """The tokens of a row of each source: ``seq_len``, or for whole documents the mean tokens of a document.

        Raises ``ConfigError`` for documents of texts, whose number is unknown.
        """
        layout = self.layout
        if not isinstance(layout, DocumentLayout):
            return dict.fromkeys(self.sources.by_name, Fraction(layout.seq_len))
        if not self.sources.all_counted:
            raise ConfigError(
                "the mean tokens of a document of text are unknown in advance: give the schedule in steps, or .pack() rows"
            )
        means = {name: Fraction(data.total_tokens, data.total_documents) for name, data in self.sources.counted.items()}
        most = max(means.values()) if layout.max_length is None else Fraction(layout.max_length)
        return {name: min(mean, most) for name, mean in means.items()}

    def row_tokens(self, weights: Weights) -> Fraction:
        """Return the mean tokens of a row under weights."""
        return sum((weights[name] * tokens for name, tokens in self.tokens_of_rows.items()), Fraction(0))

    def mixture(self, lanes: int | None = None) -> Mixture | None:
        """Return which source serves each row of the stream's lanes, or of so many; None for a single source."""
        if not self.sources.is_mix:
            return None
        lanes = lanes or self.lane_count
        segments = [(self.row_of_change(sequence, lanes), shares) for sequence, shares in self.changes]
        return Mixture(list(self.sources.by_name), self.settings.seed or 0, lanes, segments, self.served)

    def row_of_change(self, sequence: int, lanes: int | None = None) -> int:
        """Return the row of the lanes at which weights that are stated from a global sequence on take effect.

        With buckets, this is the start of a group, since a group is arranged whole.
        """
        lanes, layout = lanes or self.lane_count, self.settings.layout
        group = GROUP * layout.bucket if layout is not None and layout.bucket else 1
        row = _ceil_div(sequence, lanes)
        return _ceil_div(_ceil_div(row * lanes, group) * group, lanes)

    def phases_until(self, end: int, lanes: int) -> list[tuple[int, int]]:
        """Return the range of sequence indices of each phase that begins before ``end``, if there are ``lanes`` lanes."""
        begins = [self.row_of_change(begin, lanes) * lanes for begin in self.phases]
        return list(pairwise([*(begin for begin in begins if begin < end), end]))

    @cached_property
    def end_of_mix(self) -> int:
        """The number of sequences after which a stopping strategy ends the mix; ``ConfigError`` for a sequential mix."""
        strategy = self.settings.stopping_strategy
        if self.sequential:
            raise ConfigError(
                f"stopping_strategy={strategy!r} counts the sequences of each source in advance, and texts, filters and best "
                "fit have no such count: leave it out, and end the mix by .take(n)"
            )
        mixture = self.mixture()
        assert mixture is not None
        return mixture.end(self._sizes, of_all=strategy == "all_exhausted")

    @property
    def _sizes(self) -> list[int]:
        """The sequences of the first epoch of each source of a mix."""
        return [self.sequences_of(source).first(1) for source in self.sources.counted.values()]

    @cached_property
    def inserted(self) -> InsertedTexts | None:
        """The texts in place of tokens; None if there are none."""
        settings, layout, size = self.settings, self.layout, self.step_size
        if not settings.insertions:
            return None
        full = layout.unit == "tokens" and not layout.best_fit and settings.epochs is None
        begin = (
            (lambda step: (step * size, size))
            if self.sequential
            else (lambda step: self.passes.step(step, Position(0))[:2])
        )
        return place_texts(settings.insertions, layout, size=size, always_full=full, begin=begin)

    # Identity

    def shape(self) -> dict[str, Any]:
        """Return the values that the order depends on: a state made under one shape is refused under another.

        In a sequential stream, the global batch is one of them, so the shape depends on the number of ranks.
        """
        settings, sources, layout = self.settings, self.sources, self.settings.layout or DocumentLayout()
        shape: dict[str, Any] = {"order": ORDER, "split": sources.split, "kind": layout.kind}
        shape |= {"seed": settings.seed, "epochs": settings.epochs}
        if any(sources.live):
            shape |= {"ranks": self.world_size}
        if layout.interleaved:
            windows = {name: self.window(source) for name, source in sources.by_name.items()}
            by_name = sources.is_mix and sources.counted  # a mix of texts alone has one window, as stated
            shape |= {"window": windows if by_name else next(iter(windows.values())), "lanes": self.lane_count}
        shape |= layout.fields()
        if self.sequential:
            filters = [transform.name for transform in settings.filters]
            shape |= {"global_batch": self.step_size, "filters": filters, "best_fit": layout.best_fit}
        if self.sequential or settings.document_maps:
            shape |= {"document_maps": [transform.name for transform in settings.document_maps]}
        if sources.is_mix:
            weights = settings.weights
            if isinstance(weights, Schedule):
                shape |= {"weights": weights.to_json() | {"sequences": self.phases}}
            else:
                shape |= {"weights": weights_to_json(weights)}
            if layout.bucket and settings.stopping_strategy is not None:
                shape |= {"end": self.end_of_mix}
        if withheld := sources.withheld_hash:
            shape |= {"without": withheld}
        if settings.insertions and self.inserted is not None:
            shape |= {"insert": self.inserted.hash}
        return {**shape, "data": sources.fingerprints()}

    # Warnings

    @cached_property
    def warnings(self) -> list[str]:
        """What the user should know of the stream before it is read: small sources, shared lanes, an uneven end."""
        return [*self._small_sources(), *self._shared_lanes(), *self._uneven_end()]

    def _small_sources(self) -> Iterator[str]:
        """Name each source that is smaller than a row or a batch of all ranks, which then repeats the source or pads."""
        layout, epochs = self.layout, self.settings.epochs
        if isinstance(layout, DocumentLayout):
            return
        shares = self.changes[0][1] if self.sources.is_mix else {}
        for name, source in self.sources.by_name.items():
            is_counted = isinstance(source, CountedData)
            tokens = 0 if source.live else source.total_tokens * (1 if is_counted else _MOST_TOKENS_OF_ESTIMATE)
            wanted = float(shares.get(name, 1)) * self.step_size * layout.seq_len
            effect = ""
            if epochs is not None and wanted > 2 * tokens * epochs:
                effect = (
                    f"a batch of all ranks has {wanted:,.0f} tokens: the rest of it is padding after epochs={epochs}"
                )
            elif epochs is None and wanted and layout.seq_len > tokens:
                effect = f"a row has {layout.seq_len:,} tokens: each row repeats documents"
            elif epochs is None and wanted > tokens:
                times = wanted / max(1, tokens)
                effect = f"a batch of all ranks takes {wanted:,.0f}, {times:,.2f} times as many: it repeats documents"
            if effect and tokens:
                what = f"source {name!r} holds" if name else "the data holds"
                yield (
                    f"{what}{'' if is_counted else ' at most about'} {tokens:,} tokens, but {effect}; "
                    "give more data, a smaller batch or a smaller seq_len"
                )

    def _shared_lanes(self) -> Iterator[str]:
        """Say that ranks share lanes, and so read the same blocks, though the data has windows for more lanes."""
        lanes, ranks = self.lane_count, self.world_size
        if self.sequential or lanes == 1 or not (ranks > 2 * lanes or (ranks > lanes and ranks % lanes)):
            return
        size = sum(source.extents.blocks().bytes for source in self.sources.counted.values())
        if size >= ranks * _LEAST_OF_LANE:
            yield (
                f"{ranks} ranks share {lanes} lanes, so about {max(2, round(ranks / lanes))} of them read each block; with "
                f".shuffle(lanes={ranks}) one does. A state keeps the lanes of its run, so choose them at the start of a run"
            )

    def _uneven_end(self) -> Iterator[str]:
        """Say that a mix ends away from the end of an epoch: lanes end at different times, and the first or last decides."""
        strategy = self.settings.stopping_strategy
        if strategy is None or self.lane_count == 1:
            return
        mixture = self.mixture()
        assert mixture is not None
        shares = mixture.shares(self.end_of_mix).values()
        parts = [share["sequences"] / size for share, size in zip(shares, self._sizes, strict=True)]
        part = min(filter(None, parts)) if strategy == "all_exhausted" else max(parts)
        if abs(part - 1) > _UNEVEN:
            yield (
                f"stopping_strategy={strategy!r}: the mix ends when {part:.0%} of the epoch of one source is read, since each of "
                f"{self.lane_count} lanes has its own end; .shuffle(lanes=1) ends little data at 100%"
            )


class Passes:
    """The sequences of each pass, the number of its items, and the pass of a position.

    Pass ``e`` of a stream with ``epochs=E`` is the epochs ``e * E`` to ``(e + 1) * E``, cut from their own first token; ``take``
    keeps its first steps. If ``take(n)`` bounds an endless stream, pass ``e`` is its ``e``-th run of ``n`` steps. So all passes
    of an indexed stream have the same number of steps. Pass ``e`` of an endless or a sequential stream begins with epoch ``e``.

    If passes ``exist``, ``set_epoch`` can move the stream. A mix has no epochs, so it has passes only with ``take``.
    An ``endless`` stream is ended neither by ``epochs`` nor by ``take``. If items are ``countable``, arithmetic says how many
    are left.
    """

    def __init__(self, plan: StreamPlan) -> None:
        settings = plan.settings
        limits = [] if settings.take is None else [settings.take]
        if settings.take_batches is not None:
            limits.append(settings.take_batches * plan.step_size)
        if settings.stopping_strategy is not None and settings.layout is not None:
            limits.append(plan.end_of_mix)
        self._plan = plan
        self._take_limit = min(limits, default=None)  # sequences of a pass that `take` keeps
        # The sequences of a pass, if passes are runs of the endless stream.
        self._run = None if plan.sequential or settings.epochs is not None else self._take_limit
        self.exist = not plan.sources.is_mix or self._take_limit is not None
        self.bounded = settings.epochs is not None or self._take_limit is not None
        self.endless = not self.bounded and not settings.takes
        self.countable = settings.counts_items and not (plan.sequential and settings.epochs is not None)

    def bounds(self, position: Position) -> tuple[int, int | None]:
        """Return the first and the end sequence (exclusive; None: endless) of the pass of ``position``.

        A sequential reader counts sequences from the latest ``set_epoch``, and does not know where its epochs end.
        """
        number, sequences = position.pass_number, self._plan.sequences
        if self._run is not None:
            return number * self._run, (number + 1) * self._run
        if sequences is None:
            return 0, self._take_limit
        if self._plan.settings.epochs is None:
            return sequences.first(number), None
        start = number * sequences.pass_size
        return start, start + min([sequences.labelled, *([] if self._take_limit is None else [self._take_limit])])

    def length(self, topology: Topology) -> int:
        """Return how many items a rank gets in a whole pass; ``TypeError`` if their number is unknown or the pass endless."""
        plan, settings = self._plan, self._plan.settings
        if settings.layout is None:
            raise TypeError("a stream has no len() before .pack() or .documents() says what an item is")
        if not settings.counts_items:
            raise TypeError("a stream has no len() after .apply(): a stage of your own may drop or add items")
        if plan.sequential and settings.epochs is not None:
            raise TypeError(
                "the len() of text, filters and best-fit packing is unknown before they are read; leave epochs out and bound "
                "the stream with .take(n)"
            )
        end = self.bounds(Position(0))[1]
        if end is None:
            raise TypeError("an endless stream has no len(); bound it with epochs= or .take(n)")
        return self.item_count(0, 0, end, topology)

    def items_left(self, position: Position, topology: Topology) -> int | None:
        """Return how many items of its pass a rank gets after a position; None if this is unknown, or the pass endless."""
        begin, end = self.bounds(position)
        if end is None or not self.countable:
            return None
        return self.item_count(begin, position.sequence_index, end, topology)

    def step(self, number: int, position: Position) -> tuple[int, int, Position]:
        """Return the first sequence of global step ``number`` of a run, its number of sequences, and the start of its pass.

        Steps count from the start of the stream, through all passes; ``position`` has the weights of the run. Raises
        ``ConfigError`` for a step after the end of a stream that has only one pass.
        """
        size, steps, end = self._plan.step_size, self.pass_steps, self.bounds(Position(0))[1]
        if end is None or steps is None:
            return number * size, size, Position(0, weights=position.weights)
        if number >= self.most_steps:
            raise ConfigError(f"step {number} is after the end: the stream has {steps:,} steps, counted from 0")
        number_of_pass, inside = divmod(number, steps)
        begin = self.begin(number_of_pass, position.weights)
        at = begin.sequence_index + inside * size
        return at, min(size, begin.sequence_index + end - at), begin

    @cached_property
    def pass_steps(self) -> int | None:
        """The number of steps of a pass; None for an endless stream."""
        end, size = self.bounds(Position(0))[1], self._plan.step_size
        return end if end is None else end // size if self._plan.settings.drop_last else -(-end // size)

    @property
    def most_steps(self) -> int:
        """The number of steps that `step` accepts: those of one pass, or any number if there are more passes."""
        if self.pass_steps is None or (self.pass_steps and self.exist and (self._plan.settings.epochs or 1) == 1):
            return MAX_NUMBER
        return self.pass_steps

    def steps_before(self, position: Position) -> int:
        """Return how many steps of a run, through all passes, begin before a position."""
        start = 0 if self.pass_steps is None else self.bounds(position)[0]
        return position.pass_number * (self.pass_steps or 0) + -(
            -(position.sequence_index - start) // self._plan.step_size
        )

    def step_of(self, index: int) -> tuple[int, RankStep] | None:
        """Return the number of the step that has a sequence index, and the step; None for an index that no step has.

        This is the inverse of `step`.
        """
        size, number, start, end = self._plan.step_size, 0, 0, self.bounds(Position(0))[1]
        if self.pass_steps is not None:
            whole = self._run or (self._plan.sequences.pass_size if self._plan.sequences is not None else 0)
            number = index // whole
            start, end = self.bounds(Position(0, pass_number=number))
        inside = (index - start) // size
        if end is not None and (index >= end or inside >= (self.pass_steps or 0)):
            return None
        begin = start + inside * size
        period = self._plan.rank_period
        left = size if end is None else min(size, end - begin)
        return number * (self.pass_steps or 0) + inside, RankStep(begin, left, 0, self._plan.world_size, period, start)

    def begin(self, number: int, weights: list[list[Any]] | None = None) -> Position:
        """Return the position at which a pass begins."""
        begin = Position(0, pass_number=number, weights=weights)
        return replace(begin, sequence_index=self.bounds(begin)[0]) if number else begin

    def pass_of(self, position: Position) -> tuple[int, Position, bool]:
        """Return the pass of a loaded position, the position in this pass, and whether it is known to be the pass's end.

        A state that was saved under another ``take`` or number of ranks may be in another pass than it says.
        """
        plan, settings, index = self._plan, self._plan.settings, position.sequence_index
        if not self.bounded:
            return self.epoch(position), position, False
        if self._run:
            start, end = self.bounds(position)
            if end is not None and not start <= index <= end:
                position = replace(position, pass_number=index // self._run)
        number, end = position.pass_number, self.bounds(position)[1]
        reached = number if self._run else self.epoch(position) // (settings.epochs or 1)
        is_read = end is not None and index > end
        if plan.sequential and settings.epochs:  # only its lanes know where epochs end
            is_read = reached > number and self._has_all_lanes(position)
        rest_is_dropped = settings.drop_last and end is not None and 0 <= end - index < self._plan.step_size
        if index == end or rest_is_dropped or (is_read and plan.sequential):
            return number, position, True
        number = reached if is_read else number  # a state under a larger `take` is in a later pass
        return number, replace(position, pass_number=number), False

    def epoch(self, position: Position) -> int:
        """Return the epoch of the next sequence, or in a sequential stream of the slowest lane."""
        if self._plan.sequential:
            epochs = (epoch for cursor in (position.lanes or {}).values() for epoch in cursor[::NUMBERS])
            return min(epochs, default=position.pass_number * (self._plan.settings.epochs or 1))
        return 0 if self._plan.sequences is None else self._plan.sequences.epoch(position.sequence_index)

    def all_ranks_know(self, position: Position) -> bool:
        """Say whether every rank finds the same pass in a loaded position. Lanes of an endless stream drift apart."""
        known = not self._plan.sequential or position.lanes is None or self.bounded
        return known or self._has_all_lanes(position)

    def _has_all_lanes(self, position: Position) -> bool:
        return len(position.lanes or ()) == self._plan.lane_count

    def item_count(self, pass_begin: int, start: int, end: int, topology: Topology) -> int:
        """Return how many batches, or sequences without ``batch``, a rank gets from sequences ``start`` to ``end`` of a pass."""
        whole, rest = divmod(max(0, end - start), self._plan.step_size)
        if self._plan.settings.batch_size is None:
            rank, ranks = topology.rank, topology.world_size
            return whole + len(RankStep(end - rest, rest, rank, ranks, self._plan.rank_period, pass_begin))
        return whole + (rest > 0 and not self._plan.settings.drop_last)


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
