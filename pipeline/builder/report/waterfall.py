"""The waterfall of a build: documents read, removed or added by what, and kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .stats import BuildStats, Change


class Row(NamedTuple):
    """One row: ``documents`` is negative where they were removed, positive where a transform added them."""

    what: str
    documents: int
    share: float  # of the documents read
    left_share: float  # of the documents read, those left after this row
    tokens: int
    is_change: bool = True
    is_exact: bool = False  # whether the tokens are counted, and not estimated from characters


def waterfall(stats: BuildStats, changes: Iterable[Change]) -> list[Row]:
    """Return a row for the input, for everything that removed or added documents or text, and for what is kept."""
    read, tokens_each = max(1, stats.read), stats.tokens / max(1, stats.kept_characters)
    left = stats.read
    tokens = round(stats.characters * tokens_each)
    rows = [Row("documents read", left, left / read, left / read, tokens, is_change=False)]
    for what, documents, characters in changes:
        left -= documents
        rows.append(Row(what, -documents, documents / read, left / read, round(-characters * tokens_each)))
    kept = Row(
        "documents kept", stats.kept, stats.kept / read, left / read, stats.tokens, is_change=False, is_exact=True
    )
    return [*rows, kept]
