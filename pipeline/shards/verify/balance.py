"""The balance of documents in the counts of a build: those read or added are dropped, duplicates or kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NEEDED = {"read", "dropped", "duplicates", "kept"}


def imbalances(counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for every sum that does not add up: of all documents, of each source, of each language.

    A group that lacks one of ``read``, ``dropped``, ``duplicates`` and ``kept`` is not checked.

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
    """Return a number, or the sum of numbers by name."""
    return count if isinstance(count, int) else sum(count.values())
