"""What a config means: the one place that knows the kinds of data and of samples, and makes their readers and collators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError
from .batch.collate import DocumentCollator, DrawnShifts, PackCollator
from .batch.row_buffer import RowBuffer
from .data.counted_data import CountedData
from .data.shard_data import say_once
from .data.sources import Source
from .data.text_data import LiveData
from .indexed import BucketedDocuments, DocumentSequences, PackedSequences, RandomOffsets
from .lanes import WINDOW_BYTES, Cursor, Lanes, TextWindowSize, WindowStart, beginning, best_fit_tokens, part_of_source
from .layout import DocumentLayout, PackLayout, SampleLayout
from .order import Shuffle, derive_key
from .sequential.best_fit import pack_documents
from .sequential.lane import SequentialWindow, WholeSourceWindows, WindowReader
from .sequential.sequential_reader import SequentialReader
from .sequential.shard_windows import ShardWindows
from .windows.indexed_lanes import IndexedLanes
from .windows.token_rows import DocumentMaps, MappedTokenRows, TokenRows
from .windows.window import WindowCache, WindowMaker

if TYPE_CHECKING:
    from .batch.row_buffer import Collator, Reader
    from .config import StreamConfig
    from .data.text_data import TextData
    from .order.mixture import Mixture
    from .position import Position, WorkerContext, WorkerShare
    from .sequential.catalogue import Catalogue
    from .sequential.text.text_windows import TextWindows

_LEAST_OF_LANE = 4 << 20  # bytes: with fewer for each, more lanes shuffle worse
_SPARE_WINDOWS = 8  # that stay in memory beyond one for each lane
_SAMPLED_WINDOWS = 512  # of one extent each, that stay in memory
_SMALL_EPOCHS = 1 << 13  # tokens of the epochs that one window holds, if an epoch has fewer
_SMALL_EPOCHS_OF_MIX = 1 << 18  # of a window of all sources
_FILTERED_DOCUMENTS = 64  # of shards, that a window of a sequential stream is made of


def make_collator(config: StreamConfig, size: int) -> Collator[Any]:
    """Make the collator of batches of ``size`` rows; for a device, packs stay in their stored width until they are there."""
    layout, eos_id = config.stated_layout(), config.sources.eos_id
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
        dtype=config.sources.dtype if narrow and config.sources.dtype.kind == "u" else np.dtype(np.int64),
    )
    if layout.shift is not None:
        return make(shift=layout.shift)
    return DrawnShifts(layout.seq_len, config.seed or 0, lambda shift: make(shift=shift))


def make_reader(
    config: StreamConfig,
    start: Position,
    context: WorkerContext,
    share: WorkerShare,
    catalogue: Catalogue | None = None,
) -> Reader[Any]:
    """Make the reader of one worker of one rank from a position on.

    A sequential one with a ``catalogue`` gives its numbers (int64) in place of ids.
    """
    if config.sequential:
        return _sequential_reader(config, start, context, share, catalogue)
    _warn_of_shared_lanes(config, context)
    return _indexed_reader(config)


def _warn_of_shared_lanes(config: StreamConfig, context: WorkerContext) -> None:
    """Say once that several ranks read each block where lanes are fewer than ranks, and the data has windows for more."""
    lanes, ranks = config.lane_count, context.world_size
    is_shared = ranks > 2 * lanes or (ranks > lanes and ranks % lanes)
    if lanes == 1 or not is_shared or context.rank or context.worker:
        return
    size = sum(source.extents.blocks().bytes for source in config.sources.counted.values())
    if size >= ranks * _LEAST_OF_LANE:
        say_once(
            f"{ranks} ranks share {lanes} lanes, so about {max(2, round(ranks / lanes))} of them read each block; with "
            f".shuffle(lanes={ranks}) one does. A state holds the lanes of its run, so choose them at its start"
        )


def make_mixture(config: StreamConfig, world_size: int) -> Mixture | None:
    """Say which source of a mix serves each row, on so many ranks; None where there is one source."""
    return config.mixture(config.stream_lanes(world_size)) if config.sources.is_mix else None


# Indexed streams.


def _indexed_reader(config: StreamConfig) -> Reader[Any]:
    """Make the reader of one source, or of a mix."""
    layout, mixture, maps = config.stated_layout(), make_mixture(config, 1), _document_maps(config)
    lanes = [_indexed_lanes(config, name, source) for name, source in config.sources.counted.items()]
    if isinstance(layout, PackLayout | SampleLayout):
        rows = [_rows(config, source) for source in lanes]
        return PackedSequences(
            rows, config.sources.dtype, seq_len=layout.seq_len, boundaries=layout.boundaries, mixture=mixture
        )
    assert isinstance(layout, DocumentLayout)
    if layout.bucket is None:
        return DocumentSequences(lanes, maps=maps, mixture=mixture)
    return BucketedDocuments(lanes, maps=maps, bucket=layout.bucket, seed=config.seed, mixture=mixture)


def _indexed_lanes(config: StreamConfig, name: str, source: CountedData) -> IndexedLanes:
    """Return the lanes of a source."""
    layout, count = config.stated_layout(), config.lane_count
    sources = len(config.sources.by_name)
    if isinstance(layout, SampleLayout):
        order = Shuffle(source.extents.blocks(in_mix=True), 1, 1, None)  # extents: all of one is read for a sequence
        source.raise_if_empty(order.tokens, layout.unit)
        windows = _loaded_windows(config, source, order, max(_SPARE_WINDOWS, _SAMPLED_WINDOWS // sources), sources)
        return RandomOffsets(
            windows, order, seq_len=layout.seq_len, width=layout.width, seed=config.seed or 0, name=name
        )
    order = _order(config, name, source, count, config.seed)
    windows = _loaded_windows(config, source, order, sources=sources)
    if isinstance(layout, DocumentLayout):
        return IndexedLanes(windows, order, config.sequences_of(source), documents=True)
    assert isinstance(layout, PackLayout)
    return IndexedLanes(windows, order, config.sequences_of(source), width=layout.width)


def _order(
    config: StreamConfig, name: str, source: CountedData, lanes: int, seed: int | None, window: int | None = None
) -> Shuffle:
    """Return the order of a source under a seed; ``ConfigError`` where there is nothing to order."""
    mixed = config.sources.mixed
    window = config.window_of(source, lanes) if window is None else window
    order = Shuffle(source.extents.blocks(in_mix=mixed > 0), lanes, window, seed, name)
    unit = config.stated_layout().unit
    source.raise_if_empty(order.tokens if unit == "tokens" else order.documents, unit)
    return order


def _loaded_windows(
    config: StreamConfig, data: CountedData, order: Shuffle, spare: int = _SPARE_WINDOWS, sources: int = 1
) -> WindowCache:
    """Return the windows of an order; ``spare`` of them stay in memory although no lane needs them.

    ``sources``: how many a mix has that this is one of.
    """
    most = min(_SMALL_EPOCHS, _SMALL_EPOCHS_OF_MIX // sources)
    return WindowCache(WindowMaker(data.ranges(), data.extents, order, most=most), spare, sources)


def _rows(config: StreamConfig, lanes: IndexedLanes) -> TokenRows:
    """Return what cuts rows for lanes, out of documents as the user's functions change them."""
    maps = _document_maps(config)
    return TokenRows(lanes) if maps is None else MappedTokenRows(lanes, maps)


