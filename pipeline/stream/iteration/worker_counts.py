"""The counts of a loader's workers, in memory that they share with their parent."""

from __future__ import annotations

import ctypes
import json
from contextlib import suppress
from multiprocessing.sharedctypes import RawValue
from typing import Any

from torch.utils.data import get_worker_info

MAX_WORKERS = 1 << 10
_TEXT_BYTES = 64 << 10  # of the counts of all workers as JSON
_LONG = ("sources", "rejected_by")  # left out if there is no room for all counts


class _Memory(ctypes.Structure):
    """``workers`` read the latest pass. ``texts`` holds their counts as JSON, in ``workers`` equal parts.

    ``totals`` are the items, tokens and seconds of each worker, noted at every item.
    """

    _fields_ = (
        ("workers", ctypes.c_int64),
        ("texts", ctypes.c_uint8 * _TEXT_BYTES),
        ("totals", (ctypes.c_double * 3) * MAX_WORKERS),
    )


class WorkerCounts:
    """Counts that the workers of a loader note, and their parent adds up. Other processes note nothing."""

    def __init__(self) -> None:
        self.memory: Any = RawValue(_Memory)

    def begin(self) -> None:
        """Forget the counts of this worker in an earlier pass."""
        if (info := get_worker_info()) is not None:
            self.memory.workers = info.num_workers
            self._write(info.id, b"")

    def note_totals(self, items: int, tokens: int, seconds: float) -> None:
        """Note the totals of this worker's pass. This is cheap enough for every item, so the sums are always exact."""
        if (info := get_worker_info()) is not None:
            self.memory.totals[info.id][:] = items, tokens, seconds

    def note(self, stats: dict[str, Any]) -> None:
        """Note the counts of this worker's pass. If there is no room for all, long ones are left out."""
        if (info := get_worker_info()) is None:
            return
        for left_out in ((), _LONG):
            counted = {name: value for name, value in stats.items() if name not in left_out}
            text = json.dumps(counted, separators=(",", ":")).encode()
            if len(text) < _TEXT_BYTES // info.num_workers:
                self._write(info.id, text)
                return

    def read(self) -> list[dict[str, Any]]:
        """Return the counts of each worker in the latest pass."""
        stats, size = [], _TEXT_BYTES // max(1, self.memory.workers)
        for worker in range(self.memory.workers):
            part = bytes(self.memory.texts[worker * size : (worker + 1) * size])
            with suppress(ValueError):  # the worker has noted nothing yet, or is writing
                items, tokens, seconds = self.memory.totals[worker]
                totals = {"items": int(items), "tokens": int(tokens), "seconds": seconds}
                stats.append(json.loads(part.partition(b"\0")[0]) | totals)
        return stats

    def _write(self, worker: int, text: bytes) -> None:
        begin = worker * (_TEXT_BYTES // self.memory.workers)
        memoryview(self.memory.texts).cast("B")[begin : begin + len(text) + 1] = text + b"\0"
