"""Turns one record into a ``Document``, or into a ``BadRecord`` that gives the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from .fields import MISFIT, Field, shown, surrogate_in
from .formats import find_format
from .token_ids import WrongIdsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from filters.language.identifier import Language

    from .extract import Extract
    from .token_ids import Vocabulary
    from .where import Where

OnError = Literal["stop", "records", "skip"]
"""If a record cannot be used: stop at it, skip such records, or skip them and the rest of damaged files too."""
ON_ERROR = get_args(OnError)
INVALID_UTF8 = "invalid UTF-8"
BINARY = "binary data, not text"
INVALID_JSON = "invalid JSON"
INVALID_CSV = "invalid CSV"
LONE_SURROGATE = "lone surrogate"
TEXT_KEY = "text_key (--text-key)"  # its name in errors
WHERE = "where"  # the reason of records that the condition does not select
TOKENS_KEY = "tokens_key (--tokens-key)"
_MISSING = object()
_NAMES = 10  # this many of the members left out are shown
_KINDS = (
    (bool, "a boolean"),
    (int | float, "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "an object"),
)


@dataclass(slots=True)
class Document:
    """One text of the input. ``metadata`` holds the other fields of its record that were asked for.

    ``line`` is where the record begins: a line, element or row of ``file``, counted from 1 at ``start``, the beginning of
    the span that was read. It is 0 if lines are not counted, as in a file that is read from any byte. ``byte`` is the
    offset of the record in the data if the format has lines. ``part`` ("#1", "#2") numbers the documents that a transform
    made of one, and ``whole`` is the text that it split. ``language`` is set after identification. ``tokens`` holds the
    ids if ids were read instead of text.

    >>> Document("A text.", "a", "in.jsonl", 1, metadata={"url": "https://example.org"}).metadata["url"]
    'https://example.org'
    """

    text: str
    id: str
    file: str
    line: int
    source: str = ""
    start: int = 0
    byte: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    part: str = ""
    language: Language | None = None
    whole: str | None = None
    tokens: NDArray[np.unsignedinteger[Any]] | None = None

    @property
    def size(self) -> int:
        """The length of the text in characters. If there are only ids, each counts as four characters."""
        return len(self.text) if self.tokens is None else 4 * len(self.tokens)

    def location(self) -> str:
        """Name the document for an error, by file, line (or byte) and id.

        >>> Document("A text.", "a", "in.jsonl", 0, byte=64).location()
        "in.jsonl: byte 64: document 'a'"
        """
        name = f"{self.id}{self.part}"
        location = location_of(self.file, self.line, self.start) if self.line else f"{self.file}: byte {self.byte}"
        return f"{location}{f': document {name!r}' if name else ''}"


@dataclass(slots=True)
class BadRecord:
    """A record that cannot become a document. ``byte`` is its offset in the (decompressed) data, None if unknown.

    ``reason`` is one of a few constant phrases, which are counted; ``detail`` describes this record. ``count`` says how many
    bad records it counts as: a row of CSV counts once for each of its lines.
    """

    file: str
    line: int
    byte: int | None
    reason: str
    detail: str = ""
    source: str = ""
    count: int = 1


@dataclass(slots=True)
class Unselected:
    """Consecutive records that are passed over, because the condition (``where``) does not select them or for a ``reason``.

    ``line`` is the line of the first record. ``reason`` is one of a few constant phrases, which are counted.
    """

    file: str
    line: int
    count: int
    source: str = ""
    reason: str = WHERE


Record = Document | BadRecord | Unselected


@dataclass(slots=True)
class Tally:
    """Counts of what has been read: documents, and all lines (or rows, or elements), blank and bad ones included.

    ``left_out`` counts members of a tar that hold no text; ``left_out_names`` are the names of the first ones.
    """

    lines: int = 0
    documents: int = 0
    left_out: int = 0
    left_out_names: tuple[str, ...] = ()

    def leave_out(self, name: str) -> None:
        """Count a member of a tar that holds no text."""
        self.left_out += 1
        if len(self.left_out_names) < _NAMES:
            self.left_out_names += (name,)

    @property
    def left_out_text(self) -> str:
        """The names of the first members that were left out, and how many more there are."""
        more = self.left_out - len(self.left_out_names)
        return ", ".join(self.left_out_names) + (f" and {more:,} more" if more else "")


@dataclass(slots=True)
class RecordKeys:
    """Where to find text and id in a record, and what all documents of a file share.

    ``start`` is where the span begins. ``made_ids`` says that a document without an id gets one made of its line; it is
    False for a span whose line numbers are not known yet. ``by_byte`` makes ids of byte offsets and counts no lines.
    """

    text_key: str
    id_key: str
    file: str
    source: str = ""
    start: int = 0
    made_ids: bool = True
    by_byte: bool = False
    kept: tuple[Field, ...] = ()  # other fields of the record that a document keeps
    where: Where | None = None  # selects records; a reader may leave the others unread
    record: str = "JSON object"  # the format's word for a record
    tar: str = ""  # the tar that this file is a member of
    extract: Extract | None = None  # what makes text of HTML; None for the default
    elsewhere: Callable[[str], bool] = lambda name: False  # whether another input may have a field that a table lacks
    vocabulary: Vocabulary | None = None  # set if `text_key` names token ids, not text

    def document(
        self, text: Any, id: str, line: int, metadata: dict[str, Any] | None = None, byte: int | None = None
    ) -> Record:
        if metadata is None:
            metadata = {kept.name: None for kept in self.kept}
        id = id or self.missing_id(line, byte)
        if self.vocabulary is None:
            return Document(text, id, self.file, line, self.source, self.start, byte, metadata)
        try:
            tokens = self.vocabulary.ids(text)
        except WrongIdsError as error:
            return self.bad(line, byte, *error.args)
        return Document("", id, self.file, line, self.source, self.start, byte, metadata, tokens=tokens)

    @property
    def wanted(self) -> str:
        """The kind of value that ``text_key`` must name, for errors."""
        return "text" if self.vocabulary is None else "a list of token ids"

    @property
    def key_name(self) -> str:
        """The name of ``text_key`` in errors."""
        return TEXT_KEY if self.vocabulary is None else TOKENS_KEY

    def metadata(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the fields of a record to keep, or None if one does not fit its type."""
        values = {}
        for kept in self.kept:
            value = look_up(record, kept.name)
            values[kept.name] = fit = kept.fit(None if value is _MISSING else value)
            if fit is MISFIT:
                return None
        return values

    def misfit(self, record: Mapping[str, Any], line: int, byte: int | None) -> BadRecord:
        """Return the bad record for a record with a field that does not fit its type."""
        values = ((kept, look_up(record, kept.name)) for kept in self.kept)
        kept, value = next((f, v) for f, v in values if v is not _MISSING and f.fit(v) is MISFIT)
        return self.bad(line, byte, kept.misfit(value), f"it is {shown(value)}")

    def bad(self, line: int, byte: int | None, reason: str, detail: str = "", count: int = 1) -> BadRecord:
        return BadRecord(self.file, line, byte, reason, detail, self.source, count)

    def missing_id(self, line: int, byte: int | None = None) -> str:
        if self.by_byte and byte is not None:
            return made_id_at(self.file, byte)
        return made_id(self.file, line) if self.made_ids else ""

    def judge(self, value: object, line: int, byte: int | None, respell: Callable[[], Any] | None = None) -> Record:
        """Return the document, or the bad record, of a JSON value. ``respell`` parses it again, with numbers as written."""
        if not isinstance(value, Mapping):
            many = sum(isinstance(each, Mapping) for each in value) if isinstance(value, list) else 0
            detail = f"it is {kind_of(value)}{f' of {many} objects' * (many > 1)}"
            return self.bad(line, byte, f"not a {self.record}", detail, max(1, many))
        text = look_up(value, self.text_key)
        if not isinstance(text, str if self.vocabulary is None else list):
            if text is _MISSING:
                there = ", ".join(map(repr, value))[:200] or "none"
                detail = f"there are {there}; {self.key_name} names the one to read"
                return self.bad(line, byte, f"no field {self.text_key!r}", detail)
            return self.bad(line, byte, f"{self.text_key!r} is {kind_of(text)}, not {self.wanted}")
        id = look_up(value, self.id_key)
        if isinstance(id, float) and respell is not None:
            try:
                id = look_up(respell(), self.id_key)
            except RecursionError:
                return self.bad(line, byte, INVALID_JSON, "lists or objects are nested too deeply")
        if isinstance(id, list | dict):
            return self.bad(line, byte, f"{self.id_key!r} is {kind_of(id)}, not a name or number")
        name = "" if id is _MISSING or id is None else scalar_name(id)
        for part in (name, *((text,) if isinstance(text, str) else ())):
            if (index := surrogate_in(part)) is not None:
                return self.bad(line, byte, LONE_SURROGATE, f"character {index} cannot be written as UTF-8")
        metadata = self.metadata(value)
        return self.misfit(value, line, byte) if metadata is None else self.document(text, name, line, metadata, byte)


