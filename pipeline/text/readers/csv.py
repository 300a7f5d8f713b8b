"""CSV as RFC 4180 defines it: commas (tabs in ``.tsv``), double quotes, line feeds inside quotes; and where to cut it."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import did_you_mean
from ..document import INVALID_CSV, INVALID_UTF8, TEXT_KEY, BadRecord, Document, Record, RecordKeys, Tally
from ..fields import MISFIT, shown, surrogate_in
from ..storage.input_file import InputFile
from .byte_stream import BLOCK, Source, UnreadableFileError
from .format_reader import FormatReader, bytes_of

LONGEST_FIELD = 1 << 28  # characters; without a bound, one stray quote would take in the rest of a large file
_QUOTE, _FEED, _RETURN = b'"\n\r'
_BEFORE_OPENING = np.frombuffer(b',\t\n"', np.uint8)  # the quote: an escaped one ends here and another begins
_AFTER_CLOSING = np.frombuffer(b',\t\r\n"', np.uint8)


def read_csv(source: Source, fields: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each row; the columns of a span that does not begin the file are those of the file."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    feed = _Feed(source)
    rows = csv.reader(
        feed, strict=True, delimiter=delimiter_of(source.path)
    )  # strict: an open quote at the end is an error, not a very long field
    columns = _Columns(csv_header(source.path), fields) if source.start else None
    records: list[Record] = []
    row: list[str] | None = []
    while row is not None:
        line, batch = rows.line_num + 1, feed.batch
        error = ""
        try:
            row = next(rows, None)
        except csv.Error as fault:
            error = str(fault)
        except (UnreadableFileError, OSError):
            yield records
            raise
        if feed.batch is not batch:
            yield records
            records = []
        tally.lines = rows.line_num
        if error:
            if columns is None:
                raise UnreadableFileError(f"the header line cannot be read: {error}")
            span = f" (lines {line} to {tally.lines})" if tally.lines > line else ""
            records.append(fields.bad(line, feed.byte(batch, line), INVALID_CSV, f"{error}{span}"))
        elif row and columns is None:
            columns = _Columns(row, fields)
        elif row and columns is not None:
            record = columns.record(row, line)
            if isinstance(record, Document):
                tally.documents += 1
            elif isinstance(record, BadRecord):
                record.byte = feed.byte(batch, line)
            records.append(record)
    yield records


def csv_header(path: str | os.PathLike[str]) -> list[str]:
    """Return the column names of an uncompressed CSV file."""
    with open(path, "rb") as file:
        return next(csv.reader(_Feed(Source(file)), strict=True, delimiter=delimiter_of(os.fspath(path))), [])


def delimiter_of(name: str) -> str:
    """Return what separates the fields of a file, by its name.

    >>> delimiter_of("a.TSV.gz"), delimiter_of("a.csv")
    ('\\t', ',')
    """
    return "\t" if ".tsv" in os.path.basename(name).lower()[-9:] else ","


def csv_cuts(path: InputFile, unit_bytes: int) -> list[int]:
    """Return offsets at which rows begin, at least ``unit_bytes`` apart: the places where the file may be cut.

    A line feed ends a row unless it lies inside quotes, which only the number of quotes before it tells. That holds
    while every quote opens or closes a field, or is doubled inside one, and no carriage return stands alone; one pass
    over the bytes (about 1 GB/s) checks each. From the first that breaks this (``5" pipe``) on there are no cuts. A remote
    file has none, for that pass would fetch all of it.
    """
    if path.stored is not None:
        return []
    cuts: list[int] = []
    wanted = unit_bytes
    inside = False
    before = np.frombuffer(b"\n", np.uint8)  # the byte before the block: the file begins like a line
    with open(path, "rb") as file:
        offset = 0
        after = file.read(BLOCK)
        if after.startswith(b"\xef\xbb\xbf"):
            offset, after = 3, after[3:]
        while after:
            block, after = after, file.read(BLOCK)
            data = np.concatenate((before, np.frombuffer(block + (after[:1] or b"\n"), np.uint8)))
            quotes = np.flatnonzero(data[1:-1] == _QUOTE) + 1
            if not _quotes_are_plain(data, quotes, inside):
                break
            while wanted < offset + len(block):
                cut = _row_after(data, quotes, inside, max(wanted - offset, 0))
                if cut is None:
                    break
                cuts.append(offset + cut)
                wanted = cuts[-1] + unit_bytes
            inside ^= len(quotes) % 2 == 1
            before = data[-2:-1]
            offset += len(block)
    return [cut for cut in cuts if cut < os.path.getsize(path)]


def _quotes_are_plain(data: NDArray[np.uint8], quotes: NDArray[np.int64], inside: bool) -> bool:
    """Tell whether counting quotes tells rows apart in a block; ``data`` has one byte more at either end."""
    opening, closing = quotes[inside::2], quotes[not inside :: 2]
    if not np.isin(data[opening - 1], _BEFORE_OPENING).all() or not np.isin(data[closing + 1], _AFTER_CLOSING).all():
        return False
    returns = np.flatnonzero(data[1:-1] == _RETURN) + 1
    return not len(_outside(returns[data[returns + 1] != _FEED], quotes, inside))


def _row_after(data: NDArray[np.uint8], quotes: NDArray[np.int64], inside: bool, start: int) -> int | None:
    """Return where, from ``start`` in a block on, the next row begins: behind a line feed outside quotes."""
    feeds = _outside(np.flatnonzero(data[start + 1 : -1] == _FEED) + start + 1, quotes, inside)
    return int(feeds[0]) if len(feeds) else None


def _outside(places: NDArray[np.int64], quotes: NDArray[np.int64], inside: bool) -> NDArray[np.int64]:
    """Return those places with an even number of quotes before them since the file began."""
    outside: NDArray[np.int64] = places[(np.searchsorted(quotes, places) + inside) % 2 == 0]
    return outside


class _Feed:
    """The lines of a source as csv.reader wants them: text with its line feeds.

    Bytes that are not UTF-8 become lone surrogates, by which the row that holds them is known.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.batch: tuple[int, int, list[bytes]] = (
            0,
            0,
            [],
        )  # lines and bytes before the current lines, and these lines

    def __iter__(self) -> Iterator[str]:
        for lines in self._source.lines():
            before, byte, last = self.batch
            self.batch = (before + len(last), byte + bytes_of(last), lines)
            yield from [line + "\n" for line in b"\n".join(lines).decode("utf-8", "surrogateescape").split("\n")]

    def byte(self, batch: tuple[int, int, list[bytes]], line: int) -> int:
        """Return where a line begins, given the batch that was current before it was read."""
        before, byte, lines = batch
        return self._source.text_start + byte + bytes_of(lines[: line - before - 1])


class _Columns:
    def __init__(self, names: Sequence[str], fields: RecordKeys) -> None:
        if fields.text_key not in names:
            raise UnreadableFileError(no_column(fields.text_key, names))
        for name in {fields.text_key, fields.id_key, *(field.name for field in fields.kept)}:
            if names.count(name) > 1:
                raise UnreadableFileError(two_columns(name, names.count(name)))
        self._width = len(names)
        self._fields = fields
        self._text = names.index(fields.text_key)
        self._id = names.index(fields.id_key) if fields.id_key in names else None
        for field in fields.kept:
            if field.name not in names:
                raise UnreadableFileError(no_column(field.name, names, "for a field that is asked for"))
        self._kept = [(field, names.index(field.name)) for field in fields.kept]

    def record(self, row: list[str], line: int) -> Record:
        if len(row) != self._width:
            detail = f"{len(row)} fields, but the header names {self._width}"
            return self._fields.bad(line, None, INVALID_CSV, detail)
        text, id = row[self._text], "" if self._id is None else row[self._id]
        if surrogate_in(text) is not None or surrogate_in(id) is not None:
            return self._fields.bad(line, None, INVALID_UTF8)
        metadata = {}
        for field, place in self._kept:
            if surrogate_in(row[place]) is not None:
                return self._fields.bad(line, None, INVALID_UTF8)
            metadata[field.name] = value = field.parse(row[place])
            if value is MISFIT:
                return self._fields.bad(line, None, field.misfit(row[place]), f"it is {shown(row[place])}")
        return self._fields.document(text, id, line, metadata)


def no_column(wanted: str, names: Sequence[str], cure: str = f"{TEXT_KEY} names the one to read") -> str:
    """Return what to say when a table lacks a column."""
    there = ", ".join(map(repr, names)) or "none"
    hint = did_you_mean(wanted, names, else_known=False)
    return f"no column {wanted!r}{hint}; there are {there}; {cure}"


def two_columns(name: str, count: int) -> str:
    """Return what to say when a table has several columns of the name that is wanted."""
    return f"{count} columns are named {name!r}, and only one can be read; rename the others"


READER = FormatReader(read_csv, cuts=csv_cuts, gradual=True)
