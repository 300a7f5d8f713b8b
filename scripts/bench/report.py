"""How benches print what they found: as tables that Markdown understands, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class Report:
    """Prints tables and notes as they come, or keeps them for one JSON object that `end` prints."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._found: dict[str, list[Any]] = {"tables": [], "notes": []}

    def table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self._as_json:
            cells = [dict(zip(heads, map(value_of, row), strict=True)) for row in rows]
            self._found["tables"].append({"title": title, "rows": cells})
            return
        widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
        print(f"\n{title}\n")
        for row in [heads, ["-" * width for width in widths], *rows]:
            print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")

    def note(self, line: str) -> None:
        if self._as_json:
            self._found["notes"].append(line)
        else:
            print(f"\n{line}")

    def end(self) -> None:
        if self._as_json:
            print(json.dumps(self._found, indent=2))


def value_of(cell: str) -> float | str:
    """Return the number that a cell shows, percent as a share, or else the cell.

    >>> [value_of(cell) for cell in ("1,234", "2.5%", "webdataset")]
    [1234.0, 0.025, 'webdataset']
    """
    try:
        return float(cell[:-1]) / 100 if cell.endswith("%") else float(cell.replace(",", ""))
    except ValueError:
        return cell
