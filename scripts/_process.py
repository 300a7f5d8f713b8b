"""What the system tells of processes: their CPU time, their memory, and what one made the disk read. Linux only."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """Bytes of memory of a process.

    Anonymous memory is what it holds for itself, the part that cannot be dropped; proportional memory (PSS) counts the
    pages of mapped files too, and a page that n processes share as 1/n.
    """

    anonymous: int
    proportional: int


def cpu_seconds(*, own: bool) -> float:
    """Return the CPU seconds of the children of this process that have ended; with ``own``, those of this process too."""
    used = [resource.getrusage(who) for who in [resource.RUSAGE_CHILDREN, *[resource.RUSAGE_SELF] * own]]
    return sum(each.ru_utime + each.ru_stime for each in used)


def memory(pid: int | None = None) -> Memory:
    """Return the memory of a process, this one by default. Raises ``OSError`` for one that has ended."""
    text = Path(f"/proc/{pid or 'self'}/smaps_rollup").read_text()
    found = {name: 1024 * int(size) for name, size in re.findall(r"^(Pss|Pss_Anon): +(\d+) kB", text, re.M)}
    return Memory(found.get("Pss_Anon", 0), found.get("Pss", 0))


def bytes_of_process() -> int:
    """Return how many bytes this process has made the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
