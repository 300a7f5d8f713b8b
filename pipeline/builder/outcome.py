"""The outcomes of the documents that passed the filters: why a document is in the dataset or not.

A document that the filters drop has the name of a rule as its outcome, and reaches no later stage. Dedup has the outcomes
below. Each stage that drops documents after dedup declares its own outcome as ``Stage.drops``.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT, EXACT, NEAR = range(3)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``key`` is its name in counts, ``reason`` what rejected.jsonl says, ``title`` what is written above its samples."""

    key: str
    reason: str = ""
    title: str = ""


OF_DEDUP = (
    Outcome("kept", "", "kept"),
    Outcome("exact", "exact duplicate", "exact duplicates"),
    Outcome("near", "near duplicate", "near duplicates"),
)
"""By number. The reason of a duplicate goes on with the document that is kept in its place."""

DUPLICATES = tuple(OF_DEDUP[number].key for number in (EXACT, NEAR))
