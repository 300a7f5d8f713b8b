"""One spelling for texts that have the same words: documents and evaluation items are compared in it.

Entities of HTML are resolved (twice, as scraped pages need), and compatibility characters become plain ones (NFKC). A word that a
hyphen parts at the end of a line is joined. Characters of no width vanish, as soft hyphens do by `filters.words`.
"""

from __future__ import annotations

import html
import re
import unicodedata

_LINE_ENDS = ("-\n", "-\r", "\u2010\n", "\u00ad\n")
_PARTED = re.compile(r"(?<=[^\W\d_])[-\u2010\u00ad]\s+(?=[^\W\d_])")
_HIDDEN = "\u200b\ufeff\ufe0e\ufe0f\u034f"  # beside those that `filters.words` ignores
_PIECE = re.compile(r"&(?:amp;)*(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?|.", re.DOTALL)


def spellings(text: str) -> list[str]:
    """Return the spellings in which a text is compared: one, or two if hyphens at line ends may belong to their words.

    >>> spellings("a ﬁne, well-\\nknown &quot;exam-\\nple&quot;")
    ['a fine, wellknown "example"', 'a fine, well-\\nknown "exam-\\nple"']
    """
    plain = _plain(text)
    if "\n" not in plain or not any(mark in plain for mark in _LINE_ENDS):
        return [plain]
    joined = _PARTED.sub(_join, plain)
    return [plain] if joined == plain else [joined, plain]


def spellings_with_offsets(text: str) -> list[tuple[str, list[int]]]:
    """Return the spellings of a text, and for each of their characters the place in ``text`` that it comes from."""
    characters: list[str] = []
    offsets: list[int] = []
    end = 0
    while end < len(text):
        match = _PIECE.match(text, end)
        assert match is not None
        begin, end = match.span()
        while end < len(text) and unicodedata.combining(text[end]):
            end += 1
        piece = _plain(text[begin:end])
        characters.append(piece)
        offsets += [begin] * len(piece)
    plain = "".join(characters)
    found = [(plain, [*offsets, len(text)])]
    cuts = [match.span() for match in _PARTED.finditer(plain) if not _join(match)]
    if cuts:
        gone = {at for begin, end in cuts for at in range(begin, end)}
        kept = [at for at in range(len(plain)) if at not in gone]
        found.insert(0, ("".join(plain[at] for at in kept), [*(offsets[at] for at in kept), len(text)]))
    return found


def _plain(text: str) -> str:
    if "&" in text:
        text = html.unescape(html.unescape(text))
    if text.isascii():
        return text
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    for mark in _HIDDEN:
        text = text.replace(mark, "")
    return text


def _join(match: re.Match[str]) -> str:
    """Return '' for a hyphen with a line end after it, else what it matched."""
    return "" if "\n" in match[0] or "\r" in match[0] else match[0]
