"""All transforms of a build in order, applied to a batch of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        batch = _Batch(documents)
        for transform in self.transforms:
            batch.apply(transform, counts)
        return batch.judged()


class _Batch:
    """The documents of a batch between transforms: which record each came from, and why it is dropped, if it is."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = list(documents)
        self._records = list(range(len(documents)))
        self._drops: list[tuple[str, str] | None] = [None] * len(documents)
        self._left = list(self._records)  # numbers of those not dropped

    def apply(self, transform: Transform, counts: Counts) -> None:
        left = self._left
        if not left:
            return
        decisions = transform([self._documents[k] for k in left], counts)
        several: dict[int, list[Document]] = {}
        for k, decision in zip(left, decisions, strict=True):
            if type(decision) is Drop:
                self._drops[k] = decision.rule or transform.name, decision.reason
            elif type(decision) is list:
                several[k] = decision
                counts.add("added", transform.name, number=len(decision) - 1)
        if several:
            self._insert(several)
        self._left = [k for k in (range(len(self._drops)) if several else left) if self._drops[k] is None]

    def _insert(self, several: Mapping[int, list[Document]]) -> None:
        """Put several documents in the place of one."""
        documents, records, drops = self._documents, self._records, self._drops
        self._documents, self._records, self._drops = [], [], []
        for k, document in enumerate(documents):
            parts = several.get(k, [document])
            self._documents += parts
            self._records += [records[k]] * len(parts)
            self._drops += [drops[k]] * len(parts)

    def judged(self) -> list[Judged]:
        empty = EMPTY.rule, EMPTY.reason
        passed = PASSED, None
        results = []
        for document, record, drop in zip(self._documents, self._records, self._drops, strict=True):
            if drop is None and is_empty(document):
                drop = empty
            results.append(Judged(document, record, document.language or _UNKNOWN, *(drop or passed)))
        return results
