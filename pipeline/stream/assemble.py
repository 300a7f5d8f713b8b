"""A plan -> a reader and a collator: the one place that knows how each kind of data is read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .batch.collate import CutCollator, SourceCollator
from .datasets.sources.counted_data import CountedData
from .datasets.sources.text_data import LiveData, TextData
from .indexed import ReaderOptions
from .insertions import InsertingReader
from .lanes import (
    Lanes,
    TextWindowSize,
    WindowStart,
    best_fit_tokens,
    lane_bytes,
    missing_lanes,
    part_of_source,
)
from .order import Shuffle, derive_key
from .sequential.lane import SequentialWindow, WholeSourceWindows, WindowReader
from .sequential.lane_reader import LaneReader
from .windows.token_rows import DocumentMaps
from .windows.window import WindowCache, WindowMaker

if TYPE_CHECKING:
    from .batch.rows import Collator, Reader
    from .datasets.sources.sources import Source
    from .order.mixture import Mixture
    from .position import Position, Topology, WorkerShare
    from .sequential.shard_windows import ShardWindows
    from .sequential.token_numbers import TokenNumbers
    from .settings import StreamSettings
    from .stream_plan import StreamPlan
    from .windows.held_source import HeldSource

_SMALL_EPOCHS = 1 << 13  # tokens: a window holds several epochs of a source, up to this size
_SMALL_EPOCHS_OF_MIX = 1 << 18  # the same for the windows of all sources together
_FILTERED_DOCUMENTS = 64  # documents of shards in a window of a sequential stream
_PIECE_BYTES = 128 << 10  # of such a window that a lane has in memory, if one document is not larger


def make_collator(settings: StreamSettings, size: int) -> Collator[Any]:
    """Make the collator of batches of ``size`` rows, which ``settings.cut`` may cut into more.

    Packed ids for a device keep their stored width until they are on the device.
    """
    # Samples for the user's functions are int64, with -100 in place.
    narrow = not settings.sample_stages and (
        settings.stored or (settings.device not in (None, "cpu") and not settings.batch_stages)
    )
    dtype = settings.sources.dtype if narrow and settings.sources.dtype.kind == "u" else np.dtype(np.int64)
    layout, peer = settings.batch_layout(), settings.peer
    pieces = range(settings.pieces) if peer is None or settings.sliced else peer.rows(settings.pieces)
    size *= len(pieces)
    collator = layout.collator(size, settings.sources.eos_id, dtype, settings.seed)
    if layout.source:
        collator = SourceCollator(collator, size, by_document=layout.unit == "tokens" and not settings.sources.is_mix)
    if settings.cut is not None:
        collator = CutCollator(
            collator, [piece * settings.cut for piece in pieces], settings.cut * (settings.pieces - 1)
        )
    if peer is None or not settings.sliced:
        return collator
    from .context_parallel import ContextCollator  # loaded for context parallelism alone

    return ContextCollator(collator, peer)


def make_reader(
    plan: StreamPlan,
    start: Position,
    topology: Topology,
    share: WorkerShare,
    token_numbers: TokenNumbers | None = None,
) -> Reader[Any]:
    """Make the reader of one worker of one rank from a position on.

    With ``token_numbers``, a sequential reader returns these numbers (int64) in place of ids.
    """
    if plan.sequential:
        reader: Reader[Any] = _sequential_reader(plan, start, topology, share, token_numbers)
    else:
        reader = _indexed_reader(plan)
    if plan.inserted is None or token_numbers is not None:
        return reader
    return cast("Reader[Any]", InsertingReader(reader, plan.inserted, plan.step_rows if plan.sequential else None))


def make_mixture(plan: StreamPlan) -> Mixture | None:
    """Return which source of a mix serves each row; None for a single source. It counts rows as buckets arrange them."""
    mixture = plan.mixture()
    if mixture is not None and not plan.sequential and plan.layout.bucket:
        reader: Any = _indexed_reader(plan)
        mixture.totals, mixture.begin_of = reader.totals, reader.begin_of  # type: ignore[method-assign]
    return mixture


# Indexed streams.


def _indexed_reader(plan: StreamPlan) -> Reader[Any]:
    """Make the reader of one source, or of a mix."""
    layout, lanes, sources = plan.layout, plan.lane_count, []
    for name, source in plan.sources.counted.items():
        order = _order(plan, name, source, lanes, plan.settings.seed)
        windows = _windows(plan, source, order)
        sources.append(layout.indexed_source(name, windows, order, plan.sequences_of(source), plan.settings.seed))
    end = plan.end_of_mix if layout.bucket and plan.settings.stopping_strategy is not None else None
    options = ReaderOptions(plan.sources.dtype, plan.settings.seed, _document_maps(plan), plan.mixture(), end)
    return layout.reader(sources, options)


def _order(plan: StreamPlan, name: str, source: CountedData, lanes: int, seed: int | None) -> Shuffle:
    """Return the order in which ``lanes`` lanes read a source; ``ConfigError`` if the source is empty."""
    layout = plan.layout
    by_extents = plan.sources.is_mix or not layout.interleaved  # a sequence at a random offset needs one extent
    blocks, seed = source.extents.blocks(in_mix=by_extents), seed if layout.interleaved else None
    order = Shuffle(blocks, lanes, plan.window(source), seed, name)
    source.raise_if_empty(order.tokens if layout.unit == "tokens" else order.documents, layout.unit)
    return order


def _windows(plan: StreamPlan, source: CountedData, order: Shuffle, readers: int = 1) -> WindowCache:
    """Return the windows of one of ``readers`` that read a source."""
    sources = len(plan.sources.by_name)
    spare = plan.layout.spare_windows(sources)
    most = 0 if plan.sequential else min(_SMALL_EPOCHS, _SMALL_EPOCHS_OF_MIX // sources)
    eos_id = None if plan.sequential else source.eos_id  # lanes with cursors withhold documents after filters and maps
    maker = WindowMaker(source, order, most=most, sources=_sources_of_shards(plan, source), eos_id=eos_id)
    return WindowCache(maker, spare, sources * readers)


def _sources_of_shards(plan: StreamPlan, source: CountedData) -> NDArray[np.int64] | None:
    """Return the number of the source of each shard; None if documents need no source, as in a mix, where rows have it."""
    if plan.sources.is_mix or not plan.layout.source:
        return None
    names = source.source_names
    return np.array([names.index(name) for name in source.sources_of_shards], np.int64)


def _document_maps(plan: StreamPlan) -> DocumentMaps | None:
    maps = plan.settings.document_maps
    return DocumentMaps(maps, plan.sources.dtype, plan.settings.vocab_size) if maps else None


# Sequential streams.


def _sequential_reader(
    plan: StreamPlan, start: Position, topology: Topology, share: WorkerShare, token_numbers: TokenNumbers | None
) -> LaneReader:
    """Make the reader of a worker's lanes.

    Raises ``ConfigError`` if ranks and workers cannot share the lanes, ``StateError`` if the position lacks some of them.
    """
    layout, sources, settings = plan.layout, plan.sources, plan.settings
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
    lanes, world_size = plan.lanes, topology.world_size
    lanes.check(world_size, share.every, is_shuffled=settings.seed is not None)
    saved, epochs = plan.cursors(start), settings.epochs
    local = lanes.local(topology.rank, world_size, start.sequence_index // lanes.rows + share.skip, share.every)
    if missing := [lane for lane in local if str(lane) not in saved]:
        raise missing_lanes(missing, lanes.count)
    cursors = {lane: saved[str(lane)] for lane in local}
    options: dict[str, Any] = {
        "filters": tuple(transform.function for transform in settings.filters),
        "epochs": None if epochs is None else (start.pass_number + 1) * epochs,
    }
    readers = []
    for number, (name, source) in enumerate(sources.by_name.items()):
        own = {lane: part_of_source(cursor, number) for lane, cursor in cursors.items()}
        starts: dict[int, WindowStart] = {lane: (epoch, cycle, round) for lane, (epoch, cycle, round, _) in own.items()}
        if isinstance(source, LiveData):
            readers.append(_live_windows(plan, source, _seed_of(plan, name), topology, **options))
        else:
            with_origins = token_numbers is not None
            readers.append(_windows_of_source(plan, name, source, starts, with_origins=with_origins, **options))
    return LaneReader(
        readers,
        partial(_cut, plan, token_numbers),
        cursors,
        lanes=lanes,
        layout=layout,
        buffer=layout.buffer(sources.dtype if token_numbers is None else np.dtype(np.int64)),
        bounded=settings.epochs is not None,
        mixture=plan.mixture(),
    )


def _seed_of(plan: StreamPlan, name: str, *lane: int) -> int | None:
    """Return the seed of a source. Each source of a mix has its own, and each lane that reads all documents, too."""
    seed = plan.settings.seed
    return seed if seed is None or not plan.sources.is_mix else derive_key("text source", seed, name, *lane)


def _live_windows(
    plan: StreamPlan, source: LiveData, seed: int | None, topology: Topology, **options: Any
) -> WindowReader:
    from .sequential.text.text_windows import LiveWindows  # loaded for text alone

    options |= {"rank": topology.rank, "ranks": topology.world_size, "window": _text_window(plan, source)}
    return LiveWindows(source, seed=seed, **options)


def _windows_of_source(
    plan: StreamPlan, name: str, source: Source, starts: dict[int, WindowStart], **options: Any
) -> WindowReader:
    """Return the reader of a source's windows from ``starts`` on.

    If a source of a mix has fewer documents than lanes, each lane reads all documents, under its own seed.
    """
    memory: list[HeldSource] = []  # of the source, which the readers of all lanes share

    def make(lanes: int, starts: dict[int, WindowStart], seed: int | None) -> WindowReader:
        if isinstance(source, CountedData):
            return _windows_of_shards(plan, source, lanes, seed, memory, starts=starts, **options)
        from .sequential.text.text_windows import TextWindows  # loaded for text alone

        assert isinstance(source, TextData)
        read = plan.lanes if lanes == plan.lane_count else Lanes(lanes, lanes)
        sources = len(plan.sources.by_name) * plan.lane_count // lanes  # that share memory and open files
        window = _text_window(plan, source)
        return TextWindows(source, lanes=read, sources=sources, window=window, seed=seed, starts=starts, **options)

    if not plan.sources.is_mix or source.records(plan.lane_count) >= plan.lane_count:
        return make(plan.lane_count, starts, _seed_of(plan, name))
    return WholeSourceWindows(lambda lane: make(1, {0: starts[lane]}, _seed_of(plan, name, lane)))


def _windows_of_shards(
    plan: StreamPlan, source: CountedData, lanes: int, seed: int | None, memory: list[HeldSource], **options: Any
) -> ShardWindows:
    """Return the windows of a source of shards. A small source is held in ``memory``."""
    from .sequential.shard_windows import ShardWindows  # loaded for sequential streams alone
    from .windows.held_source import HeldSource

    of_lanes, best_fit = plan.lane_count, plan.settings.best_fit
    order = _order(plan, "", source, lanes, seed)
    of_lane, documents = lane_bytes(of_lanes, len(plan.sources.by_name)), _FILTERED_DOCUMENTS
    if best_fit:
        tokens = best_fit_tokens(plan.layout.sequence_stride, of_lane // source.token_bytes)
        documents = max(1, tokens * order.documents // order.tokens)
    windows = _windows(plan, source, order, of_lanes // lanes)
    if order.windows == 1 or (lanes < of_lanes and order.blocks.bytes <= of_lane * of_lanes):
        memory[:] = memory or [HeldSource(windows.maker)]
    options |= {"held": memory[0] if memory else None, "most_bytes": None if best_fit else _PIECE_BYTES}
    return ShardWindows(windows, order, lanes=lanes, size=documents, **options)


def _text_window(plan: StreamPlan, source: TextData | LiveData) -> TextWindowSize:
    settings = plan.settings
    packed = plan.layout.sequence_stride if settings.best_fit else None
    options: dict[str, Any] = {"is_shuffled": settings.seed is not None, "window": settings.window, "best_fit": packed}
    return source.window_size(plan.lane_count, len(plan.sources.by_name), **options)


def _cut(
    plan: StreamPlan, token_numbers: TokenNumbers | None, source: int, lane: int, made: SequentialWindow
) -> SequentialWindow:
    """Return a lane's window after the user's functions, and cut into sequences unless these run on into the next window."""
    layout, window, seed = plan.layout, made.window, plan.settings.seed
    if (maps := _document_maps(plan)) is not None:
        window = maps.window(window)
    window = window.withhold(plan.sources.eos_id)
    if token_numbers is not None:
        window = token_numbers.numbered(list(plan.sources.by_name)[source], window)
    key = None
    if layout.best_fit and seed is not None:
        epoch, cycle, round = made.start
        round = 0 if isinstance(round, str) else round  # a live source may write its state in several ways
        key = derive_key("best fit", seed, lane, epoch, cycle, round)
    cut, cuts = layout.sequences_of(window, key)
    if token_numbers is not None:
        token_numbers.watch(window, cut)
    return made._replace(window=cut, cuts=cuts)
