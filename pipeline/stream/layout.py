"""What a sample of a stream is: packed tokens, tokens from random places, or a whole document.

A layout is a value. It makes what depends on it: the collator, the reader of an indexed source, its fields of a state. How
the lanes of a sequential stream pack documents is chosen in `sequential.lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .arguments import labels_are_inputs, shift_given
from .batch.collate import DocumentCollator, PackCollator
from .batch.label_shift import DrawnShifts, divisors_below
from .indexed.documents import BucketedDocuments, DocumentSequences
from .indexed.packed import PackedSequences
from .indexed.sampled import RandomPlaces
from .order import Sequences, Shuffle
from .windows.lanes import LaneWindows

if TYPE_CHECKING:
    from .config import StreamConfig
    from .data.base import CountedData
    from .reader import Collator, Reader

_SAMPLED_WINDOWS = 512  # of one extent each, that stay in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What layouts share. ``same_labels``: labels are the inputs, and the model shifts them.

    ``unit`` is what epochs count, ``sequence_stride`` how many of them lie between two sequences. ``interleaved``: the order
    has lanes. ``drawn_shift``: the shift of labels is drawn for each step. ``best_fit``: documents are packed whole.
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "tokens"
    interleaved: ClassVar[bool] = True

    same_labels: bool = False

    @property
    def drawn_shift(self) -> bool:
        return False

    @property
    def best_fit(self) -> bool:
        """Whether whole documents are packed, best fit first."""
        return False

    @property
    def sequence_stride(self) -> int:
        return 1

    def fields(self) -> dict[str, Any]:
        """Return what the order depends on, as fields of a state."""
        return {}

    def collator(self, config: StreamConfig, size: int, dtype: np.dtype[Any]) -> Collator[Any]:
        """Make the collator of batches of ``size`` rows, with packed ids of ``dtype``."""
        raise NotImplementedError

    def make_reader(self, data: CountedData, config: StreamConfig, cut: bool) -> Reader[Any]:
        """Make the indexed reader of one source; ``cut`` ends the last sequences at the last token of a bounded stream."""
        raise NotImplementedError

    def call(self) -> str:
        """Return the method call that says this."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenLayout(Layout):
    """Sequences of ``seq_len`` tokens, labels ``shift`` ahead (None: drawn for each step)."""

    seq_len: int
    shift: int | None
    boundaries: bool

    @property
    def drawn_shift(self) -> bool:
        return self.shift is None

    @property
    def extra(self) -> int:
        """Tokens that labels need beyond the inputs."""
        if self.same_labels:
            return 0
        return divisors_below(self.seq_len)[-1] if self.shift is None else self.shift

    @property
    def width(self) -> int:
        """Tokens of a row, labels included."""
        return self.seq_len + self.extra

    def collator(self, config: StreamConfig, size: int, dtype: np.dtype[Any]) -> Collator[Any]:
        def of_shift(shift: int) -> PackCollator:
            return PackCollator(
                size=size,
                seq_len=self.seq_len,
                shift=shift,
                eos_id=config.data.eos_id,
                boundaries=self.boundaries,
                same_labels=self.same_labels,
                dtype=dtype,
            )

        return DrawnShifts(self.seq_len, config.seed or 0, of_shift) if self.shift is None else of_shift(self.shift)

    def _options(self) -> dict[str, Any]:
        shift = "divisors" if self.shift is None else self.shift if self.shift != 1 else None
        labels = "same" if self.same_labels else None
        return {"shift": shift, "boundaries": self.boundaries or None, "labels": labels}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout(_TokenLayout):
    """Sequences of ``seq_len`` tokens every ``stride``, or with ``best_fit`` of whole documents."""

    kind: ClassVar[str] = "pack"

    stride: int
    best_fit: bool = False

    @property
    def sequence_stride(self) -> int:
        return self.stride

    def fields(self) -> dict[str, Any]:
        return {"seq_len": self.seq_len, "stride": self.stride}

    def make_reader(self, data: CountedData, config: StreamConfig, cut: bool) -> Reader[Any]:
        order = data.order(config)
        sequences = Sequences(order.tokens, self.stride, config.lane_count)
        rows = data.token_rows(config, order, sequences, self.width, config.epochs if cut else None)
        return PackedSequences(rows, data.dtype, boundaries=self.boundaries)

    def call(self) -> str:
        stride = self.stride if self.stride != self.seq_len else None
        return written_call("pack", self.seq_len, stride=stride, **self._options(), best_fit=self.best_fit or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLayout(_TokenLayout):
    """Sequences of ``seq_len`` tokens from random places."""

    kind: ClassVar[str] = "sample"
    interleaved: ClassVar[bool] = False

    @property
    def sequence_stride(self) -> int:
        return self.seq_len

    def fields(self) -> dict[str, Any]:
        return {"seq_len": self.seq_len}

    def make_reader(self, data: CountedData, config: StreamConfig, cut: bool) -> Reader[Any]:
        order = Shuffle(data.contents.blocks(in_mix=True), 1, 1, None)  # extents: all of one is read for a sequence
        data.raise_if_empty(order.tokens, self.unit)
        windows = data.loaded_windows(config, order, _SAMPLED_WINDOWS)
        places = RandomPlaces(windows, order, seq_len=self.seq_len, width=self.width, seed=config.seed or 0)
        return PackedSequences(data.rows_of(config, places, None), data.dtype, boundaries=self.boundaries)

    def call(self) -> str:
        return written_call("sample", self.seq_len, **self._options())


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLayout(Layout):
    """Documents, one a sequence, cut and padded, ``bucket`` neighbours of similar length."""

    kind: ClassVar[str] = "documents"
    unit: ClassVar[str] = "documents"

    max_length: int | None = None
    pad_to_multiple_of: int = 1
    bucket: int | None = None

    def fields(self) -> dict[str, Any]:
        return {} if self.bucket is None else {"bucket": self.bucket}

    def collator(self, config: StreamConfig, size: int, dtype: np.dtype[Any]) -> Collator[Any]:
        return DocumentCollator(
            size=size,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            eos_id=config.data.eos_id,
            same_labels=self.same_labels,
        )

    def make_reader(self, data: CountedData, config: StreamConfig, cut: bool) -> Reader[Any]:
        order = data.order(config)
        sequences = Sequences(order.documents, 1, config.lane_count)
        end = config.epochs if cut else None
        lanes = LaneWindows(data.loaded_windows(config, order), order, sequences, documents=True, end=end)
        options: dict[str, Any] = {"max_length": self.max_length, "change": data.change(config)}
        if self.bucket is None:
            return DocumentSequences(lanes, **options)
        return BucketedDocuments(lanes, bucket=self.bucket, seed=config.seed, **options)

    def call(self) -> str:
        multiple = self.pad_to_multiple_of if self.pad_to_multiple_of > 1 else None
        first = () if self.max_length is None else (self.max_length,)
        labels = "same" if self.same_labels else None
        return written_call("documents", *first, pad_to_multiple_of=multiple, labels=labels, bucket=self.bucket)


def pack_layout(
    seq_len: int, stride: int, shift: int | str, boundaries: bool, labels: str, best_fit: bool
) -> PackLayout:
    """Return the layout that the options of ``pack`` mean; ``ConfigError`` names one that cannot be."""
    same = labels_are_inputs(labels)
    return PackLayout(
        seq_len=seq_len,
        stride=stride,
        shift=shift_given(shift, seq_len, same),
        boundaries=boundaries,
        same_labels=same,
        best_fit=best_fit,
    )


def sample_layout(seq_len: int, shift: int | str, boundaries: bool, labels: str) -> SampleLayout:
    """Return the layout that the options of ``sample`` mean; ``ConfigError`` names one that cannot be."""
    same = labels_are_inputs(labels)
    distance = shift_given(shift, seq_len, same)
    return SampleLayout(seq_len=seq_len, shift=distance, boundaries=boundaries, same_labels=same)


def written_call(name: str, *values: Any, **options: Any) -> str:
    """Return a method call as it would be written, without options of None.

    >>> written_call("pack", 8, stride=None, shift=2)
    '.pack(8, shift=2)'
    """
    given = [*map(repr, values), *(f"{key}={value!r}" for key, value in options.items() if value is not None)]
    return f".{name}({', '.join(given)})"
