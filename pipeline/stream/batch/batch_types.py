"""The types of batches: as arrays, and as what users get, for annotations."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import torch

Batch = dict[str, Any]  # of arrays, or of tensors


class PackedBatch(TypedDict):
    """A batch of ``pack`` or ``sample``, for annotations.

    ``input_ids`` and ``labels`` (``[batch_size, seq_len]``, int64) and ``valid_tokens`` (labels that count) are always there.
    ``boundaries=True`` adds ``position_ids`` (as ``input_ids``), ``cu_seqlens`` (1-D, int32) and ``max_seqlen``;
    ``shift="divisors"`` adds ``shift``; ``dtype="stored"`` may add ``ignored`` (1-D, int64).

    >>> import pipeline
    >>> batch: pipeline.PackedBatch = next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(8).batch(2)))
    >>> batch["input_ids"].shape
    torch.Size([2, 8])
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    valid_tokens: int
    position_ids: NotRequired[torch.Tensor]
    cu_seqlens: NotRequired[torch.Tensor]
    max_seqlen: NotRequired[int]
    shift: NotRequired[int]
    ignored: NotRequired[torch.Tensor]


class DocumentBatch(TypedDict):
    """A batch of ``documents``, for annotations.

    ``input_ids``, ``labels`` and ``attention_mask`` (``[batch_size, length]``, int64), and ``valid_tokens``.

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
