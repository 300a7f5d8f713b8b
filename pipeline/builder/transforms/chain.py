"""Applies the transforms of a build to documents, in order: the built-in ones and the user's.

A new built-in transform is a class in transform.py, a line in `BUILT_IN`, and a name in `STEPS` of order.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from filters.language.identifier import UNDETERMINED, Language, LanguageIdentifier, parse_languages

from ...text.document import Document
from ...text.judging import EMPTY, Drop, is_empty
from ..counts.sums import PASSED, Counts
from ..recipe import Recipe
from .order import transform_order
from .references import References
from .score_table import JoinScores
from .transform import ApplyRules, Clean, IdentifyLanguage, Normalize, Transform
from .user import UserTransform

_UNKNOWN = Language(UNDETERMINED, 0.0, "")


@dataclass(slots=True)
class ProcessedDocument:
    """A document between and after the transforms. ``record`` is the number of its record in the batch.

    If it is dropped, ``outcome`` is the name of a rule or a transform, and ``reason`` says why; else they are '' and None.
    """

    document: Document
    record: int
    outcome: str = PASSED
    reason: str | None = None

    @property
    def language(self) -> Language:
        return self.document.language or _UNKNOWN


class Chain:
    """The transforms of a build, loaded once in each process."""

    def __init__(self, recipe: Recipe, references: References) -> None:
        self._transforms: list[Transform] = [JoinScores(references.scores)] if references.scores else []
        for name in transform_order(recipe):
            if name in references.user_functions:
                function = references.user_functions[name]
                self._transforms.append(UserTransform(function.name, function.load()))
            elif (built_in := BUILT_IN[name](recipe, references)) is not None:
                self._transforms.append(built_in)

    def prepare(self) -> None:
        """Load models and compiled kernels, before worker processes are forked."""
        for transform in self._transforms:
            transform.prepare()

    def process(self, documents: Sequence[Document], counts: Counts) -> list[ProcessedDocument]:
        """Apply every transform to documents, which are edited in place; return them in order, the dropped ones too.

        Each transform runs over the whole batch, so that its tables stay in the processor's caches. A dropped document
        reaches no later transform.
        """
        every = [ProcessedDocument(document, record) for record, document in enumerate(documents)]
        for transform in self._transforms:
            every = _apply(transform, every, counts)
        for processed in every:
            if processed.reason is None and is_empty(processed.document):
                processed.outcome, processed.reason = EMPTY.rule, EMPTY.reason
        return every


def _apply(transform: Transform, every: list[ProcessedDocument], counts: Counts) -> list[ProcessedDocument]:
    """Apply a transform to the documents not yet dropped; return all. Parts replace a document that became several."""
    left = [processed for processed in every if processed.reason is None]
    if not left:
        return every
    parts: dict[int, list[ProcessedDocument]] = {}
    decisions = transform([processed.document for processed in left], counts)
    for processed, decision in zip(left, decisions, strict=True):
        if type(decision) is Drop:
            processed.outcome, processed.reason = decision.rule or transform.name, decision.reason
        elif type(decision) is list:
            parts[id(processed)] = [ProcessedDocument(document, processed.record) for document in decision]
            counts.add("added", transform.name, number=len(decision) - 1)
    return [part for processed in every for part in parts.get(id(processed), [processed])] if parts else every


BUILT_IN: Mapping[str, Callable[[Recipe, References], Transform | None]] = {
    "normalize": lambda recipe, references: Normalize() if recipe.normalize else None,
    "clean": lambda recipe, references: (
        Clean(references.rules, normalized=_is_normalized(recipe)) if references.rules.cleaners else None
    ),
    "language": lambda recipe, references: IdentifyLanguage(
        LanguageIdentifier(references.language_model.path), parse_languages(recipe.language, recipe.language_threshold)
    ),
    "rules": lambda recipe, references: ApplyRules(references.rules),
    "decontaminate": lambda recipe, references: None,  # a stage, after all transforms
}
"""Each function returns its transform, or None if the recipe does not ask for it."""


def _is_normalized(recipe: Recipe) -> bool:
    """Whether texts are normalised before they are cleaned."""
    order = transform_order(recipe)
    return recipe.normalize and "normalize" in order[: order.index("clean")]
