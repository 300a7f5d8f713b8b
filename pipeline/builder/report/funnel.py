"""The funnel of a build: documents read, what each stage removed or added, documents kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..counts.build_stats import BuildStats
from ..stages.registry import sections
from ..stages.section import Change


class FunnelRow(NamedTuple):
    """A row of the funnel. ``documents`` is negative if it counts removed documents."""

    what: str
    documents: int
    share: float  # of these documents in the documents read or added
    left_share: float  # of the documents left after this row in the documents read or added
    tokens: int
    is_change: bool = True
    is_exact: bool = False  # whether the tokens are counted, not estimated from characters


def funnel(counts: Mapping[str, Any]) -> list[FunnelRow]:
    """Return a row for the input, a row for each change of documents or text, and a row for the kept documents.

    ``counts`` are those of a manifest. The documents and tokens of the last row are the sums of all earlier rows.
    """
    stats = BuildStats.from_json(counts)
    left, every = stats.read, max(1, stats.read + sum(stats.added.values()))
    characters = stats.characters
    listed = [change for section in sections(counts) for change in section.changes]
    # Nothing counts the characters that normalising, cleaners and the user's transforms cut or added: they are the rest.
    if edited := characters - sum(change.characters for change in listed) - stats.kept_characters:
        listed.append(Change("texts edited", 0, edited))

    def tokens_of(characters: int) -> int:
        return round(characters * stats.tokens / max(1, stats.kept_characters))

    rows = [FunnelRow("documents read", left, left / every, left / every, tokens_of(characters), is_change=False)]
    for what, documents, removed in listed:
        left, before, characters = left - documents, tokens_of(characters), characters - removed
        rows.append(FunnelRow(what, -documents, abs(documents) / every, left / every, tokens_of(characters) - before))
    kept = FunnelRow(
        "documents kept", stats.kept, stats.kept / every, left / every, stats.tokens, is_change=False, is_exact=True
    )
    return [*rows, kept]