def _document_maps(config: StreamConfig) -> DocumentMaps | None:
    maps = config.document_maps
    return DocumentMaps(maps, config.sources.dtype, config.vocab_size) if maps else None


# Sequential streams.


def _sequential_reader(
    config: StreamConfig,
    start: Position,
    context: WorkerContext,
    share: WorkerShare,
    catalogue: Catalogue | None,
) -> SequentialReader:
    """Make the reader of the lanes that a worker reads.

    Raises ``ConfigError`` where ranks and workers cannot share the lanes, and ``StateError`` where the position lacks some.
    """
    layout, world_size = config.stated_layout(), context.world_size
    lanes, live = config.make_lanes(world_size), config.sources.live
    if any(live) and context.workers > 1:
        raise ConfigError(
            f"a live source has one lane on each rank, which {context.workers} workers of a DataLoader cannot share; use "
            "num_workers=0, and .prefetch(n) to read ahead, or num_workers=1"
        )
    lanes.check(world_size, share.every, is_shuffled=config.seed is not None)
    step = start.sequence_index // lanes.rows + share.skip
    local = lanes.local(context.rank, world_size, step, share.every)
    first = start.pass_number * (config.epochs or 1)
    cursors = beginning(first, lanes.count, len(live)) if start.lanes is None else start.lanes
    packed = layout if isinstance(layout, PackLayout) else None
    buffer = None
    if packed is not None:
        with_masks = bool(config.document_maps)
        dtype = config.sources.dtype if catalogue is None else np.dtype(np.int64)
        buffer = RowBuffer(packed.width, dtype, with_ends=packed.boundaries, with_masks=with_masks)
    epochs = None if config.epochs is None else first + config.epochs
    sources = []
    for number, (name, source) in enumerate(config.sources.by_name.items()):
        starts = {
            lane: _window_start(part_of_source(cursors[str(lane)], number)) for lane in local if str(lane) in cursors
        }
        traced = catalogue is not None
        sources.append(_window_reader(config, name, source, lanes, context, starts, epochs, traced=traced))
    return SequentialReader(
        sources,
        partial(_cut, config, catalogue),
        lanes=lanes,
        local=local,
        live=live,
        batch_size=config.batch_size or 1,
        cursors=cursors,
        bounded=config.epochs is not None,
        buffer=buffer,
        seq_len=0 if packed is None else packed.seq_len,
        stride=None if packed is None or packed.best_fit else packed.stride,
        lag=layout.tokens_before_labels,
        mixture=config.mixture(lanes.count),
    )


