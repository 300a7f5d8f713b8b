"""What a config means: the one place that knows the kinds of data and of samples, and makes their readers and collators."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError
from .batch.collate import DocumentCollator, PackCollator
from .batch.label_shift import DrawnShifts
from .batch.rows import RowBuffer
from .data.base import CountedData
from .data.live import LiveData
from .data.mixture import MixedData, MixedTexts
from .data.shards import say_once
from .data.text import TextData
from .indexed import BucketedDocuments, DocumentSequences, PackedSequences, RandomOffsets
from .lanes import WINDOW_BYTES, Lanes, best_fit_tokens
from .layout import DocumentLayout, PackLayout, SampleLayout
from .order import Sequences, Shuffle, derive_key
from .sequential.best_fit import pack_documents
from .sequential.cursor import Cursor, WindowStart, beginning, part_of_source
from .sequential.lane import SequentialWindow, WindowReader
from .sequential.reader import SequentialReader
from .sequential.shards import ShardWindows
from .windows.indexed_lanes import IndexedLanes
from .windows.mapped import DocumentMaps, MappedTokenRows
from .windows.rows import TokenRows
from .windows.window import WindowMaker
from .windows.window_cache import WindowCache

if TYPE_CHECKING:
    from .config import StreamConfig
    from .order.mixture import Mixture
    from .position import Position, WorkerContext
    from .reader import Collator, Reader, WorkerShare

_LEAST_OF_LANE = 4 << 20  # bytes: with fewer for each, more lanes shuffle worse
_SPARE_WINDOWS = 8  # that stay in memory beyond one for each lane
_SAMPLED_WINDOWS = 512  # of one extent each, that stay in memory
_FILTERED_DOCUMENTS = 64  # of shards, that a window of a sequential stream is made of


def make_collator(config: StreamConfig, size: int) -> Collator[Any]:
    """Make the collator of batches of ``size`` rows; for a device, packs stay in their stored width until they are there."""
    layout, eos_id = config.stated_layout(), config.data.eos_id
    if isinstance(layout, DocumentLayout):
        return DocumentCollator(
            size=size,
            max_length=layout.max_length,
            pad_to_multiple_of=layout.pad_to_multiple_of,
            eos_id=eos_id,
            same_labels=layout.same_labels,
        )
    assert isinstance(layout, PackLayout | SampleLayout)
    # Samples that users' functions change are int64, with -100 in place; `stack` narrows what they make of them.
    narrow = not config.steps and (config.stored or (config.device not in (None, "cpu") and not config.batch_steps))
    make = partial(
        PackCollator,
        size=size,
        seq_len=layout.seq_len,
        eos_id=eos_id,
        boundaries=layout.boundaries,
        same_labels=layout.same_labels,
        dtype=config.data.dtype if narrow and config.data.dtype.kind == "u" else np.dtype(np.int64),
    )
    if layout.shift is not None:
        return make(shift=layout.shift)
    return DrawnShifts(layout.seq_len, config.seed or 0, lambda shift: make(shift=shift))


def make_reader(config: StreamConfig, start: Position, context: WorkerContext, share: WorkerShare) -> Reader[Any]:
    """Make the reader of one worker of one rank from a position on."""
    if config.sequential:
        return _sequential_reader(config, start, context, share)
    _warn_of_shared_lanes(config, context)
    return _indexed_reader(config, config.epochs if start.start_epoch is None else None)


def _warn_of_shared_lanes(config: StreamConfig, context: WorkerContext) -> None:
    """Say once that several ranks read each block where lanes are fewer than ranks, and the data has windows for more."""
    lanes, ranks = config.lane_count, context.world_size
    is_shared = ranks > 2 * lanes or (ranks > lanes and ranks % lanes)
    if lanes == 1 or not is_shared or context.rank or context.worker:
        return
    sources = config.data.sources.values() if isinstance(config.data, MixedData) else [config.data]
    size = sum(source.extents.blocks().bytes for source in sources if isinstance(source, CountedData))
    if size >= ranks * _LEAST_OF_LANE:
        say_once(
            f"{ranks} ranks share {lanes} lanes, so about {max(2, round(ranks / lanes))} of them read each block; with "
            f".shuffle(lanes={ranks}) one does. A state holds the lanes of its run, so choose them at its start"
        )


def make_mixture(config: StreamConfig, world_size: int) -> Mixture | None:
    """Say which source of a mix serves each row, on so many ranks; None where there is one source."""
    if isinstance(config.data, MixedData | MixedTexts):
        return config.data.mixture(config, config.stream_lanes(world_size))
    return None


# Indexed streams.


def _indexed_reader(config: StreamConfig, end: int | None) -> Reader[Any]:
    """Make the reader of one source, which ends before epoch ``end`` (None: nowhere), or of a mix, which has no end."""
    data, layout = config.data, config.stated_layout()
    mixture = make_mixture(config, 1)
    if isinstance(data, MixedData):
        lanes = [_indexed_lanes(config, source, None, name) for name, source in data.sources.items()]
    else:
        assert isinstance(data, CountedData)
        lanes = [_indexed_lanes(config, data, end)]
    if isinstance(layout, PackLayout | SampleLayout):
        tokens = lanes[0].units * end if end is not None and isinstance(layout, PackLayout) else None
        rows = [_rows(config, source, tokens) for source in lanes]
        return PackedSequences(rows, data.dtype, boundaries=layout.boundaries, mixture=mixture)
    assert isinstance(layout, DocumentLayout)
    maps = _document_maps(config)
    if layout.bucket is None:
        return DocumentSequences(lanes, maps=maps, mixture=mixture)
    return BucketedDocuments(lanes[0], maps=maps, bucket=layout.bucket, seed=config.seed)


def _indexed_lanes(config: StreamConfig, data: CountedData, end: int | None, name: str | None = None) -> IndexedLanes:
    """Return the lanes of one source before epoch ``end`` (None: of all); of a mix, ``name`` is that of the source."""
    layout, count = config.stated_layout(), config.lane_count
    sources = 1 if name is None else len(config.weights[0][1])
    if isinstance(layout, SampleLayout):
        order = Shuffle(data.extents.blocks(in_mix=True), 1, 1, None)  # extents: all of one is read for a sequence
        data.raise_if_empty(order.tokens, layout.unit)
        windows = _loaded_windows(config, data, order, max(_SPARE_WINDOWS, _SAMPLED_WINDOWS // sources), sources)
        seed = config.seed or 0
        return RandomOffsets(windows, order, seq_len=layout.seq_len, width=layout.width, seed=seed, name=name or "")
    if name is None:
        order = _order(config, data, count)
    else:
        size = config.data.window(config, count)[name]
        order = Shuffle(data.extents.blocks(in_mix=True), count, size, config.seed, name)
        data.raise_if_empty(order.tokens, "tokens")
    windows = _loaded_windows(config, data, order, sources=sources)
    if isinstance(layout, DocumentLayout):
        return IndexedLanes(windows, order, Sequences(order.documents, 1, count), documents=True, end=end)
    assert isinstance(layout, PackLayout)
    sequences = Sequences(order.tokens, layout.stride, count)
    if end is not None:
        sequences = replace(sequences, end=sequences.with_labels(end, layout.tokens_before_labels))
    return IndexedLanes(windows, order, sequences, width=layout.width, end=end)


def _order(config: StreamConfig, data: CountedData, lanes: int) -> Shuffle:
    """Return the order of one source; ``ConfigError`` where there is nothing to order."""
    order = Shuffle(data.extents.blocks(), lanes, data.window(config, lanes), config.seed)
    unit = config.stated_layout().unit
    data.raise_if_empty(order.tokens if unit == "tokens" else order.documents, unit)
    return order


def _loaded_windows(
    config: StreamConfig, data: CountedData, order: Shuffle, spare: int = _SPARE_WINDOWS, sources: int = 1
) -> WindowCache:
    """Return the windows of an order; ``spare`` of them stay in memory although no lane needs them.

    ``sources``: how many a mix has that this is one of.
    """
    return WindowCache(WindowMaker(data.ranges(), data.extents, order), spare, sources)


def _rows(config: StreamConfig, lanes: IndexedLanes, tokens: int | None) -> TokenRows:
    """Return what cuts rows for lanes, out of documents as the user's functions change them."""
    maps = _document_maps(config)
    return TokenRows(lanes, tokens=tokens) if maps is None else MappedTokenRows(lanes, tokens=tokens, maps=maps)


