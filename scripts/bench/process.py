"""Measures processes: CPU time, memory, and bytes read from the disk. Linux only."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_SECONDS = 0.02  # between two measurements of the memory


class Peak(NamedTuple):
    """The cost of a command: the most bytes of its processes at one moment, wall seconds, and CPU seconds."""

    memory: int
    seconds: float
    cpu: float


def cpu_seconds(*, own: bool) -> float:
    """Return the CPU seconds of the ended children of this process; with ``own``, add those of this process."""
    used = [resource.getrusage(who) for who in [resource.RUSAGE_CHILDREN, *[resource.RUSAGE_SELF] * own]]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including ended ones."""
    ticks = 0
    for member in _tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pid: int | None = None) -> int:
    """Return the bytes of a process and its descendants that the kernel cannot drop: anonymous and shared memory.

    A page that n processes share counts as 1/n in each.
    """
    return sum(map(_memory, _tree(pid or os.getpid())))


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from _tree(int(child))
    except OSError:  # it ended meanwhile
        return


def _memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(size) for size in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB", text, re.M))


def watch(command: Sequence[str]) -> Peak:
    """Run a command and return its cost. Raises ``CalledProcessError`` if it fails."""
    before, started, most = cpu_seconds(own=False), time.perf_counter(), 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            most = max(most, memory(process.pid))
            time.sleep(_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return Peak(most, time.perf_counter() - started, cpu_seconds(own=False) - before)


def bytes_read() -> int:
    """Return the bytes that this process has read from the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
