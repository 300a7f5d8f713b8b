"""The form of a document's lines: the quality rules of Gopher and FineWeb that look at lines."""

from __future__ import annotations

from filters.text_view import By, Count, Page, share
from filters.unicode_classes import TERMINALS

BULLETS = ("•", "-")
ELLIPSES = ("...", "…")
SHORT_LINE = 30


def _lines(page: Page, blank: bool) -> list[str]:
    """Return the stripped lines; with `blank` the blank ones too, as datatrove counts them."""
    return [line.strip() for line in page.text.splitlines()] if blank else page.lines


def bullet_line_ratio(page: Page, *, blank: bool = False) -> float:
    """Return the share of lines that begin with a bullet point or a hyphen.

    >>> bullet_line_ratio(Page("To buy:\\n- milk\\n• bread\\n\\n- salt"))
    0.75
    """
    lines = _lines(page, blank)
    return share(sum(line.startswith(BULLETS) for line in lines), len(lines))


def ellipsis_line_ratio(page: Page, *, blank: bool = False) -> float:
    """Return the share of lines that end in an ellipsis."""
    lines = _lines(page, blank)
    return share(sum(line.endswith(ELLIPSES) for line in lines), len(lines))


def terminal_line_ratio(page: Page) -> float:
    """Return the share of lines that end in a full stop, question mark or the like.

    The marks are those of all scripts that Unicode calls Sentence_Terminal. A closing quotation mark or bracket
    after the mark hides it, as in FineWeb's rule.

    >>> terminal_line_ratio(Page("Contents\\nIt rained.\\n雨が降った。\\n'Well.'"))
    0.5
    """
    return share(sum(line[-1] in TERMINALS for line in page.lines), len(page.lines))


def short_line_ratio(page: Page, *, longest: Count = SHORT_LINE) -> float:
    """Return the share of short lines.

    A short line has at most `longest` characters (30, if the rule does not say).

    >>> short_line_ratio(Page("short\\nalso short\\n" + "long " * 20))
    0.6666666666666666
    """
    return share(sum(len(line) <= longest for line in page.lines), len(page.lines))


def newline_ratio(page: Page, *, by: By = "spaces") -> float:
    """Return the number of line feeds per word.

    The line feeds of blank lines count. With ``by="pieces"``, punctuation marks are words, too.
    """
    return share(page.text.count("\n"), len(page.parts(by).pieces))
