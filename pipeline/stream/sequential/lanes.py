"""The reader of a sequential stream: what a config says, made into lanes with cursors for one rank and worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ..layout import PackLayout
from ..order import derive_key
from .cursor import Cursor, Reader, Windows, beginning
from .document_maps import change_of
from .lane_sequences import JoinedDocuments, Lane, Packing, SingleDocuments
from .layout import LaneLayout
from .padding import PaddingWatch
from .reader import SequentialReader

if TYPE_CHECKING:
    from ..config import StreamConfig
    from ..iteration.position import Position
    from ..iteration.topology import WorkerContext

OnPacked = Callable[[int, NDArray[np.int64], int], object]  # a lane, the sizes that it packed, the sequences they fill
# Makes the windows of lanes, given the config, all lanes, the cursors of those and the epoch behind the last (None: endless).
MakeWindows = Callable[["StreamConfig", LaneLayout, dict[int, Cursor], int | None], Windows]


def lanes_reader(
    config: StreamConfig,
    make_windows: MakeWindows,
    position: Position,
    context: WorkerContext,
    skip: int,
    every: int,
) -> SequentialReader:
    """Make the reader of every ``every``-th step of a rank from ``position`` on, ``skip`` steps passed over.

    Raises ``ConfigError`` where ranks and workers cannot share the lanes, and ``StateError`` where the position lacks some.
    """
    stated, world_size = config.stated_layout(), context.world_size
    if config.epochs is not None and world_size > 1:
        raise ConfigError(
            f"epochs={config.epochs} on {world_size} ranks: the number of batches of each rank is unknown in advance "
            "for text, filters and best-fit packing, and unequal numbers hang training; leave epochs out and bound the "
            "stream with .take(n)"
        )
    layout = config.lane_layout(world_size)
    layout.check(world_size, every, is_shuffled=config.seed is not None)
    step = position.sequence_index // layout.rows + skip
    own = layout.own(context.rank, world_size, step, every)
    start = position.start_epoch or 0
    cursors = beginning(start, layout.lanes) if position.lanes is None else position.lanes
    epochs = None if config.epochs is None else start + config.epochs
    windows = make_windows(config, layout, {lane: cursors[str(lane)] for lane in own if str(lane) in cursors}, epochs)
    packed = stated if isinstance(stated, PackLayout) else None
    on_packed = None
    if config.best_fit and context.rank == skip == 0:
        on_packed = PaddingWatch(stated.sequence_stride, layout, len(own)).note
    return SequentialReader(
        windows,
        partial(_make_lane, config, windows, on_packed),
        layout=layout,
        own=own,
        batch_size=config.batch_size or 1,
        ranks=world_size,
        cursors=cursors,
        bounded=config.epochs is not None,
        width=None if packed is None else packed.width,
        with_ends=packed is not None and packed.boundaries,
    )


def _make_lane(
    config: StreamConfig,
    windows: Windows,
    on_packed: OnPacked | None,
    lane: int,
    cursor: Cursor,
    on_empty: Callable[[int], object],
    on_chunk: Callable[[], object],
) -> Lane:
    # Best fit counts its sequences, not the documents of a window, so it takes every window whole.
    start = [*cursor[:3], 0, 0] if config.best_fit else cursor
    change = change_of(config.document_maps, config.data.dtype)
    reader = Reader(windows, lane, start, change=change, on_empty=on_empty, on_chunk=on_chunk)
    return Lane(reader, _packing(config, reader, lane, cursor, on_packed))


def _packing(config: StreamConfig, reader: Reader, lane: int, cursor: Cursor, on_packed: OnPacked | None) -> Packing:
    layout = config.stated_layout()
    if not isinstance(layout, PackLayout):
        return SingleDocuments(reader)
    if not layout.best_fit:
        stride, width, ends = layout.stride, layout.width, layout.boundaries
        return JoinedDocuments(reader, cursor, config.data.dtype, stride=stride, width=width, with_ends=ends)
    from .best_fit import BestFitDocuments  # compiled loops that others need not load

    seed = config.seed
    key = None if seed is None else lambda place: derive_key("best fit", seed, lane, *place)
    return BestFitDocuments(
        reader,
        cursor,
        seq_len=layout.seq_len,
        extra=layout.extra,
        with_ends=layout.boundaries,
        key=key,
        on_packed=None if on_packed is None else partial(on_packed, lane),
    )
