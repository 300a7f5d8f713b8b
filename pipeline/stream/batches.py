"""Sequences to batches: ids, labels and document boundaries as fresh arrays that share nothing with the shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .sequences import DocumentSequences, PackedSequences

IGNORE = -100  # what torch's cross_entropy ignores by default
Batch = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCollator:
    """Make batches of ``seq_len`` tokens from packed sequences.

    Gives ``input_ids`` and ``labels`` (``[batch, seq_len]``, ``dtype``; labels ``shift`` tokens ahead, -100 where
    nothing counts) and ``valid_tokens`` (int: labels that count). ``boundaries`` adds ``position_ids`` (int64, from 0
    in each document), ``cu_seqlens`` (int32: where documents begin in the flattened batch, from 0 to its size) and
    ``max_seqlen`` (int), all from one list of document ends, and masks labels that lie in another document than their
    input. In a ``dtype`` that cannot hold -100, what to mask is a boolean ``ignored`` instead.
    """

    seq_len: int
    shift: int
    eos_id: int
    boundaries: bool
    same_labels: bool
    dtype: np.dtype[Any]

    def __call__(self, core: PackedSequences, numbers: range, size: int) -> Batch:
        """Collate global sequences ``numbers``; rows beyond them, up to ``size``, are empty."""
        ids = np.empty((size, self.seq_len), self.dtype)
        labels = np.empty((size, self.seq_len), self.dtype)
        masked = self.boundaries or len(numbers) < size or core.total is not None
        ignored = np.zeros(labels.shape, np.bool_) if masked else None
        lag = 0 if self.same_labels else self.shift
        ends: list[NDArray[np.int64]] = []
        for rows in core.rows(numbers):
            ids[rows.at] = rows.tokens[:, : self.seq_len]
            labels[rows.at] = rows.tokens[:, lag : lag + self.seq_len]
            if self.boundaries:
                ends += map(core.document_ends, rows.numbers)
            if rows.available is not None and ignored is not None:
                for row, available in enumerate(rows.available, rows.at.start):
                    ids[row, available:] = self.eos_id
                    ignored[row, max(0, available - lag) :] = True
                    if self.boundaries:
                        ends[row] = ends[row][ends[row] <= available]
        ids[len(numbers) :] = self.eos_id
        batch: Batch = {"input_ids": ids, "labels": labels, "valid_tokens": labels.size}
        if ignored is not None:
            ignored[len(numbers) :] = True
            if self.boundaries:
                batch |= self._boundaries(ends, ignored)
            batch["valid_tokens"] -= int(np.count_nonzero(ignored))
            if batch["valid_tokens"] < labels.size:
                _ignore(batch, ignored)
        return batch

    def _boundaries(self, ends: list[NDArray[np.int64]], ignored: NDArray[np.bool_]) -> Batch:
        """Derive everything about boundaries from where documents end in each row; mark the labels they mask."""
        size, length = ignored.shape
        rows = np.repeat(np.arange(len(ends)), [len(each) for each in ends])
        at = np.concatenate([np.zeros(0, np.int64), *ends])
        # A label lies `shift` ahead, so the last `shift` tokens of a document look into the next one; a model that
        # shifts by itself predicts the first token of a document from the one before.
        for back in range(1, self.shift + 1) if not self.same_labels else [0]:
            inside = (at >= back) & (at - back < length)
            ignored[rows[inside], at[inside] - back] = True
        inside = at < length
        cuts = np.union1d(rows[inside] * length + at[inside], np.arange(size + 1) * length)
        lengths = np.diff(cuts)
        positions = np.arange(size * length) - np.repeat(cuts[:-1], lengths)
        return {
            "position_ids": positions.reshape(size, length),
            "cu_seqlens": cuts.astype(np.int32),
            "max_seqlen": int(lengths.max()),
        }


def _ignore(batch: Batch, ignored: NDArray[np.bool_]) -> None:
    """Mask labels: in place where their dtype can hold -100, else as a mask for the device that widens them."""
    if batch["labels"].dtype == np.int64:
        batch["labels"][ignored] = IGNORE
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

    def __call__(self, core: DocumentSequences, numbers: range, size: int) -> Batch:
        documents = [document[: self.max_length] for document in core.documents(numbers)]
        longest = max([len(document) for document in documents], default=0)
        length = max(1, -(-longest // self.pad_to_multiple_of)) * self.pad_to_multiple_of
        ids = np.full((size, length), self.eos_id, np.int64)
        labels = np.full((size, length), IGNORE, np.int64)
        mask = np.zeros((size, length), np.int64)
        for row, document in enumerate(documents):
            count = len(document)
            ids[row, :count] = document
            mask[row, :count] = 1
            if self.same_labels:
                labels[row, :count] = document
            elif count:
                labels[row, : count - 1] = document[1:]
        valid = int((labels != IGNORE).sum())
        return {"input_ids": ids, "labels": labels, "attention_mask": mask, "valid_tokens": valid}


def stack(rows: list[Batch]) -> Batch:
    """Collate samples that a user's function changed: arrays of equal shape are stacked, numbers become arrays.

    Samples of unequal shapes raise ``ConfigError`` naming the key.
    """
    batch: Batch = {}
    for key in rows[0]:
        values = [np.asarray(row[key]) for row in rows]
        if len({value.shape for value in values}) != 1:
            shapes = sorted({value.shape for value in values})
            raise ConfigError(
                f"samples of one batch need one shape, {key!r} has {shapes[0]} and {shapes[-1]}; pad in map"
            )
        batch[key] = int(sum(values)) if key == "valid_tokens" else np.stack(values)
    return batch


def row_of(batch: Batch) -> Batch:
    """Return the only row of a batch of one as a sample of 1-D arrays."""
    flat = ("cu_seqlens", "max_seqlen", "valid_tokens")
    return {key: value if key in flat else value[0] for key, value in batch.items()}
