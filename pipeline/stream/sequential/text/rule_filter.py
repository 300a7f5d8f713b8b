"""Rules and languages as a filter of a stream of texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....errors import ConfigError
from ....text.judging import EMPTY, Drop, is_empty, judge_language, judge_measured, measure
from ....text.normalize import normalize

if TYPE_CHECKING:
    from filters.rules.ruleset import RuleSet

    from ....text.document import Document


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
