"""Sequences to batches: ids, labels and document boundaries as fresh arrays that share nothing with the shards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .kernels import widen
from .sequences import DocumentSequences, PackedSequences

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

    def __call__(self, core: PackedSequences, numbers: range, size: int) -> Batch:
        """Collate global sequences ``numbers``; rows beyond them, up to ``size``, are empty."""
        length = self.seq_len
        ids = np.empty((size, length), self.dtype)
        labels = np.empty((size, length), self.dtype)
        lag = 0 if self.same_labels else self.shift
        ends: list[NDArray[np.int64]] = []
        at: list[NDArray[np.int64]] = []
        short = [(row, 0) for row in range(len(numbers), size)]
        for rows in core.rows(numbers):
            spread(rows.tokens, lag, ids[rows.at], labels[rows.at])
            ends += rows.ends
            if rows.ends:
                at.append(np.concatenate(rows.ends) - rows.offset)
            short += enumerate(rows.available or [], rows.at.start)
        batch: Batch = {"input_ids": ids, "labels": labels}
        masked = []
        for row, available in short:
            ids[row, available:] = self.eos_id
            labelled = max(0, min(available - lag, length))
            masked.append(np.arange(row * length + labelled, (row + 1) * length))
        if self.boundaries:
            begun = _begun([len(each) for each in ends], at, dict(short), self.width)
            masked.append(self._across(*begun))
            batch |= _boundaries(*begun, size, length)
        ignored = _union(masked, apart=self.shift == 1 and not short)
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

    def _across(self, rows: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the flat places of labels that lie in another document, given where documents begin inside rows."""
        # A label lies `shift` ahead, so the last `shift` tokens of a document look into the next one; a model that
        # shifts by itself predicts the first token of a document from the one before.
        back = np.arange(1, self.shift + 1) if not self.same_labels else np.zeros(1, np.int64)
        places = at[:, None] - back
        flat = rows[:, None] * self.seq_len + places
        return flat[(places >= 0) & (places < self.seq_len)]


def spread(tokens: NDArray[Any], lag: int, ids: NDArray[Any], labels: NDArray[Any]) -> None:
    """Copy rows of tokens to rows of ids, and from token ``lag`` on to labels, in the width that those have."""
    if tokens.dtype in _WIDENED and ids.dtype == np.int64 and tokens.strides[1] == tokens.itemsize:
        widen(tokens, lag, ids, labels)
        return
    length = ids.shape[1]
    ids[...] = tokens[:, :length]
    labels[...] = tokens[:, lag : lag + length]


def _begun(
    counts: list[int], places: list[NDArray[np.int64]], short: dict[int, int], width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and place of every document that begins inside a row, after its first token.

    ``places`` are where documents end, row by row, ``counts`` how many of them each row has; a short row has no more
    than its tokens.
    """
    rows, at = np.arange(len(counts)).repeat(counts), np.concatenate([_NOWHERE, *places])
    inside = at < width
    if short:
        available = np.array([short.get(row, width) for row in range(len(counts))], np.int64)
        inside &= at <= available[rows]
    return rows[inside], at[inside]


def _union(places: list[NDArray[np.int64]], apart: bool) -> NDArray[np.int64]:
    """Return every place once; ``apart`` says that no two are the same."""
    joined = np.concatenate([_NOWHERE, *places])
    return joined if apart or not len(joined) else np.unique(joined)


@lru_cache(maxsize=4)
def _count_up(size: int) -> NDArray[np.int64]:
    numbers = np.arange(size)
    numbers.flags.writeable = False
    return numbers


def _boundaries(rows: NDArray[np.int64], at: NDArray[np.int64], size: int, length: int) -> Batch:
    """Derive everything about boundaries from where documents begin in the rows."""
    cuts = np.concatenate([(rows * length + at)[at < length], np.arange(0, size * length + 1, length)])
    cuts.sort()
    lengths = cuts[1:] - cuts[:-1]
    positions = cuts[:-1].repeat(lengths)
    np.subtract(_count_up(size * length), positions, out=positions)
    return {
        "position_ids": positions.reshape(size, length),
        "cu_seqlens": cuts.astype(np.int32),
        "max_seqlen": int(lengths.max()),
    }


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
        valid = int(np.count_nonzero(labels[:, self.same_labels :] != IGNORE))
        return {"input_ids": ids, "labels": labels, "attention_mask": mask, "valid_tokens": valid}


def stack(rows: list[Batch]) -> Batch:
    """Collate samples that a user's function changed: arrays of equal shape are stacked, numbers become arrays.

    ``valid_tokens`` are summed, ``cu_seqlens`` joined, of ``max_seqlen`` the largest is kept, of ``shift`` the one
    that all share. Samples of other shapes or keys raise ``ConfigError`` naming the key; values that are neither arrays
    nor numbers stay a list.
    """
    for row in rows:
        if not isinstance(row, dict):
            raise ConfigError(
                f".batch() joins samples that are dicts, but the stages before it gave a {type(row).__name__}"
            )
        if row.keys() != rows[0].keys():
            odd = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise ConfigError(f"samples of one batch need the same keys, only some have {', '.join(map(repr, odd))}")
    batch: Batch = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        if key == "valid_tokens":
            batch[key] = int(sum(values))
        elif key == "max_seqlen":
            batch[key] = int(max(values))
        elif key == "shift":
            if len(set(values)) != 1:
                raise ConfigError(f"samples of one batch need one shift, got {sorted(set(values))}")
            batch[key] = values[0]
        elif key == "cu_seqlens":
            parts = [np.asarray(value, np.int64) for value in values]
            before = np.cumsum([0, *(part[-1] for part in parts)])
            joined = [part[1:] + start for part, start in zip(parts, before, strict=False)]
            batch[key] = np.concatenate([[0], *joined]).astype(np.int32)
        elif values[0] is None or isinstance(values[0], str | bytes | list | dict):
            batch[key] = values
        else:
            batch[key] = _stack_arrays(key, [np.asarray(value) for value in values])
    return batch


def _stack_arrays(key: str, values: list[NDArray[Any]]) -> NDArray[Any]:
    if len({value.shape for value in values}) != 1:
        shapes = sorted({value.shape for value in values})
        raise ConfigError(
            f"samples of one batch need one shape, {key!r} has {shapes[0]} and {shapes[-1]}; pad in .map(), or batch "
            "first and map batches"
        )
    return np.stack(values)


def row_of(batch: Batch) -> Batch:
    """Return the only row of a batch of one as a sample of 1-D arrays."""
    flat = ("cu_seqlens", "max_seqlen", "valid_tokens", "ignored", "shift")
    return {key: value if key in flat else value[0] for key, value in batch.items()}
