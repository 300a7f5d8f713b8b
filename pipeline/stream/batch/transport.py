"""The transport of a batch to its consumer: torch tensors, a thread that reads ahead, workers of a loader, copies to a GPU.

Code that reads ahead handles pairs: an item, and the position of the stream after it. So a state counts only items that were
handed out, however many were made.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from ...daemon_threads import DaemonThreads
from ...errors import ConfigError

Item = dict[str, Any]
P = TypeVar("P")
T = TypeVar("T")


def to_torch(item: Any) -> Any:
    """Return an item with its arrays as torch tensors that share their memory.

    If torch lacks the dtype of an array, as for text, ``ConfigError`` names the key.
    """
    if not isinstance(item, dict):
        return item
    return {key: _tensor(key, value) if isinstance(value, np.ndarray) else value for key, value in item.items()}


def _tensor(key: str, value: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(value)
    except TypeError:
        if value.dtype.name == "bfloat16":  # of ml_dtypes, which JAX uses
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        raise ConfigError(
            f"{key!r} is an array of {value.dtype}, which torch does not have; return numbers or a list, or add .numpy()"
        ) from None


def to_numpy(item: Item) -> Item:
    """Return an item with its torch tensors as arrays; ``ConfigError`` names a key whose dtype NumPy lacks."""
    return {key: _array(key, value) if isinstance(value, torch.Tensor) else value for key, value in item.items()}


def _array(key: str, value: torch.Tensor) -> np.ndarray[Any, Any]:
    try:
        return value.detach().cpu().numpy()
    except TypeError:
        raise ConfigError(
            f"{key!r} is a tensor of {value.dtype}, which NumPy does not have; remove .numpy(), or convert it in .map()"
        ) from None


def widen(item: Item) -> Item:
    """Return unsigned ids and labels as int64, with -100 at the indices that ``ignored`` lists.

    Values of 16 and 32 bits go through the signed type of their width, for which every device has kernels.
    """
    widened = dict(item)
    for key in ("input_ids", "labels"):
        value = item.get(key)
        if not isinstance(value, torch.Tensor):
            continue
        if value.dtype == torch.uint8:
            widened[key] = value.to(torch.int64)
        elif value.dtype == torch.uint64:
            widened[key] = value.view(torch.int64)
        elif value.dtype in (torch.uint16, torch.uint32):
            signed, mask = (torch.int16, 0xFFFF) if value.dtype == torch.uint16 else (torch.int32, 0xFFFFFFFF)
            widened[key] = value.view(signed).to(torch.int64).bitwise_and_(mask)
    ignored = widened.pop("ignored", None)
    if ignored is not None:
        widened["labels"].view(-1).index_fill_(0, ignored, -100)
    return widened


def place_on_device(items: Iterator[tuple[P, Item]], name: str) -> Iterator[tuple[P, Item]]:
    """Yield items with their tensors on a device. For a GPU, an item is copied on a side stream while the last one is used.

    The memory of a batch on the device is not reused as long as the consumer refers to the batch. Raises ``ConfigError`` in a
    worker of a DataLoader: a process that was forked cannot use a GPU.
    """
    if get_worker_info() is not None:
        raise ConfigError(
            f".to({name!r}) copies batches, which a worker of a DataLoader cannot: remove it and move the batches that the "
            "loader yields, or set num_workers=0"
        )
    device = torch.device(name)
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    waiting: tuple[P, Item, torch.cuda.Event | None] | None = None
    for position, item in items:
        if not isinstance(item, dict):
            raise ConfigError(
                f".to({name!r}) moves the tensors of a dict, but the stages before it gave a {type(item).__name__}"
            )
        with torch.cuda.stream(side) if side is not None else nullcontext():
            sent = widen({key: _sent(value, device) for key, value in to_torch(item).items()})
            ready = side.record_event() if side is not None else None
        if waiting is not None:
            yield _received(*waiting, device)
        waiting = position, sent, ready
    if waiting is not None:
        yield _received(*waiting, device)


def _sent(value: Any, device: torch.device) -> Any:
    """Start the copy of a tensor to a device; to a GPU from pinned memory, which torch reuses only after the copy."""
    if not isinstance(value, torch.Tensor):
        return value
    pinned = value.pin_memory() if device.type == "cuda" and value.device.type == "cpu" else value
    return pinned.to(device, non_blocking=pinned is not value)


def _received(position: P, item: Item, ready: torch.cuda.Event | None, device: torch.device) -> tuple[P, Item]:
    if ready is not None:
        current = torch.cuda.current_stream(device)
        current.wait_event(ready)
        for value in item.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)  # not to be reused before this stream's work is done
    return position, item


_END = object()


def read_ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """Yield items that a thread makes up to ``count`` ahead. Its exceptions are raised here, after the items before them.

    The thread ends with the iterator, even if the iterator is dropped half-way, and before the interpreter ends.
    """
    thread = DaemonThreads(1, "read-ahead")
    make: Callable[[], Any] = partial(next, items, _END)
    ready = deque(thread.submit(make) for _ in range(count))
    # This runs at exit too, since an iterator that a script still refers to is closed after threads have stopped.
    end = finalize(thread, _end, thread, ready)
    try:
        while (item := ready.popleft().result()) is not _END:
            ready.append(thread.submit(make))
            yield item
    finally:
        end()


def _end(thread: DaemonThreads, ready: deque[Future[Any]]) -> None:
    for future in ready:
        future.cancel()
    thread.join()


# An array: its values minus a base, as bytes; shape; dtype of these values, and of the array; base; whether it is a tensor.
Packed = tuple[bytes, tuple[int, ...], str, str, int, bool]

_PLAIN = {torch.int64, torch.int32, torch.uint8, torch.uint16, torch.uint32}
_MOST_PACKED = 4 << 20  # bytes of an array in the message; a larger array goes through torch's shared memory


class WorkerBatch(dict[str, Any]):
    """A batch in a worker of a DataLoader. It arrives as a dict of the same values, dtypes and shapes.

    Torch sends each tensor in its own shared memory, which the receiver requests from the worker. This costs more than copying a
    batch, so the integers of a batch are sent inside the message, in the narrowest width that holds them.

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
    """Return integers packed; None for other values, and for large arrays."""
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
    if array.size * width.itemsize > _MOST_PACKED:
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


_MOST_KEPT = (32 << 20) - (64 << 10)  # larger mappings always go back to the system
_kept = 0


def keep_freed_memory(size: int) -> None:
    """Make the C library keep about ``size`` freed bytes, if it can, instead of returning them to the system.

    New pages for every batch cost more than filling them. The library keeps as much as the largest mapping that was freed.
    """
    global _kept
    size = min(size, _MOST_KEPT)
    if size > _kept:
        _kept = size
        np.empty(size, np.uint8)  # freed at once
