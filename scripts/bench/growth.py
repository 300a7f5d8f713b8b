"""What the benches of growth share: a corpus many times over, and the memory of a command with all its processes."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.bench.process import Memory, cpu_seconds, memory

_SECONDS = 0.02  # between two looks at the memory


class Peak(NamedTuple):
    """What a command took.

    ``own`` and ``proportional`` are bytes (`Memory`), summed over its processes at one moment, the largest such sums.
    ``seconds`` are of the clock, ``cpu`` of all processes.
    """

    own: int
    proportional: int
    seconds: float
    cpu: float


class Growth:
    """Prints what one size after the other took, and how that compares to the first and to the one before."""

    def __init__(self) -> None:
        self._shown: list[tuple[int, Peak]] = []

    def show(self, documents: int, kept: int, peak: Peak) -> None:
        print(f"\n{documents:12,d}  documents, {kept / documents:.1%} stay")
        cost = peak.cpu / documents
        if self._shown:
            base, least = self._shown[0]
            print(f"{cost / (least.cpu / base):12.2f}  x the CPU of one of {base:,d} documents")
        for fewer, lower in dict(self._shown[:1] + self._shown[-1:]).items():
            own, whole = (
                (getattr(peak, what) - getattr(lower, what)) / (documents - fewer) for what in Peak._fields[:2]
            )
            print(f"{own:12.1f}  bytes of memory for each document over {fewer:,d}; proportional {whole:.1f}")
        print(f"{cost * 1e6:12.1f}  microseconds of CPU a document; {peak.seconds:,.1f} s in all, with the start")
        print(
            f"{peak.own / 1e6:12,.0f}  MB that the kernel cannot drop, {peak.proportional / 1e6:,.0f} proportional, all processes"
        )
        self._shown.append((documents, peak))


def watch(command: Sequence[str]) -> Peak:
    """Run a command to its end and return what it took; ``CalledProcessError`` where it fails. Linux only."""
    before, started = cpu_seconds(own=False), time.perf_counter()
    own = proportional = 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            sums = [_memory(pid) for pid in _tree(process.pid)]
            own = max(own, sum(some for some, _ in sums))
            proportional = max(proportional, sum(some for _, some in sums))
            time.sleep(_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return Peak(own, proportional, time.perf_counter() - started, cpu_seconds(own=False) - before)


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from _tree(int(child))
    except OSError:  # it ended meanwhile
        return


def _memory(pid: int) -> Memory:
    try:
        return memory(pid)
    except OSError:  # it has ended
        return Memory(0, 0)


def edit(number: int) -> Callable[[str], str]:
    """Return what makes of a text the one it is in a copy of the corpus: about every fourth word stands there twice.

    Which words depends on the words and the number alone, so that what is a duplicate in the corpus is one in its copy, and
    no text is a near duplicate of its own in another copy. Copy 0 is the corpus.

    >>> edit(1)("one two three four five six") == edit(2)("one two three four five six")
    False
    """
    if number == 0:
        return lambda text: text
    generator = random.Random(number)
    twice = [generator.random() < 0.25 for _ in range(1024)]

    def edited(text: str) -> str:
        kinds = ((word, (31 * ord(word[0]) + 7 * ord(word[-1]) + len(word)) % 1024) for word in text.split())
        return " ".join(f"{word} {word}" if twice[kind] else word for word, kind in kinds)

    return edited
