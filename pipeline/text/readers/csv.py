"""CSV as RFC 4180 defines it: commas (tabs in ``.tsv``), double quotes, line feeds inside quotes.

A file is never cut: only the quotes before a line feed tell whether it ends a row.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence

from ...errors import did_you_mean
from ..document import INVALID_CSV, INVALID_UTF8, TEXT_KEY, Document, Record, RecordKeys, Tally
from ..fields import MISFIT, shown, surrogate_in
from .byte_stream import ByteStream, UnreadableFileError
from .format_reader import FormatReader

LONGEST_FIELD = 1 << 28  # characters; without a bound, one stray quote would take in the rest of a large file


def read_csv(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each row below the header line."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    records: list[Record] = []
    lines = _Lines(stream)
    # strict: an open quote at the end is an error, not a very long field
    rows = csv.reader(lines, strict=True, delimiter=delimiter_of(stream.path))
    columns: _Columns | None = None
    row: list[str] | None = []
    while row is not None:
        line, block = rows.line_num + 1, lines.block
        error = ""
        try:
            row = next(rows, None)
        except csv.Error as fault:
            error = str(fault)
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
            span = f" (lines {line} to {tally.lines})" if tally.lines > line else ""
            records.append(keys.bad(line, None, INVALID_CSV, f"{error}{span}"))
        elif row and columns is None:
            columns = _Columns(row, keys)
        elif row and columns is not None:
            records.append(columns.record(row, line))
            tally.documents += isinstance(records[-1], Document)
    yield records


def delimiter_of(name: str) -> str:
    """Return what separates the fields of a file, by its name.

    >>> delimiter_of("a.TSV.gz"), delimiter_of("a.csv")
    ('\\t', ',')
    """
    return "\t" if ".tsv" in os.path.basename(name).lower()[-9:] else ","


class _Lines:
    """The lines of a stream as csv.reader wants them, text with its line feeds; ``block`` is the number of the current block.

    Bytes that are not UTF-8 become lone surrogates, by which the row that holds them is known.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.block = 0

    def __iter__(self) -> Iterator[str]:
        for lines in self._stream.lines():
            self.block += 1
            yield from [line + "\n" for line in b"\n".join(lines).decode("utf-8", "surrogateescape").split("\n")]


class _Columns:
    def __init__(self, names: Sequence[str], keys: RecordKeys) -> None:
        if keys.text_key not in names:
            raise UnreadableFileError(no_column(keys.text_key, names))
        for name in {keys.text_key, keys.id_key, *(field.name for field in keys.kept)}:
            if names.count(name) > 1:
                raise UnreadableFileError(two_columns(name, names.count(name)))
        self._width = len(names)
        self._keys = keys
        self._text = names.index(keys.text_key)
        self._id = names.index(keys.id_key) if keys.id_key in names else None
        for field in keys.kept:
            if field.name not in names:
                raise UnreadableFileError(no_column(field.name, names, FIELD_CURE))
        self._kept = [(field, names.index(field.name)) for field in keys.kept]

    def record(self, row: list[str], line: int) -> Record:
        if len(row) != self._width:
            detail = f"{len(row)} fields, but the header names {self._width}"
            return self._keys.bad(line, None, INVALID_CSV, detail)
        text, id = row[self._text], "" if self._id is None else row[self._id]
        if surrogate_in(text) is not None or surrogate_in(id) is not None:
            return self._keys.bad(line, None, INVALID_UTF8)
        metadata = {}
        for field, column in self._kept:
            if surrogate_in(row[column]) is not None:
                return self._keys.bad(line, None, INVALID_UTF8)
            metadata[field.name] = value = field.parse(row[column])
            if value is MISFIT:
                return self._keys.bad(line, None, field.misfit(row[column]), f"it is {shown(row[column])}")
        return self._keys.document(text, id, line, metadata)


FIELD_CURE = "a rule on a column, --where, --keep-fields or fields= names it"


def no_column(wanted: str, names: Sequence[str], cure: str = f"{TEXT_KEY} names the one to read") -> str:
    """Return what to say when a table lacks a column."""
    there = ", ".join(map(repr, names)) or "none"
    hint = did_you_mean(wanted, names, else_known=False)
    return f"no column {wanted!r}{hint}; there are {there}; {cure}"


def two_columns(name: str, count: int) -> str:
    """Return what to say when a table has several columns of the name that is wanted."""
    return f"{count} columns are named {name!r}, and only one can be read; rename the others"


READER = FormatReader(read_csv)
