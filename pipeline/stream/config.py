"""What a chain of stages amounts to: one frozen value, from which any process can make the same stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..shards.ranges.open_files import MOST
from .arguments import check_epochs, labels_are_inputs, shift_given
from .batch.collate import DocumentCollator, PackCollator
from .batch.label_shift import DrawnShifts, divisors_below
from .data.mixture import MixedData
from .data.shards import Data
from .data.text import TextData
from .function_identity import Filter
from .indexed.block_pool import BlockPool
from .indexed.documents import BucketedDocuments, DocumentSequences
from .indexed.mixed import MixedSequences
from .indexed.packed import PackedSequences
from .indexed.sampled import SampledSequences
from .indexed.token_stream import TokenStream
from .order import LANES, LANES_OF_MIX, Sequences, Shuffle, default_window, sequential_window
from .order.mixture import Mixture, Schedule
from .sequential.best_fit_sizes import most_lanes_a_row
from .sequential.layout import WINDOW_BYTES, LaneLayout, lane_layout

ORDER = 2  # version of the order of documents: another one is another stream
_SAMPLED_WINDOWS = 512  # of one block each, that stay in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout:
    """Sequences of ``seq_len`` tokens every ``stride`` (None: from random places), labels ``shift`` ahead.

    ``shift`` None is drawn for each step. ``best_fit`` packs documents uncut.
    """

    seq_len: int
    stride: int | None
    shift: int | None
    boundaries: bool
    same_labels: bool
    best_fit: bool = False

    @property
    def extra(self) -> int:
        """Tokens that labels need beyond the inputs."""
        if self.same_labels:
            return 0
        return divisors_below(self.seq_len)[-1] if self.shift is None else self.shift


def pack_layout(
    seq_len: int, stride: int | None, shift: int | str, boundaries: bool, labels: str, best_fit: bool = False
) -> PackLayout:
    """Return the layout that users' options mean; ``ConfigError`` names one that cannot be."""
    same = labels_are_inputs(labels)
    distance = shift_given(shift, seq_len, same)
    return PackLayout(
        seq_len=seq_len, stride=stride, shift=distance, boundaries=boundaries, same_labels=same, best_fit=best_fit
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLayout:
    """Documents, one a sequence, cut and padded, ``bucket`` neighbours of similar length."""

    max_length: int | None = None
    pad_to_multiple_of: int = 1
    same_labels: bool = False
    bucket: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the stages said.

    ``seed`` None keeps the order of the files; ``window`` and ``lanes`` None are chosen from the data; ``rank`` None
    is torch.distributed's; ``steps`` and ``batch_steps`` are what users put before and after batching; ``take`` bounds
    the global sequences, ``take_batches`` the batches of a rank; ``stored`` keeps ids in the width they are stored in;
    ``prefetch`` None reads two batches ahead for a GPU and none else. A mix has ``weights``, from global sequences on.
    ``filters`` say which documents stay, ``document_maps`` what becomes of them.
    """

    data: Data | MixedData | TextData
    filters: tuple[Filter, ...] = ()
    document_maps: tuple[Filter, ...] = ()
    weights: Schedule = ()
    epochs: int | None = None
    seed: int | None = None
    window: int | None = None
    lanes: int | None = None
    max_open_shards: int = MOST
    layout: PackLayout | DocumentLayout | None = None
    steps: tuple[Callable[..., Any], ...] = ()
    batch_size: int | None = None
    drop_last: bool = False
    batch_steps: tuple[Callable[..., Any], ...] = ()
    take: int | None = None
    take_batches: int | None = None
    rank: int | None = None
    world_size: int = 1
    device: str | None = None
    numpy: bool = False
    prefetch: int | None = None
    stored: bool = False

    def __post_init__(self) -> None:
        check_epochs(self.epochs)  # whatever constructor it was given to

    @property
    def stated_topology(self) -> tuple[int, int] | None:
        """Rank and world size as the user stated them, if so."""
        return None if self.rank is None else (self.rank, self.world_size)

    @property
    def best_fit(self) -> bool:
        """Whether documents are packed uncut."""
        return isinstance(self.layout, PackLayout) and self.layout.best_fit

    @property
    def by_cursors(self) -> bool:
        """Whether lanes need cursors, because the counts before a sequence are unknown in advance."""
        return self.best_fit or bool(self.filters or self.document_maps) or isinstance(self.data, TextData)

    @property
    def filter_names(self) -> list[str]:
        """What each filter is called in the state."""
        return [each.name for each in self.filters]

    def lane_layout(self, world_size: int) -> LaneLayout:
        """Return the lanes of a sequential stream; text that was not counted before is read for it.

        Raises ``ConfigError`` for lanes that the rows of a global batch cannot share.
        """
        rows = world_size * (self.batch_size or 1)
        if self.seed is None:
            return LaneLayout(rows, 1)
        data, layout = self.data, self.layout
        assert not isinstance(data, MixedData)
        most = (
            most_lanes_a_row(self, rows, layout.seq_len) if isinstance(layout, PackLayout) and layout.best_fit else None
        )
        records = data.records if isinstance(data, TextData) else lambda most: min(most, sum(data.documents))
        return lane_layout(rows, self.lanes, records, most)

    def order_shape(self, world_size: int = 1) -> tuple[Any, int]:
        """Return the window (in blocks, of each source of a mix by name; of texts as stated) and the lanes in force."""
        if self.by_cursors:
            layout = self.lane_layout(world_size)
            window = self.window if isinstance(self.data, TextData) else self._sequential_window(layout)
            return window, layout.lanes
        lanes = self.lane_count
        if isinstance(self.data, MixedData):
            sources = self.data.sources.items()
            if self.seed is None:
                return dict.fromkeys(self.data.sources, 1), lanes
            windows = {
                name: self.window or default_window(data.contents.blocks(in_mix=True), in_mix=True)
                for name, data in sources
            }
            return windows, lanes
        if self.seed is None:
            return 1, lanes
        assert not isinstance(self.data, TextData)
        return self.window or default_window(self.data.contents.blocks()), lanes

    def _sequential_window(self, layout: LaneLayout) -> int:
        """Return the blocks of shards that are shuffled together for a sequential reader."""
        if self.seed is None:
            return 1
        assert not isinstance(self.data, MixedData | TextData)
        return self.window or sequential_window(self.data.contents.blocks(), WINDOW_BYTES // layout.lanes)

    @property
    def lane_count(self) -> int:
        """The lanes of an indexed stream; no table of extents is read for it."""
        if self.seed is None:
            return 1
        if self.lanes is not None:
            return self.lanes
        return LANES_OF_MIX if isinstance(self.data, MixedData) else LANES

    def sequences(self) -> Sequences | None:
        """Return where the epochs' sequences begin; None where epochs are not counted ahead, or are the sources' own.

        Raises ``ConfigError`` for a split that holds nothing.
        """
        layout = self.stated_layout()
        if self.by_cursors or isinstance(self.data, MixedData | TextData):
            return None
        packed = isinstance(layout, PackLayout)
        count = sum(self.data.tokens if packed else self.data.documents)
        _refuse_empty(count, "tokens" if packed else "documents", self.data)
        stride = (layout.stride or layout.seq_len) if isinstance(layout, PackLayout) else 1
        return Sequences(count, stride, self.lanes_in_force)

    @property
    def lanes_in_force(self) -> int:
        """How many lanes ranks share."""
        sampled = isinstance(self.layout, PackLayout) and self.layout.stride is None
        return 1 if sampled else self.lane_count

    def mixed_core(self, weights: Schedule) -> MixedSequences:
        """Make the core of a mix under the weights in force."""
        assert isinstance(self.data, MixedData)
        layout = self.layout
        if not isinstance(layout, PackLayout) or layout.stride is None:
            raise ConfigError("a mix is packed; add .pack(seq_len)")
        windows, lanes = self.order_shape()
        width = layout.seq_len + layout.extra
        streams = {}
        for name, data in self.data.sources.items():
            order = Shuffle(data.contents.blocks(in_mix=True), lanes, windows[name], self.seed, name)
            _refuse_empty(order.tokens, "tokens", data)
            sequences = Sequences(order.tokens, layout.stride, lanes)
            streams[name] = self._stream(data, order, sequences, width=width), sequences
        segments = [(-(-sequence // lanes), shares) for sequence, shares in weights]
        mixture = Mixture(list(streams), self.seed or 0, lanes, segments)
        return MixedSequences(streams, mixture, width=width, boundaries=layout.boundaries)

    def document_stream(self, layout: LaneLayout, windows: int) -> TokenStream:
        """Make the stream of documents that sequential readers take from; so many windows stay in memory."""
        assert not isinstance(self.data, MixedData | TextData)
        order = Shuffle(self.data.contents.blocks(), layout.lanes, self._sequential_window(layout), self.seed)
        packed = isinstance(self.layout, PackLayout)
        _refuse_empty(order.tokens if packed else order.documents, "tokens" if packed else "documents", self.data)
        return self._stream(self.data, order, None, aside=windows)

    def _stream(self, data: Data, order: Shuffle, sequences: Sequences | None, **options: Any) -> TokenStream:
        pool = BlockPool(data.ranges(self.max_open_shards), data.contents, order)
        return TokenStream(order, pool, data.dtype, sequences, **options)

    def core(self, *, cut: bool = True) -> PackedSequences | SampledSequences | DocumentSequences | MixedSequences:
        """Make the random-access core; ``cut`` ends the last sequences at the last token of a bounded stream."""
        layout = self.stated_layout()
        if isinstance(self.data, MixedData):
            return self.mixed_core(self.weights)
        assert not isinstance(self.data, TextData)
        if isinstance(layout, PackLayout) and layout.stride is None:
            return self._sampled(self.data, layout)
        window, lanes = self.order_shape()
        order = Shuffle(self.data.contents.blocks(), lanes, window, self.seed)
        if isinstance(layout, PackLayout):
            _refuse_empty(order.tokens, "tokens", self.data)
            assert layout.stride is not None
            sequences, width = Sequences(order.tokens, layout.stride, lanes), layout.seq_len + layout.extra
            stream = self._stream(self.data, order, sequences, width=width)
            return PackedSequences(
                stream, sequences, width=width, epochs=self.epochs if cut else None, boundaries=layout.boundaries
            )
        _refuse_empty(order.documents, "documents", self.data)
        sequences = Sequences(order.documents, 1, lanes)
        stream = self._stream(self.data, order, sequences, documents=True)
        if layout.bucket is None:
            return DocumentSequences(stream, sequences, max_length=layout.max_length)
        return BucketedDocuments(
            stream,
            sequences,
            bucket=layout.bucket,
            seed=self.seed,
            max_length=layout.max_length,
        )

    def _sampled(self, data: Data, layout: PackLayout) -> SampledSequences:
        order = Shuffle(data.contents.blocks(), 1, 1, None)
        _refuse_empty(order.tokens, "tokens", data)
        return SampledSequences(
            self._stream(data, order, None, aside=_SAMPLED_WINDOWS),
            seq_len=layout.seq_len,
            width=layout.seq_len + layout.extra,
            seed=self.seed or 0,
            boundaries=layout.boundaries,
        )

    def stated_layout(self) -> PackLayout | DocumentLayout:
        """Return the layout; raises ``ConfigError`` where no stage gave one."""
        if self.layout is None:
            raise ConfigError("nothing says what a sample is; add .pack(seq_len) or .documents()")
        return self.layout

    @property
    def stored_dtype(self) -> np.dtype[Any] | None:
        """The unsigned dtype that ``batch(dtype="stored")`` keeps ids in, None for int64."""
        return self.data.dtype if self.stored and self.data.dtype.kind == "u" else None

    def collator(self, size: int) -> PackCollator | DrawnShifts | DocumentCollator:
        """Make the collator of batches of ``size`` rows; for a device, packs stay in their stored width until they are there."""
        eos_id = self.data.eos_id
        # Samples that users' functions change are int64, with -100 in place; `stack` narrows what they make of them.
        narrow = not self.steps and (self.stored or (self.device not in (None, "cpu") and not self.batch_steps))
        if isinstance(self.layout, PackLayout):
            layout = self.layout

            def of_shift(shift: int) -> PackCollator:
                return PackCollator(
                    size=size,
                    seq_len=layout.seq_len,
                    shift=shift,
                    eos_id=eos_id,
                    boundaries=layout.boundaries,
                    same_labels=layout.same_labels,
                    dtype=self.data.dtype if narrow and self.data.dtype.kind == "u" else np.dtype(np.int64),
                )

            return (
                DrawnShifts(layout.seq_len, self.seed or 0, of_shift)
                if layout.shift is None
                else of_shift(layout.shift)
            )
        documents = self.layout or DocumentLayout()
        return DocumentCollator(
            size=size,
            max_length=documents.max_length,
            pad_to_multiple_of=documents.pad_to_multiple_of,
            eos_id=eos_id,
            same_labels=documents.same_labels,
        )

    def shape(self, world_size: int) -> dict[str, Any]:
        """Return what the order depends on: a state made under one shape is refused under another.

        Of a sequential stream that is the global batch too, so it takes the number of ranks.
        """
        layout = self.layout if isinstance(self.layout, PackLayout) else None
        kind = "documents" if layout is None else "sample" if layout.stride is None else "pack"
        shape: dict[str, Any] = {"order": ORDER, "split": self.data.split, "kind": kind}
        shape |= {"seed": self.seed, "epochs": self.epochs}
        if kind != "sample":
            shape["window"], shape["lanes"] = self.order_shape(world_size)
        if layout is not None:
            shape["seq_len"] = layout.seq_len
        if kind == "pack" and layout is not None:
            shape["stride"] = layout.stride
        if isinstance(self.layout, DocumentLayout) and self.layout.bucket is not None:
            shape["bucket"] = self.layout.bucket
        if self.by_cursors:
            shape |= {"global_batch": world_size * (self.batch_size or 1), "filters": self.filter_names}
            shape["document_maps"] = [each.name for each in self.document_maps]
            if layout is not None:
                shape["best_fit"] = layout.best_fit
        if isinstance(self.data, MixedData):
            return {**shape, "data": {name: data.fingerprint for name, data in self.data.sources.items()}}
        return {**shape, "data": {self.data.name: self.data.fingerprint}}


def _refuse_empty(count: int, what: str, data: Data) -> None:
    if count == 0:
        raise ConfigError(f"split {data.split!r} holds no {what}: there is nothing to stream; build it from more input")