def _document_maps(config: StreamConfig) -> DocumentMaps | None:
    return DocumentMaps(config.document_maps, config.data.dtype) if config.document_maps else None


# Sequential streams.


def _sequential_reader(
    config: StreamConfig, start: Position, context: WorkerContext, share: WorkerShare
) -> SequentialReader:
    """Make the reader of the lanes that a worker reads.

    Raises ``ConfigError`` where ranks and workers cannot share the lanes, and ``StateError`` where the position lacks some.
    """
    layout, world_size = config.stated_layout(), context.world_size
    lanes = config.make_lanes(world_size)
    if any(config.data.live) and context.workers > 1:
        raise ConfigError(
            f"a live source has one lane on each rank, which {context.workers} workers of a DataLoader cannot share; use "
            "num_workers=0, and .prefetch(n) to read ahead, or num_workers=1"
        )
    lanes.check(world_size, share.every, is_shuffled=config.seed is not None)
    step = start.sequence_index // lanes.rows + share.skip
    own = lanes.own(context.rank, world_size, step, share.every)
    first = start.start_epoch or 0
    cursors = beginning(first, lanes.count, len(config.data.live)) if start.lanes is None else start.lanes
    packed = layout if isinstance(layout, PackLayout) else None
    buffer, mixture = None, None
    if isinstance(config.data, MixedTexts):
        mixture = config.data.mixture(config, lanes.count)
    if packed is not None:
        with_masks = bool(config.document_maps)
        buffer = RowBuffer(packed.width, config.data.dtype, with_ends=packed.boundaries, with_masks=with_masks)
    return SequentialReader(
        _windows(config, lanes, own, context, cursors, None if config.epochs is None else first + config.epochs),
        partial(_cut, config),
        lanes=lanes,
        own=own,
        live=config.data.live,
        batch_size=config.batch_size or 1,
        cursors=cursors,
        bounded=config.epochs is not None,
        buffer=buffer,
        stride=None if packed is None or packed.best_fit else packed.stride,
        lag=layout.tokens_before_labels,
        mixture=mixture,
    )


