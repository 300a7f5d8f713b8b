"""The types of batches, for annotations: which keys there are, and of what type."""

from __future__ import annotations

from typing import Any, Generic, NotRequired, TypedDict, TypeVar

import torch
from numpy.typing import NDArray

A = TypeVar("A")  # tensors, or arrays after .numpy()


class PackedItems(TypedDict, Generic[A]):
    """The keys of packed and sampled sequences, their arrays of one type; see `PackedBatch`."""

    input_ids: A
    labels: A
    valid_tokens: int
    position_ids: NotRequired[A]
    cu_seqlens: NotRequired[A]
    max_seqlen: NotRequired[int]
    shift: NotRequired[int]
    ignored: NotRequired[A]


class DocumentItems(TypedDict, Generic[A]):
    """The keys of whole documents, their arrays of one type; see `DocumentBatch`."""

    input_ids: A
    labels: A
    attention_mask: A
    valid_tokens: int


class PackedBatch(PackedItems[torch.Tensor]):
    """A batch of ``pack`` or ``sample``, for annotations.

    ``input_ids`` and ``labels`` (``[batch_size, seq_len]``, int64) and ``valid_tokens`` (labels that count) are always there.
    ``boundaries=True`` adds ``position_ids`` (as ``input_ids``), ``cu_seqlens`` (1-D, int32) and ``max_seqlen``;
    ``shift="divisors"`` adds ``shift``; ``dtype="stored"`` may add ``ignored`` (1-D, int64).

    >>> import pipeline
    >>> batch: pipeline.PackedBatch = next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(8).batch(2)))
    >>> batch["input_ids"].shape
    torch.Size([2, 8])
    """


class DocumentBatch(DocumentItems[torch.Tensor]):
    """A batch of ``documents``, for annotations.

    ``input_ids``, ``labels`` and ``attention_mask`` (``[batch_size, length]``, int64), and ``valid_tokens``.

    >>> import pipeline
    >>> data = pipeline.ShardDataset.from_tokens(range(5), lengths=[3, 2], eos_id=9)
    >>> batch: pipeline.DocumentBatch = next(iter(data.documents().batch(2)))
    >>> batch["attention_mask"].tolist()
    [[1, 1, 1], [1, 1, 0]]
    """


PackedArrays = PackedItems[NDArray[Any]]
DocumentArrays = DocumentItems[NDArray[Any]]
