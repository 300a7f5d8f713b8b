"""The base class of transforms, and the built-in ones: normalise, clean, identify the language, judge by rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from filters.language.identifier import LanguageIdentifier
from filters.rules.ruleset import RuleSet

from ...text.document import Document
from ...text.judging import Drop, judge_language, judge_measured, measure
from ...text.normalize import normalize
from ..counts.sums import Bins, Counts, add_histograms

Decision = Document | Drop | list[Document]
"""A transform keeps a document, edited or not; or drops it; or replaces it by several."""


class Transform(ABC):
    """A step of the chain, made once in each process. The recipe and the report know it by its ``name``."""

    name: str

    @abstractmethod
    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        """Return a decision on each document, in input order. The documents may be edited in place.

        The decision on a document depends on that document alone. The transform adds to ``counts``.
        """

    def prepare(self) -> None:  # noqa: B027 - most have nothing to load
        """Load models and compiled kernels, before worker processes are forked."""


class Normalize(Transform):
    """Gives equal texts one spelling."""

    name = "normalize"

    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        for document in documents:
            document.text = normalize(document.text)
        return documents


class Clean(Transform):
    """Applies the cleaners in the [cut] tables of rule files. With ``normalized``, it normalises the result again."""

    name = "clean"

    def __init__(self, rules: RuleSet, *, normalized: bool) -> None:
        self._rules = rules
        self._normalized = normalized

    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        for document in documents:
            text, cut = self._rules.cut(document.text, document.location)
            document.text = normalize(text) if self._normalized else text
            counts.add_all("cut", cut)
        return documents


class IdentifyLanguage(Transform):
    """Identifies the language of each document. Drops empty documents, and documents in no ``wanted`` language."""

    name = "language"

    def __init__(self, identifier: LanguageIdentifier, wanted: Mapping[str, float]) -> None:
        self._identifier = identifier
        self._wanted = dict(wanted)

    def prepare(self) -> None:
        self._identifier.load()

    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        decisions: list[Decision] = []
        for document in documents:
            document.language = self._identifier.identify(document.text)
            decisions.append(judge_language(document, document.language, self._wanted) or document)
        return decisions


class ApplyRules(Transform):
    """Drops documents that break a rule, and counts and samples what the rules measure."""

    name = "rules"

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._bins = Bins(rules.rules)

    def prepare(self) -> None:
        self._rules.prepare()

    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        measured = measure(self._rules, documents)
        drops = judge_measured(self._rules, measured)
        counts.histograms = add_histograms(counts.histograms, self._bins.count(*measured))
        counts.nearest.add(self._rules.rules, documents, measured, drops)
        return [drop or document for document, drop in zip(documents, drops, strict=True)]
