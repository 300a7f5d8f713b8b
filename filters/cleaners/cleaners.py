"""Cutters: functions from a text to what is left of it, with counts of what was cut by reason.

A rule file names them under ``[cut]``; they run before anything is measured. One of your own is a function of a
`text` and keywords that returns the pair, named ``module:function``.
"""

from __future__ import annotations

import re

from filters.unicode_classes import SPACES

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_TERMINAL = (".", "?", "!", '"', "'")
_POLICIES = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies",
)  # fmt: skip


def duplicate_lines(text: str) -> tuple[str, dict[str, int]]:
    """Cut lines that stood before in the same document; blank lines stay, white space around lines is not compared.

    >>> duplicate_lines("Menu\\nIt rained.\\n\\nMenu\\nIt stopped.")
    ('Menu\\nIt rained.\\n\\nIt stopped.', {'duplicate': 1})
    """
    seen: set[str] = set()
    kept: list[str] = []
    cut = 0
    for line in text.split("\n"):
        stripped = line.strip(SPACES)
        if stripped and stripped in seen:
            cut += 1
        else:
            seen.add(stripped)
            kept.append(line)
    return "\n".join(kept), {"duplicate": cut}


def duplicate_paragraphs(text: str) -> tuple[str, dict[str, int]]:
    """Cut paragraphs (parted by blank lines) that stood before in the same document."""
    seen: set[str] = set()
    kept: list[str] = []
    cut = 0
    for paragraph in re.split(rf"(?<=\n)[{SPACES}]*\n", text):
        stripped = paragraph.strip(SPACES)
        if stripped and stripped in seen:
            cut += 1
        else:
            seen.add(stripped)
            kept.append(paragraph)
    return ("\n".join(kept), {"duplicate": cut}) if cut else (text, {"duplicate": 0})


def c4_lines(
    text: str, *, min_words: int = 5, max_word_length: int = 1000, terminal_punctuation: bool = True
) -> tuple[str, dict[str, int]]:
    """Cut the lines that C4 cuts (Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 2.2, and its code).

    Of what is left, lines are stripped, blank ones gone and bracketed citations removed. Words are between white
    space. Cut are lines, in this order: with a word of more than `max_word_length` characters; without a final
    ``. ? ! " '`` or with an ellipsis instead (unless `terminal_punctuation` is false, as FineWeb ran it); of fewer
    than `min_words` words; that mention JavaScript; that are about cookies or terms of use.

    >>> c4_lines("Home\\nIt was a dark night.[1]\\nPlease enable JavaScript in your browser.")
    ('It was a dark night.', {'no_terminal': 1, 'javascript': 1})
    """
    kept: list[str] = []
    counts: dict[str, int] = {}
    for raw in text.split("\n"):
        line = raw.strip(SPACES)
        if not line:
            continue
        words = line.split()
        too_long = len(line) > max_word_length and max(map(len, words), default=0) > max_word_length
        if "[" in line:
            line = _CITATION.sub("", line)
        if too_long:
            reason = "long_word"
        elif terminal_punctuation and (not line.endswith(_TERMINAL) or line.endswith("...")):
            reason = "no_terminal"
        elif len(words) < min_words:
            reason = "few_words"
        elif "javascript" in (lower := line.lower()):
            reason = "javascript"
        elif any(policy in lower for policy in _POLICIES):
            reason = "policy"
        else:
            kept.append(line)
            continue
        counts[reason] = counts.get(reason, 0) + 1
    return "\n".join(kept), counts
