"""The outcomes of the documents that passed the filters: why a document is in the dataset or not.

If a rule drops a document, the name of the rule is its outcome, and the document reaches no later stage. Dedup has the outcomes
below. Each stage that drops documents after dedup declares its own outcome as ``Stage.drops``.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT, EXACT, NEAR = range(3)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``key`` is the outcome's name in counts, ``reason`` its text in rejected.jsonl, ``title`` the heading of its samples."""

    key: str
    reason: str = ""
    title: str = ""


OF_DEDUP = (
    Outcome("kept", "", "kept"),
    Outcome("exact", "exact duplicate", "exact duplicates"),
    Outcome("near", "near duplicate", "near duplicates"),
)
"""The outcomes of dedup, by number. The reason of a duplicate goes on with the document that is kept in its place."""

DUPLICATES = tuple(OF_DEDUP[number].key for number in (EXACT, NEAR))