def _windows(
    config: StreamConfig,
    lanes: Lanes,
    own: list[int],
    context: WorkerContext,
    cursors: dict[str, Cursor],
    epochs: int | None,
) -> list[WindowReader]:
    """Return what makes the windows of some lanes of each source, before epoch ``epochs`` (None: of all epochs)."""
    data = config.data

    def starts_in(source: int) -> dict[int, WindowStart]:
        return {lane: _window_start(part_of_source(cursors[str(lane)], source)) for lane in own if str(lane) in cursors}

    if isinstance(data, TextData | MixedTexts):
        sources = data.sources if isinstance(data, MixedTexts) else {"": data}
        made = []
        for number, (name, texts) in enumerate(sources.items()):
            made.append(_text_windows(config, name, texts, lanes, context, starts_in(number), epochs, len(sources)))
        return made
    assert isinstance(data, CountedData)
    order = _order(config, data, lanes.count)
    documents = _FILTERED_DOCUMENTS
    if config.best_fit:
        tokens = best_fit_tokens(
            config.stated_layout().sequence_stride, WINDOW_BYTES // (lanes.count * data.dtype.itemsize)
        )
        documents = max(1, tokens * order.documents // order.tokens)
    loaded = _loaded_windows(config, data, order)
    filters = tuple(transform.function for transform in config.filters)
    options: dict[str, Any] = {"starts": starts_in(0), "filters": filters, "epochs": epochs}
    return [ShardWindows(loaded, order, lanes=lanes.count, size=documents, **options)]


def _text_windows(
    config: StreamConfig,
    name: str,
    texts: TextData,
    lanes: Lanes,
    context: WorkerContext,
    starts: dict[int, WindowStart],
    epochs: int | None,
    sources: int,
) -> WindowReader:
    """Return what makes windows of one text, of ``sources`` that a mix has; without a ``name`` it is no mix."""
    from .sequential.text.live import LiveWindows  # loaded for text alone
    from .sequential.text.windows import SmallTextWindows, TextWindows

    options: dict[str, Any] = {
        "window": texts.window_size(config, lanes.count, sources),
        "filters": tuple(transform.function for transform in config.filters),
        "epochs": epochs,
    }

    def seed_of(*lane: int) -> int | None:
        return derive_key("text source", config.seed, name, *lane) if name and config.seed is not None else config.seed

    if isinstance(texts, LiveData):
        return LiveWindows(texts, rank=context.rank, ranks=context.world_size, seed=seed_of(), **options)
    if name and texts.records(lanes.count) < lanes.count:

        def make_own(lane: int, start: WindowStart) -> TextWindows:
            alone, share = Lanes(1, 1), sources * lanes.count
            return TextWindows(texts, lanes=alone, starts={0: start}, seed=seed_of(lane), sources=share, **options)

        return SmallTextWindows(make_own, starts)
    return TextWindows(texts, lanes=lanes, starts=starts, seed=seed_of(), sources=sources, **options)


def _window_start(cursor: Cursor) -> WindowStart:
    epoch, cycle, round, _ = cursor
    return epoch, cycle, round


def _cut(config: StreamConfig, lane: int, made: SequentialWindow) -> SequentialWindow:
    """Return a window of a lane as the user's functions change its documents, cut in sequences that do not run on."""
    layout = config.stated_layout()
    if (maps := _document_maps(config)) is not None:
        made = made._replace(window=maps.window(made.window))
    if isinstance(layout, DocumentLayout):
        return made._replace(cuts=made.window.ends)
    assert isinstance(layout, PackLayout)
    if not layout.best_fit:
        return made
    epoch, cycle, round = made.start
    round = 0 if isinstance(round, str) else round  # a live source may write its state in several ways
    key = None if config.seed is None else derive_key("best fit", config.seed, lane, epoch, cycle, round)
    window, cuts = pack_documents(made.window, layout.seq_len, layout.extra, key)
    return made._replace(window=window, cuts=cuts)
