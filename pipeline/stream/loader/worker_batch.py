"""Batches on their way from a worker of a DataLoader to the process that uses them.

Torch hands over each tensor through shared memory of its own, which the receiver asks the worker for. That costs more than the
copy of a batch, so the arrays of batches lie in slots of memory that serve again and again, or travel inside the message, in
the width in which their values are stored.
"""

from __future__ import annotations

import math
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ConfigError
from ..batch import kernels
from ..batch.freed_memory import keep_freed_memory
from .shared_slots import Offer, Place, Room, accept, own_writer, slots_of

_INT64 = np.dtype(np.int64)
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
        return _arrive, (_packed(self, None),)


def _reduce_for_queue(batch: WorkerBatch) -> tuple[Any, ...]:
    """Return how to make a batch in the one process that receives this message."""
    writer = own_writer()
    if writer is None:
        return batch.__reduce__()
    if (room := writer.room()) is not None:
        return _arrive_in_slot, (_packed(batch, room), room.place)
    return _arrive, (_packed(batch, None), writer.offer)


ForkingPickler.register(WorkerBatch, _reduce_for_queue)


class _Packed(NamedTuple):
    """An array or tensor: its values, less ``base``, in the dtype ``width``, as bytes or as where these begin in a slot."""

    values: bytes | int
    shape: tuple[int, ...]
    width: str
    dtype: str
    base: int
    tensor: bool


def _packed(batch: WorkerBatch, room: Room | None) -> dict[str, Any]:
    return {key: _pack(value, room) for key, value in batch.items()}


def _pack(value: Any, room: Room | None) -> Any:
    """Return integers as they are packed; all else, and what is large and has no room, as it is."""
    tensor = type(value) is torch.Tensor
    if tensor and (value.dtype not in _PLAIN or value.device.type != "cpu"):
        return value
    array: NDArray[Any] = value.numpy() if tensor else value
    if type(array) is not np.ndarray or array.dtype.kind not in "iu" or not array.size or not array.flags.c_contiguous:
        return value
    flat = array.reshape(-1)
    begin, stored, base = _narrowed(flat, room) if array.dtype == _INT64 else (*_put(flat, room), 0)
    if begin is None and stored.nbytes > _MOST:
        return value
    values = stored.tobytes() if begin is None else begin
    return _Packed(values, array.shape, stored.dtype.str, array.dtype.str, base, tensor)


def _narrowed(array: NDArray[np.int64], room: Room | None) -> tuple[int | None, NDArray[Any], int]:
    """Return the values less a base in a dtype that holds them, after where that begins in the slot, and before the base."""
    begin, narrow = (room and room.take(array.size, np.uint16)) or (None, np.empty(array.size, np.uint16))
    if 0 <= kernels.narrow(array, narrow) <= np.iinfo(np.uint16).max:
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


def _arrive(packed: dict[str, Any], offer: Offer | None = None) -> dict[str, Any]:
    if offer is not None:
        accept(offer)
    return _unpacked(packed, None)


def _arrive_in_slot(packed: dict[str, Any], place: Place) -> dict[str, Any]:
    slots = slots_of(place.offer)
    batch = _unpacked(packed, slots.bytes_of(place.slot))
    if not slots.free(place.slot, place.message):
        raise ConfigError(
            "a message with a batch of a DataLoader's worker was received twice, but its memory serves the next batch after "
            "the first time; in the worker, send dict(batch) to more than one process"
        )
    return batch


def _unpacked(packed: dict[str, Any], slot: NDArray[np.uint8] | None) -> dict[str, Any]:
    return {key: _unpack(value, slot) if isinstance(value, _Packed) else value for key, value in packed.items()}


def _unpack(packed: _Packed, slot: NDArray[np.uint8] | None) -> Any:
    count, begin = math.prod(packed.shape), 0
    values: Any = packed.values
    if isinstance(values, int):
        assert slot is not None
        values, begin = slot, values
    stored = np.frombuffer(values, packed.width, count, begin).reshape(packed.shape)
    keep_freed_memory(5 * count * np.dtype(packed.dtype).itemsize)
    array = stored.astype(packed.dtype)
    if packed.base:
        array += packed.base
    return torch.from_numpy(array) if packed.tensor else array
