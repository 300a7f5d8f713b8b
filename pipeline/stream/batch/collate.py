"""Rows to batches: ids, labels and document boundaries as new arrays, which share no memory with the shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ConfigError
from ...notices import say_once
from ...shards.extents.extent_table import runs
from ..order import derive_key
from .batch_keys import KEYS, Batch
from .rows import Collator, DocumentRows, Rows
from .transport import keep_freed_memory

IGNORE = -100  # what torch's cross_entropy ignores by default
_NO_INDICES = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class PackCollator:
    """Makes batches of ``size`` rows of ``seq_len`` tokens from packed rows. Missing rows hold ``eos_id`` and have no label.

    - ``input_ids`` and ``labels``: ``[size, seq_len]`` of ``dtype``; labels are ``shift`` tokens ahead, and -100 if masked.
    - ``valid_tokens`` (int): labels that count. If the model shifts labels, the first label of a row never counts.
    - ``boundaries`` adds ``position_ids`` (int64, from 0 in each document), ``cu_seqlens`` (int32: where documents begin in
      the flattened batch, from 0 to its size) and ``max_seqlen`` (int), and masks labels in another document than their input.
    - ``document_ids`` adds a key of this name: see `number_documents`.
    - ``ignored`` (int64), if ``dtype`` cannot hold -100: the indices of labels to mask in the flattened batch; absent if none.
    - ``pad_to_multiple_of`` above 1 pads each document of a batch with boundaries, as `pad_documents` says.
    """

    size: int
    seq_len: int
    shift: int
    eos_id: int
    boundaries: bool
    same_labels: bool
    dtype: np.dtype[Any]
    document_ids: bool = False
    pad_to_multiple_of: int = 1

    def __post_init__(self) -> None:
        keep_freed_memory(5 * 8 * self.size * self.seq_len)

    def __call__(self, rows: Rows, begin: int) -> Batch:
        length, size, filled = self.seq_len, self.size, rows.filled
        lag = 0 if self.same_labels else self.shift
        ids, labels = np.empty((size, length), self.dtype), np.empty((size, length), self.dtype)
        ids[:filled], labels[:filled] = rows.tokens[:, :length], rows.tokens[:, lag : lag + length]
        have = _NO_INDICES  # existing tokens of each row; empty if all rows are full
        if filled < size or rows.valid is not None:
            have = np.zeros(size, np.int64)
            have[:filled] = length + lag if rows.valid is None else rows.valid
            for row, valid in enumerate(have.tolist()):
                ids[row, valid:] = labels[row, max(0, valid - lag) :] = self.eos_id
        batch: Batch = {"input_ids": ids, "labels": labels, "valid_tokens": 0}
        ignored = _NO_INDICES  # flat indices of labels to mask, ascending
        if rows.document_ends is not None:
            ends = [*rows.document_ends, *[_NO_INDICES] * (size - filled)]
            positions, begins, longest, ignored = find_bounds(ends, have, length, lag)
            if self.document_ids:
                batch["document_ids"] = number_documents(begins, have, size)
        if self.boundaries:
            batch |= {"position_ids": positions, "cu_seqlens": begins, "max_seqlen": longest}
        else:
            ignored = _labels_after(have, length, lag) if len(have) else _NO_INDICES
        if rows.masks is not None:
            masked = np.flatnonzero(rows.masks[:, lag : lag + length] == 0)
            ignored = np.union1d(ignored, masked)
        batch["valid_tokens"] = labels.size - len(ignored)
        if self.same_labels:
            batch["valid_tokens"] -= size - int(np.count_nonzero(ignored % length == 0))
        if len(ignored) and labels.dtype == np.int64:
            labels.reshape(-1)[ignored] = IGNORE
        elif len(ignored):  # the dtype cannot hold -100: the device masks these labels when it widens them
            batch["ignored"] = ignored
        _warn_without_labels(rows, batch)
        return pad_documents(batch, self.pad_to_multiple_of, self.eos_id) if self.pad_to_multiple_of > 1 else batch


def find_bounds(
    document_ends: list[NDArray[np.int64]], have: NDArray[np.int64], length: int, shift: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], int, NDArray[np.int64]]:
    """Return ``position_ids``, ``cu_seqlens``, ``max_seqlen`` and the flat indices of labels to mask, ascending.

    ``document_ends`` is as in `Rows`. A row has ``length + shift`` tokens, labels included; ``have[r]`` tokens of row ``r``
    exist (empty: all). Labels are ``shift`` ahead; with a shift of 0 they are the inputs, and the model shifts them.

    >>> positions, begins, longest, ignored = find_bounds([np.array([2])], np.zeros(0, np.int64), 4, 1)
    >>> positions.tolist(), begins.tolist(), longest, ignored.tolist()
    ([[0, 1, 0, 1]], [0, 2, 4], 2, [1])
    """
    rows, width = len(document_ends), length + shift
    existing = have if len(have) else np.full(rows, width)
    row = np.repeat(np.arange(rows), [len(ends) for ends in document_ends])
    end = np.concatenate([_NO_INDICES, *document_ends])
    inside = (end < width) & (end <= existing[row])
    row, end = row[inside], end[inside]
    cuts = (row * length + end)[end < length]
    begins = np.union1d(np.arange(rows + 1) * length, cuts)
    sizes = np.diff(begins)
    positions = np.arange(rows * length) - np.repeat(begins[:-1], sizes)
    # Labels of the last `shift` tokens of a document are in the next document. A model that shifts labels itself would predict
    # the first token of a document from the document before.
    first, last = np.maximum(end - shift, 0), np.minimum(end + (shift == 0), length)
    first[1:] = np.maximum(first[1:], np.where(row[1:] == row[:-1], last[:-1], 0))  # so that no label is listed twice
    counts = np.maximum(last - first, 0)
    ignored = runs(row * length + first, counts)
    if len(have):
        ignored = np.union1d(ignored, _labels_after(have, length, shift))
    longest = int(sizes.max(initial=0))
    return positions.reshape(rows, length), begins.astype(np.int32), longest, ignored


def number_documents(begins: NDArray[np.int32], have: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the number of each token's document within its row, from 0; -1 for padding. ``begins`` is ``cu_seqlens``.

    >>> number_documents(np.array([0, 2, 4, 8], np.int32), np.array([4, 3]), 2).tolist()
    [[0, 0, 1, 1], [0, 0, 0, -1]]
    """
    length = int(begins[-1]) // rows
    numbers = np.arange(len(begins) - 1) - begins.searchsorted(begins[:-1] // length * length)
    ids = np.repeat(numbers, np.diff(begins)).reshape(rows, length)
    return np.where(np.arange(length) < have[:, None], ids, -1) if len(have) else ids


def pad_documents(batch: Batch, multiple: int, eos_id: int) -> Batch:
    """Return a batch with boundaries, with each document padded to a multiple of ``multiple`` tokens.

    A part of a document that a row cuts off is padded too. All rows become as long as the longest row: the last document of a
    shorter row gets more padding. Padding holds ``eos_id`` and counts in no label. ``cu_seqlens`` and ``max_seqlen`` include
    padding; ``cu_seqlens_unpadded`` does not. Positions go on in padding, up to the last position of a row without padding.

    >>> ids = np.array([[1, 2, 3, 4]])
    >>> batch = {"input_ids": ids, "labels": ids + 1, "position_ids": np.array([[0, 0, 1, 2]]), "cu_seqlens": np.array([0, 1, 4])}
    >>> padded = pad_documents(batch, 2, eos_id=9)
    >>> padded["input_ids"].tolist(), padded["labels"].tolist(), padded["cu_seqlens"].tolist()
    ([[1, 9, 2, 3, 4, 9]], [[2, -100, 3, 4, 5, -100]], [0, 2, 6])
    """
    rows, length = batch["input_ids"].shape
    begins = batch["cu_seqlens"].astype(np.int64)
    sizes = np.diff(begins)
    padded = -(-sizes // multiple) * multiple
    first = np.searchsorted(begins, np.arange(rows) * length)  # the first document of each row
    lengths = np.add.reduceat(padded, first)
    longest = int(lengths.max())
    padded[[*first[1:] - 1, -1]] += longest - lengths
    moved = np.concatenate([[0], np.cumsum(padded)])
    to = runs(moved[:-1], sizes)  # where each token moves
    is_padding = np.ones(rows * longest, np.bool_)
    is_padding[to] = False

    def spread(values: NDArray[Any], padding: int) -> NDArray[Any]:
        made = np.full(rows * longest, padding, values.dtype)
        made[to] = values.reshape(-1)
        return made.reshape(rows, longest)

    ids, labels = batch["input_ids"], batch["labels"]
    narrow = labels.dtype != np.int64
    batch |= {"input_ids": spread(ids, eos_id), "labels": spread(labels, eos_id if narrow else IGNORE)}
    if "document_ids" in batch:
        batch["document_ids"] = spread(batch["document_ids"], -1)
    if narrow:
        batch["ignored"] = np.union1d(to[batch.get("ignored", _NO_INDICES)], np.flatnonzero(is_padding))
    positions = np.minimum(runs(np.zeros_like(padded), padded), length - 1).reshape(rows, longest)
    bounds = {"cu_seqlens": moved.astype(np.int32), "cu_seqlens_unpadded": batch["cu_seqlens"]}
    return batch | {"position_ids": positions, "max_seqlen": int(padded.max()), **bounds}


def _labels_after(have: NDArray[np.int64], length: int, lag: int) -> NDArray[np.int64]:
    """Return the flat indices of labels that do not exist, since row ``r`` has only ``have[r]`` tokens."""
    return np.flatnonzero(np.arange(length) >= np.clip(have - lag, 0, length)[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCollator:
    """Makes batches of ``size`` whole documents, one a row, cut at ``max_length`` and padded on the right.

    Batches have ``input_ids``, ``labels`` and ``attention_mask`` (``[size, length]``, int64) and ``valid_tokens``. ``length`` is
    that of the longest row, rounded up to a multiple of ``pad_to_multiple_of``. ``document_ids`` is 0 for tokens, else -1.
    """

    size: int
    max_length: int | None
    pad_to_multiple_of: int
    eos_id: int
    same_labels: bool
    document_ids: bool = False

    def __call__(self, rows: DocumentRows, begin: int) -> Batch:
        documents = [document[: self.max_length] for document in rows.documents]
        lengths = np.array([len(document) for document in documents], np.int64)
        longest = int(lengths.max(initial=0))
        length = max(1, -(-longest // self.pad_to_multiple_of)) * self.pad_to_multiple_of
        ids, labels = np.full((self.size, length), self.eos_id), np.full((self.size, length), IGNORE)
        mask = np.zeros((self.size, length), np.int64)
        for row, document in enumerate(documents):
            ids[row, : len(document)], mask[row, : len(document)] = document, 1
            shifted = document if self.same_labels else document[1:]
            labels[row, : len(shifted)] = shifted
        # With either kind of labels, one token of each document has no label.
        valid = int((lengths - 1).clip(0).sum())
        if rows.masks is not None:
            for row, (mask_of_row, count) in enumerate(zip(rows.masks, lengths.tolist(), strict=True)):
                counted = mask_of_row[:count] if self.same_labels else mask_of_row[1:count]
                labels[row, : len(counted)][counted == 0] = IGNORE
            valid = int(np.count_nonzero(labels[:, int(self.same_labels) :] != IGNORE))
        batch: Batch = {"input_ids": ids, "labels": labels, "attention_mask": mask, "valid_tokens": valid}
        if self.document_ids:
            batch["document_ids"] = mask - 1
        _warn_without_labels(rows, batch)
        return batch


@dataclass(frozen=True, slots=True)
class SourceCollator:
    """Adds the numbers of sources, int64, to the batches of ``size`` rows that ``collate`` makes.

    The key is ``source``, with the source of each row, or with ``by_document`` ``source_ids``, with the source of each document
    that ``cu_seqlens`` delimits. Rows that fill up the last batch have the number 0.
    """

    collate: Collator[Any]
    size: int
    by_document: bool

    def __call__(self, rows: Any, begin: int) -> Batch:
        batch = self.collate(rows, begin)
        if not self.by_document:
            source = np.zeros(self.size, np.int64)
            source[: rows.filled] = rows.sources
            return {**batch, "source": source}
        begins = batch["cu_seqlens_unpadded" if "cu_seqlens_unpadded" in batch else "cu_seqlens"]
        of_tokens = np.zeros((self.size, begins[-1] // self.size), np.int64)
        if rows.source_ids is not None:
            of_tokens[: rows.filled] = rows.source_ids[:, : of_tokens.shape[1]]
        return {**batch, "source_ids": of_tokens.reshape(-1)[begins[:-1]]}


@dataclass(frozen=True, slots=True)
class CutCollator:
    """Makes batches by ``collate`` from rows that are cut: each into rows that start at ``begins``, ``less`` tokens shorter."""

    collate: Collator[Any]
    begins: list[int]
    less: int

    def __call__(self, rows: Rows, begin: int) -> Batch:
        return self.collate(rows.cut(self.begins, rows.tokens.shape[1] - self.less), begin)


def _warn_without_labels(rows: Rows | DocumentRows, batch: Batch) -> None:
    """Warn once that a batch has no label: its mean loss, and then the model, would be NaN."""
    if rows.filled and not batch["valid_tokens"]:
        say_once(
            "a batch has no label (valid_tokens is 0), and the mean of a loss over no label is NaN: leave out documents of "
            "fewer than 2 tokens, or with every token masked, by .filter(), or divide the summed loss by max(1, valid_tokens)"
        )


def stack(rows: list[Batch]) -> Batch:
    """Return a batch of samples that a user's function changed. Arrays of equal shape are stacked, numbers become arrays.

    Tensors are stacked as tensors, so they keep dtypes that NumPy lacks. Keys with a ``join`` in `KEYS` are joined by it; other
    values stay a list. If samples differ in shapes or keys, ``ConfigError`` names the key.
    """
    for row in rows:
        if not isinstance(row, dict):
            raise ConfigError(
                f".batch() joins samples that are dicts, but the stages before it gave a {type(row).__name__}"
            )
        if row.keys() != rows[0].keys():
            odd = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise ConfigError(f"samples of one batch need the same keys, only some have {', '.join(map(repr, odd))}")
    return {key: _joined(key, [row[key] for row in rows]) for key in rows[0]}


def _joined(key: str, values: list[Any]) -> Any:
    if (declared := KEYS.get(key)) is not None and declared.join is not None:
        return declared.join(values)
    if values[0] is None or isinstance(values[0], str | bytes | list | dict):
        return values
    tensors = any(isinstance(value, torch.Tensor) for value in values)
    return _stack_arrays(key, [_tensor(value) if tensors else np.asarray(value) for value in values])


def _tensor(value: Any) -> torch.Tensor:
    """Return a tensor as it is, or a new one on the CPU, whatever the default device of torch is."""
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")


def _stack_arrays(key: str, values: list[Any]) -> Any:
    if len({value.shape for value in values}) != 1:
        shapes = sorted({tuple(value.shape) for value in values})
        raise ConfigError(
            f"samples of one batch need one shape, {key!r} has {shapes[0]} and {shapes[-1]}; pad in .map(), or batch "
            "first and map batches"
        )
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else np.stack(values)


def row_of(batch: Batch) -> Batch:
    """Return the only row of a batch of one as a sample of 1-D arrays."""
    return {key: value[0, ...] if KEYS[key].join is None else value for key, value in batch.items()}


class DrawnShifts:
    """Makes batches with labels at a shift that is drawn for each step.

    A step is one batch on every rank, or before ``batch`` one sequence on every rank. Its shift is a divisor of ``seq_len`` below
    ``seq_len``, drawn by a hash of the seed and the step's first sequence index. So the shift is equal on all ranks and workers,
    and after a resume. With another batch size or world size, steps begin elsewhere and draw other shifts; the inputs stay the
    same.

    Batches are those of a `PackCollator`, with ``shift`` (int), and with ``input_ids``, ``labels`` and ``position_ids`` as
    ``[batch, seq_len // shift, shift]``; each token keeps its index in the flattened batch. ``collator(shift)`` makes the
    collator of one shift.
    """

    def __init__(self, seq_len: int, seed: int, collator: Callable[[int], PackCollator]) -> None:
        self.seed = seed
        self._collators = [collator(shift) for shift in divisors_below(seq_len)]

    def __call__(self, rows: Rows, begin: int) -> Batch:
        collate = self._collators[derive_key("shift", self.seed, begin) % len(self._collators)]
        shape = collate.size, -1, collate.shift
        batch = {
            key: value.reshape(shape) if KEYS[key].of_tokens else value for key, value in collate(rows, begin).items()
        }
        return batch | {"shift": collate.shift}


def divisors_below(number: int) -> list[int]:
    """Return the divisors of ``number`` below ``number``, ascending.

    >>> divisors_below(12)
    [1, 2, 3, 4, 6]
    """
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)} - {number})
