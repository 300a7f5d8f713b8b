"""What every kind of data offers to a stream, and what those with counts known in advance share."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...errors import ConfigError
from ...shards.ranges.source import Source as Ranges
from ..order import LANES, Sequences, Shuffle, default_window, sequential_window
from ..sequential.best_fit_sizes import best_fit_tokens, most_lanes_a_row
from ..sequential.cursor import Cursor, Windows, beginning
from ..sequential.document_maps import mapped
from ..sequential.lanes import lanes_reader
from ..sequential.layout import WINDOW_BYTES, LaneLayout, lane_layout
from ..sequential.reader import lane_stats
from ..sequential.shard_blocks import ShardWindows
from ..windows.epoch import EpochDocuments
from ..windows.lanes import LaneWindows
from ..windows.loaded import LoadedWindows
from ..windows.mapped import Change, MappedTokenRows
from ..windows.rows import TokenRows
from ..windows.window import WindowMaker
from .contents import Contents

if TYPE_CHECKING:
    from ..config import StreamConfig
    from ..iteration.position import Position
    from ..iteration.topology import WorkerContext
    from ..reader import Reader

_BLOCK_DOCUMENTS = 64  # of shards, that a filter sees at a time
_SPARE_WINDOWS = 8  # that stay in memory beyond one for each lane


class Share(NamedTuple):
    """Which of its rank's items a loader's worker makes: ``skip`` are passed over, then every ``every``-th is made."""

    skip: int
    every: int


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

    def source_of_mix(self, name: str) -> CountedData:
        """Return this as the source ``name`` of a mix; raises ``ConfigError`` where it cannot be one."""

    def lane_layout(self, config: StreamConfig, rows: int) -> LaneLayout:
        """Return the lanes of a shuffled sequential stream, for so many rows of a global batch."""

    def window(self, config: StreamConfig, lanes: int) -> Any:
        """Return the blocks that are shuffled together, as a state holds them: of each source of a mix, of text as stated.

        ``lanes`` are those in force.
        """

    def sequences(self, config: StreamConfig) -> Sequences | None:
        """Return where the epochs' sequences begin; None where epochs are not counted in advance, or are the sources' own."""

    def make_reader(self, config: StreamConfig, start: Position, context: WorkerContext, share: Share) -> Reader[Any]:
        """Make the reader of one worker of one rank from a position on."""

    def stats(self, config: StreamConfig, position: Position) -> dict[str, Any]:
        """Return what a reader would tell at a position before it reads anything."""


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

    def source_of_mix(self, name: str) -> CountedData:
        return self

    def lane_layout(self, config: StreamConfig, rows: int) -> LaneLayout:
        most = most_lanes_a_row(config.layout, rows, sum(self.tokens), self.dtype.itemsize)
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

    def make_reader(self, config: StreamConfig, start: Position, context: WorkerContext, share: Share) -> Reader[Any]:
        if config.sequential:
            return lanes_reader(config, self.windows, start, context, share.skip, share.every)
        return config.stated_layout().make_reader(self, config, cut=start.start_epoch is None)

    def stats(self, config: StreamConfig, position: Position) -> dict[str, Any]:
        if config.sequential:
            return lane_stats(Counter(), 0, position.lanes or beginning(position.start_epoch or 0, 1))
        sequences = self.sequences(config)
        assert sequences is not None
        return {"bytes_read": 0, "epoch": sequences.epoch(position.sequence_index)}

    def windows(
        self, config: StreamConfig, lanes: LaneLayout, cursors: dict[int, Cursor], epochs: int | None
    ) -> Windows:
        """Return what sequential lanes read: blocks of shuffled documents."""
        unit = config.stated_layout().unit
        order = Shuffle(self.contents.blocks(), lanes.lanes, self.window(config, lanes.lanes), config.seed)
        self.raise_if_empty(order.tokens if unit == "tokens" else order.documents, unit)
        stream = EpochDocuments(self.loaded_windows(config, order, len(cursors) + _SPARE_WINDOWS), order)
        documents = _BLOCK_DOCUMENTS
        if config.best_fit:
            most = WINDOW_BYTES // (lanes.lanes * self.dtype.itemsize)
            tokens = best_fit_tokens(config.stated_layout().sequence_stride, most)
            documents = max(1, tokens * stream.documents // stream.tokens)
        filters = tuple(each.function for each in config.filters)
        return ShardWindows(stream, lanes=lanes.lanes, documents=documents, filters=filters, epochs=epochs)

    def order(self, config: StreamConfig) -> Shuffle:
        """Return the order of an indexed stream; ``ConfigError`` where there is nothing to order."""
        unit = config.stated_layout().unit
        lanes = config.lane_count
        order = Shuffle(self.contents.blocks(), lanes, self.window(config, lanes), config.seed)
        self.raise_if_empty(order.tokens if unit == "tokens" else order.documents, unit)
        return order

    def loaded_windows(
        self, config: StreamConfig, order: Shuffle, spare: int = _SPARE_WINDOWS, sources: int = 1
    ) -> LoadedWindows:
        """Return the windows of an order; ``spare`` of them stay in memory although no lane needs them."""
        return LoadedWindows(WindowMaker(self.ranges(config.max_open_shards), self.contents, order), spare, sources)

    def token_rows(
        self,
        config: StreamConfig,
        order: Shuffle,
        sequences: Sequences,
        width: int,
        end: int | None = None,
        sources: int = 1,
    ) -> TokenRows:
        """Return what cuts packed rows of ``width`` tokens; the stream ends before epoch ``end`` (None: nowhere).

        ``sources``: how many a mix has that this is one of.
        """
        lanes = LaneWindows(self.loaded_windows(config, order, sources=sources), order, sequences, width=width, end=end)
        return self.rows_of(config, lanes, None if end is None else end * order.tokens)

    def rows_of(self, config: StreamConfig, lanes: LaneWindows, tokens: int | None) -> TokenRows:
        """Return what cuts rows for lanes, out of documents as the user's functions change them."""
        change = self.change(config)
        if change is None:
            return TokenRows(lanes, tokens=tokens)
        return MappedTokenRows(lanes, tokens=tokens, change=change)

    def change(self, config: StreamConfig) -> Change | None:
        """Return what is applied to each document of an indexed stream."""
        return partial(mapped, config.document_maps, self.dtype) if config.document_maps else None

    def raise_if_empty(self, count: int, unit: str) -> None:
        """Raise ``ConfigError`` for a split that holds nothing."""
        if count == 0:
            raise ConfigError(
                f"split {self.split!r} holds no {unit}: there is nothing to stream; build it from more input"
            )
