"""What every kind of data offers to a stream, and what those with counts known in advance share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from ...errors import ConfigError
from ...shards.ranges.source import Source as Ranges
from ..lanes import WINDOW_BYTES, LaneLayout, best_fit_lanes_a_row, lane_layout
from ..order import LANES, Sequences, default_window, sequential_window
from .contents import Contents

if TYPE_CHECKING:
    from ..config import StreamConfig


class Data(Protocol):
    """Where the tokens of a stream come from: counts, a fingerprint, an order and readers.

    ``counted``: how many tokens and documents there are is known in advance. ``default_lanes``: those of a shuffled indexed
    stream that states none.
    """

    counted: bool
    default_lanes: int
    name: str
    split: str
    dtype: np.dtype[Any]
    eos_id: int
    vocab_size: int | None
    tokenizer: str | None

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each source by its name."""

    def sizes(self) -> str:
        """Return how much data there is, in words."""

    def check_stage(self, method: str) -> None:
        """Raise ``ConfigError`` for a method of a stream that this data cannot have."""

    def check_rules(self, fields: Sequence[str]) -> None:
        """Raise ``ConfigError`` where rules cannot judge this data, or where it lacks ``fields`` that they read."""

    def source_of_mix(self, name: str) -> Data:
        """Return this as the source ``name`` of a mix; raises ``ConfigError`` where it cannot be one."""

    def lane_layout(self, config: StreamConfig, rows: int) -> LaneLayout:
        """Return the lanes of a shuffled sequential stream, for so many rows of a global batch."""

    def window(self, config: StreamConfig, lanes: int) -> Any:
        """Return the blocks that are shuffled together, as a state holds them: of each source of a mix, of text as stated.

        ``lanes`` are those in force.
        """

    def sequences(self, config: StreamConfig) -> Sequences | None:
        """Return where the epochs' sequences begin; None where epochs are not counted in advance, or are the sources' own."""


class CountedData:
    """One source of documents: what it holds, known without opening a shard, and a way to its bytes.

    ``documents`` and ``tokens`` are those of every shard.
    """

    counted = True
    default_lanes = LANES
    name: str
    split: str
    dtype: np.dtype[Any]
    eos_id: int
    vocab_size: int | None = None
    tokenizer: str | None
    documents: list[int]
    tokens: list[int]
    fingerprint: str

    @property
    def contents(self) -> Contents:
        """The extents, and what is streamed of them."""
        raise NotImplementedError

    def ranges(self, max_open: int) -> Ranges:
        """Return what reads extents, in the process that iterates; at most ``max_open`` shards are open."""
        raise NotImplementedError

    def fingerprints(self) -> dict[str, str]:
        return {self.name: self.fingerprint}

    def sizes(self) -> str:
        return f"{len(self.documents):,} shards, {sum(self.documents):,} documents, {sum(self.tokens):,} tokens"

    def check_stage(self, method: str) -> None:
        return

    def check_rules(self, fields: Sequence[str]) -> NoReturn:
        raise ConfigError("rules and languages judge text, and shards hold tokens; filter when they are built")

    def source_of_mix(self, name: str) -> CountedData:
        return self

    def lane_layout(self, config: StreamConfig, rows: int) -> LaneLayout:
        most = None
        if config.best_fit:
            seq_len = config.stated_layout().sequence_stride
            most = best_fit_lanes_a_row(seq_len, rows, sum(self.tokens), self.dtype.itemsize)
        return lane_layout(rows, config.lanes, lambda most: min(most, sum(self.documents)), most)

    def window(self, config: StreamConfig, lanes: int) -> int:
        if config.seed is None:
            return 1
        if config.window is not None:
            return config.window
        blocks = self.contents.blocks()
        return sequential_window(blocks, WINDOW_BYTES // lanes) if config.sequential else default_window(blocks)

    def sequences(self, config: StreamConfig) -> Sequences | None:
        layout = config.stated_layout()
        if config.sequential:
            return None
        count = sum(self.tokens if layout.unit == "tokens" else self.documents)
        self.raise_if_empty(count, layout.unit)
        return Sequences(count, layout.sequence_stride, config.lane_count)

    def raise_if_empty(self, count: int, unit: str) -> None:
        """Raise ``ConfigError`` for a split that holds nothing."""
        if count == 0:
            raise ConfigError(
                f"split {self.split!r} holds no {unit}: there is nothing to stream; build it from more input"
            )
