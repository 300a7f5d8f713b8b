"""The keys of a batch, each declared once, and the types of batches, for annotations.

A new key is a line of `KEYS`, a field of a type, and a value made in `collate`. Code that stacks samples, slices batches, or
chooses the keys of frameworks reads `KEYS`; workers and devices take any key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ConfigError

Batch = dict[str, Any]  # of arrays, or of tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKey:
    """The declaration of a key of a batch.

    ``join`` makes the value of a batch from the values of its samples; None for an array with a row for each sample. A value
    ``of_tokens`` is an array shaped like ``input_ids``. Models of ``transformers`` take the keys with ``hugging_face``.
    """

    join: Callable[[list[Any]], Any] | None = None
    of_tokens: bool = False
    hugging_face: bool = False


def _shared_shift(values: list[Any]) -> Any:
    if len(set(values)) != 1:
        raise ConfigError(f"samples of one batch need one shift, got {sorted(set(values))}")
    return values[0]


def _end_to_end(values: list[Any]) -> NDArray[np.int32]:
    """Return the ``cu_seqlens`` of a batch, given those of its samples."""
    parts = [np.asarray(value, np.int64) for value in values]
    before = np.cumsum([0, *(part[-1] for part in parts)])
    joined = [part[1:] + start for part, start in zip(parts, before, strict=False)]
    return np.concatenate([[0], *joined]).astype(np.int32)


KEYS = {
    "input_ids": BatchKey(of_tokens=True, hugging_face=True),
    "labels": BatchKey(of_tokens=True, hugging_face=True),
    "attention_mask": BatchKey(of_tokens=True, hugging_face=True),
    "position_ids": BatchKey(of_tokens=True, hugging_face=True),
    "document_ids": BatchKey(of_tokens=True),
    "cu_seqlens": BatchKey(join=_end_to_end),
    "cu_seqlens_unpadded": BatchKey(join=_end_to_end),
    "max_seqlen": BatchKey(join=lambda values: int(max(values))),
    "valid_tokens": BatchKey(join=lambda values: int(sum(values))),
    "source": BatchKey(),
    "source_ids": BatchKey(join=np.concatenate),
    "shift": BatchKey(join=_shared_shift),
    "ignored": BatchKey(),
}


class PackedBatch(TypedDict):
    """A batch of ``pack`` or ``sample``, for annotations.

    ``input_ids`` and ``labels`` (``[batch_size, seq_len]``, int64) and ``valid_tokens`` (labels that count) are always there.
    ``boundaries=True`` adds ``position_ids`` (as ``input_ids``), ``cu_seqlens`` (1-D, int32) and ``max_seqlen``;
    ``pad_to_multiple_of`` adds ``cu_seqlens_unpadded`` (1-D, int32); context parallelism adds ``position_ids``;
    ``document_ids=True`` adds ``document_ids`` (as ``input_ids``);
    ``source=True`` adds ``source`` (``[batch_size]``, int64) or ``source_ids`` (1-D, int64); ``shift="divisors"`` adds
    ``shift``; ``dtype="stored"`` may add ``ignored`` (1-D, int64).

    >>> import pipeline
    >>> batch: pipeline.PackedBatch = next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(8).batch(2)))
    >>> batch["input_ids"].shape
    torch.Size([2, 8])
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    valid_tokens: int
    position_ids: NotRequired[torch.Tensor]
    document_ids: NotRequired[torch.Tensor]
    cu_seqlens: NotRequired[torch.Tensor]
    cu_seqlens_unpadded: NotRequired[torch.Tensor]
    max_seqlen: NotRequired[int]
    source: NotRequired[torch.Tensor]
    source_ids: NotRequired[torch.Tensor]
    shift: NotRequired[int]
    ignored: NotRequired[torch.Tensor]


class DocumentBatch(TypedDict):
    """A batch of ``documents``, for annotations.

    ``input_ids``, ``labels`` and ``attention_mask`` (``[batch_size, length]``, int64), and ``valid_tokens``; with
    ``document_ids=True`` also ``document_ids`` (as ``input_ids``), with ``source=True`` ``source`` (``[batch_size]``, int64).

    >>> import pipeline
    >>> data = pipeline.ShardDataset.from_tokens(range(5), lengths=[3, 2], eos_id=9)
    >>> batch: pipeline.DocumentBatch = next(iter(data.documents().batch(2)))
    >>> batch["attention_mask"].tolist()
    [[1, 1, 1], [1, 1, 0]]
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    attention_mask: torch.Tensor
    valid_tokens: int
    document_ids: NotRequired[torch.Tensor]
    source: NotRequired[torch.Tensor]
