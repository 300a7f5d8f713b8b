"""What a sample of a stream is: packed tokens, tokens from random offsets, or a whole document.

A layout is a value; `assemble` makes the readers and collators of each kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


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

    @property
    def tokens_before_labels(self) -> int:
        """How many existing tokens of a sequence no label counts, so that one of more tokens has a label."""
        return 0

    def fields(self) -> dict[str, Any]:
        """Return what the order depends on, as fields of a state."""
        return {}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout(_TokenLayout):
    """Sequences of ``seq_len`` tokens every ``stride``, or with ``best_fit`` of whole documents."""

    kind: ClassVar[str] = "pack"

    stride: int
    best_fit: bool = False

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


def divisors_below(number: int) -> list[int]:
    """Return the divisors of ``number`` below it, ascending.

    >>> divisors_below(12)
    [1, 2, 3, 4, 6]
    """
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)} - {number})
