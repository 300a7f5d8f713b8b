"""The shapes of what is counted, as JSON has it: in the manifest and in the report."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Histogram(TypedDict):
    """Documents by the value of a measure: ``counts`` of equal bins from 0 to ``top``, of log2(1 + value) if ``log``."""

    top: float
    log: bool
    limits: list[float]
    counts: list[int]


class Group(TypedDict):
    """What became of the documents of one source or language. ``dropped`` and ``duplicates`` count by rule and kind."""

    read: int
    characters: int
    dropped: dict[str, int]
    kept: int
    tokens: int
    duplicates: NotRequired[dict[str, int]]
    added: NotRequired[int]  # by transforms; they are not among those read


class DamagedFile(TypedDict):
    """A file that could not be read further than a line, and how many documents before it no checksum confirms."""

    file: str
    line: int
    fault: str
    unconfirmed: int


class Sample(TypedDict, total=False):
    """A text to show, and where it comes from; ``line`` counts from the start of its ``span``, if it has one."""

    id: str
    file: str
    line: int
    reason: str | None
    text: str
    original: str  # the text that is kept in its place
    span: int
    part: str


class Margin(TypedDict):
    """A text whose value of a measure is near to a limit; ``key`` is drawn from its hash."""

    key: int
    distance: float
    value: float
    id: str
    file: str
    text: str
