"""Whether a text is kept by its language and by rules: the decision that builds and streams share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .normalize import normalize

if TYPE_CHECKING:
    from filters.language.language import Language
    from filters.rules.ruleset import Measured, RuleSet

    from .document import Document


@dataclass(frozen=True, slots=True)
class Drop:
    """Decides that a document is dropped: the ``reason`` is shown with samples of such documents.

    ``rule`` is the name that the report counts it under, by default that of the transform.

    >>> Drop("a blocked host").reason
    'a blocked host'
    """

    reason: str
    rule: str = ""


EMPTY = Drop("empty text", "empty text")


def is_empty(document: Document) -> bool:
    return not document.text or document.text.isspace()


def judge_language(document: Document, language: Language, wanted: Mapping[str, float]) -> Drop | None:
    """Return why a document in this language is dropped: it is empty, or in a language that is not ``wanted``."""
    from filters.language.language import wanted_threshold

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
    """Return what rules measure of documents, whose languages are known if rules read them."""
    from filters.language.language import contexts

    known = contexts([document.language for document in documents])
    if rules.fields:
        known = [context | {"metadata": document.metadata} for context, document in zip(known, documents, strict=True)]
    return rules.measure_all(
        [document.text for document in documents], known, [document.where for document in documents]
    )


def judge_measured(rules: RuleSet, measured: Measured) -> list[Drop | None]:
    """Return why each document that was measured is dropped."""
    violations = rules.judge_all(measured)
    return [None if violation is None else Drop(violation.reason, violation.measure) for violation in violations]


class RuleFilter:
    """A filter of a stream: the rules of a build, and the languages that it keeps, as ``"en,de=0.7"``.

    ``name`` changes with every decision: with the rules, their files and the language model.
    """

    def __init__(self, rules: Any, language: Any) -> None:
        from filters.language.language import LanguageIdentifier, parse_languages
        from filters.rules.named_files import hash_file
        from filters.rules.ruleset import RuleSet, load_rules

        self.rules: RuleSet = rules if isinstance(rules, RuleSet) else load_rules(rules)
        self.wanted = {} if language is None else parse_languages(language)
        if not self.rules and not self.wanted:
            raise ConfigError(
                f"rules={rules!r} and language={language!r} keep everything; name rules, as in rules='gopher'"
            )
        described: list[Any] = [self.rules.describe(), self.wanted]
        self._identifier = None
        if self.wanted or self.rules.reads_language:
            self._identifier = LanguageIdentifier()
            self._identifier.check_known(self.wanted)
            described.append(hash_file(self._identifier.path))
        digest = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=8).hexdigest()
        self.name = f"rules#{digest}"
        self.rules.prepare()  # compiles here, not while rows are waited for

    def __call__(self, documents: Sequence[Document], *, normalized: bool) -> list[Drop | None]:
        """Return why each document is dropped. Rules with a [cut] table edit texts, which ``normalized`` mends again."""
        if self.rules.cleaners:
            for document in documents:
                text, _ = self.rules.cut(document.text, document.where)
                document.text = normalize(text) if normalized else text
        drops: list[Drop | None] = [EMPTY if is_empty(document) else None for document in documents]
        if self._identifier is not None:
            for index, document in enumerate(documents):
                document.language = self._identifier.identify(document.text)
                drops[index] = judge_language(document, document.language, self.wanted)
        left = [index for index, drop in enumerate(drops) if drop is None]
        if left and self.rules.rules:
            judged = judge_measured(self.rules, measure(self.rules, [documents[index] for index in left]))
            for index, drop in zip(left, judged, strict=True):
                drops[index] = drop
        return drops