def location_of(file: str, line: int, start: int = 0) -> str:
    """Return the place of a record, for errors. If lines count from a later ``start`` in the file, it is named, too.

    >>> location_of("a.jsonl", 7), location_of("a.jsonl", 7, 4096)
    ('a.jsonl: line 7', 'a.jsonl: line 7 after byte 4096')
    """
    known = find_format(file)
    return f"{file}: line {line}" + (f" after {known.span_unit if known else 'byte'} {start}" if start else "")


def made_id(file: str, line: int) -> str:
    """Return an id for a document without one.

    >>> made_id("wiki/part-0.jsonl", 7)
    'wiki/part-0.jsonl:7'
    """
    return f"{file}:{line}"


def made_id_at(file: str, byte: int) -> str:
    """Return an id for a document without one, if its line is not known.

    >>> made_id_at("wiki/part-0.jsonl", 4096)
    'wiki/part-0.jsonl:byte 4096'
    """
    return f"{file}:byte {byte}"


def scalar_name(value: str | float | bool) -> str:
    """Return a scalar id as text, spelled as in JSON."""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool) else str(value)


def look_up(record: Mapping[str, Any], key: str) -> Any:
    """Return the value of ``key``. If the record has no such key, dots in it lead into nested objects."""
    if key in record:
        return record[key]
    head, dot, rest = key.partition(".")
    while dot:
        if isinstance(inner := record.get(head), Mapping) and (value := look_up(inner, rest)) is not _MISSING:
            return value
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return _MISSING


def selected(records: Iterable[Record], where: Where) -> Iterator[Record]:
    """Yield records. An ``Unselected`` replaces each run of documents that a condition does not select."""
    run: Unselected | None = None
    for record in records:
        if isinstance(record, Document) and not where.holds(record.metadata):
            record = Unselected(record.file, record.line, 1, record.source)
        if run is not None and not (isinstance(record, Unselected) and record.reason == run.reason):
            yield run
            run = None
        if not isinstance(record, Unselected):
            yield record
        elif run is None:
            run = record
        else:
            run.count += record.count
    if run is not None:
        yield run


def kind_of(value: object) -> str:
    """Return what a JSON value is, in words."""
    if value is None:
        return "null"
    return next((words for kind, words in _KINDS if isinstance(value, kind)), f"of type {type(value).__name__}")
