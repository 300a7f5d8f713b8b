"""Cleaners: functions from a text to the remaining text and the counts of cuts by reason.

A rule file names them under ``[cut]``; they run before anything is measured. Your own cleaner is a function of a `text` and
keywords that returns this pair; name it as ``module:function``.
"""

from __future__ import annotations

import html
import re

from filters.text_view import Count, Positive
from filters.unicode_classes import SPACES

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_END_MARKS = (".", "?", "!", '"')
_BLOCK_TAGS = "br|p|div|li|ul|ol|tr|table|tbody|thead|h[1-6]|hr|blockquote|pre|section|article|header|footer|center"
_INLINE_TAGS = "a|b|i|u|s|em|strong|span|font|small|big|sub|sup|tt|code|cite|abbr|td|th|img|strike|del|ins|label|nobr"
_TAG = re.compile(
    rf"""<!--(?:[^<]|<(?!!--))*?-->|</?(?:(?P<block>{_BLOCK_TAGS})|{_INLINE_TAGS})(?:\s(?:[^<>"']|"[^"<]*"|'[^'<]*')*)?/?>""",
    re.IGNORECASE | re.DOTALL,
)
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_BLANKS = re.compile(rf"[{SPACES}]+")
_POLICIES = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies",
)  # fmt: skip


def duplicate_lines(text: str) -> tuple[str, dict[str, int]]:
    """Cut lines that occur earlier in the same document; blank lines stay, white space around lines is not compared.

    >>> duplicate_lines("Menu\\nIt rained.\\n\\nMenu\\nIt stopped.")
    ('Menu\\nIt rained.\\n\\nIt stopped.', {'duplicate': 1})
    """
    kept, cut = _first_occurrences(text.split("\n"))
    return "\n".join(kept), {"duplicate": cut}


def duplicate_paragraphs(text: str) -> tuple[str, dict[str, int]]:
    """Cut paragraphs (separated by blank lines) that occur earlier in the same document."""
    kept, cut = _first_occurrences(re.split(rf"(?<=\n)[{SPACES}]*\n", text))
    return ("\n".join(kept), {"duplicate": cut}) if cut else (text, {"duplicate": 0})


def _first_occurrences(parts: list[str]) -> tuple[list[str], int]:
    """Return the parts without repeats of earlier ones, and the number of parts cut; blank parts stay."""
    seen: set[str] = set()
    kept = []
    for part in parts:
        stripped = part.strip(SPACES)
        if not stripped or stripped not in seen:
            seen.add(stripped)
            kept.append(part)
    return kept, len(parts) - len(kept)


def c4_lines(
    text: str, *, min_words: Count = 5, max_word_length: Positive = 1000, terminal_punctuation: bool = True
) -> tuple[str, dict[str, int]]:
    """Cut the lines that C4 cuts: Raffel et al. 2020 (https://arxiv.org/abs/1910.10683), section 2.2.

    The details are those of C4's code, `clean_page` in tensorflow_datasets (text/c4_utils.py). A line is cut if, in this
    order, it has a word of more than `max_word_length` characters; does not end in one of ``. ? ! "``, or ends in an ellipsis
    (unless `terminal_punctuation` is false, as FineWeb ran it); has fewer than `min_words` words; mentions JavaScript; is about
    cookies or terms of use. Bracketed citations are removed before line ends are looked at and words counted. Words are
    separated by white space. The remaining lines are stripped, and blank ones removed.

    A mention of JavaScript, cookies or terms does not cut a line with "lorem ipsum"; cookies or terms do not cut a line with
    ``{``. C4 drops the whole page for these; here the rules on `lorem_ipsum` and `curly_brackets` must find them.

    >>> c4_lines("Home\\nIt was a dark night.[1]\\nPlease enable JavaScript in your browser.")
    ('It was a dark night.', {'no_terminal': 1, 'javascript': 1})
    """
    kept: list[str] = []
    counts: dict[str, int] = {}
    for raw in text.split("\n"):
        line = raw.strip(SPACES)
        if not line:
            continue
        too_long = len(line) > max_word_length and max(map(len, line.split()), default=0) > max_word_length
        line = _CITATION.sub("", line)
        lower = line.lower()
        if too_long:
            reason = "long_word"
        elif terminal_punctuation and (not line.endswith(_END_MARKS) or line.endswith("...")):
            reason = "no_terminal"
        elif len(line.split()) < min_words:
            reason = "few_words"
        elif "javascript" in lower and "lorem ipsum" not in lower:
            reason = "javascript"
        elif any(policy in lower for policy in _POLICIES) and "lorem ipsum" not in lower and "{" not in line:
            reason = "policy"
        else:
            kept.append(line)
            continue
        counts[reason] = counts.get(reason, 0) + 1
    return "\n".join(kept).strip(SPACES), counts


def html_remnants(text: str) -> tuple[str, dict[str, int]]:
    """Replace remnants of HTML: tags, comments and entities such as ``<br />``, ``</b>`` and ``&amp;``.

    A tag that begins or ends a block becomes a line feed; several in a row become an empty line. Any other tag is removed. Only
    names of HTML 4's text elements count, so ``<stdio.h>`` and ``a < b`` stay. Entities become the characters that they
    name, once: ``&amp;lt;`` becomes ``&lt;``. It changes programs and pages about HTML, so use it for prose.

    >>> html_remnants("Great film.<br /><br />I <i>loved</i> it &amp; cried.")
    ('Great film.\\n\\nI loved it & cried.', {'tags': 4, 'entities': 1})
    """
    cleaned, tags = _TAG.subn(lambda tag: "\n" if tag["block"] else "", text) if "<" in text else (text, 0)
    if tags:
        cleaned = _BLANKS.sub(lambda run: "\n\n" if run[0].count("\n") > 1 else run[0], cleaned).strip(SPACES)
    cleaned, entities = _ENTITY.subn(_character, cleaned) if "&" in cleaned else (cleaned, 0)
    return cleaned, {"tags": tags, "entities": entities}


def _character(entity: re.Match[str]) -> str:
    return html.unescape(entity[0]).replace("\xa0", " ")
