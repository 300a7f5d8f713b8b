"""Memory of batches that were dropped, kept for the next ones."""

from __future__ import annotations

import numpy as np

_MAX_BYTES = (32 << 20) - (64 << 10)  # larger mappings are always given back
_kept = 0


def keep_freed_memory(size: int) -> None:
    """Have the C library keep about ``size`` bytes that are freed, where it can, instead of giving them back to the system.

    To get new pages for every batch costs more than to fill them. The library keeps as much as the largest mapping that
    it saw freed.
    """
    global _kept
    size = min(size, _MAX_BYTES)
    if size > _kept:
        _kept = size
        np.empty(size, np.uint8)  # freed at once
