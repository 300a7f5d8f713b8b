"""The reader of a sequential stream: what a config says, made into lanes with cursors for one rank and worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..layout import PackLayout
from ..order import derive_key
from .cursor import (
    Cursor,
    DocumentLane,
    Lane,
    Lanes,
    PackedLane,
    Reader,
    Windows,
    beginning,
    join_documents,
    join_rows,
)

if TYPE_CHECKING:
    from ..config import StreamConfig
    from ..loader.position import Position
    from ..loader.worker_context import WorkerContext

# Makes the windows of lanes, given the config, the cursors of the lanes and the epoch behind the last (None: endless).
MakeWindows = Callable[["StreamConfig", dict[int, Cursor], int | None], Windows]


def lanes_reader(
    plan: StreamConfig,
    make_windows: MakeWindows,
    position: Position,
    context: WorkerContext,
    skip: int,
    every: int,
) -> Lanes[Any]:
    """Make the lanes of every ``every``-th batch of a rank from ``position`` on, ``skip`` batches passed over.

    Raises ``ConfigError`` where ranks and workers cannot share the lanes out,
    ``StateError`` where the position lacks some of them.
    """
    layout = plan.stated_layout()
    rank, world_size = context.rank, context.world_size
    lanes = plan.lane_count
    if plan.epochs is not None and world_size > 1:
        raise ConfigError(
            f"epochs={plan.epochs} on {world_size} ranks: the number of batches of each rank is unknown in advance "
            "for text, filters and best-fit packing, and unequal numbers hang training; leave epochs out and bound the "
            "stream with .take(n)"
        )
    _check_shares(lanes, world_size, every, unshuffled=plan.seed is None)
    batch_size = plan.batch_size or 1
    begin = position.sequence_index // batch_size
    turn = begin + (rank - begin) % world_size + skip * world_size  # the first of ours
    own = range(turn % (world_size * every), lanes, world_size * every)
    cursors = beginning(0, lanes) if position.lanes is None else position.lanes
    epochs = None if plan.epochs is None else (position.start_epoch or 0) + plan.epochs
    windows = make_windows(plan, {lane: cursors[str(lane)] for lane in own if str(lane) in cursors}, epochs)
    packed = layout if isinstance(layout, PackLayout) else None

    def make_lane(lane: int, cursor: Cursor) -> Lane[Any]:
        # Best fit counts its sequences, not the documents of a window, so it takes every window whole.
        start = [*cursor[:3], 0, 0] if plan.best_fit else cursor
        reader = Reader(windows, lane, start, f"lane {lane} of {lanes}", endless=plan.epochs is None)
        if packed is None:
            return DocumentLane(reader)
        if not packed.best_fit:
            return PackedLane(reader, cursor, plan.data.dtype, stride=packed.stride, width=packed.width)
        from .best_fit import BestFitLane  # compiled loops that others need not load

        seed = plan.seed
        key = None if seed is None else lambda place: derive_key("best fit", seed, lane, *place)
        return BestFitLane(reader, cursor, seq_len=packed.seq_len, extra=packed.extra, key=key)

    join: Callable[[list[Any]], Any] = join_documents if packed is None else join_rows
    return Lanes(
        windows,
        make_lane,
        join,
        count=lanes,
        own=own,
        cursors=cursors,
        batch_size=batch_size,
        ranks=world_size,
        bounded=plan.epochs is not None,
    )


def _check_shares(lanes: int, world_size: int, workers: int, unshuffled: bool) -> None:
    if lanes % (world_size * workers) == 0:
        return
    counts = [count for count in range(1, lanes + 1) if lanes % count == 0]
    among = f"{world_size} ranks" + (f" of {workers} workers" if workers > 1 else "")
    cure = "an unshuffled stream has one: add .shuffle()" if unshuffled else "or set another number of lanes"
    raise ConfigError(
        f"{lanes} lanes cannot be shared out among {among}: ranks x workers must be one of {counts}; {cure}, as "
        f".shuffle(lanes={lanes * world_size * workers if lanes > 1 else 48 * world_size * workers})"
    )
