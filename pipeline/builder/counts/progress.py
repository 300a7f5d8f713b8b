"""Progress of a build: a bar with rate and time left on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINE_SECONDS = 5.0


class Progress:
    """Shows progress on stderr; ``quiet`` shows nothing.

    >>> Progress(quiet=True).on_terminal
    False
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    @property
    def on_terminal(self) -> bool:
        """Whether bars are drawn, not lines printed."""
        return not self.quiet and sys.stderr.isatty()

    def say(self, line: str) -> None:
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, name: str, total: int, *, bytes: bool = False) -> Iterator[Callable[[int], None]]:
        """Give a function to call with how much more is done, out of ``total``; of ``bytes`` the rate is shown."""
        if self.quiet:
            yield lambda amount: None
        elif self.on_terminal:
            yield from self._rich_bar(name, total, bytes)
        else:
            yield from self._lines(name, total, bytes)

    def _rich_bar(self, name: str, total: int, bytes: bool) -> Iterator[Callable[[int], None]]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars
        from rich.progress import TaskProgressColumn as Share

        columns = [TextColumn(f"{name:<16}"), BarColumn(), Share(), TimeElapsedColumn(), TimeRemainingColumn()]
        columns += [TransferSpeedColumn()] if bytes else []
        with Bars(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(name, total=total)
            yield lambda amount: bars.advance(task, amount)

    def _lines(self, name: str, total: int, bytes: bool) -> Iterator[Callable[[int], None]]:
        started = said = time.monotonic()
        done = 0

        def advance(amount: int) -> None:
            nonlocal done, said
            done += amount
            now = time.monotonic()
            if now - said > _LINE_SECONDS:
                said = now
                left = (now - started) * (total - done) / max(1, done)
                rate = f", {done / 1e6 / (now - started):.1f} MB/s" if bytes else ""
                self.say(f"{name}: {done / max(1, total):.0%}{rate}, {left:.0f} s left")

        yield advance
        self.say(f"{name}: done in {time.monotonic() - started:.1f} s")
