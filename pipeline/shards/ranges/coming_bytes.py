"""Bytes of a block that are on their way."""

from __future__ import annotations

import ctypes
import threading
import weakref
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptShardError
from .mapped import Bytes


class ComingBytes:
    """The bytes of extents of one shard that are on their way; ``address`` is 0 until they are here.

    Bytes are no longer asked for once nothing refers to this.
    """

    def __init__(self, shard: int, offset: int, size: int) -> None:
        self.shard = shard
        self.offset = offset
        self.size = size
        self.address = 0
        self.rows = 0, 0
        self.due = 0.0  # when the order needs them, in epochs
        self.future: Future[None] | None = None
        self._memory: Bytes | None = None
        self._read: list[tuple[int, bytes]] = []
        self._told: list[tuple[weakref.ref[NDArray[np.int64]], int]] = []
        self._lock = threading.Lock()

    def view(self) -> memoryview:
        """Return the bytes, which are here."""
        assert self._memory is not None
        return memory_at(self._memory, self.size)

    def tell(self, blocks: NDArray[np.int64], number: int) -> None:
        """Write the address to ``blocks[number, 0]`` when it is known."""
        with self._lock:
            if not self.address:
                self._told.append((weakref.ref(blocks), number))
            blocks[number, 0] = self.address

    def note(self, offset: int, data: bytes) -> None:
        """Remember what was read of these bytes before they came, to compare it with them."""
        with self._lock:
            if not self.address:
                self._read.append((offset - self.offset, data))

    def come(self, memory: Bytes, name: str) -> None:
        """Take the bytes."""
        with self._lock:
            whole = memory_at(memory, self.size)
            for begin, data in self._read:
                if whole[begin : begin + len(data)] != data:
                    raise CorruptShardError(
                        f"{name}: bytes {self.offset + begin} to {self.offset + begin + len(data)} were others when they "
                        "were read before: it changed while it was read, or was damaged on the way; resume from a state"
                    )
            self._memory, self.address, self._read = memory, memory.address, []
            for reference, number in self._told:
                blocks = reference()
                if blocks is not None:
                    blocks[number, 0] = self.address
            self._told = []


def memory_at(memory: Bytes, size: int) -> memoryview:
    """Return a view of mapped or buffered bytes."""
    return memoryview((ctypes.c_char * size).from_address(memory.address)).cast("B")
