"""Batches on their way from a worker of a DataLoader to the process that uses them.

Torch hands over each tensor through shared memory of its own, which the receiver asks the worker for. That costs more than the
copy of a batch, so the arrays of batches lie in slots of memory that serve again and again, or travel inside the message, in
the width in which their values are stored.
"""

from __future__ import annotations

import math
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ConfigError
from ..batch import kernels
from ..batch.freed_memory import keep_freed_memory
from .shared_slots import Offer, Room, accept, own_writer, slots_of

# Its values, less a base: as bytes, or where these begin in a slot; its shape; the dtypes of the values, and of the array; the
# base; and whether it is a tensor. Plain tuples take half the time of named ones on the way.
Packed = tuple[bytes | int, tuple[int, ...], str, str, int, bool]
Message = tuple[dict[str, Any], dict[str, Packed]]  # a batch, with None for arrays that are packed, and these

_INT64 = np.dtype(np.int64)
_UINT16_MOST = 0xFFFF
_PLAIN = {torch.int64, torch.int32, torch.uint8, torch.uint16, torch.uint32}
_MOST = 4 << 20  # bytes of an array that travel in the message; more go through shared memory of torch


class WorkerBatch(dict[str, Any]):
    """A batch in a worker, which arrives as a dict of the same values, dtypes and shapes.

    On the way, integers of 64 bits take 16 bits where those of their array fit, else the narrowest width that holds them,
    whatever a ``collate_fn`` made of them. Queues and pipes of ``multiprocessing`` carry them in `shared_slots`.

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
        return _arrive, _packed(self, None)


def _reduce_for_queue(batch: WorkerBatch) -> tuple[Any, ...]:
    """Return how to make a batch in the one process that receives this message."""
    writer = own_writer()
    if writer is None:
        return batch.__reduce__()
    if (room := writer.room()) is not None:
        return _arrive_in_slot, (*_packed(batch, room), *room.place)
    return _arrive, (*_packed(batch, None), writer.offer)


ForkingPickler.register(WorkerBatch, _reduce_for_queue)


def _packed(batch: WorkerBatch, room: Room | None) -> Message:
    items, arrays = dict(batch), {}
    for key, value in batch.items():
        if (packed := _pack(value, room)) is not None:
            items[key], arrays[key] = None, packed
    return items, arrays


def _pack(value: Any, room: Room | None) -> Packed | None:
    """Pack integers; None for all else, and for what is large and has no room."""
    tensor = type(value) is torch.Tensor
    if tensor and (value.dtype not in _PLAIN or value.device.type != "cpu"):
        return None
    array: NDArray[Any] = value.numpy() if tensor else value
    if type(array) is not np.ndarray or array.dtype.kind not in "iu" or not array.size or not array.flags.c_contiguous:
        return None
    flat = array.reshape(-1)
    begin, stored, base = _narrowed(flat, room) if array.dtype == _INT64 else (*_put(flat, room), 0)
    if begin is None and stored.nbytes > _MOST:
        return None
    values = stored.tobytes() if begin is None else begin
    return values, array.shape, stored.dtype.str, array.dtype.str, base, tensor


def _narrowed(array: NDArray[np.int64], room: Room | None) -> tuple[int | None, NDArray[Any], int]:
    """Return the values less a base in a dtype that holds them, after where that begins in the slot, and before the base."""
    begin, narrow = (room and room.take(array.size, np.uint16)) or (None, np.empty(array.size, np.uint16))
    if 0 <= kernels.narrow(array, narrow) <= _UINT16_MOST:
        return begin, narrow, 0
    low, high = int(array.min()), int(array.max())
    base = min(low, 0)
    width = np.min_scalar_type(high - base)
    if width.itemsize == 8:
        return *_put(array, room), 0
    return *_put((array - base if base else array).astype(width), room), base


def _put(array: NDArray[Any], room: Room | None) -> tuple[int | None, NDArray[Any]]:
    """Copy an array to the slot, and return where it begins there; or None, and the array, where there is no room."""
    if room is None or (taken := room.take(array.size, array.dtype)) is None:
        return None, array
    taken[1][...] = array
    return taken


def _arrive(items: dict[str, Any], arrays: dict[str, Packed], offer: Offer | None = None) -> dict[str, Any]:
    if offer is not None:
        accept(offer)
    return items | {key: _unpack(*packed) for key, packed in arrays.items()}


def _arrive_in_slot(
    items: dict[str, Any], arrays: dict[str, Packed], offer: Offer, slot: int, message: int
) -> dict[str, Any]:
    slots = slots_of(offer)
    memory = slots.bytes_of(slot)
    batch = items | {key: _unpack(*packed, memory) for key, packed in arrays.items()}
    if not slots.free(slot, message):
        raise ConfigError(
            "a message with a batch of a DataLoader's worker was received twice, but its memory serves the next batch after "
            "the first time; in the worker, send dict(batch) to more than one process"
        )
    return batch


def _unpack(
    values: Any, shape: tuple[int, ...], width: str, dtype: str, base: int, tensor: bool, slot: Any = None
) -> Any:
    count = math.prod(shape)
    in_slot = isinstance(values, int)
    stored = np.frombuffer(slot if in_slot else values, width, count, values if in_slot else 0).reshape(shape)
    array = stored.astype(dtype)
    keep_freed_memory(5 * array.nbytes)
    if base:
        array += base
    return torch.from_numpy(array) if tensor else array
