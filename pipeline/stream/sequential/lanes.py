"""What a plan says, made into the reader of one rank and worker: its windows, and its lanes with their cursors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ...errors import ConfigError
from ..config import PackLayout, Plan
from ..data.text import TextData
from ..loader.position import Position
from ..loader.worker_context import WorkerContext
from ..order import derive_key
from .best_fit_sizes import best_fit_tokens, sequences_a_lane, warn_of_padding
from .cursor import Cursor, Reader, Windows, beginning
from .document_maps import change_of
from .layout import WINDOW_BYTES, LaneLayout
from .packing import JoinedDocuments, Lane, Packing, SingleDocuments
from .reader import SequentialReader
from .shard_blocks import ShardWindows

_BLOCK_DOCUMENTS = 64  # of shards, that a filter sees at a time
_BYTES_PER_TOKEN = 4  # of text: about
_SPARE_WINDOWS = 8  # that stay in memory beyond one for each lane

log = logging.getLogger("pipeline")


def sequential_reader(
    plan: Plan, position: Position, context: WorkerContext, skip: int, every: int
) -> SequentialReader:
    """Make the reader of every ``every``-th step of a rank from ``position`` on, ``skip`` steps passed over.

    Raises ``ConfigError`` where ranks and workers cannot share the lanes, and ``StateError`` where the position lacks some.
    """
    stated, world_size = plan.stated_layout(), context.world_size
    if plan.epochs is not None and world_size > 1:
        raise ConfigError(
            f"epochs={plan.epochs} on {world_size} ranks: the number of batches of each rank is unknown in advance "
            "for text, filters and best-fit packing, and unequal numbers hang training; leave epochs out and bound the "
            "stream with .take(n)"
        )
    layout = plan.lane_layout(world_size)
    layout.check(world_size, every)
    step = position.sequence_index // layout.rows + skip
    own = layout.own(context.rank, world_size, step, every)
    start = position.start_epoch or 0
    cursors = beginning(start, layout.lanes) if position.lanes is None else position.lanes
    places = {lane: cursors[str(lane)] for lane in own if str(lane) in cursors}
    windows = _windows(plan, layout, places, start)
    if plan.best_fit and context.rank == skip == 0:
        warn_of_padding(sequences_a_lane(plan, layout), layout)
    return SequentialReader(
        windows,
        partial(_make_lane, plan, windows),
        layout=layout,
        own=own,
        batch_size=plan.batch_size or 1,
        ranks=world_size,
        cursors=cursors,
        bounded=plan.epochs is not None,
        width=stated.seq_len + stated.extra if isinstance(stated, PackLayout) else None,
        with_ends=isinstance(stated, PackLayout) and stated.boundaries,
    )


def _make_lane(plan: Plan, windows: Windows, lane: int, cursor: Cursor, on_empty: Callable[[int], object]) -> Lane:
    # Best fit counts its sequences, not the documents of a window, so it takes every window whole.
    start = [*cursor[:3], 0, 0] if plan.best_fit else cursor
    change = change_of(plan.document_maps, plan.data.dtype)
    reader = Reader(windows, lane, start, change=change, on_empty=on_empty)
    return Lane(reader, _packing(plan, reader, lane, cursor))


def _packing(plan: Plan, reader: Reader, lane: int, cursor: Cursor) -> Packing:
    layout = plan.stated_layout()
    if not isinstance(layout, PackLayout):
        return SingleDocuments(reader)
    if not layout.best_fit:
        assert layout.stride is not None  # random places are refused
        return JoinedDocuments(
            reader,
            cursor,
            plan.data.dtype,
            stride=layout.stride,
            width=layout.seq_len + layout.extra,
            with_ends=layout.boundaries,
        )
    from .best_fit import BestFitDocuments  # compiled loops that others need not load

    seed = plan.seed
    key = None if seed is None else lambda place: derive_key("best fit", seed, lane, *place)
    return BestFitDocuments(
        reader, cursor, seq_len=layout.seq_len, extra=layout.extra, with_ends=layout.boundaries, key=key
    )


def _windows(plan: Plan, layout: LaneLayout, cursors: dict[int, Cursor], start_epoch: int) -> Windows:
    filters = tuple(each.function for each in plan.filters)
    epochs = None if plan.epochs is None else start_epoch + plan.epochs
    seq_len = plan.layout.seq_len if isinstance(plan.layout, PackLayout) and plan.layout.best_fit else None
    if isinstance(plan.data, TextData):
        from .text.windows import TextWindows, WindowSize  # loaded for text alone

        size = 0 if plan.seed is None else WINDOW_BYTES // layout.lanes
        least = 0 if seq_len is None else best_fit_tokens(seq_len, size // _BYTES_PER_TOKEN) * _BYTES_PER_TOKEN
        documents = None if plan.window is None else max(1, plan.window // layout.lanes)
        return TextWindows(
            plan.data,
            layout=layout,
            places={lane: (cursor[0], cursor[1], cursor[2]) for lane, cursor in cursors.items()},
            seed=plan.seed,
            window=WindowSize(max(size, least), least, documents),
            filters=filters,
            epochs=epochs,
        )
    stream, documents = plan.document_stream(layout, len(cursors) + _SPARE_WINDOWS), _BLOCK_DOCUMENTS
    if seq_len is not None:
        tokens = best_fit_tokens(seq_len, WINDOW_BYTES // (layout.lanes * plan.data.dtype.itemsize))
        documents = max(1, tokens * stream.documents_per_epoch // stream.tokens_per_epoch)
    return ShardWindows(stream, lanes=layout.lanes, documents=documents, filters=filters, epochs=epochs)
