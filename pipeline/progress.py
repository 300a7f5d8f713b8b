"""Progress of long work: on a terminal a bar with rate and time left, otherwise one line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

_SHORT_SECONDS = 2.0  # shorter work prints no line

T = TypeVar("T")


class Progress:
    """Shows progress on stderr; ``quiet`` shows nothing.

    >>> Progress(quiet=True).on_terminal
    False
    """

    line_seconds = 60.0
    """Seconds between lines if no bar can be drawn."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.bytes = 0
        """Bytes counted so far by all bars whose unit is bytes."""

    @property
    def on_terminal(self) -> bool:
        """Whether bars are drawn, instead of lines printed."""
        return not self.quiet and sys.stderr.isatty()

    def say(self, line: str) -> None:
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, name: str, total: int, unit: str = "units") -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the number of further units (bytes, tokens, ...) of ``total`` that are done."""
        show = self._nothing if self.quiet else self._drawn if self.on_terminal else self._lines
        with contextmanager(show)(name, total, unit) as advance:

            def count(amount: int) -> None:
                self.bytes += amount * (unit == "bytes")
                advance(amount)

            yield count

    @contextmanager
    def each(self, name: str, items: Sequence[T], size: Callable[[T], int], unit: str) -> Iterator[Iterator[T]]:
        """Yield an iterator over ``items``. The bar counts ``size(item)`` once the loop is done with an item."""

        def counted() -> Iterator[T]:
            for item in items:
                yield item
                advance(size(item))

        with self.bar(name, sum(map(size, items)), unit) as advance:
            yield counted()

    def _nothing(self, name: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        yield lambda amount: None

    def _drawn(self, name: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.progress import TaskProgressColumn as Share
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(rate_text(task.finished_speed or task.speed or 0.0, unit))

        columns = [TextColumn(f"{name:<16}"), BarColumn(), Share(), TimeElapsedColumn(), TimeRemainingColumn(), Rate()]
        # Text that is printed meanwhile appears above the bar, unless stdout is a file.
        console = Console(stderr=True)
        with Bars(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bars:
            task = bars.add_task(name, total=total)
            yield lambda amount: bars.advance(task, amount)

    def _lines(self, name: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        started = printed = time.monotonic()
        done = 0

        def advance(amount: int) -> None:
            nonlocal done, printed
            done += amount
            now = time.monotonic()
            if now - printed > self.line_seconds:
                printed = now
                left = (now - started) * (total - done) / max(1, done)
                self.say(
                    f"{name}: {done / max(1, total):.0%}, {rate_text(done / (now - started), unit)}, {left:.0f} s left"
                )

        yield advance
        if (seconds := time.monotonic() - started) > _SHORT_SECONDS:
            self.say(f"{name}: done in {seconds:.1f} s")


def rate_text(rate: float, unit: str) -> str:
    """Return a rate as text.

    >>> rate_text(2_500_000, "bytes"), rate_text(2_500_000, "tokens"), rate_text(12.3, "units")
    ('2.5 MB/s', '2.5 M tokens/s', '12 units/s')
    """
    if unit == "bytes":
        return f"{rate / 1e6:.1f} MB/s"
    return f"{rate / 1e6:.1f} M {unit}/s" if rate >= 1e6 else f"{rate:,.0f} {unit}/s"
