"""What the user asked for: the arguments of all calls of a chain as one frozen value. `StreamPlan` says what they amount to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigError
from .datasets.sources.sources import Sources
from .function_identity import DocumentMap, Filter
from .layout import DocumentLayout, Layout
from .order.mixture import Changes
from .schedule import Schedule

if TYPE_CHECKING:
    from .context_parallel import ContextPeer
    from .insertions import Insertion


class Map(NamedTuple):
    """A function of one item, as a stage."""

    function: Callable[[Any], Any]


class Take(NamedTuple):
    """The first ``limit`` items, counted one by one since an earlier stage may drop some."""

    limit: int


def stage_name(number: int, stage: object) -> str:
    """Return the name of a stage of the user in a state."""
    return f"{number}.{getattr(stage, '__name__', type(stage).__name__)}"


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """The settings of all stages.

    - ``filters`` choose documents, ``document_maps`` change them.
    - ``weights`` (each from a global sequence on) and ``stopping_strategy`` belong to a mix.
    - ``seed`` None keeps the order of the files; ``window`` and ``lanes`` None are chosen from the data.
    - ``insertions`` are texts in place of tokens.
    - ``cut``: batches cut each row of the layout into rows of so many tokens; None keeps rows whole.
    - ``sample_stages`` and ``batch_stages`` are the user's stages before and after batching.
    - ``take`` bounds the global sequences, ``take_batches`` the batches of a rank.
    - ``stated_topology``: rank and world size; None: torch.distributed has them. ``group`` is the process group given to
      ``shard``, which is not pickled.
    - ``peer`` is the peer of context parallelism that keeps slices of the rows; None keeps whole rows.
    - ``prefetch`` None is 2 batches for a GPU, else 0; ``stored`` keeps ids in their stored width.
    - ``whole_rows``: ``rows`` made the stream; ``keyed``: the name of its keys, ``"own"`` if a function makes them.
    - ``calls`` are the calls of the chain as text.
    """

    sources: Sources
    filters: tuple[Filter, ...] = ()
    document_maps: tuple[DocumentMap, ...] = ()
    weights: Changes | Schedule = ()
    stopping_strategy: str | None = None
    epochs: int | None = None
    seed: int | None = None
    window: int | None = None
    lanes: int | None = None
    layout: Layout | None = None
    insertions: tuple[Insertion, ...] = ()
    sample_stages: tuple[Callable[..., Any], ...] = ()
    batch_size: int | None = None
    cut: int | None = None
    drop_last: bool = False
    batch_stages: tuple[Callable[..., Any], ...] = ()
    take: int | None = None
    take_batches: int | None = None
    stated_topology: tuple[int, int] | None = None
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
