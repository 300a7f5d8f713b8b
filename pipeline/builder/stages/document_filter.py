"""Decides which documents pass: normalise, cut, identify the language, measure, decontaminate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from filters.language.language import Language, LanguageIdentifier, parse_languages, wanted_threshold
from filters.rules.ruleset import RuleSet

from ...text.normalize import normalize_all
from ...text.readers.reader import Document
from ..dedup.minhash import MinHasher
from ..dedup.segments import passage_finder
from ..plan import Plan
from ..recipe import Recipe
from ..references import References
from ..report.stats import PASSED, PartitionCounts


class Judged(NamedTuple):
    """A document as it will be kept. ``outcome``, a rule's name, and ``reason`` say why it is not; '' and None: it passes."""

    text: str
    language: Language
    outcome: str
    reason: str | None


class DocumentFilter:
    """Everything that judging documents needs, loaded once in each process."""

    def __init__(self, plan: Plan, references: References) -> None:
        recipe = plan.recipe
        self.plan = plan
        self.rules: RuleSet = references.rules
        self.identifier = LanguageIdentifier(references.language_model.path)
        self.wanted = parse_languages(recipe.language, recipe.language_threshold)
        self.hasher = make_hasher(recipe)
        self.find_passages = passage_finder(recipe.passage_kinds, recipe.shortest_passage)
        self.decontaminator = references.evaluation

    def judge(self, documents: Sequence[Document], starts: Sequence[int], counts: PartitionCounts) -> list[Judged]:
        """Normalise, cut, identify, measure, in this order; the first reason to drop a document ends it.

        ``starts`` are those of the spans that the documents were read from.

        Step by step over the batch: each step has tables of its own, which another between two documents would push
        out of the processor's caches.
        """
        texts = [document.text for document in documents]
        where = [functools.partial(each.where, start) for each, start in zip(documents, starts, strict=True)]
        if self.plan.recipe.normalize:
            texts = normalize_all(texts)
        if self.rules.cutters:
            texts = [self._cut(text, place, counts) for text, place in zip(texts, where, strict=True)]
        languages = self.identifier.identify_all(texts)
        judged = [Judged(*pair, *self._judge(*pair)) for pair in zip(texts, languages, strict=True)]
        left = [k for k, each in enumerate(judged) if each.reason is None]
        known = [languages[k].context() for k in left]
        measured = self.rules.measure_all([texts[k] for k in left], known, [where[k] for k in left])
        counts.histograms.add(*measured)
        for k, verdict in zip(left, self.rules.judge_all(measured), strict=True):
            if verdict is not None:
                judged[k] = Judged(texts[k], languages[k], verdict.measure, verdict.reason)
        if self.decontaminator is not None:
            passed = [k for k in left if judged[k].reason is None]
            overlaps = self.decontaminator.overlaps([texts[k] for k in passed])
            for k, (overlap, name) in zip(passed, overlaps, strict=True):
                if overlap:
                    reason = f"contaminated by {name} ({overlap} shared n-grams)"
                    judged[k] = Judged(texts[k], languages[k], "contaminated", reason)
        return judged

    def _cut(self, text: str, where: Callable[[], str], counts: PartitionCounts) -> str:
        text, cut = self.rules.cut(text, where)
        counts.cut.update(cut)
        return text

    def _judge(self, text: str, language: Language) -> tuple[str, str | None]:
        """Return rule and reason for a document that is dropped before it is measured."""
        if not text or text.isspace():
            return "empty text", "empty text"
        if self.wanted:
            threshold = wanted_threshold(self.wanted, language)
            if threshold is None:
                return "language", f"language {language.code} is none of {','.join(self.wanted)}"
            if language.score < threshold:
                return "language_score", f"language_score {language.score:.4g} < {threshold:.4g}"
        return PASSED, None


def make_hasher(recipe: Recipe) -> MinHasher:
    """Return what signs texts for dedup."""
    # Never from recipe.seed: later builds compare their signatures with these.
    return MinHasher(
        ngram=recipe.dedup_ngram, bands=recipe.dedup_bands, rows=recipe.dedup_rows, num_perm=recipe.dedup_num_perm
    )
