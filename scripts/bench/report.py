"""Prints measurements as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    print(f"\n{title}\n")
    for row in [heads, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |", flush=True)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the ratio ours / theirs of the median round."""
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


def median(values: Sequence[float], digits: int = 0) -> str:
    return f"{statistics.median(values):,.{digits}f}"
