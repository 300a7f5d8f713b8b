"""From arrays to where they are used: torch tensors, a thread that reads ahead, pinned memory and a side stream.

Every function takes and gives pairs of a mark and an item: the mark says where the stream stands after that item, so
whatever is made ahead of time, the state counts what was handed out.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
import torch

from ...errors import ConfigError

Item = dict[str, Any]
M = TypeVar("M")
T = TypeVar("T")

RING = 3  # staging buffers in turn: one being filled, one being copied, one behind the batch in use
_ALIGN = 64


def to_torch(item: Any) -> Any:
    """Return an item with its arrays as torch tensors that share their memory.

    Arrays that torch has no dtype for, as of text, raise ``ConfigError`` naming the key.
    """
    if not isinstance(item, dict):
        return item
    return {key: _tensor(key, value) if isinstance(value, np.ndarray) else value for key, value in item.items()}


def _tensor(key: str, value: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(value)
    except TypeError:
        if value.dtype.name == "bfloat16":  # of ml_dtypes, as JAX gives it; to make a dtype's name takes microseconds
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        raise ConfigError(
            f"{key!r} is an array of {value.dtype}, which torch does not have; give numbers or a list, or add .numpy()"
        ) from None


def to_numpy(item: Item) -> Item:
    """Return an item with its torch tensors as arrays; ``ConfigError`` names a key whose dtype NumPy does not have."""
    return {key: _array(key, value) if isinstance(value, torch.Tensor) else value for key, value in item.items()}


def _array(key: str, value: torch.Tensor) -> np.ndarray[Any, Any]:
    try:
        return value.detach().cpu().numpy()
    except TypeError:
        raise ConfigError(
            f"{key!r} is a tensor of {value.dtype}, which NumPy does not have; remove .numpy(), or convert it in .map()"
        ) from None


class _Slot:
    """One staging buffer, contiguous for all tensors of a batch and pinned for a GPU, and the event of its last copy."""

    def __init__(self, device: torch.device, copied: torch.cuda.Event | None = None) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.copied = torch.cuda.Event() if self.cuda else copied

    def send(self, item: Item) -> tuple[Item, list[torch.Tensor]]:
        """Start copying an item's tensors to the device; return it there, and all the memory that it takes there."""
        tensors = {key: value.contiguous() for key, value in item.items() if isinstance(value, torch.Tensor)}
        places, size = {}, 0
        for key, value in tensors.items():
            places[key] = slice(size, size + value.nbytes)
            size += -(-value.nbytes // _ALIGN) * _ALIGN
        if self.copied is not None:
            self.copied.synchronize()  # the buffer is refilled only after its last copy has ended
        if len(self.buffer) < size:
            self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self.cuda)
        for key, value in tensors.items():
            self.buffer[places[key]].view(value.dtype).view(value.shape).copy_(value)
        # Where no event tells when the buffer may be refilled, the copy must have ended.
        arrived = self.buffer[:size].to(self.device, non_blocking=self.cuda, copy=True)
        if self.copied is not None:
            self.copied.record()
        views = {k: arrived[places[k]].view(v.dtype).view(v.shape) for k, v in tensors.items()}
        sent = widen({**item, **views})
        return sent, [arrived, *(value for value in sent.values() if isinstance(value, torch.Tensor))]


def widen(item: Item) -> Item:
    """Return unsigned ids and labels as int64, with -100 at the places that ``ignored`` lists.

    Those of 16 and 32 bits go through the signed type of their width, for which every device has kernels.
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


def place_on_device(items: Iterator[tuple[M, Item]], name: str) -> Iterator[tuple[M, Item]]:
    """Yield items with their tensors on a device, on a GPU each copied on a side stream while the one before is used.

    A batch belongs to the consumer: its memory on the device is its own, for as long as it is referred to.
    """
    device = torch.device(name)
    ring = [_Slot(device) for _ in range(RING)]
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    waiting: tuple[M, Item, list[torch.Tensor], torch.cuda.Event | None] | None = None
    for number, (mark, item) in enumerate(items):
        if not isinstance(item, dict):
            raise ConfigError(
                f".to({name!r}) moves the tensors of a dict, but the stages before it gave a {type(item).__name__}"
            )
        with torch.cuda.stream(side) if side is not None else nullcontext():
            sent, memory = ring[number % RING].send(to_torch(item))
            ready = side.record_event() if side is not None else None
        if waiting is not None:
            yield _received(*waiting)
        waiting = mark, sent, memory, ready
    if waiting is not None:
        yield _received(*waiting)


def _received(mark: M, item: Item, memory: list[torch.Tensor], ready: torch.cuda.Event | None) -> tuple[M, Item]:
    if ready is not None:
        current = torch.cuda.current_stream(memory[0].device)
        current.wait_event(ready)
        for tensor in memory:
            tensor.record_stream(current)  # the allocator must not reuse it before our work with it is done
    return mark, item


_END = object()


def read_ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """Yield items that a thread makes up to ``count`` ahead; its exceptions are raised here, in their turn.

    The thread ends with the iterator, also when that is dropped half-way, and before the interpreter does.
    """
    ready: queue.Queue[Any] = queue.Queue(maxsize=count)
    stop = threading.Event()

    def put(value: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(value, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:  # handed to the consumer, who raises it
            put((_END, error))

    thread = threading.Thread(target=work, name="shardwright-read-ahead", daemon=True)

    def end() -> None:
        stop.set()
        while not ready.empty():  # wakes the thread where it waits for room
            ready.get_nowait()
        thread.join()

    # An iterator that a script still holds at its end is closed when threads no longer run, and would wait forever.
    atexit.register(end)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        if not stop.is_set():  # else the interpreter ends, and modules may be gone
            atexit.unregister(end)
            end()
