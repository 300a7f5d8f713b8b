"""Batches on their way from a worker of a DataLoader to the process that uses them.

Torch hands over each tensor through shared memory of its own, which the receiver asks the worker for. That costs more than the
copy of a batch, so the integers of a batch travel inside the message, in the narrowest width that holds them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..batch.freed_memory import keep_freed_memory

# Its values, less a base, as bytes; its shape; the dtypes of the values, and of the array; the base; and whether it is a tensor.
Packed = tuple[bytes, tuple[int, ...], str, str, int, bool]

_PLAIN = {torch.int64, torch.int32, torch.uint8, torch.uint16, torch.uint32}
_MAX_BYTES = 4 << 20  # of an array that travels in the message; more go through shared memory of torch


class WorkerBatch(dict[str, Any]):
    """A batch in a worker, which arrives as a dict of the same values, dtypes and shapes.

    >>> import pickle
    >>> batch = WorkerBatch(input_ids=torch.arange(60_000))
    >>> len(pickle.dumps(batch)) < 2.1 * 60_000
    True
    >>> bool((pickle.loads(pickle.dumps(batch))["input_ids"] == batch["input_ids"]).all())
    True
    """

    def __copy__(self) -> WorkerBatch:
        return WorkerBatch(self)

    def __reduce__(self) -> tuple[Any, ...]:
        packed = {key: values for key, value in self.items() if (values := _pack(value)) is not None}
        return _arrive, ({key: None if key in packed else value for key, value in self.items()}, packed)


def _pack(value: Any) -> Packed | None:
    """Pack integers; None for all else, and for what is large."""
    tensor = type(value) is torch.Tensor
    if tensor and (value.dtype not in _PLAIN or value.device.type != "cpu"):
        return None
    array: NDArray[Any] = value.numpy() if tensor else value
    if type(array) is not np.ndarray or array.dtype.kind not in "iu" or not array.size or not array.flags.c_contiguous:
        return None
    low, high = int(array.min()), int(array.max())
    base = min(low, 0)
    width = np.min_scalar_type(high - base)
    if width.itemsize >= array.itemsize:
        width, base = array.dtype, 0
    if array.size * width.itemsize > _MAX_BYTES:
        return None
    stored = (array - base if base else array).astype(width)
    return stored.tobytes(), array.shape, width.str, array.dtype.str, base, tensor


def _arrive(items: dict[str, Any], arrays: dict[str, Packed]) -> dict[str, Any]:
    return items | {key: _unpack(*packed) for key, packed in arrays.items()}


def _unpack(values: bytes, shape: tuple[int, ...], width: str, dtype: str, base: int, tensor: bool) -> Any:
    array = np.frombuffer(values, width, math.prod(shape)).reshape(shape).astype(dtype)
    keep_freed_memory(5 * array.nbytes)
    if base:
        array += base
    return torch.from_numpy(array) if tensor else array
