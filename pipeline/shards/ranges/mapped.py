"""Byte ranges of files in memory: mapped where the file system is local, else read into buffers; and asked for ahead.

On a map, an error of the file system is a signal that ends the process, and kernel read-ahead multiplies small reads; so
maps are for local file systems alone, and with advice against read-ahead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import finalize

from ...errors import TruncatedShardError

PAGE = mmap.ALLOCATIONGRANULARITY
# Kinds that statfs names: ext2 to ext4, XFS, Btrfs, tmpfs, ramfs, F2FS, ZFS, bcachefs, overlayfs, squashfs, EROFS, NTFS.
_LOCAL = frozenset(
    (
        *(0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x858458F6, 0xF2F52010),
        *(0x2FC12FC1, 0xCA451A4E, 0x794C7630, 0x73717368, 0xE0F5E1E2, 0x7366746E),
    )
)
_LEAST_REQUEST = 128 << 10  # bytes that the kernel reads for one piece of advice, however small its read-ahead
_SHARE_OF_MAPS = 2  # of the maps that a process may have, this part is used
_USUAL_MAPS = 65_530
_FAILED = ctypes.c_void_p(-1).value


class MappedBytes:
    """A range of a file, mapped read-only while this is referred to; ``address`` is that of its first byte."""

    def __init__(self, base: int, length: int, address: int) -> None:
        self.address = address
        # Not by __del__: Python runs that while weak references still give the object to other threads, which would then
        # read memory that is gone. A finalizer runs after they are dead.
        finalize(self, _unmap, base, length).atexit = False


class BufferedBytes:
    """Memory of its own, returned to the system once nothing refers to it; ``address`` is that of its first byte."""

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, max(1, size))
        self._held = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._held)


Bytes = MappedBytes | BufferedBytes


def map_range(handle: int, offset: int, size: int, *, random: bool) -> MappedBytes | None:
    """Map ``size`` bytes of an open file; None where the process has its share of maps, or the system cannot.

    ``random`` advises against read-ahead.
    """
    if _libc is None or size == 0 or _maps >= _map_limit():
        return None
    begin = offset - offset % PAGE
    length = offset + size - begin
    base = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, handle, begin)
    if base is None or base == _FAILED:
        return None
    if random:
        _libc.madvise(base, length, mmap.MADV_RANDOM)
    _count_maps(1)
    return MappedBytes(base, length, base + offset - begin)


def read_range(handle: int, offset: int, target: memoryview, name: str) -> None:
    """Fill ``target`` from byte ``offset`` of an open file on; ``TruncatedShardError`` where it ends before."""
    done = 0
    while done < len(target):
        count = os.preadv(handle, [target[done:]], offset + done)
        if count == 0:
            raise ended_early(name, offset + done, len(target) - done)
        done += count


def read_bytes(handle: int, offset: int, size: int, name: str) -> bytes:
    """Return ``size`` bytes of an open file; ``TruncatedShardError`` where it ends before."""
    found = os.pread(handle, size, offset)
    while len(found) < size:
        more = os.pread(handle, size - len(found), offset + len(found))
        if not more:
            raise ended_early(name, offset + len(found), size - len(found))
        found += more
    return found


def ended_early(name: str, offset: int, missing: int) -> TruncatedShardError:
    """Return the error for a file that ends at byte ``offset``, ``missing`` bytes before what its index promises."""
    return TruncatedShardError(
        f"{name}: the file ends at byte {offset}, {missing} bytes before what its index says; it was changed or cut while "
        "it was read; copy it again or rebuild it"
    )


def will_need(handle: int, offset: int, size: int) -> None:
    """Ask the kernel to read a range of an open file into its cache, and do not wait for it."""
    request = _LEAST_REQUEST if size <= _LEAST_REQUEST else request_size(os.fstat(handle).st_dev)
    for begin in range(offset, offset + size, request):
        os.posix_fadvise(handle, begin, min(request, offset + size - begin), os.POSIX_FADV_WILLNEED)


def maps_here() -> bool:
    """Say whether this system has the maps that are used here."""
    return _libc is not None


def can_map(path: str | os.PathLike[str]) -> bool:
    """Say whether files in a directory, which may not be there yet, can be mapped: its file system is a local one."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return _libc is not None and hasattr(os, "posix_fadvise") and _kind(os.fspath(place)) in _LOCAL


@lru_cache
def _kind(directory: str) -> int | None:
    """Return what statfs calls the file system of a directory, None where it cannot be asked."""
    answer = (ctypes.c_ulong * 64)()
    if _libc is None or _libc.statfs(os.fsencode(directory), ctypes.byref(answer)) != 0:
        return None
    return int(answer[0]) & 0xFFFFFFFF


@lru_cache
def request_size(device: int) -> int:
    """Return how many bytes the kernel reads for one piece of advice: the rest of a longer one it passes over."""
    try:
        text = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text()
        return max(_LEAST_REQUEST, int(text) << 10)
    except (OSError, ValueError):
        return _LEAST_REQUEST


@lru_cache
def _map_limit() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text()) // _SHARE_OF_MAPS
    except (OSError, ValueError):
        return _USUAL_MAPS // _SHARE_OF_MAPS


def _load_libc() -> Any:
    # Elsewhere arguments are laid out otherwise, and blocks are read into buffers.
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    return libc


def _unmap(base: int, length: int) -> None:
    _libc.munmap(base, length)
    _count_maps(-1)


def _count_maps(change: int) -> None:
    global _maps
    with _lock:
        _maps += change


_libc: Any = _load_libc()
_lock = threading.RLock()  # a finalizer may run in the middle of a count
_maps = 0  # of this process
