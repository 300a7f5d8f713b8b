"""All transforms of a build in order, applied to a batch of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from filters.language.language import UNDETERMINED, Language

from ...text.document import Document
from ...text.judging import EMPTY, Drop, is_empty
from ..counts.counts import PASSED, Counts
from ..recipe import Recipe
from .registry import Parts, make_transforms
from .transform import Transform

_UNKNOWN = Language(UNDETERMINED, 0.0, "")


class Judged(NamedTuple):
    """A document after the transforms. ``record`` is the number of its record in the batch.

    ``outcome``, the name of a rule or a transform, and ``reason`` say why it is dropped; '' and None: it is kept.
    """

    document: Document
    record: int
    language: Language
    outcome: str
    reason: str | None


@dataclass(slots=True)
class _Item:
    """A document between transforms: which record it came from, and why it is dropped, if it is."""

    document: Document
    record: int
    drop: tuple[str, str] | None = None


class Chain:
    """The transforms of a build, loaded once in each process."""

    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        self.transforms = make_transforms(recipe, parts)

    def prepare(self) -> None:
        """Load models and compiled kernels, before worker processes are forked."""
        for transform in self.transforms:
            transform.prepare()

    def judge(self, documents: Sequence[Document], counts: Counts) -> list[Judged]:
        """Apply every transform to documents, whose texts are edited; return all of them in order, those dropped too.

        Each transform runs over the whole batch, so that its tables stay in the processor's caches. A document that one
        drops is not given to those after it.
        """
        items = [_Item(document, record) for record, document in enumerate(documents)]
        for transform in self.transforms:
            items = _apply(transform, items, counts)
        for item in items:
            if item.drop is None and is_empty(item.document):
                item.drop = EMPTY.rule, EMPTY.reason
        return [
            Judged(item.document, item.record, item.document.language or _UNKNOWN, *(item.drop or (PASSED, None)))
            for item in items
        ]


def _apply(transform: Transform, items: list[_Item], counts: Counts) -> list[_Item]:
    """Apply a transform to the documents that are left; return all, with several in the place of one that became several."""
    left = [item for item in items if item.drop is None]
    if not left:
        return items
    parts: dict[int, list[_Item]] = {}
    for item, decision in zip(left, transform([item.document for item in left], counts), strict=True):
        if type(decision) is Drop:
            item.drop = decision.rule or transform.name, decision.reason
        elif type(decision) is list:
            parts[id(item)] = [_Item(document, item.record) for document in decision]
            counts.add("added", transform.name, number=len(decision) - 1)
    return [part for item in items for part in parts.get(id(item), [item])] if parts else items
