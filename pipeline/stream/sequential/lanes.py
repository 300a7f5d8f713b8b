"""The core of a cursor stream: what a plan says, made into lanes with cursors for one rank and worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ConfigError
from ..config import PackLayout, Plan
from ..data.text import TextData
from ..loader.position import Position
from ..loader.worker_context import WorkerContext
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
from .shard_blocks import ShardWindows

_BLOCK_DOCUMENTS = 64  # of shards, that a filter sees at a time
_BEST_FIT_SEQUENCES = 256  # that documents of shards are fitted into at a time


def lanes_core(plan: Plan, position: Position, context: WorkerContext, skip: int, every: int) -> Lanes[Any]:
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
    windows = _windows(
        plan, {lane: cursors[str(lane)] for lane in own if str(lane) in cursors}, position.start_epoch or 0
    )

    def make_lane(lane: int, cursor: Cursor) -> Lane[Any]:
        # Best fit counts its sequences, not the documents of a window, so it takes every window whole.
        start = [*cursor[:3], 0, 0] if plan.best_fit else cursor
        reader = Reader(windows, lane, start, f"lane {lane} of {lanes}", endless=plan.epochs is None)
        if not isinstance(layout, PackLayout):
            return DocumentLane(reader)
        if not layout.best_fit:
            assert layout.stride is not None  # random places are refused
            width = layout.seq_len + layout.extra
            return PackedLane(reader, cursor, plan.data.dtype, stride=layout.stride, width=width)
        from .best_fit import BestFitLane  # compiled loops that others need not load

        seed = plan.seed
        key = None if seed is None else lambda place: derive_key("best fit", seed, lane, *place)
        return BestFitLane(reader, cursor, seq_len=layout.seq_len, extra=layout.extra, key=key)

    join: Callable[[list[Any]], Any] = join_rows if isinstance(layout, PackLayout) else join_documents
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


def _windows(plan: Plan, cursors: dict[int, Cursor], start_epoch: int) -> Windows:
    window, lanes = plan.order_shape()
    filters = tuple(each.function for each in plan.filters)
    epochs = None if plan.epochs is None else start_epoch + plan.epochs
    if isinstance(plan.data, TextData):
        from .text_blocks import TextWindows  # loaded for text alone

        return TextWindows(
            plan.data,
            lanes=lanes,
            places={lane: (cursor[0], cursor[1], cursor[2]) for lane, cursor in cursors.items()},
            seed=plan.seed,
            window=window,
            filters=filters,
            epochs=epochs,
        )
    stream, documents = plan.document_stream(), _BLOCK_DOCUMENTS
    if isinstance(plan.layout, PackLayout) and plan.layout.best_fit:
        tokens = _BEST_FIT_SEQUENCES * plan.layout.seq_len
        documents = tokens * stream.documents_per_epoch // stream.tokens_per_epoch
        documents = min(max(documents, 256), 65_536)
    # Of few documents every lane has some, and lanes have about equally many.
    documents = min(documents, max(1, stream.documents_per_epoch // lanes))
    return ShardWindows(stream, lanes=lanes, documents=documents, filters=filters, epochs=epochs)


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
