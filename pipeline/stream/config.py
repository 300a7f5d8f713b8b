"""What a chain of stages amounts to: one frozen value, from which any process can make the same stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import ConfigError
from .function_identity import DocumentMap, Filter
from .lanes import Lanes
from .layout import DocumentLayout, Layout
from .order import Sequences
from .order.mixture import Schedule, weights_to_json

if TYPE_CHECKING:
    from ..text.tokenizer.tokenizer import Tokenizer

ORDER = 2  # version of the order of documents: another one is another stream


class Data(Protocol):
    """Where the tokens of a stream come from, as its config knows it; `data` has the kinds.

    ``counted``: how many tokens and documents there are is known in advance. ``live``: which of the sources are live, in the
    order of a cursor's parts; each rank reads a part of such a source, so a state belongs to a number of ranks.
    ``default_lanes``: those of a shuffled indexed stream that states none.
    """

    counted: bool
    live: tuple[bool, ...]
    default_lanes: int
    split: str
    dtype: np.dtype[Any]
    eos_id: int
    vocab_size: int | None
    tokenizer: str | None

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each source by its name."""

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the ids; raises ``ConfigError`` where nobody knows it."""

    def sizes(self) -> str:
        """Return how much data there is, in words."""

    def check_stage(self, method: str) -> None:
        """Raise ``ConfigError`` for a method of a stream that this data cannot have."""

    def check_rules(self, fields: Sequence[str]) -> None:
        """Raise ``ConfigError`` where rules cannot judge this data, or where it lacks ``fields`` that they read."""

    def source_of_mix(self, name: str) -> Any:
        """Return this data as the source ``name`` of a mix; raises ``ConfigError`` where it cannot be one."""

    def make_lanes(self, config: StreamConfig, rows: int) -> Lanes:
        """Return the lanes of a sequential stream, for so many rows of a global batch."""

    def window(self, config: StreamConfig, lanes: int) -> Any:
        """Return the blocks that are shuffled together, as a state holds them: of each source of a mix, of text as stated.

        ``lanes`` are those in force.
        """

    def sequences(self, config: StreamConfig) -> Sequences | None:
        """Return where the epochs' sequences begin; None where epochs are not counted in advance, or are the sources' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Everything that the stages said.

    ``seed`` None keeps the order of the files; ``window`` and ``lanes`` None are chosen from the data; ``rank`` None
    is torch.distributed's; ``steps`` and ``batch_steps`` are what users put before and after batching; ``take`` bounds
    the global sequences, ``take_batches`` the batches of a rank; ``stored`` keeps ids in the width they are stored in;
    ``prefetch`` None reads two batches ahead for a GPU and none else. A mix, and nothing else, has ``weights``, from
    global sequences on. ``filters`` say which documents stay, ``document_maps`` what becomes of them. ``calls`` are the calls
    of the chain as text.
    """

    data: Data
    filters: tuple[Filter, ...] = ()
    document_maps: tuple[DocumentMap, ...] = ()
    weights: Schedule = ()
    epochs: int | None = None
    seed: int | None = None
    window: int | None = None
    lanes: int | None = None
    layout: Layout | None = None
    steps: tuple[Callable[..., Any], ...] = ()
    batch_size: int | None = None
    drop_last: bool = False
    batch_steps: tuple[Callable[..., Any], ...] = ()
    take: int | None = None
    take_batches: int | None = None
    rank: int | None = None
    world_size: int = 1
    device: str | None = None
    numpy: bool = False
    prefetch: int | None = None
    stored: bool = False
    calls: tuple[str, ...] = ()

    @property
    def stated_topology(self) -> tuple[int, int] | None:
        """Rank and world size as the user stated them, if so."""
        return None if self.rank is None else (self.rank, self.world_size)

    def stated_layout(self) -> Layout:
        """Return the layout; raises ``ConfigError`` where no stage gave one."""
        if self.layout is None:
            raise ConfigError("nothing says what a sample is; add .pack(seq_len) or .documents()")
        return self.layout

    @property
    def mixed(self) -> bool:
        """Whether this is a mix of sources."""
        return bool(self.weights)

    @property
    def best_fit(self) -> bool:
        """Whether whole documents are packed."""
        return self.layout is not None and self.layout.best_fit

    @property
    def sequential(self) -> bool:
        """Whether lanes need cursors, because the counts before a sequence are unknown in advance."""
        longer = any(not transform.same_length for transform in self.document_maps)
        return self.best_fit or bool(self.filters) or longer or not self.data.counted

    @property
    def lane_count(self) -> int:
        """The lanes that an indexed stream interleaves, and that ranks share; no table of extents is read for it."""
        if self.seed is None or not (self.layout is None or self.layout.interleaved):
            return 1
        return self.data.default_lanes if self.lanes is None else self.lanes

    def make_lanes(self, world_size: int) -> Lanes:
        """Return the lanes of a sequential stream; text that was not counted before is read for it.

        Raises ``ConfigError`` for lanes that the rows of a global batch cannot share.
        """
        return self.data.make_lanes(self, world_size * (self.batch_size or 1))

    def stream_lanes(self, world_size: int) -> int:
        """Return how many lanes the stream has, on so many ranks."""
        return self.make_lanes(world_size).count if self.sequential else self.lane_count

    def rank_period(self, world_size: int) -> int:
        """Return how the rows of a step are divided among ranks (see `RankStep`): by lanes; of sequential streams, neighbours."""
        return world_size if self.sequential else self.lane_count

    def shape(self, world_size: int) -> dict[str, Any]:
        """Return what the order depends on: a state made under one shape is refused under another.

        Of a sequential stream that is the global batch too, so it takes the number of ranks.
        """
        layout = self.layout or DocumentLayout()
        shape: dict[str, Any] = {"order": ORDER, "split": self.data.split, "kind": layout.kind}
        shape |= {"seed": self.seed, "epochs": self.epochs}
        if any(self.data.live):
            shape |= {"ranks": world_size}
        if layout.interleaved:
            lanes = self.stream_lanes(world_size)
            shape |= {"window": self.data.window(self, lanes), "lanes": lanes}
        shape |= layout.fields()
        if self.sequential:
            shape |= {
                "global_batch": world_size * (self.batch_size or 1),
                "filters": [transform.name for transform in self.filters],
            }
            shape |= {"best_fit": layout.best_fit}
        if self.sequential or self.document_maps:
            shape |= {"document_maps": [transform.name for transform in self.document_maps]}
        if self.mixed:
            shape |= {"weights": weights_to_json(self.weights)}
        return {**shape, "data": self.data.fingerprints()}
