"""Prints the counts of a build on the terminal: at its end, and when a dataset is inspected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...shards.manifest import Manifest
from ..counts.build_stats import BuildStats, DamagedFile
from ..counts.sums import descending
from ..stages.registry import sections
from .funnel import FunnelRow, funnel

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_COLUMNS = 100
_BAR = 20  # columns of the bar that shows the share left
# The mean loss of a smaller validation split moves by some percent from draw to draw.
_FEW_DOCUMENTS, _FEW_TOKENS = 100, 50_000
_SHOWN_SECONDS = 0.02  # stages that take a smaller share are shown as one
_SMALL = 0.002  # rows that take a smaller share are shown as one


def make_page(*, stderr: bool = False) -> Console:
    """Return a console of 100 columns, or of as many as the terminal has."""
    from rich.console import Console

    page = Console(stderr=stderr, highlight=False, emoji=False)
    page.width = min(_COLUMNS, page.width) if page.is_terminal else _COLUMNS
    return page


def make_table(*names: str) -> Table:
    """Return a table whose first column is a name and whose other columns are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for k, name in enumerate(names):
        table.add_column(name, justify="right" if k else "left", overflow="fold")
    return table


def print_counts(page: Console, manifest: Manifest, rows: Sequence[FunnelRow]) -> None:
    """Print the funnel of documents, which only a build has, the splits, and warnings."""
    counts = BuildStats.from_json(manifest.counts)
    most = max((row.tokens for row in rows), default=0)
    rows = [row for row in rows if not row.is_change or row.documents or row.tokens]
    small = [row for row in rows if row.is_change and row.share < _SMALL and abs(row.tokens) <= _SMALL * most]
    if len(small) > 1:
        sums = sum(row.documents for row in small), sum(row.share for row in small)
        one = FunnelRow(f"{len(small)} others", *sums, rows[-1].left_share, sum(row.tokens for row in small))
        rows = [*(row for row in rows[:-1] if row not in small), one, rows[-1]]
    table = make_table("stage", "documents", "share", "tokens")
    table.add_column("left")
    records = max(1, counts.read + sum(counts.bad.values()))
    for reason, number in descending(counts.bad):
        table.add_row(f"unreadable: {reason}", f"{number:,}", f"{number / records:.1%}", "", "")
    for row in rows:
        bar = ("#" if page.options.ascii_only else "█") * round(_BAR * row.left_share)
        tokens = f"{'' if row.is_exact else '~'}{row.tokens:,}"
        table.add_row(row.what, f"{row.documents:,}", f"{row.share:.1%}", tokens, bar)
    splits = make_table("split", "documents", "tokens", "tokens/document", "shards")
    for name, split in manifest.splits.items():
        mean = split.tokens / max(1, split.documents)
        splits.add_row(name, *(f"{n:,.0f}" for n in (split.documents, split.tokens, mean, len(split.shards))))
    page.print(*([table, ""] if table.rows else []), splits, sep="\n")
    more = [line for section in sections(manifest.counts) for line in section.lines]
    warnings = [] if counts.kept or not rows else ["no document was kept; the dataset is complete and empty"]
    warnings += [f"{damage_text(counts.damaged)}; report.html names them"] if counts.damaged else []
    warnings += counts.notes
    val = manifest.splits.get("val")
    if val is not None and val.documents and (val.documents < _FEW_DOCUMENTS or val.tokens < _FEW_TOKENS):
        warnings.append(
            f"validation holds {val.documents:,} documents of {val.tokens:,} tokens: below {_FEW_DOCUMENTS} documents or "
            f"{_FEW_TOKENS:,} tokens its loss says little; raise --val-fraction"
        )
    if more or warnings:
        page.print("", *more, sep="\n", markup=False)
    for warning in warnings:
        page.print(f"warning: {warning}", style="red", markup=False, soft_wrap=True)


def print_table(manifest: Manifest, seconds: Mapping[str, float]) -> None:
    """Print on stderr the counts of a build and its times."""
    counts, total = manifest.counts, max(1e-9, seconds["total"])
    page = make_page(stderr=True)
    print_counts(page, manifest, funnel(counts))
    page.print(f"\n{seconds['total']:.1f} s: {times_text(seconds)}", soft_wrap=True)
    page.print(f"{counts['read'] / total:,.0f} documents/s, {counts['characters'] / 1e6 / total:.1f} M characters/s")


def times_text(seconds: Mapping[str, float]) -> str:
    """Return how long the stages took, the longest first.

    >>> times_text({"ingest": 60.0, "start": 2.2, "train_tokenizer": 180.0, "finish": 0.5, "total": 242.7})
    'train tokenizer 180.0, ingest 60.0, others 2.7'
    """
    stages = {name.replace("_", " "): took for name, took in seconds.items() if name != "total"}
    stages["starting workers"] = stages.pop("start", 0.0)
    shown = {name: took for name, took in stages.items() if took >= _SHOWN_SECONDS * seconds["total"]}
    parts = [f"{name} {shown[name]:.1f}" for name in sorted(shown, key=shown.__getitem__, reverse=True)]
    others = sum(stages.values()) - sum(shown.values())
    return ", ".join([*parts, f"others {others:.1f}"] if others >= 0.05 else parts)


def damage_text(damaged: Sequence[DamagedFile]) -> str:
    """Return how many files are damaged, and how many documents were read from them before the damage showed.

    >>> damage_text([{"unconfirmed": 1200}, {"unconfirmed": 0}])
    '2 damaged files were not read to their end, and 1,200 documents read before that may be altered'
    >>> damage_text([{"unconfirmed": 0}])
    '1 damaged file was not read to its end, and 0 documents read before that may be altered'
    >>> damage_text([{"unconfirmed": 1}])
    '1 damaged file was not read to its end, and 1 document read before that may be altered'
    """
    documents, plural = sum(file["unconfirmed"] for file in damaged), len(damaged) != 1
    files = "damaged files were not read to their end" if plural else "damaged file was not read to its end"
    return (
        f"{len(damaged):,} {files}, and {documents:,} document{'s' * (documents != 1)} read before that may be altered"
    )
