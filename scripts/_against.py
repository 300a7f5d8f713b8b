"""Compare the present tree with another commit: its worktree, and a table of ratios. Used by the benches' ``--against``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts._report import Report

ROOT = Path(__file__).resolve().parents[1]
HEADS = ("", "unit", "before", "now", "now / before", "of rounds")


@contextmanager
def worktree(revision: str, repository: Path = ROOT) -> Iterator[Path]:
    """Give a git worktree of a commit in a temporary directory, and remove it when the block ends.

    Raises ``SystemExit`` with git's message where there is no such commit.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        tree = Path(folder, "tree")
        _git(repository, "worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which a child imports the library of that tree; its modules are compiled only once."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(tree)}


def _git(repository: Path, *arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity, measured in turn in the tree before and in the present one; of rounds that lack it, None."""

    name: str
    unit: str
    before: Sequence[float | None]
    now: Sequence[float | None]

    @property
    def ratios(self) -> list[float]:
        """The present value through the one before it, of each round that has both."""
        return [b / a for a, b in zip(self.before, self.now, strict=True) if a and b is not None]

    def as_json(self) -> dict[str, Any]:
        """Return the medians, and the median, smallest and largest ratio of rounds; None where a tree lacks it."""
        ratios = self.ratios
        return {
            "name": self.name,
            "unit": self.unit,
            "before": _median(self.before),
            "now": _median(self.now),
            "ratio": statistics.median(ratios) if ratios else None,
            "ratios": [min(ratios), max(ratios)] if ratios else None,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table whose heads are `HEADS`."""
        found = self.as_json()
        values = tuple("-" if found[key] is None else f"{found[key]:,.4g}" for key in ("before", "now"))
        if found["ratio"] is None:
            return (self.name, self.unit, *values, "-", "-")
        low, high = found["ratios"]
        return (self.name, self.unit, *values, f"{found['ratio']:.3f}", f"{low:.3f} to {high:.3f}")


def compare(
    rounds: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], units: Mapping[str, str]
) -> list[Comparison]:
    """Return a comparison of each name that any round has, in the order of ``units``.

    >>> (one,) = compare([({"build": 4.0}, {"build": 5.0}), ({"build": 2.0}, {"build": 2.0})], {"build": "s"})
    >>> one.cells()
    ('build', 's', '3', '3.5', '1.125', '1.000 to 1.250')
    """
    return [
        Comparison(name, unit, [a.get(name) for a, _ in rounds], [b.get(name) for _, b in rounds])
        for name, unit in units.items()
        if any(name in each for pair in rounds for each in pair)
    ]


def show(found: Mapping[str, Any], notes: Sequence[str], *, as_json: bool) -> None:
    """Print ``found``, whose "comparisons" are a table, with notes below it; or all of it as one JSON object."""
    comparisons: Sequence[Comparison] = found["comparisons"]
    if as_json:
        print(json.dumps({**found, "comparisons": [each.as_json() for each in comparisons]}, indent=2))
        return
    report = Report()
    report.table(f"This tree against {found['against']}, medians", HEADS, [each.cells() for each in comparisons])
    for note in notes:
        report.note(note)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
