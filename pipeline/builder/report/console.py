"""The closing table of a build, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...shards.manifest import Manifest
from ..counts.counts import descending
from ..counts.stats import BuildStats
from ..counts.types import DamagedFile
from ..counts.waterfall import Row


def print_table(manifest: Manifest, rows: Sequence[Row], seconds: Mapping[str, float]) -> None:
    """Print the waterfall of documents on stderr: how many were read, dropped by what, and kept."""
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
