"""What a transform is: it takes documents, and returns for each that it is kept, edited, made several, or dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...text.document import Document
from ...text.judging import Drop
from ..counts.counts import Counts

Decision = Document | Drop | list[Document]
"""A document is kept, as it is or with another text or metadata; or it is dropped; or several take its place."""


class Transform(ABC):
    """One step of the list, made once in each process; ``name`` is its name in the list and in the report."""

    name: str

    @abstractmethod
    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        """Return a decision on each of some documents in input order, which may be edited themselves.

        The decision on a document depends on that document alone. ``counts`` collects what is counted.
        """

    def prepare(self) -> None:  # noqa: B027 - most have nothing to load
        """Load models and compiled kernels, before worker processes are forked."""
