"""Batches on their way from a worker of a DataLoader to the process that uses them.

Torch hands over each tensor through shared memory of its own, which the receiver asks the worker for. That costs more than the
copy of a batch, so batches travel inside the message instead, in the width in which their values are stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..batch import kernels
from ..batch.freed_memory import keep_freed_memory

_INT64 = np.dtype(np.int64)
_PLAIN = {torch.int64, torch.int32, torch.uint8, torch.uint16, torch.uint32}
_MOST = 4 << 20  # bytes of an array that travel in the message; more go through shared memory


class WorkerBatch(dict[str, Any]):
    """A batch in a worker, which arrives as a dict of the same values, dtypes and shapes.

    On the way, integers of 64 bits take 16 bits where those of their array fit, else the narrowest width that holds them,
    whatever a ``collate_fn`` made of them.

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
        return _arrive, ({key: _pack(value) for key, value in self.items()},)


class _Packed(NamedTuple):
    """An array or tensor: bytes of its values, less ``base``, in the dtype ``width``."""

    raw: bytes
    shape: tuple[int, ...]
    width: str
    dtype: str
    base: int
    tensor: bool


def _arrive(packed: dict[str, Any]) -> dict[str, Any]:
    return {key: _unpack(value) if isinstance(value, _Packed) else value for key, value in packed.items()}


def _pack(value: Any) -> Any:
    """Return integers as bytes; all else, and what is large, as it is."""
    tensor = type(value) is torch.Tensor
    if tensor and (value.dtype not in _PLAIN or value.device.type != "cpu"):
        return value
    array: NDArray[Any] = value.numpy() if tensor else value
    if type(array) is not np.ndarray or array.dtype.kind not in "iu" or not array.size or not array.flags.c_contiguous:
        return value
    stored, base = _narrowed(array) if array.dtype == _INT64 else (array, 0)
    if stored.nbytes > _MOST:
        return value
    return _Packed(stored.tobytes(), array.shape, stored.dtype.str, array.dtype.str, base, tensor)


def _narrowed(array: NDArray[np.int64]) -> tuple[NDArray[Any], int]:
    """Return the values less a base, and the base, in a dtype that holds them."""
    narrow = np.empty(array.size, np.uint16)
    if 0 <= kernels.narrow(array.reshape(-1), narrow) <= np.iinfo(np.uint16).max:
        return narrow, 0
    low, high = int(array.min()), int(array.max())
    base = min(low, 0)
    width = np.min_scalar_type(high - base)
    return (array, 0) if width.itemsize == 8 else ((array - base if base else array).astype(width), base)


def _unpack(packed: _Packed) -> Any:
    stored = np.frombuffer(packed.raw, packed.width).reshape(packed.shape)
    keep_freed_memory(5 * stored.size * np.dtype(packed.dtype).itemsize)
    array = stored.astype(packed.dtype)
    if packed.base:
        array += packed.base
    return torch.from_numpy(array) if packed.tensor else array
