"""Decides by language and rules whether a text is kept. Builds and streams share the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filters.language.identifier import Language
    from filters.rules.ruleset import Measured, RuleSet

    from .document import Document


@dataclass(frozen=True, slots=True)
class Drop:
    """Returned by a transform to drop a document: the report shows the ``reason`` with samples.

    ``rule`` is the name under which the report counts such documents, by default that of the transform.

    >>> Drop("a blocked host").reason
    'a blocked host'
    """

    reason: str
    rule: str = ""


EMPTY = Drop("empty text", "empty text")


def is_empty(document: Document) -> bool:
    return not document.text or document.text.isspace()


def judge_language(document: Document, language: Language, wanted: Mapping[str, float]) -> Drop | None:
    """Return why a document is dropped, None if it is kept.

    It is dropped if it is empty, or if its language is not ``wanted`` or not certain enough.
    """
    from filters.language.identifier import wanted_threshold

    if is_empty(document):
        return EMPTY
    if not wanted:
        return None
    threshold = wanted_threshold(dict(wanted), language)
    if threshold is None:
        return Drop(f"language {language.code} is none of {','.join(wanted)}", "language")
    if language.score < threshold:
        return Drop(f"language_score {language.score:.4g} < {threshold:.4g}", "language_score")
    return None


def measure(rules: RuleSet, documents: Sequence[Document]) -> Measured:
    """Return the measures of documents that rules need. If a rule reads languages, they must be identified before."""
    from filters.language.identifier import contexts

    known = contexts([document.language for document in documents])
    if rules.fields:
        known = [context | {"metadata": document.metadata} for context, document in zip(known, documents, strict=True)]
    return rules.measure_all(
        [document.text for document in documents], known, [document.location for document in documents]
    )


def judge_measured(rules: RuleSet, measured: Measured) -> list[Drop | None]:
    """Return for each measured document why it is dropped, or None if it is kept."""
    violations = rules.judge_all(measured)
    return [None if violation is None else Drop(violation.reason, violation.rule) for violation in violations]
