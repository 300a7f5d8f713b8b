"""The outcome of a document that passed the filters."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """Why a document is in the dataset or not; a number in arrays, and a key in counts.

    A document that the filters drop has the name of the rule as its outcome, and reaches no later stage.
    """

    KEPT = 0
    EXACT = 1  # duplicate
    NEAR = 2  # duplicate
    OVER_QUOTA = 3

    @property
    def key(self) -> str:
        return ("kept", "exact", "near", "max_tokens")[self]

    @property
    def title(self) -> str:
        """Its name above samples."""
        return ("kept", "exact duplicates", "near duplicates", "max_tokens")[self]
