"""What the report of a build shows of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Change(NamedTuple):
    """Documents and characters that ``what`` removed. If it added documents, ``documents`` is negative."""

    what: str
    documents: int
    characters: int


class Code(str):
    """A cell of a table that is shown as code."""

    is_code = True


class Table(NamedTuple):
    """A table of the page, below a title and a sentence.

    A cell is text, `Code`, a whole number, a share as a float, or a passage: a dict with ``id``, ``file``, ``line`` and ``text``.
    """

    title: str
    about: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a stage shows: rows of the funnel, lines on the terminal, and its parts of ``report.html``.

    These parts are sentences below the table of splits, rows of the table of cuts, and tables of its own.
    """

    changes: Sequence[Change] = ()
    lines: Sequence[str] = ()
    about_splits: Sequence[str] = ()
    cuts: Sequence[tuple[str, int]] = ()
    tables: Sequence[Table] = ()