def _window_reader(
    config: StreamConfig,
    name: str,
    source: Source,
    lanes: Lanes,
    context: WorkerContext,
    starts: dict[int, WindowStart],
    epochs: int | None,
    *,
    traced: bool,
) -> WindowReader:
    """Return what makes the windows of some lanes of a source, before epoch ``epochs`` (None: of all epochs).

    Of a mix, each source has a seed of its own; of one of fewer documents than lanes each lane reads all, under its own seed.
    """
    options: dict[str, Any] = {
        "filters": tuple(transform.function for transform in config.filters),
        "epochs": epochs,
    }

    def seed_of(*lane: int) -> int | None:
        if config.seed is None or not config.sources.is_mix:
            return config.seed
        return derive_key("text source", config.seed, name, *lane)

    if isinstance(source, LiveData):
        from .sequential.text.text_windows import LiveWindows  # loaded for text alone

        window = _text_window(config, source, lanes.count)
        return LiveWindows(
            source, rank=context.rank, ranks=context.world_size, seed=seed_of(), window=window, **options
        )

    options["with_origins"] = traced

    def make(shared: Lanes, starts: dict[int, WindowStart], seed: int | None) -> WindowReader:
        if isinstance(source, CountedData):
            return _windows_of_shards(config, source, lanes.count, lanes=shared, starts=starts, seed=seed, **options)
        return _windows_of_text(config, source, lanes.count, lanes=shared, starts=starts, seed=seed, **options)

    if not config.sources.is_mix or source.records(lanes.count) >= lanes.count:
        return make(lanes, starts, seed_of())
    return WholeSourceWindows(lambda lane: make(Lanes(1, 1), {0: starts[lane]}, seed_of(lane)))


def _windows_of_shards(
    config: StreamConfig, source: CountedData, of_lanes: int, *, lanes: Lanes, seed: int | None, **options: Any
) -> ShardWindows:
    """Return what makes windows of shards for some of the ``of_lanes`` lanes of a stream."""
    sources = len(config.sources.by_name)
    order = _order(config, "", source, lanes.count, seed, config.window_of(source, of_lanes))
    documents = _FILTERED_DOCUMENTS
    if config.best_fit:
        most = WINDOW_BYTES // (of_lanes * sources * source.token_bytes)
        tokens = best_fit_tokens(config.stated_layout().sequence_stride, most)
        documents = max(1, tokens * order.documents // order.tokens)
    loaded = _loaded_windows(config, source, order, sources=sources)
    return ShardWindows(loaded, order, lanes=lanes.count, size=documents, **options)


def _windows_of_text(
    config: StreamConfig, source: TextData, of_lanes: int, *, lanes: Lanes, **options: Any
) -> TextWindows:
    """Return the same of text; what each of the lanes has of the memory and of the open files, all readers share."""
    from .sequential.text.text_windows import TextWindows  # loaded for text alone

    sources = len(config.sources.by_name) * of_lanes // lanes.count
    return TextWindows(source, lanes=lanes, window=_text_window(config, source, of_lanes), sources=sources, **options)


def _text_window(config: StreamConfig, source: TextData, lanes: int) -> TextWindowSize:
    packed = config.stated_layout().sequence_stride if config.best_fit else None
    shuffled = config.seed is not None
    return source.window_size(
        lanes, len(config.sources.by_name), is_shuffled=shuffled, window=config.window, best_fit=packed
    )


def _window_start(cursor: Cursor) -> WindowStart:
    epoch, cycle, round, _ = cursor
    return epoch, cycle, round


def _cut(
    config: StreamConfig, catalogue: Catalogue | None, source: int, lane: int, made: SequentialWindow
) -> SequentialWindow:
    """Return a window of a lane as the user's functions change its documents, cut in sequences that do not run on."""
    if (maps := _document_maps(config)) is not None:
        made = made._replace(window=maps.window(made.window))
    if catalogue is None:
        return _cut_sequences(config, lane, made)
    made = made._replace(window=catalogue.numbered(list(config.sources.by_name)[source], made.window))
    return catalogue.watch(made.window, _cut_sequences(config, lane, made))


def _cut_sequences(config: StreamConfig, lane: int, made: SequentialWindow) -> SequentialWindow:
    """Return a window cut in sequences, where these do not run on into the next."""
    layout = config.stated_layout()
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
