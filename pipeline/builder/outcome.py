"""The outcomes of the documents that passed the filters.

A document that the filters drop has the name of a rule as its outcome, and reaches no later stage. What later stages say of
the others is a number in arrays. All but the first three are those of stages that drop documents after dedup, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT, EXACT, NEAR, DROP_IDS, MAX_TOKENS = range(5)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why a document is in the dataset or not: ``key`` in counts, ``title`` above samples, ``reason`` in rejected.jsonl."""

    key: str
    title: str
    reason: str = ""


OUTCOMES = (
    Outcome("kept", "kept"),
    Outcome("exact", "exact duplicates", "exact duplicate"),
    Outcome("near", "near duplicates", "near duplicate"),
    Outcome("drop_ids", "drop_ids", "its id is in the list of drop_ids"),
    Outcome("max_tokens", "max_tokens", "max_tokens of its source reached"),
)
"""By number. The reason of a duplicate goes on with the document that is kept in its place."""

DUPLICATES = tuple(OUTCOMES[number].key for number in (EXACT, NEAR))
