"""Ranges of open files, whole or not at all."""

from __future__ import annotations

import os

from ...errors import TruncatedShardError


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
