"""The outcomes of the documents that passed the filters.

A document that the filters drop has the name of a rule as its outcome, and reaches no later stage. What later stages say of
the others is a number in arrays, which the plan names: `Plan.outcomes`. Every number but these three is that of a stage that
drops documents, and those documents count as dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT, EXACT, NEAR = range(3)  # the numbers that are the same in all builds: what dedup writes


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
)
"""By number. The reason of a duplicate goes on with the document that is kept in its place."""

DUPLICATES = tuple(OUTCOMES[number].key for number in (EXACT, NEAR))
