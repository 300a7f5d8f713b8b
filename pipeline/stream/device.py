"""From arrays to where they are used: torch tensors, a thread that reads ahead, pinned memory and a side stream."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch

Item = dict[str, Any]
T = TypeVar("T")

RING = 3  # pinned buffers in turn: one being filled, one being copied, one that the consumer's batch came from


def is_cuda(device: str | None) -> bool:
    return device is not None and device.startswith("cuda")


def to_torch(item: Any) -> Any:
    """Return an item with its arrays as torch tensors that share their memory."""
    if not isinstance(item, dict):
        return item
    return {key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for key, value in item.items()}


def place_on_device(items: Iterator[Item], device: str) -> Iterator[Item]:
    """Yield items with their tensors on ``device``."""
    if is_cuda(device):
        return _through_pinned_ring(items, torch.device(device))
    return (
        {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in item.items()}
        for item in items
    )


class _Slot:
    """One pinned buffer, contiguous for all tensors of a batch, and the event of its last copy."""

    def __init__(self) -> None:
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.copied = torch.cuda.Event()

    def send(self, item: Item, device: torch.device) -> tuple[Item, torch.Tensor]:
        """Copy an item's tensors into the buffer, the buffer to the device, and return them as views of it there."""
        tensors = {key: value.contiguous() for key, value in item.items() if isinstance(value, torch.Tensor)}
        places, size = {}, 0
        for key, value in tensors.items():
            places[key] = size
            size += -(-value.nbytes // 64) * 64
        self.copied.synchronize()  # the buffer is refilled only after its last copy has ended
        if len(self.buffer) < size:
            self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        for key, value in tensors.items():
            begin = places[key]
            self.buffer[begin : begin + value.nbytes].view(value.dtype).view(value.shape).copy_(value)
        arrived = self.buffer[:size].to(device, non_blocking=True)
        self.copied.record()
        views = dict(item)
        for key, value in tensors.items():
            begin = places[key]
            views[key] = arrived[begin : begin + value.nbytes].view(value.dtype).view(value.shape)
        return widen(views), arrived


def widen(item: Item) -> Item:
    """Return ids and labels in stored width as int64, with -100 where ``ignored`` says so.

    Unsigned tensors go through the signed type of their width, for which every device has kernels.
    """
    widened = dict(item)
    for key in ("input_ids", "labels"):
        value = item.get(key)
        if isinstance(value, torch.Tensor) and value.dtype in (torch.uint16, torch.uint32):
            signed = torch.int16 if value.dtype == torch.uint16 else torch.int32
            mask = 0xFFFF if value.dtype == torch.uint16 else 0xFFFFFFFF
            widened[key] = value.view(signed).to(torch.int64) & mask
    ignored = widened.pop("ignored", None)
    if ignored is not None:
        widened["labels"] = widened["labels"].masked_fill(ignored, -100)
    return widened


def _through_pinned_ring(items: Iterator[Item], device: torch.device) -> Iterator[Item]:
    """Yield items on the GPU, each copied on a side stream while the one before it is used.

    A batch belongs to the consumer: its memory is its own on the device, and lives as long as it is referred to.
    """
    with torch.cuda.device(device):
        side = torch.cuda.Stream(device)
        ring = deque(_Slot() for _ in range(RING))

        def send(item: Item) -> tuple[Item, torch.Tensor, torch.cuda.Event]:
            ring.rotate(-1)
            with torch.cuda.stream(side):
                sent, memory = ring[0].send(item, device)
                ready = torch.cuda.Event()
                ready.record()
            return sent, memory, ready

        def receive(sent: Item, memory: torch.Tensor, ready: torch.cuda.Event) -> Item:
            current = torch.cuda.current_stream(device)
            current.wait_event(ready)
            for tensor in [memory, *(value for value in sent.values() if isinstance(value, torch.Tensor))]:
                tensor.record_stream(current)  # the allocator must not reuse it before our work with it is done
            return sent

        waiting = None
        for item in items:
            following = send(item)
            if waiting is not None:
                yield receive(*waiting)
            waiting = following
        if waiting is not None:
            yield receive(*waiting)


_END = object()


def read_ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """Yield items that a thread makes up to ``count`` ahead; its exceptions are raised here, in their turn.

    The thread ends with the iterator, also when that is dropped half-way.
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
        stop.set()
        thread.join()
