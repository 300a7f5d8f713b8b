"""Memory that a loader's worker shares with the process that receives its batches.

A worker writes the arrays of a batch to a free slot, and the receiver frees the slot once it has copied them out, so that the
same few pages serve batch after batch: no array goes through a pipe, and none gets new memory.

The memory has no name, so it ends with the processes that hold it, and no limit of ``/dev/shm`` counts it. The worker offers it
in its messages, and uses it once the receiver has accepted: where memory cannot be shared so, nothing else changes.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from multiprocessing import active_children
from typing import Any

import numpy as np
from numba import int64, types
from numpy.typing import DTypeLike, NDArray

from ...compiling import compiled
from ...errors import ConfigError
from ...intrinsics import swap_if

COUNT = 8  # more batches than these wait for their receiver in messages
SLOT_BYTES = 16 << 20  # the room of a slot; only pages that were written take memory
_ALIGN = 64
_HEADER = mmap.PAGESIZE
# Words of the header: one that the receiver sets, then one of each slot, 0 or the message that has it.
_ACCEPTED = 0


# Where another process finds the memory: a process, a file descriptor of it, and the device and inode of what that should be.
Offer = tuple[int, int, int, int]


@compiled(int64(int64[::1], int64))
def _claim(words: Any, message: Any) -> Any:
    """Take the first free slot for a message and return its number, or -1."""
    for slot in range(len(words) - 1):
        if swap_if(words.ctypes.data + 8 * (slot + 1), int64(0), message):
            return slot
    return -1


@compiled(types.bool_(int64[::1], int64, int64))
def _free(words: Any, slot: Any, message: Any) -> Any:
    """Free a slot, after all reads of it, and say whether the message had it."""
    return swap_if(words.ctypes.data + 8 * (slot + 1), message, int64(0))


class SharedSlots:
    """Slots of shared memory, for the process that writes to them or for the one that reads.

    ``descriptor`` is of a file of `SIZE` bytes in memory.
    """

    SIZE = _HEADER + COUNT * SLOT_BYTES

    def __init__(self, descriptor: int) -> None:
        self._memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, self.SIZE), np.uint8)
        self._words = self._memory[: 8 * (1 + COUNT)].view(np.int64)

    @property
    def accepted(self) -> bool:
        """Whether a receiver reads these slots."""
        return bool(self._words[_ACCEPTED])

    def accept(self) -> None:
        """Promise to read these slots."""
        self._words[_ACCEPTED] = 1

    def claim(self, message: int) -> int | None:
        """Take a free slot for a message, a number above 0, and return its number; None where all are taken."""
        slot = _claim(self._words, message)
        return None if slot < 0 else slot

    def free(self, slot: int, message: int) -> bool:
        """Free a slot whose arrays were copied, and say whether that message had it until now."""
        return bool(_free(self._words, slot, message))

    def bytes_of(self, slot: int) -> NDArray[np.uint8]:
        """Return the memory of a slot."""
        begin = _HEADER + slot * SLOT_BYTES
        return self._memory[begin : begin + SLOT_BYTES]


class Room:
    """Room in a slot for the arrays of one message: ``place`` is the offer, the slot and the message."""

    def __init__(self, place: tuple[Offer, int, int], memory: NDArray[np.uint8]) -> None:
        self.place = place
        self._memory = memory
        self._taken = 0

    def take(self, count: int, dtype: DTypeLike) -> tuple[int, NDArray[Any]] | None:
        """Return where the next ``count`` values begin in the slot, in bytes, and their array; None where they do not fit."""
        kind = np.dtype(dtype)
        begin, end = self._taken, self._taken + count * kind.itemsize
        if end > len(self._memory):
            return None
        self._taken = -(-end // _ALIGN) * _ALIGN
        return begin, self._memory[begin:end].view(kind)


class SlotWriter:
    """The slots that a worker writes to."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("shardwright-batches")
        try:
            os.ftruncate(self._descriptor, SharedSlots.SIZE)
            self._slots = SharedSlots(self._descriptor)
        except BaseException:
            self.close()
            raise
        file = os.fstat(self._descriptor)
        self._offer = os.getpid(), self._descriptor, file.st_dev, file.st_ino
        self._messages = itertools.count(1)

    def close(self) -> None:
        """Close the descriptor; the memory itself ends when nothing refers to it."""
        os.close(self._descriptor)

    @property
    def offer(self) -> Offer | None:
        """What to send to a receiver that has not accepted yet."""
        return None if self._slots.accepted else self._offer

    def room(self) -> Room | None:
        """Return a slot for a new message; None where all are taken, or no receiver has accepted."""
        if not self._slots.accepted:
            return None
        message = next(self._messages)
        slot = self._slots.claim(message)
        return None if slot is None else Room((self._offer, slot, message), self._slots.bytes_of(slot))


_writer: SlotWriter | None = None
_received: dict[Offer, SharedSlots] = {}


def own_writer() -> SlotWriter | None:
    """Return the writer of this process, made when first asked for; None where a system has no such memory."""
    global _writer
    if _writer is None and hasattr(os, "memfd_create"):
        try:
            _writer = SlotWriter()
        except (OSError, ValueError):  # of a limit on memory or on descriptors
            return None
    return _writer


def accept(offer: Offer) -> None:
    """Accept the slots of a child of this process, if it can map them, and keep them while the child lives."""
    if offer in _received:
        return
    children = {child.pid: child for child in active_children()}
    # Torch holds on to some processes of loaders that have ended.
    for ended in [known for known in _received if known[0] not in children]:
        _received.pop(ended, None)
    if (child := children.get(offer[0])) is None:
        return
    try:
        slots = _mapped(offer)
    except (OSError, ValueError):
        return
    _received[offer] = slots
    weakref.finalize(child, _received.pop, offer, None).atexit = False
    slots.accept()


def slots_of(offer: Offer) -> SharedSlots:
    """Return the slots that a message names; ``ConfigError`` where this process cannot map them."""
    try:
        return _received.get(offer) or _mapped(offer)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"a batch lies in memory of process {offer[0]}, a worker of a DataLoader, which this process cannot read ({error}); "
            "send dict(batch) to processes other than the one that iterates the loader"
        ) from error


def _mapped(offer: Offer) -> SharedSlots:
    process, number, device, inode = offer
    descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        file = os.fstat(descriptor)
        if (file.st_dev, file.st_ino) != (device, inode):
            raise OSError(f"its descriptor {number} is of another file now")
        return SharedSlots(descriptor)
    finally:
        os.close(descriptor)


def _after_fork() -> None:
    """Give up, in a child, the slots of its parent."""
    global _writer
    if _writer is not None:
        _writer.close()
        _writer = None
    _received.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
