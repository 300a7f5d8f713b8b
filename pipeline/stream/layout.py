"""Layouts, the kinds of samples: packed tokens, tokens from random offsets, or a whole document.

A layout makes the indexed reader and the collator of its rows, and cuts the windows of sequential streams. `assemble` gives it
the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .batch.collate import DocumentCollator, DrawnShifts, PackCollator, divisors_below
from .batch.rows import Collator, Reader
from .indexed import BucketedDocuments, DocumentSequences, PackedSequences, RandomOffsets, ReaderOptions
from .order import Sequences, Shuffle
from .windows.indexed_source import IndexedSource
from .windows.row_buffer import RowBuffer
from .windows.window import Window, WindowCache

_SPARE_WINDOWS = 8  # in memory, beyond one for each lane
_SAMPLED_WINDOWS = 512  # in memory, of one extent each


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The base of layouts.

    - ``kind`` is the name in a state; ``unit`` is what epochs count.
    - ``interleaved``: the order has lanes, windows and a seed; else documents stay in file order.
    - ``shift``: labels are so many tokens ahead (None: drawn for each step); ``same_labels``: the model shifts them.
    - ``source`` and ``document_ids``: batches name sources, and number the documents of each row.
    - ``pad_to_multiple_of``: whole documents, or documents with boundaries, are padded to a multiple of so many tokens.
    - ``best_fit``: whole documents are packed; ``bucket``: so many neighbours have similar lengths (None: no buckets).
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "tokens"
    interleaved: ClassVar[bool] = True

    shift: int | None = 1
    same_labels: bool = False
    source: bool = False
    document_ids: bool = False
    pad_to_multiple_of: int = 1
    best_fit: bool = False
    bucket: int | None = None

    @property
    def drawn_shift(self) -> bool:
        return self.shift is None

    @property
    def runs_on(self) -> bool:
        """Whether sequences run on from one window of documents into the next."""
        return self.kind == "pack" and not self.best_fit

    @property
    def sequence_stride(self) -> int:
        """How many units the next sequence begins after this one."""
        return 1

    @property
    def width(self) -> int:
        """Units of a row, labels included."""
        return 1

    @property
    def tokens_before_labels(self) -> int:
        """The most tokens that a sequence can have without having a label."""
        return 0

    def fields(self) -> dict[str, Any]:
        """Return the settings that the order depends on, as fields of a state."""
        return {} if self.bucket is None else {"bucket": self.bucket}

    def spare_windows(self, sources: int) -> int:
        """Return how many windows of each source stay in memory after the lanes have read them."""
        return _SPARE_WINDOWS if self.interleaved else max(_SPARE_WINDOWS, _SAMPLED_WINDOWS // sources)

    def indexed_source(
        self, name: str, windows: WindowCache, order: Shuffle, sequences: Sequences, seed: int | None
    ) -> IndexedSource:
        """Return a source of an indexed stream."""
        return IndexedSource(name, windows, order, sequences, width=self.width, documents=self.unit == "documents")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenLayout(_Layout):
    """Sequences of ``seq_len`` tokens."""

    seq_len: int
    boundaries: bool

    @property
    def with_ends(self) -> bool:
        """Whether rows say where documents end."""
        return self.boundaries or self.document_ids

    @property
    def longest(self) -> int:
        """The most tokens of a row, without tokens that are only labels."""
        return self.seq_len

    @property
    def extra(self) -> int:
        """How many tokens labels need after the inputs."""
        if self.same_labels:
            return 0
        return divisors_below(self.seq_len)[-1] if self.shift is None else self.shift

    @property
    def width(self) -> int:
        return self.seq_len + self.extra

    def reader(self, sources: Sequence[IndexedSource], options: ReaderOptions) -> Reader[Any]:
        """Return the reader of an indexed stream of one source, or of a mix."""
        return PackedSequences(sources, options, seq_len=self.seq_len, with_ends=self.with_ends)

    def collator(self, size: int, eos_id: int, dtype: np.dtype[Any], seed: int | None) -> Collator[Any]:
        make = partial(
            PackCollator,
            size=size,
            seq_len=self.seq_len,
            eos_id=eos_id,
            boundaries=self.boundaries,
            same_labels=self.same_labels,
            document_ids=self.document_ids,
            dtype=dtype,
            pad_to_multiple_of=self.pad_to_multiple_of,
        )
        if self.shift is not None:
            return make(shift=self.shift)
        return DrawnShifts(self.seq_len, seed or 0, lambda shift: make(shift=shift))

    def buffer(self, dtype: np.dtype[Any]) -> RowBuffer | None:
        """Return the memory of packed rows; None for whole documents."""
        return RowBuffer(self.width, dtype, with_ends=self.with_ends)

    def sequences_of(self, window: Window, key: int | None) -> tuple[Window, NDArray[np.int64] | None]:
        """Return the window of the sequences, and where each sequence begins and the last one ends.

        Returns None for the latter if sequences run on into the next window. ``key`` shuffles sequences that best fit packs.
        """
        if not self.best_fit:
            return window, None
        from .windows.best_fit import pack_documents  # loaded for best fit alone

        return pack_documents(window, self.seq_len, self.extra, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout(_TokenLayout):
    """Sequences of ``seq_len`` tokens, one every ``stride`` tokens; with ``best_fit``, sequences of whole documents."""

    kind: ClassVar[str] = "pack"

    stride: int

    @property
    def sequence_stride(self) -> int:
        return self.stride

    @property
    def tokens_before_labels(self) -> int:
        return max(1, self.extra)  # a model that shifts labels predicts no first token

    def fields(self) -> dict[str, Any]:
        return {"seq_len": self.seq_len, "stride": self.stride}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLayout(_TokenLayout):
    """Sequences of ``seq_len`` tokens from random offsets."""

    kind: ClassVar[str] = "sample"
    interleaved: ClassVar[bool] = False

    @property
    def sequence_stride(self) -> int:
        return self.seq_len

    def fields(self) -> dict[str, Any]:
        return {"seq_len": self.seq_len}

    def indexed_source(
        self, name: str, windows: WindowCache, order: Shuffle, sequences: Sequences, seed: int | None
    ) -> IndexedSource:
        return RandomOffsets(name, windows, order, seq_len=self.seq_len, width=self.width, seed=seed or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLayout(_Layout):
    """One document a sequence, cut at ``max_length`` tokens (None: never) and padded."""

    kind: ClassVar[str] = "documents"
    unit: ClassVar[str] = "documents"

    max_length: int | None = None

    @property
    def longest(self) -> int | None:
        """The most tokens of a row; None: any number."""
        return self.max_length

    def reader(self, sources: Sequence[IndexedSource], options: ReaderOptions) -> Reader[Any]:
        """Return the reader of an indexed stream of one source, or of a mix."""
        if self.bucket is None:
            return DocumentSequences(sources, options, self.max_length)
        return BucketedDocuments(sources, options, self.max_length, self.bucket)

    def collator(self, size: int, eos_id: int, dtype: np.dtype[Any], seed: int | None) -> Collator[Any]:
        return DocumentCollator(
            size=size,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            eos_id=eos_id,
            same_labels=self.same_labels,
            document_ids=self.document_ids,
        )

    def buffer(self, dtype: np.dtype[Any]) -> None:
        return None

    def sequences_of(self, window: Window, key: int | None) -> tuple[Window, NDArray[np.int64] | None]:
        return window, window.ends


Layout = PackLayout | SampleLayout | DocumentLayout
