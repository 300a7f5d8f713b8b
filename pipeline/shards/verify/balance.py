"""The balance of documents in the counts of a build: each document read or added is dropped, a duplicate or kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NEEDED = {"read", "dropped", "duplicates", "kept"}


def imbalances(counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for every wrong sum: over all documents, over each source, over each language.

    Nothing is checked if ``read``, ``dropped``, ``duplicates`` or ``kept`` is missing.

    >>> counts = {"read": 2, "added": {"halves": 1}, "dropped": {"words": 1}, "duplicates": {}, "kept": 2}
    >>> list(imbalances(counts)), *imbalances({**counts, "added": {}})
    ([], '2 documents were read and 0 added, but 1 dropped, 0 duplicates and 2 kept make 3')
    """
    if not counts.keys() >= _NEEDED:
        return
    groups = [("", counts)]
    for kind in ("source", "language"):
        groups += [(f" of {kind} {name!r}", group) for name, group in counts.get(f"by_{kind}", {}).items()]
    for of, group in groups:
        read, added, dropped, duplicates, kept = (
            _total(group.get(name, 0)) for name in ("read", "added", "dropped", "duplicates", "kept")
        )
        if read + added != dropped + duplicates + kept:
            yield (
                f"{read} documents{of} were read and {added} added, but {dropped} dropped, {duplicates} duplicates "
                f"and {kept} kept make {dropped + duplicates + kept}"
            )


def _total(count: int | Mapping[str, int]) -> int:
    """Return the number, or the sum of the numbers by name."""
    return count if isinstance(count, int) else sum(count.values())
