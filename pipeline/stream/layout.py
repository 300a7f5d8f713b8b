"""What a sample of a stream is: packed tokens, tokens from random places, or a whole document.

A layout is a value; `assemble` makes the readers and collators of each kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .arguments import labels_are_inputs, shift_given
from .batch.label_shift import divisors_below


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
