"""The settings of a chain of stages as one frozen value, from which any process can make the same stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..notices import say_once
from .datasets.sources.counted_data import CountedData
from .datasets.sources.sources import Sources
from .function_identity import DocumentMap, Filter
from .layout import DocumentLayout, Layout
from .order import Sequences
from .order.interleave import GROUP
from .order.mixture import Changes, Mixture, Served, Weights
from .schedule import Schedule

if TYPE_CHECKING:
    from .context_parallel import ContextPeer

_UNEVEN = 0.05  # part of an epoch: a mix that ends further from an epoch's end logs so


class Map:
    """A function of one item, as a stage."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function


class Take:
    """The first ``count`` items, counted one by one since an earlier stage may drop some."""

    def __init__(self, count: int) -> None:
        self.count = count


def stage_name(number: int, stage: object) -> str:
    """Return the name of a stage of the user in a state."""
    return f"{number}.{getattr(stage, '__name__', type(stage).__name__)}"


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """The settings of all stages.

    - ``filters`` choose documents, ``document_maps`` change them.
    - ``weights`` (each from a global sequence on) and ``stopping_strategy`` belong to a mix; ``changed_weights`` replace
      ``weights`` after ``set_weights``, and ``served`` are the rows before the first of them, if it does not begin at 0.
    - ``seed`` None keeps the order of the files; ``window`` and ``lanes`` None are chosen from the data.
    - ``cut``: batches cut each row of the layout into rows of so many tokens; None keeps rows whole.
    - ``sample_stages`` and ``batch_stages`` are the user's stages before and after batching.
    - ``take`` bounds the global sequences, ``take_batches`` the batches of a rank.
    - ``rank`` None is torch.distributed's; ``group`` is the process group given to ``shard``, which is not pickled.
    - ``peer`` is the peer of context parallelism that keeps slices of the rows; None keeps whole rows.
    - ``prefetch`` None is 2 batches for a GPU, else 0; ``stored`` keeps ids in their stored width.
    - ``whole_rows``: ``rows`` made the stream; ``keyed``: the name of its keys, ``"own"`` if a function makes them.
    - ``calls`` are the calls of the chain as text.
    """

    sources: Sources
    filters: tuple[Filter, ...] = ()
    document_maps: tuple[DocumentMap, ...] = ()
    weights: Changes | Schedule = ()
    changed_weights: Changes = ()
    served: Served = ()
    stopping_strategy: str | None = None
    epochs: int | None = None
    seed: int | None = None
    window: int | None = None
    lanes: int | None = None
    layout: Layout | None = None
    sample_stages: tuple[Callable[..., Any], ...] = ()
    batch_size: int | None = None
    cut: int | None = None
    drop_last: bool = False
    batch_stages: tuple[Callable[..., Any], ...] = ()
    take: int | None = None
    take_batches: int | None = None
    rank: int | None = None
    world_size: int = 1
    group: Any = None
    peer: ContextPeer | None = None
    device: str | None = None
    numpy: bool = False
    prefetch: int | None = None
    stored: bool = False
    whole_rows: bool = False
    keyed: str = ""
    calls: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "group": None}

    @property
    def stated_topology(self) -> tuple[int, int] | None:
        """Rank and world size as the user stated them; None if the user did not."""
        return None if self.rank is None else (self.rank, self.world_size)

    def stated_layout(self) -> Layout:
        """Return the layout; ``ConfigError`` if no stage set one."""
        if self.layout is None:
            raise ConfigError("nothing says what a sample is; add .pack(seq_len) or .documents()")
        return self.layout

    @property
    def pieces(self) -> int:
        """The number of rows into which a batch cuts each row of the layout."""
        return 1 if self.cut is None else (self.stated_layout().longest or 0) // self.cut

    @property
    def sliced(self) -> bool:
        """Whether peers of context parallelism get slices of rows instead of whole rows."""
        return self.peer is not None and self.peer.slices != "rows"

    def batch_layout(self) -> Layout:
        """Return the layout of the rows of a batch, after ``cut``."""
        layout = self.stated_layout()
        return layout if self.cut is None or isinstance(layout, DocumentLayout) else replace(layout, seq_len=self.cut)

    @property
    def stages(self) -> tuple[Any, ...]:
        """The user's stages before and after ``batch``; a state knows them by their number."""
        return (*self.sample_stages, *self.batch_stages)

    @property
    def takes(self) -> list[int]:
        """The numbers of the stages that count items."""
        return [number for number, stage in enumerate(self.stages) if isinstance(stage, Take)]

    @property
    def applied(self) -> list[str]:
        """The names of the stages of ``apply``, which may bind a position to one rank."""
        stages = enumerate(self.stages)
        return [stage_name(number, stage) for number, stage in stages if not isinstance(stage, Map | Take)]

    @property
    def counts_items(self) -> bool:
        """Whether a position follows from the number of items: every stage yields one item for each item that it takes."""
        return all(isinstance(stage, Map) for stage in self.stages)

    @property
    def vocab_size(self) -> int | None:
        """The number of ids that ``map_documents`` states, else that of the tokenizer; None if unknown."""
        stated = [known.vocab_size for known in self.document_maps if known.vocab_size is not None]
        return max(stated, default=self.sources.vocab_size)

    @property
    def best_fit(self) -> bool:
        """Whether whole documents are packed."""
        return self.layout is not None and self.layout.best_fit

    @property
    def sequential(self) -> bool:
        """Whether lanes need cursors, because the counts before a sequence are unknown in advance."""
        longer = any(not transform.same_length for transform in self.document_maps)
        return self.best_fit or bool(self.filters) or longer or not self.sources.all_counted

    @property
    def lane_count(self) -> int:
        """How many lanes an indexed stream interleaves over all ranks."""
        if self.seed is None or not (self.layout is None or self.layout.interleaved):
            return 1
        return self.sources.default_lanes if self.lanes is None else self.lanes

    @property
    def window_options(self) -> dict[str, Any]:
        """The options of `Source.window` besides the lanes."""
        is_shuffled = self.seed is not None and (self.layout is None or self.layout.interleaved)
        options = {"is_shuffled": is_shuffled, "is_sequential": self.sequential}
        return {"mixed": self.sources.mixed, "stated": self.window, **options}

    def sequences_of(self, source: CountedData) -> Sequences:
        """Return where the epochs of an indexed source begin, in its own order."""
        layout = self.stated_layout()
        count = source.total_tokens if layout.unit == "tokens" else source.total_documents
        source.raise_if_empty(count, layout.unit)
        return Sequences(count, layout.sequence_stride, self.lane_count, self.epochs, layout.tokens_before_labels)

    def sequences(self) -> Sequences | None:
        """Return where epochs begin; None for a sequential stream, and for a mix, in which each source has its own epochs."""
        if self.sources.is_mix or self.sequential:
            return None
        [source] = self.sources.counted.values()
        sequences = self.sequences_of(source)
        if self.epochs is not None and not sequences.labelled:
            raise ConfigError(
                f"the data is too short for a label: split {source.split!r} holds {sequences.tokens} tokens, epochs="
                f"{self.epochs}, and labels are {sequences.lag} tokens ahead; give more input, or a smaller shift"
            )
        return sequences

    @cached_property
    def changes(self) -> Changes:
        """The weights of a mix from each global sequence on."""
        weights = self.changed_weights or self.weights
        return weights.changes(self.row_tokens) if isinstance(weights, Schedule) else weights

    @cached_property
    def phases(self) -> list[int]:
        """The global sequence at which each phase of the stated weights begins; a phase lasts from one point to the next."""
        if isinstance(self.weights, Schedule):
            return self.weights.begins(self.row_tokens)
        return [begin for begin, _ in self.weights]

    @cached_property
    def tokens_of_rows(self) -> dict[str, Fraction]:
        """The tokens of a row of each source: ``seq_len``, or for whole documents the mean tokens of a document.

        Raises ``ConfigError`` for documents of texts, whose number is unknown.
        """
        layout = self.stated_layout()
        if not isinstance(layout, DocumentLayout):
            return dict.fromkeys(self.sources.by_name, Fraction(layout.seq_len))
        if not self.sources.all_counted:
            raise ConfigError(
                "the mean tokens of a document of text are unknown in advance: give the schedule in steps, or .pack() rows"
            )
        means = {name: Fraction(one.total_tokens, one.total_documents) for name, one in self.sources.counted.items()}
        most = max(means.values()) if layout.max_length is None else Fraction(layout.max_length)
        return {name: min(mean, most) for name, mean in means.items()}

    def row_tokens(self, weights: Weights) -> Fraction:
        """Return the mean tokens of a row under weights."""
        return sum((weights[name] * tokens for name, tokens in self.tokens_of_rows.items()), Fraction(0))

    def mixture(self, lanes: int) -> Mixture | None:
        """Return which source serves each row of ``lanes`` lanes; None for a single source."""
        if not self.sources.is_mix:
            return None
        segments = [(self.row_of_change(sequence, lanes), shares) for sequence, shares in self.changes]
        return Mixture(list(self.sources.by_name), self.seed or 0, lanes, segments, self.served)

    def row_of_change(self, sequence: int, lanes: int) -> int:
        """Return the row of the lanes at which weights that are stated from a global sequence on take effect.

        With buckets, this is the start of a group, since a group is arranged whole.
        """
        group = GROUP * self.layout.bucket if self.layout is not None and self.layout.bucket else 1
        row = _ceil_div(sequence, lanes)
        return _ceil_div(_ceil_div(row * lanes, group) * group, lanes)

    def phases_until(self, end: int, lanes: int) -> list[tuple[int, int]]:
        """Return the range of sequence indices of each phase that begins before ``end``, if there are ``lanes`` lanes."""
        begins = [self.row_of_change(begin, lanes) * lanes for begin in self.phases]
        return list(pairwise([*(begin for begin in begins if begin < end), end]))

    @cached_property
    def end_of_mix(self) -> int:
        """The number of sequences after which a stopping strategy ends the mix; ``ConfigError`` for a sequential mix."""
        if self.sequential:
            raise ConfigError(
                f"stopping_strategy={self.stopping_strategy!r} counts the sequences of each source in advance, and "
                "texts, filters and best fit have no such count: leave it out, and end the mix by .take(n)"
            )
        mixture = self.mixture(self.lane_count)
        assert mixture is not None
        sizes = [self.sequences_of(source).first(1) for source in self.sources.counted.values()]
        of_all = self.stopping_strategy == "all_exhausted"
        end = mixture.end(sizes, of_all=of_all)
        # Lanes end at different times; the first or the last lane ends the mix.
        parts = [share["sequences"] / size for share, size in zip(mixture.shares(end).values(), sizes, strict=True)]
        part = min(filter(None, parts)) if of_all else max(parts)
        if abs(part - 1) > _UNEVEN and self.lane_count > 1:
            say_once(
                f"stopping_strategy={self.stopping_strategy!r}: the mix ends when {part:.0%} of the epoch of one source is read, "
                f"since each of {self.lane_count} lanes has its own end; .shuffle(lanes=1) ends little data at 100%"
            )
        return end

    def rank_period(self, world_size: int) -> int:
        """Return `RankStep.lanes`: ranks divide a step by lanes, or in a sequential stream into runs of neighbouring rows."""
        return world_size if self.sequential else self.lane_count


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
