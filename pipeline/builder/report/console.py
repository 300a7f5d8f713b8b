"""Progress of a build: a bar with rate and time left on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ...shards.manifest import Manifest
from .stats import BuildStats, descending
from .types import DamagedFile
from .waterfall import Row

_LINE_SECONDS = 5.0


class Progress:
    """Shows progress on stderr; ``quiet`` shows nothing."""

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

    def table(self, manifest: Manifest, rows: Sequence[Row], seconds: Mapping[str, float]) -> None:
        """Print the waterfall of documents: how many were read, dropped by what, and kept."""
        if self.quiet:
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        counts = BuildStats.from_json(manifest.counts)
        table = Table(box=None, show_header=False)
        table.add_column(justify="right")
        table.add_column(justify="right")
        table.add_column()
        records = max(1, counts.read + sum(counts.bad.values()))
        for reason, number in descending(counts.bad):
            table.add_row(f"{number:,}", f"{number / records:.1%}", f"unreadable: {reason}")
        for row in rows:
            table.add_row(f"{row.documents:,}", f"{row.share:.1%}", row.what)
        for name, split in manifest.splits.items():
            table.add_row(
                "", "", f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, {_shards(len(split.shards))}"
            )
        if counts.kept == 0:
            table.add_row("", "", Text("warning: no document was kept; the dataset is complete and empty", "red"))
        if damaged := counts.damaged:
            table.add_row("", "", Text(f"warning: {damage_said(damaged)}; report.html names them", "red"))
        for note in counts.notes:
            table.add_row("", "", Text(f"warning: {note}", "red"))
        rate = counts.read / max(1e-9, seconds["total"])
        size = counts.characters / 1e6 / max(1e-9, seconds["total"])
        spent = f"{seconds['total']:.1f} s, {seconds.get('start', 0):.1f} s of it to start workers and compile"
        table.add_row("", "", spent)
        table.add_row("", "", f"{rate:,.0f} documents/s, {size:.1f} M characters/s")
        Console(stderr=True, highlight=False).print(table)


def _shards(count: int) -> str:
    return f"{count:,} shard{'s' * (count != 1)}"


def damage_said(damaged: Sequence[DamagedFile]) -> str:
    """Say how many files are damaged and how many documents came out of them before that was known.

    >>> damage_said([{"unconfirmed": 1200}, {"unconfirmed": 0}])
    '2 damaged files were not read to their end, and 1,200 documents read before that may be altered'
    """
    files, documents = len(damaged), sum(each["unconfirmed"] for each in damaged)
    said = (
        f"{files:,} damaged file{' was' if files == 1 else 's were'} not read to {'its' if files == 1 else 'their'} end"
    )
    return f"{said}, and {documents:,} document{'s' * (documents != 1)} read before that may be altered"
