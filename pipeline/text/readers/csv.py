"""Rows of fields. CSV as RFC 4180 defines it: commas, double quotes, line ends inside quotes. TSV: tabs, and no quotes.

``--format csv,delimiter=;`` names other characters. A file is never cut into spans: a line end may be inside quotes, which
only the text from the beginning of the file shows.
"""

from __future__ import annotations

import csv
import re
import shlex
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ...errors import did_you_mean
from ..document import INVALID_CSV, INVALID_UTF8, TEXT_KEY, Document, Record, RecordKeys, Tally, Unselected
from ..fields import MISFIT, shown, surrogate_in
from ..formats import NO_QUOTE, Format
from .byte_stream import ByteStream, UnreadableFileError
from .format_reader import FormatReader

REPEATED_HEADER = "row equal to the header"  # files that were joined have such rows
LONGEST_FIELD = 1 << 28  # characters; without a limit, one open quote would swallow the rest of a large file
QUOTED = "a quoted field, but TSV is read without quotes; name them: --format 'tsv,quote=\"', or tsv,quote=none"
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)+"')  # a quoted field with doubled quotes inside


def reader_of(form: Format) -> FormatReader:
    """Return a reader of rows with the delimiter, quote and escape of a format."""
    return FormatReader(partial(_read, form), has_column=partial(_has_column, form))


def _has_column(form: Format, stream: ByteStream, name: str) -> bool:
    try:
        return name in next(csv.reader(_Lines(stream), **_dialect(form)), ())
    except csv.Error:
        return False


def _read(form: Format, stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each row after the header line. A bad row counts once for each of its lines."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    records: list[Record] = []
    lines = _Lines(stream)
    rows = csv.reader(lines, **_dialect(form))
    columns: _Columns | None = None
    row: list[str] | None = []
    while row is not None:
        line, block = rows.line_num + 1, lines.block
        error = ""
        try:
            row = next(rows, None)
        except csv.Error as fault:
            error = str(fault).partition(" - ")[0]  # the rest is advice for programmers
        except (UnreadableFileError, OSError):
            yield records
            raise
        if lines.block != block:
            yield records
            records = []
        tally.lines = rows.line_num
        if error:
            if columns is None:
                raise UnreadableFileError(f"the header line cannot be read: {error}")
            span = f" (lines {line} to {tally.lines}: is a quote not closed?)" if tally.lines > line else ""
            records.append(keys.bad(line, None, INVALID_CSV, f"{error}{span}", tally.lines - line + 1))
        elif row and columns is None:
            columns = _Columns(row, keys, form)
        elif row and columns is not None and row == columns.names:
            records.append(Unselected(keys.file, line, 1, keys.source, REPEATED_HEADER))
        elif row and columns is not None:
            records.append(columns.record(row, line))
            tally.documents += isinstance(records[-1], Document)
    yield records


def _dialect(form: Format) -> dict[str, Any]:
    """Return the settings of `csv.reader`. ``strict`` makes a quote that is never closed an error, not a long field."""
    quoted = form.quote not in ("", NO_QUOTE)
    quotes = {"quotechar": form.quote} if quoted else {"quoting": csv.QUOTE_NONE}
    return {"delimiter": form.delimiter, "escapechar": form.escape or None, "strict": True, **quotes}


class _Lines:
    """Yields the lines of a stream for csv.reader: text with line ends. ``block`` is the number of the current block.

    Bytes that are not UTF-8 become lone surrogates, which mark a bad row. A byte order mark at the beginning of a line is
    removed: joined files have such marks.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.block = 0

    def __iter__(self) -> Iterator[str]:
        end = self._stream.line_end()
        for lines in self._stream.lines(end):
            self.block += 1
            text = end.join([b"", *lines]).replace(end + BOM_UTF8, end).decode("utf-8", "surrogateescape")
            yield from [line + end.decode() for line in text.split(end.decode())[1:]]


class _Columns:
    def __init__(self, names: Sequence[str], keys: RecordKeys, form: Format) -> None:
        if keys.text_key not in names:
            raise UnreadableFileError(no_column(keys.text_key, names, _other_dialect(keys.text_key, names)))
        for name in {keys.text_key, keys.id_key, *(field.name for field in keys.kept)}:
            if names.count(name) > 1:
                raise UnreadableFileError(two_columns(name, names.count(name)))
        self.names = names
        self._width = len(names)
        self._keys = keys
        self._is_quoted = None if form.quote else _QUOTED.fullmatch
        self._text = names.index(keys.text_key)
        self._id = names.index(keys.id_key) if keys.id_key in names else None
        for field in keys.kept:
            if field.name not in names and not keys.elsewhere(field.name):
                raise UnreadableFileError(no_column(field.name, names, FIELD_CURE))
        self._kept = [(field, names.index(field.name)) for field in keys.kept if field.name in names]

    def record(self, row: list[str], line: int) -> Record:
        if len(row) != self._width:
            detail = f"{len(row)} fields, but the header names {self._width}"
            seems_quoted = self._is_quoted and any('"' in (field[:1], field[-1:]) for field in row)
            return self._keys.bad(line, None, QUOTED if seems_quoted else INVALID_CSV, detail)
        if self._is_quoted and any(map(self._is_quoted, row)):
            return self._keys.bad(line, None, QUOTED)
        text, id = row[self._text], "" if self._id is None else row[self._id]
        if surrogate_in(text) is not None or surrogate_in(id) is not None:
            return self._keys.bad(line, None, INVALID_UTF8)
        metadata = dict.fromkeys(field.name for field in self._keys.kept)
        for field, column in self._kept:
            if surrogate_in(row[column]) is not None:
                return self._keys.bad(line, None, INVALID_UTF8)
            metadata[field.name] = value = field.parse(row[column])
            if value is MISFIT:
                return self._keys.bad(line, None, field.misfit(row[column]), f"it is {shown(row[column])}")
        return self._keys.document(text, id, line, metadata)


def _other_dialect(wanted: str, names: Sequence[str]) -> str:
    """Return the cure for a header line without the wanted column: other characters, if they make that column appear."""
    line = "\t".join(names)
    for delimiter in ",;|\t":
        for quote in ("", '"', "'"):
            if f"{quote}{wanted}{quote}" in line.split(delimiter):
                of_csv = quote if delimiter == "\t" else quote.replace('"', "")
                format = "tsv" if delimiter == "\t" else f"csv,delimiter={delimiter}"
                return f"--format {shlex.quote(format + f',quote={of_csv}' * bool(of_csv))} reads it"
    return TEXT_CURE


TEXT_CURE = f"{TEXT_KEY} names the one to read"
FIELD_CURE = "a rule on a column, --where, --keep-fields or fields= names it"


def no_column(wanted: str, names: Sequence[str], cure: str = TEXT_CURE) -> str:
    """Return the message for a table that lacks a column."""
    there = ", ".join(map(repr, names)) or "none"
    hint = did_you_mean(wanted, names, else_known=False)
    return f"no column {wanted!r}{hint}; there are {there}; {cure}"


def two_columns(name: str, count: int) -> str:
    """Return the message for a table with several columns of the wanted name."""
    return f"{count} columns are named {name!r}, and only one can be read; rename the others"
