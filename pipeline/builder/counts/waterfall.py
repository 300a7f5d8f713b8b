"""The waterfall of a build: documents read, removed or added by what, and kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .stats import BuildStats, Change


class Row(NamedTuple):
    """One row: ``documents`` is negative where they were removed, positive where a transform added them."""

    what: str
    documents: int
    share: float  # of the documents read or added
    left_share: float  # of the documents read or added, those left after this row
    tokens: int
    is_change: bool = True
    is_exact: bool = False  # whether the tokens are counted, and not estimated from characters


def waterfall(stats: BuildStats, changes: Iterable[Change]) -> list[Row]:
    """Return a row for the input, for everything that removed or added documents or text, and for what is kept."""
    tokens_per_character = stats.tokens / max(1, stats.kept_characters)
    left, every = stats.read, max(1, stats.read + sum(stats.added.values()))
    tokens = round(stats.characters * tokens_per_character)
    rows = [Row("documents read", left, left / every, left / every, tokens, is_change=False)]
    for what, documents, characters in changes:
        left -= documents
        tokens = round(-characters * tokens_per_character)
        rows.append(Row(what, -documents, abs(documents) / every, left / every, tokens))
    kept = Row(
        "documents kept", stats.kept, stats.kept / every, left / every, stats.tokens, is_change=False, is_exact=True
    )
    return [*rows, kept]
