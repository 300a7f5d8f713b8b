"""Texts split by spaCy's English tokenizer, as datatrove counts words. Needs the extra ``shardwright[datatrove]``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from typing import Any

from filters.unicode_classes import TERMINALS
from pipeline.errors import not_installed

PUNCTUATION = TERMINALS.union(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, [*range(32), *range(127, 160)]))
)
"""A token of these characters alone is no word for datatrove, whose set may differ in sentence terminals of other scripts."""

_LONG_RUN = re.compile(r"(\S{1000})(?=\S)")
_MOST_WORDS = 100_000  # a tokenizer that has seen so many different words takes some 40 MB


class _Tokenizer:
    """spaCy's tokenizer. It keeps every word that it sees, so it is replaced when it has too many.

    Its ``memory_zone`` would forget words after each document, which then takes twice as long.
    """

    def __init__(self) -> None:
        self._language: Any = None

    def split(self, text: str) -> list[str]:
        if self._language is None or len(self._language.vocab) > _MOST_WORDS:
            tokens_version()
            import spacy

            self._language = spacy.blank("en")
        return [token.text for token in self._language.tokenizer(text) if not token.is_space]


_tokenizer = _Tokenizer()


def split_tokens(text: str) -> list[str]:
    """Return the tokens of a text, without white space.

    A run of visible characters is cut every 1,000 characters, because spaCy's time grows with the square of its length.

    >>> split_tokens("Don't pay $5... (or 3km)")
    ['Do', "n't", 'pay', '$', '5', '...', '(', 'or', '3', 'km', ')']
    """
    return _tokenizer.split(_LONG_RUN.sub(r"\1 ", text))


def tokens_version() -> str:
    """Return the version of spaCy, on which the tokens depend. Raises ConfigError if it is not installed."""
    if importlib.util.find_spec("spacy") is None:
        raise not_installed('a rule with by = "tokens", and not "spaces" or "pieces", as in gopher_datatrove,', "spacy")
    return importlib.metadata.version("spacy")


def is_symbol(token: str) -> bool:
    """Return whether datatrove counts a token as a symbol and not as a word.

    >>> is_symbol("..."), is_symbol("a."), is_symbol("😀")
    (True, False, False)
    """
    return PUNCTUATION.issuperset(token)
