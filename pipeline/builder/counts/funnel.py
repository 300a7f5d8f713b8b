"""The funnel of a build: documents read, removed or added by what, and kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .build_stats import BuildStats, Change


class Row(NamedTuple):
    """One row: ``documents`` is negative where they were removed, positive where a transform added them."""

    what: str
    documents: int
    share: float  # of the documents read or added
    left_share: float  # of the documents read or added, those left after this row
    tokens: int
    is_change: bool = True
    is_exact: bool = False  # whether the tokens are counted, and not estimated from characters


def funnel(stats: BuildStats, changes: Iterable[Change]) -> list[Row]:
    """Return a row for the input, for everything that removed or added documents or text, and for what is kept.

    Documents and tokens of all rows but the last add up to those of the last.
    """
    left, every = stats.read, max(1, stats.read + sum(stats.added.values()))
    characters = stats.characters
    listed = [*changes]
    # What normalising, cleaners and the user's transforms made of texts has no count of its own: it is what is left over.
    if edited := characters - sum(change.characters for change in listed) - stats.kept_characters:
        listed.append(Change("text cut from documents" if edited > 0 else "text added to documents", 0, edited))

    def tokens_of(characters: int) -> int:
        return round(characters * stats.tokens / max(1, stats.kept_characters))

    rows = [Row("documents read", left, left / every, left / every, tokens_of(characters), is_change=False)]
    for what, documents, removed in listed:
        left, before, characters = left - documents, tokens_of(characters), characters - removed
        rows.append(Row(what, -documents, abs(documents) / every, left / every, tokens_of(characters) - before))
    kept = Row(
        "documents kept", stats.kept, stats.kept / every, left / every, stats.tokens, is_change=False, is_exact=True
    )
    return [*rows, kept]
