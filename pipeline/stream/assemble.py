"""A config and its data -> a reader and a collator: the one place that knows how each kind of data is read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..notices import say_once
from .batch.collate import CutCollator, SourceCollator
from .datasets.sources.counted_data import CountedData
from .datasets.sources.text_data import LiveData, TextData
from .indexed import IndexedSource, ReaderOptions
from .lanes import (
    Cursor,
    Lanes,
    TextWindowSize,
    WindowStart,
    beginning,
    best_fit_tokens,
    lane_bytes,
    missing_lanes,
    part_of_source,
)
from .layout import PackLayout, SampleLayout
from .order import Shuffle, derive_key
from .sequential.lane import SequentialWindow, WholeSourceWindows, WindowReader
from .sequential.sequential_reader import SequentialReader
from .stream_plan import sequential_lanes, stream_lanes
from .windows.token_rows import DocumentMaps
from .windows.window import WindowCache, WindowMaker

if TYPE_CHECKING:
    from .batch.rows import Collator, Reader
    from .order.mixture import Mixture
    from .position import Position, Topology, WorkerShare
    from .sequential.shard_windows import ShardWindows
    from .sequential.text.text_windows import TextWindows
    from .sequential.token_numbers import TokenNumbers
    from .settings import StreamSettings
    from .windows.held_source import HeldSource

_LEAST_OF_LANE = 4 << 20  # bytes for each lane: if lanes have fewer, more lanes shuffle worse
_MOST_TOKENS_OF_ESTIMATE = 4  # times the estimate of a text's tokens: about one for each byte
_SMALL_EPOCHS = 1 << 13  # tokens: a window holds several epochs of a source, up to this size
_SMALL_EPOCHS_OF_MIX = 1 << 18  # the same for the windows of all sources together
_FILTERED_DOCUMENTS = 64  # documents of shards in a window of a sequential stream
_PIECE_BYTES = 128 << 10  # of such a window that a lane has in memory, if one document is not larger


def make_collator(config: StreamSettings, size: int) -> Collator[Any]:
    """Make the collator of batches of ``size`` rows, which ``config.cut`` may cut into more.

    Packed ids for a device keep their stored width until they are on the device.
    """
    # Samples for the user's functions are int64, with -100 in place.
    narrow = not config.sample_stages and (
        config.stored or (config.device not in (None, "cpu") and not config.batch_stages)
    )
    dtype = config.sources.dtype if narrow and config.sources.dtype.kind == "u" else np.dtype(np.int64)
    layout, peer = config.batch_layout(), config.peer
    pieces = range(config.pieces) if peer is None or config.sliced else peer.rows(config.pieces)
    size *= len(pieces)
    collator = layout.collator(size, config.sources.eos_id, dtype, config.seed)
    if layout.source:
        collator = SourceCollator(collator, size, by_document=layout.unit == "tokens" and not config.sources.is_mix)
    if config.cut is not None:
        collator = CutCollator(collator, [piece * config.cut for piece in pieces], config.cut * (config.pieces - 1))
    if peer is None or not config.sliced:
        return collator
    from .context_parallel import ContextCollator  # loaded for context parallelism alone

    return ContextCollator(collator, peer)


def make_reader(
    config: StreamSettings,
    start: Position,
    topology: Topology,
    share: WorkerShare,
    token_numbers: TokenNumbers | None = None,
) -> Reader[Any]:
    """Make the reader of one worker of one rank from a position on.

    With ``token_numbers``, a sequential reader returns these numbers (int64) in place of ids.
    """
    if token_numbers is None:
        _warn_of_little_data(config, topology)
    if config.sequential:
        return _sequential_reader(config, start, topology, share, token_numbers)
    _warn_of_shared_lanes(config, topology)
    return _indexed_reader(config)


def _warn_of_little_data(config: StreamSettings, topology: Topology) -> None:
    """Warn once if a row or a batch of all ranks is larger than a source, so that it repeats the source or pads."""
    layout, rows = config.stated_layout(), (config.batch_size or 1) * topology.world_size
    if topology.rank or topology.worker or not isinstance(layout, PackLayout | SampleLayout):
        return
    shares = config.changes[0][1] if config.sources.is_mix else {}
    for name, source in config.sources.by_name.items():
        is_counted = isinstance(source, CountedData)
        tokens = 0 if source.live else source.total_tokens * (1 if is_counted else _MOST_TOKENS_OF_ESTIMATE)
        wanted = float(shares.get(name, 1)) * rows * layout.seq_len
        told = ""
        if config.epochs is not None and wanted > 2 * tokens * config.epochs:
            told = (
                f"a batch of all ranks has {wanted:,.0f} tokens: the rest of it is padding after epochs={config.epochs}"
            )
        elif config.epochs is None and wanted and layout.seq_len > tokens:
            told = f"a row has {layout.seq_len:,} tokens: each row repeats documents"
        elif config.epochs is None and wanted > tokens:
            told = (
                f"a batch of all ranks takes {wanted:,.0f}: each batch repeats it {wanted / max(1, tokens):.1f} times"
            )
        if told and tokens:
            what = f"source {name!r} holds" if name else "the data holds"
            say_once(
                f"{what}{'' if is_counted else ' at most about'} {tokens:,} tokens, but {told}; "
                "give more data, a smaller batch or a smaller seq_len"
            )


def _warn_of_shared_lanes(config: StreamSettings, topology: Topology) -> None:
    """Warn once if several ranks read each block: there are fewer lanes than ranks, though the data has windows for more."""
    lanes, ranks = config.lane_count, topology.world_size
    is_shared = ranks > 2 * lanes or (ranks > lanes and ranks % lanes)
    if lanes == 1 or not is_shared or topology.rank or topology.worker:
        return
    size = sum(source.extents.blocks().bytes for source in config.sources.counted.values())
    if size >= ranks * _LEAST_OF_LANE:
        say_once(
            f"{ranks} ranks share {lanes} lanes, so about {max(2, round(ranks / lanes))} of them read each block; with "
            f".shuffle(lanes={ranks}) one does. A state keeps the lanes of its run, so choose them at the start of a run"
        )


def make_mixture(config: StreamSettings, world_size: int) -> Mixture | None:
    """Return which source of a mix serves each row, on ``world_size`` ranks; None for a single source.

    It counts rows as buckets arrange them.
    """
    if not config.sources.is_mix:
        return None
    mixture = config.mixture(stream_lanes(config, world_size))
    if mixture is not None and not config.sequential and config.stated_layout().bucket:
        reader: Any = _indexed_reader(config)
        mixture.totals, mixture.begin_of = reader.totals, reader.begin_of  # type: ignore[method-assign]
    return mixture


# Indexed streams.


def _indexed_reader(config: StreamSettings) -> Reader[Any]:
    """Make the reader of one source, or of a mix."""
    layout, lanes, sources = config.stated_layout(), config.lane_count, []
    for name, source in config.sources.counted.items():
        order = _order(config, name, source, lanes, config.seed, lanes)
        windows = _windows(config, source, order)
        sources.append(IndexedSource(name, windows, order, config.sequences_of(source)))
    end = config.end_of_mix if layout.bucket and config.stopping_strategy is not None else None
    options = ReaderOptions(config.sources.dtype, config.seed, _document_maps(config), config.mixture(lanes), end)
    return layout.reader(sources, options)


def _order(
    config: StreamSettings, name: str, source: CountedData, lanes: int, seed: int | None, of_lanes: int
) -> Shuffle:
    """Return the order in which ``lanes`` lanes read a source. All ``of_lanes`` lanes share the memory of windows.

    Raises ``ConfigError`` if the source is empty.
    """
    layout = config.stated_layout()
    by_extents = config.sources.is_mix or not layout.interleaved  # a sequence at a random offset needs one extent
    blocks, seed = source.extents.blocks(in_mix=by_extents), seed if layout.interleaved else None
    order = Shuffle(blocks, lanes, source.window(of_lanes, **config.window_options), seed, name)
    source.raise_if_empty(order.tokens if layout.unit == "tokens" else order.documents, layout.unit)
    return order


def _windows(config: StreamSettings, source: CountedData, order: Shuffle, readers: int = 1) -> WindowCache:
    """Return the windows of one of ``readers`` that read a source."""
    sources = len(config.sources.by_name)
    spare = config.stated_layout().spare_windows(sources)
    most = 0 if config.sequential else min(_SMALL_EPOCHS, _SMALL_EPOCHS_OF_MIX // sources)
    maker = WindowMaker(source, order, most=most, sources=_sources_of_shards(config, source))
    return WindowCache(maker, spare, sources * readers)


def _sources_of_shards(config: StreamSettings, source: CountedData) -> NDArray[np.int64] | None:
    """Return the number of the source of each shard; None if documents need no source, as in a mix, where rows have it."""
    if config.sources.is_mix or not config.stated_layout().source:
        return None
    names = source.source_names
    return np.array([names.index(name) for name in source.sources_of_shards], np.int64)


def _document_maps(config: StreamSettings) -> DocumentMaps | None:
    maps = config.document_maps
    return DocumentMaps(maps, config.sources.dtype, config.vocab_size) if maps else None


# Sequential streams.


def _sequential_reader(
    config: StreamSettings, start: Position, topology: Topology, share: WorkerShare, token_numbers: TokenNumbers | None
) -> SequentialReader:
    """Make the reader of a worker's lanes.

    Raises ``ConfigError`` if ranks and workers cannot share the lanes, ``StateError`` if the position lacks some of them.
    """
    layout, sources, world_size = config.stated_layout(), config.sources, topology.world_size
    if layout.source and not sources.is_mix:
        raise ConfigError(
            "source=True names the sources within a dataset only if the stream is indexed: remove the filter, the map of other "
            "lengths or best fit, or mix the sources: pipeline.mix(ShardDataset(...).sources(), temperature=1)"
        )
    if any(sources.live) and topology.workers > 1:
        raise ConfigError(
            f"a live source has one lane on each rank, which {topology.workers} workers of a DataLoader cannot share; use "
            "num_workers=0, and .prefetch(n) to read ahead, or num_workers=1"
        )
    lanes = sequential_lanes(config, world_size)
    lanes.check(world_size, share.every, is_shuffled=config.seed is not None)
    first = start.pass_number * (config.epochs or 1)
    saved = beginning(first, lanes.count, len(sources.by_name)) if start.lanes is None else start.lanes
    local = lanes.local(topology.rank, world_size, start.sequence_index // lanes.rows + share.skip, share.every)
    if missing := [lane for lane in local if str(lane) not in saved]:
        raise missing_lanes(missing, lanes.count)
    cursors = {lane: saved[str(lane)] for lane in local}
    epochs = None if config.epochs is None else first + config.epochs
    readers = [
        _window_reader(config, number, lanes, topology, cursors, epochs, traced=token_numbers is not None)
        for number in range(len(sources.by_name))
    ]
    return SequentialReader(
        readers,
        partial(_cut, config, token_numbers),
        cursors,
        lanes=lanes,
        layout=layout,
        buffer=layout.buffer(sources.dtype if token_numbers is None else np.dtype(np.int64)),
        bounded=config.epochs is not None,
        mixture=config.mixture(lanes.count),
    )


def _window_reader(
    config: StreamSettings,
    number: int,
    lanes: Lanes,
    topology: Topology,
    cursors: dict[int, Cursor],
    epochs: int | None,
    *,
    traced: bool,
) -> WindowReader:
    """Return the reader of a source's windows in the lanes of ``cursors``, before epoch ``epochs`` (None: of all epochs).

    Each source of a mix has its own seed. If a source has fewer documents than lanes, each lane reads all documents, under its
    own seed.
    """
    name, source = list(config.sources.by_name.items())[number]
    starts = {lane: _window_start(part_of_source(cursor, number)) for lane, cursor in cursors.items()}
    options: dict[str, Any] = {"filters": tuple(transform.function for transform in config.filters), "epochs": epochs}

    def seed_of(*lane: int) -> int | None:
        if config.seed is None or not config.sources.is_mix:
            return config.seed
        return derive_key("text source", config.seed, name, *lane)

    if isinstance(source, LiveData):
        from .sequential.text.text_windows import LiveWindows  # loaded for text alone

        options |= {
            "rank": topology.rank,
            "ranks": topology.world_size,
            "window": _text_window(config, source, lanes.count),
        }
        return LiveWindows(source, seed=seed_of(), **options)

    options["with_origins"] = traced

    memory: list[HeldSource] = []  # of the source, which the readers of all lanes share

    def make(read: Lanes, starts: dict[int, WindowStart], seed: int | None) -> WindowReader:
        if isinstance(source, CountedData):
            return _windows_of_shards(config, source, lanes.count, read, seed, memory, starts=starts, **options)
        assert isinstance(source, TextData)
        return _windows_of_text(config, source, lanes.count, read, seed, starts=starts, **options)

    if not config.sources.is_mix or source.records(lanes.count) >= lanes.count:
        return make(lanes, starts, seed_of())
    return WholeSourceWindows(lambda lane: make(Lanes(1, 1), {0: starts[lane]}, seed_of(lane)))


def _windows_of_shards(
    config: StreamSettings,
    source: CountedData,
    of_lanes: int,
    lanes: Lanes,
    seed: int | None,
    memory: list[HeldSource],
    **options: Any,
) -> ShardWindows:
    """Return the windows of a source of shards. A small source is held in ``memory``."""
    from .sequential.shard_windows import ShardWindows  # loaded for sequential streams alone
    from .windows.held_source import HeldSource

    order = _order(config, "", source, lanes.count, seed, of_lanes)
    of_lane, documents = lane_bytes(of_lanes, len(config.sources.by_name)), _FILTERED_DOCUMENTS
    if config.best_fit:
        tokens = best_fit_tokens(config.stated_layout().sequence_stride, of_lane // source.token_bytes)
        documents = max(1, tokens * order.documents // order.tokens)
    windows = _windows(config, source, order, of_lanes // lanes.count)
    if order.windows == 1 or (lanes.count < of_lanes and order.blocks.bytes <= of_lane * of_lanes):
        memory[:] = memory or [HeldSource(windows.maker)]
    options |= {"held": memory[0] if memory else None, "most_bytes": None if config.best_fit else _PIECE_BYTES}
    return ShardWindows(windows, order, lanes=lanes.count, size=documents, **options)


def _windows_of_text(
    config: StreamSettings, source: TextData, of_lanes: int, lanes: Lanes, seed: int | None, **options: Any
) -> TextWindows:
    """Return the windows of a text source. All readers share the memory and open files that are allotted to each lane."""
    from .sequential.text.text_windows import TextWindows  # loaded for text alone

    options |= {"window": _text_window(config, source, of_lanes), "seed": seed}
    return TextWindows(source, lanes=lanes, sources=len(config.sources.by_name) * of_lanes // lanes.count, **options)


def _text_window(config: StreamSettings, source: TextData, lanes: int) -> TextWindowSize:
    packed = config.stated_layout().sequence_stride if config.best_fit else None
    options: dict[str, Any] = {"is_shuffled": config.seed is not None, "window": config.window, "best_fit": packed}
    return source.window_size(lanes, len(config.sources.by_name), **options)


def _window_start(cursor: Cursor) -> WindowStart:
    epoch, cycle, round, _ = cursor
    return epoch, cycle, round


def _cut(
    config: StreamSettings, token_numbers: TokenNumbers | None, source: int, lane: int, made: SequentialWindow
) -> SequentialWindow:
    """Return a lane's window after the user's functions, and cut into sequences unless these run on into the next window."""
    layout, window = config.stated_layout(), made.window
    if (maps := _document_maps(config)) is not None:
        window = maps.window(window)
    if token_numbers is not None:
        window = token_numbers.numbered(list(config.sources.by_name)[source], window)
    key = None
    if layout.best_fit and config.seed is not None:
        epoch, cycle, round = made.start
        round = 0 if isinstance(round, str) else round  # a live source may write its state in several ways
        key = derive_key("best fit", config.seed, lane, epoch, cycle, round)
    cut, cuts = layout.cut(window, key)
    if token_numbers is not None:
        token_numbers.watch(window, cut)
    return made._replace(window=cut, cuts=cuts)
