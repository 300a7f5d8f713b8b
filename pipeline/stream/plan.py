"""What a chain of stages amounts to: one frozen value, from which any process can make the same stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ConfigError
from .arguments import labels_are_inputs, shift_given
from .batches import DocumentCollator, PackCollator
from .bucketing import BucketedDocuments
from .data import Data
from .mixing import MixedData, MixedSequences, Mixture, Schedule
from .order import LIVE_DOCUMENTS, Sequences, ShardOrder, default_lanes, default_window
from .pool import ShardPool
from .sampling import SampledSequences, ScatteredTokens
from .sequences import DocumentSequences, PackedSequences
from .shifting import DrawnShifts, divisors_below
from .text_data import TextData
from .windows import TokenStream

_TEXT_WINDOW = 16_384  # documents


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
    ``filters`` say which documents stay.
    """

    data: Data | MixedData | TextData
    filters: tuple[Callable[[Any], Any], ...] = ()
    weights: Schedule = ()
    epochs: int | None = None
    seed: int | None = None
    window: int | None = None
    lanes: int | None = None
    max_open_shards: int = 512
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
        """Whether lanes need cursors, because nobody knows ahead how much comes before a sequence."""
        return self.best_fit or bool(self.filters) or isinstance(self.data, TextData)

    def order_shape(self) -> tuple[int, int]:
        """Return the window (in shards, of texts in documents) and the lanes in force."""
        if isinstance(self.data, TextData):
            if self.seed is None:
                return (_TEXT_WINDOW // 16 if self.best_fit else 1), 1
            return self.window or _TEXT_WINDOW, self.lanes or self.data.lanes
        if isinstance(self.data, MixedData):
            shapes = [replace(self, data=data).order_shape() for data in self.data.sources.values()]
            lanes = min(lanes for _, lanes in shapes)
            # Every source keeps its windows for every lane.
            return max(window for window, _ in shapes), self.lanes or max(1, lanes // len(shapes))
        shards, documents = len(self.data.documents), sum(self.data.documents)
        window = min(self.window or default_window(shards, documents), max(1, shards))
        lanes = 1 if self.seed is None else default_lanes(shards, documents, window)
        return window, self.lanes or lanes

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
        return Sequences(count, stride, self.order_shape()[1])

    def mixed_core(self, weights: Schedule) -> MixedSequences:
        """Make the core of a mix under the weights in force."""
        assert isinstance(self.data, MixedData)
        if not isinstance(self.layout, PackLayout) or self.layout.stride is None:
            raise ConfigError("a mix is packed; add .pack(seq_len)")
        _, lanes = self.order_shape()
        streams = {name: replace(self, data=data).token_stream(lanes, name) for name, data in self.data.sources.items()}
        segments = [(-(-sequence // lanes), shares) for sequence, shares in weights]
        return MixedSequences(
            streams,
            Mixture(list(streams), self.seed or 0, lanes, segments),
            seq_len=self.layout.seq_len,
            stride=self.layout.stride,
            extra=self.layout.extra,
            boundaries=self.layout.boundaries,
        )

    def token_stream(self, lanes: int, name: str = "") -> TokenStream:
        """Make the endless token stream of one source; ``name`` keeps sources of one seed apart."""
        assert not isinstance(self.data, MixedData | TextData)
        documents, tokens = self.data.documents, self.data.tokens
        pool = ShardPool(self.data.open, self.data.reopen, self.max_open_shards)
        stream: TokenStream
        if isinstance(self.layout, PackLayout) and self.layout.stride is None:
            keep = max(1, LIVE_DOCUMENTS * len(documents) // max(1, sum(documents)))
            stream = ScatteredTokens(documents, tokens, pool, self.data.dtype, keep)
        else:
            window, _ = self.order_shape()
            order = ShardOrder(documents, tokens, window, self.seed, name)
            stream = TokenStream(order, pool, self.data.dtype, lanes)
        what = "tokens" if isinstance(self.layout, PackLayout) else "documents"
        _refuse_empty(stream.tokens_per_epoch if what == "tokens" else stream.documents_per_epoch, what, self.data)
        return stream

    def core(self, *, cut: bool = True) -> PackedSequences | SampledSequences | DocumentSequences | MixedSequences:
        """Make the random-access core; ``cut`` ends the last sequences at the last token of a bounded stream."""
        layout = self.stated_layout()
        if isinstance(self.data, MixedData):
            return self.mixed_core(self.weights)
        _, lanes = self.order_shape()
        stream = self.token_stream(lanes)
        if isinstance(layout, PackLayout):
            if layout.stride is None:
                return SampledSequences(
                    stream,
                    seq_len=layout.seq_len,
                    extra=layout.extra,
                    seed=self.seed or 0,
                    boundaries=layout.boundaries,
                )
            return PackedSequences(
                stream,
                seq_len=layout.seq_len,
                stride=layout.stride,
                extra=layout.extra,
                lanes=lanes,
                epochs=self.epochs if cut else None,
                boundaries=layout.boundaries,
            )
        if layout.bucket is not None:
            return BucketedDocuments(stream, lanes=lanes, bucket=layout.bucket, seed=self.seed)
        return DocumentSequences(stream, lanes=lanes)

    def stated_layout(self) -> PackLayout | DocumentLayout:
        """Return the layout; raises ``ConfigError`` where no stage gave one."""
        if self.layout is None:
            raise ConfigError("nothing says what a sample is; add .pack(seq_len) or .documents()")
        return self.layout

    def collator(self) -> PackCollator | DrawnShifts | DocumentCollator:
        """Make the collator; for a device, packs stay in their stored width until they are there."""
        eos_id = self.data.eos_id
        narrow = self.stored or (self.device not in (None, "cpu") and not self.steps and not self.batch_steps)
        if isinstance(self.layout, PackLayout):
            layout = self.layout

            def of_shift(shift: int) -> PackCollator:
                return PackCollator(
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
            max_length=documents.max_length,
            pad_to_multiple_of=documents.pad_to_multiple_of,
            eos_id=eos_id,
            same_labels=documents.same_labels,
        )

    def shape(self) -> dict[str, Any]:
        """Return what the order depends on: a state made under one shape is refused under another."""
        layout = self.layout if isinstance(self.layout, PackLayout) else None
        kind = "documents" if layout is None else "sample" if layout.stride is None else "pack"
        shape: dict[str, Any] = {"split": self.data.split, "kind": kind, "seed": self.seed, "epochs": self.epochs}
        if kind != "sample":
            shape["window"], shape["lanes"] = self.order_shape()
        if layout is not None:
            shape["seq_len"] = layout.seq_len
        if kind == "pack" and layout is not None:
            shape["stride"] = layout.stride
        if isinstance(self.layout, DocumentLayout) and self.layout.bucket is not None:
            shape["bucket"] = self.layout.bucket
        if self.by_cursors:
            shape |= {"batch_size": self.batch_size or 1, "filters": [_named(each) for each in self.filters]}
            if layout is not None:
                shape["best_fit"] = layout.best_fit
        if isinstance(self.data, MixedData):
            return {**shape, "data": {name: data.fingerprint for name, data in self.data.sources.items()}}
        return {**shape, "data": {self.data.name: self.data.fingerprint}}


def _named(function: Any) -> str:
    module = getattr(function, "__module__", None) or "builtins"
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _refuse_empty(count: int, what: str, data: Data) -> None:
    if count == 0:
        raise ConfigError(f"split {data.split!r} holds no {what}: there is nothing to stream; build it from more input")
