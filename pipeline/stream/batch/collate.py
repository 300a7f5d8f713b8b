"""Sequences to batches: ids, labels and document boundaries as fresh arrays that share nothing with the shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ConfigError
from ..indexed.documents import DocumentSequences
from ..indexed.packed import PackedSequences
from ..order import Step
from .kernels import bound, pad, widen
from .rows import Ends

IGNORE = -100  # what torch's cross_entropy ignores by default
Batch = dict[str, Any]
_WIDENED = (np.dtype("<u2"), np.dtype("<u4"))
_NOWHERE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCollator:
    """Make batches of ``seq_len`` tokens from packed sequences.

    Gives ``input_ids`` and ``labels`` (``[batch, seq_len]``, ``dtype``; labels ``shift`` tokens ahead, -100 where
    nothing counts) and ``valid_tokens`` (int: labels that count; of labels that the model shifts, the first of a row
    counts nowhere). ``boundaries`` adds ``position_ids`` (int64, from 0 in each document), ``cu_seqlens`` (int32: where
    documents begin in the flattened batch, from 0 to its size) and ``max_seqlen`` (int), all from one list of document
    ends, and masks labels that lie in another document than their input. In a ``dtype`` that cannot hold -100,
    ``ignored`` lists the places (int64, in the flattened batch) to mask instead, where there are any.
    """

    seq_len: int
    shift: int
    eos_id: int
    boundaries: bool
    same_labels: bool
    dtype: np.dtype[Any]

    def __call__(self, core: PackedSequences, numbers: Step, size: int) -> Batch:
        """Collate global sequences ``numbers``; rows beyond them, up to ``size``, are empty."""
        length = self.seq_len
        ids = np.empty((size, length), self.dtype)
        labels = np.empty((size, length), self.dtype)
        lag = 0 if self.same_labels else self.shift
        bounds = _Bounds(self, size) if self.boundaries else None
        short = [(row, 0) for row in range(len(numbers), size)]
        if core.buffer is not None and self.dtype != np.int64:
            core.buffer.aim(ids, labels, lag)
        for rows in core.rows(numbers):
            if rows.tokens is not None:
                spread(rows.tokens, lag, ids[rows.at], labels[rows.at])
            if rows.available is not None:
                short += enumerate(rows.available, rows.at.start)
            if bounds is not None and rows.ends is not None:
                bounds.add(rows.at, rows.ends, rows.available)
        batch: Batch = {"input_ids": ids, "labels": labels}
        for row, available in short:
            ids[row, available:] = self.eos_id
        if bounds is not None:
            if len(numbers) < size:
                missing = size - len(numbers)
                bounds.add(slice(len(numbers), size), Ends(_NOWHERE, np.zeros((missing, 2), np.int64)), [0] * missing)
            ignored = bounds.finish(batch)
        else:
            behind = [np.arange(max(0, min(have - lag, length)), length) + row * length for row, have in short]
            ignored = np.sort(np.concatenate([_NOWHERE, *behind])) if short else _NOWHERE
        batch["valid_tokens"] = labels.size - len(ignored)
        if self.same_labels:
            batch["valid_tokens"] -= size - int(np.count_nonzero(ignored % length == 0))
        if len(ignored):
            _ignore(batch, ignored)
        return batch

    @property
    def width(self) -> int:
        """Tokens that a sequence needs, labels included."""
        return self.seq_len if self.same_labels else self.seq_len + self.shift


class _Bounds:
    """What boundaries tell of a batch, gathered as its rows come."""

    def __init__(self, collator: PackCollator, size: int) -> None:
        length, self._width = collator.seq_len, collator.width
        # The last `shift` tokens of a document look into the next one; a model that shifts by itself predicts the first
        # token of a document from the one before.
        self._lag = self._shift = 0 if collator.same_labels else collator.shift
        self._positions = np.empty((size, length), np.int64)
        self._begins = np.empty(size * length + 1, np.int32)
        self._ignored = np.empty(size * length, np.int64)
        self._counts = np.zeros(3, np.int64)

    def add(self, at: slice, ends: Ends, available: list[int] | None) -> None:
        """Add the rows ``at`` of the batch."""
        have = _NOWHERE if available is None else np.array(available, np.int64)
        bound(
            *ends, have, self._width, self._lag, self._shift, at.start,
            self._positions[at], self._begins, self._ignored, self._counts,
        )  # fmt: skip

    def finish(self, batch: Batch) -> NDArray[np.int64]:
        """Add to the batch what was found; return the flat places of labels to mask, ascending."""
        begun, masked, longest = self._counts.tolist()
        self._begins[begun] = self._positions.size
        batch["position_ids"] = self._positions
        batch["cu_seqlens"] = self._begins[: begun + 1].copy()
        batch["max_seqlen"] = longest
        return self._ignored[:masked].copy()


def spread(tokens: NDArray[Any], lag: int, ids: NDArray[Any], labels: NDArray[Any]) -> None:
    """Copy rows of tokens to rows of ids, and from token ``lag`` on to labels, in the width that those have."""
    if tokens.dtype in _WIDENED and ids.dtype == np.int64 and tokens.strides[1] == tokens.itemsize:
        widen(tokens, lag, ids, labels)
        return
    length = ids.shape[1]
    ids[...] = tokens[:, :length]
    labels[...] = tokens[:, lag : lag + length]


def _ignore(batch: Batch, ignored: NDArray[np.int64]) -> None:
    """Mask labels: in place where their dtype can hold -100, else as places for the device that widens them."""
    if batch["labels"].dtype == np.int64:
        batch["labels"].reshape(-1)[ignored] = IGNORE
    else:
        batch["ignored"] = ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCollator:
    """Make batches of whole documents, one a row, cut at ``max_length`` and padded on the right.

    Rows are padded to the longest of the batch, or to the next multiple of ``pad_to_multiple_of``. Gives ``input_ids``,
    ``labels`` and ``attention_mask`` (``[batch, length]``, int64) and ``valid_tokens``.
    """

    max_length: int | None
    pad_to_multiple_of: int
    eos_id: int
    same_labels: bool

    def __call__(self, core: DocumentSequences, numbers: Step, size: int) -> Batch:
        documents = [document[: self.max_length] for document in core.documents(numbers)]
        lengths = np.array([len(document) for document in documents], np.int64)
        longest = int(lengths.max(initial=0))
        length = max(1, -(-longest // self.pad_to_multiple_of)) * self.pad_to_multiple_of
        ids, labels, mask = (np.empty((size, length), np.int64) for _ in range(3))
        tokens = np.concatenate([_NOWHERE, *documents], dtype=np.int64)
        pad(tokens, lengths, self.eos_id, IGNORE, self.same_labels, ids, labels, mask)
        # However the labels are shifted, all tokens of a document count but one.
        valid = int((lengths - 1).clip(0).sum())
        return {"input_ids": ids, "labels": labels, "attention_mask": mask, "valid_tokens": valid}


def stack(rows: list[Batch], dtype: np.dtype[Any] | None = None) -> Batch:
    """Collate samples that a user's function changed: arrays of equal shape are stacked, numbers become arrays.

    Tensors are stacked as tensors, so they keep dtypes that NumPy lacks. ``valid_tokens`` are summed, ``cu_seqlens``
    joined, of ``max_seqlen`` the largest is kept, of ``shift`` the one that all share; values that are neither arrays nor
    numbers stay a list. With an unsigned ``dtype``, integer ``input_ids`` and ``labels`` are narrowed to it, and labels
    of -100 are listed in ``ignored``. Samples of other shapes or keys, and ids that ``dtype`` cannot hold, raise
    ``ConfigError`` naming the key.
    """
    for row in rows:
        if not isinstance(row, dict):
            raise ConfigError(
                f".batch() joins samples that are dicts, but the stages before it gave a {type(row).__name__}"
            )
        if row.keys() != rows[0].keys():
            odd = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise ConfigError(f"samples of one batch need the same keys, only some have {', '.join(map(repr, odd))}")
    batch = {key: _joined(key, [row[key] for row in rows]) for key in rows[0]}
    if dtype is not None:
        for key in ("input_ids", "labels"):
            if key in batch:
                _narrow(batch, key, dtype)
    return batch


def _joined(key: str, values: list[Any]) -> Any:
    if key == "valid_tokens":
        return int(sum(values))
    if key == "max_seqlen":
        return int(max(values))
    if key == "shift":
        if len(set(values)) != 1:
            raise ConfigError(f"samples of one batch need one shift, got {sorted(set(values))}")
        return values[0]
    if key == "cu_seqlens":
        parts = [np.asarray(value, np.int64) for value in values]
        before = np.cumsum([0, *(part[-1] for part in parts)])
        joined = [part[1:] + start for part, start in zip(parts, before, strict=False)]
        return np.concatenate([[0], *joined]).astype(np.int32)
    if values[0] is None or isinstance(values[0], str | bytes | list | dict):
        return values
    tensors = any(isinstance(value, torch.Tensor) for value in values)
    return _stack_arrays(key, [torch.as_tensor(value) if tensors else np.asarray(value) for value in values])


def _stack_arrays(key: str, values: list[Any]) -> Any:
    if len({value.shape for value in values}) != 1:
        shapes = sorted({tuple(value.shape) for value in values})
        raise ConfigError(
            f"samples of one batch need one shape, {key!r} has {shapes[0]} and {shapes[-1]}; pad in .map(), or batch "
            "first and map batches"
        )
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else np.stack(values)


def _narrow(batch: Batch, key: str, dtype: np.dtype[Any]) -> None:
    """Narrow ids or labels of a batch to ``dtype``, which has no room for -100."""
    if isinstance(batch[key], list) or (values := np.asarray(batch[key])).dtype.kind not in "iu":
        return
    masked = values == IGNORE if key == "labels" else np.zeros(values.shape, bool)
    kept = np.where(masked, 0, values)
    low, high = int(kept.min(initial=0)), int(kept.max(initial=0))
    if low < 0 or high > np.iinfo(dtype).max:
        raise ConfigError(
            f"{key!r} holds {low if low < 0 else high} after .map(), which {dtype} cannot hold; remove dtype='stored' from "
            ".batch()"
        )
    batch[key] = kept.astype(dtype)
    if masked.any():
        batch["ignored"] = np.flatnonzero(masked)


def row_of(batch: Batch) -> Batch:
    """Return the only row of a batch of one as a sample of 1-D arrays."""
    flat = ("cu_seqlens", "max_seqlen", "valid_tokens", "shift")
    return {key: value if key in flat else value[0] for key, value in batch.items()}
