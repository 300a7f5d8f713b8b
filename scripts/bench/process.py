"""What the system says of processes: their CPU time, their memory, and what one made the disk read. Linux only."""

from __future__ import annotations

import multiprocessing
import re
import resource
from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """Bytes of memory of a process.

    ``own`` is what the kernel cannot drop: anonymous and shared memory. ``proportional`` (PSS) counts the pages of mapped
    files too. A page that n processes share counts as 1/n in both.
    """

    own: int
    proportional: int


def cpu_seconds(*, own: bool) -> float:
    """Return the CPU seconds of the children of this process that have ended; with ``own``, those of this process too."""
    used = [resource.getrusage(who) for who in [resource.RUSAGE_CHILDREN, *[resource.RUSAGE_SELF] * own]]
    return sum(each.ru_utime + each.ru_stime for each in used)


def memory(pid: int | None = None) -> Memory:
    """Return the memory of a process, this one by default. Raises ``OSError`` for one that has ended."""
    text = Path(f"/proc/{pid or 'self'}/smaps_rollup").read_text()
    sizes = {name: 1024 * int(size) for name, size in re.findall(r"^(Pss\w*): +(\d+) kB", text, re.M)}
    return Memory(sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0), sizes.get("Pss", 0))


def memory_with_workers() -> Memory:
    """Return the memory of this process and of those that it started by multiprocessing."""
    pids = [None, *(child.pid for child in multiprocessing.active_children())]
    own, proportional = zip(*map(memory, pids), strict=True)
    return Memory(sum(own), sum(proportional))


def bytes_read() -> int:
    """Return how many bytes this process has made the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
