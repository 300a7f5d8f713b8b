"""What the kinds of data with counts known in advance share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import ConfigError
from ...shards.ranges.source import Source as Ranges
from ..config import StreamConfig
from ..lanes import WINDOW_BYTES, LaneLayout, best_fit_lanes_a_row, lane_layout
from ..order import LANES, Sequences, default_window, sequential_window
from .contents import Contents


class CountedData:
    """One source of documents: what it holds, known without opening a shard, and a way to its bytes.

    ``documents`` and ``tokens`` are those of every shard.
    """

    counted = True
    live = False
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

    def ranges(self) -> Ranges:
        """Return what reads extents, in the process that iterates."""
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
