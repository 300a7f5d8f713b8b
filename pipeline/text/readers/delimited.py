"""Plain text files of many documents: lines, paragraphs, or texts between separators."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ..document import BINARY, INVALID_UTF8, BadRecord, Record, RecordKeys, Tally
from ..formats import BLANK_LINE, LINE_END, Format
from .byte_stream import BLOCK, ByteStream, UnreadableFileError, binary_sign
from .format_reader import FormatReader, line_borders, no_borders

_BLANKS = b" \t\r\v\f"
_BLANK_LINES = re.compile(rb"(?:[ \t\r\v\f]*\n)+")
_LONGEST = 1 << 29
_FIRST_STEP = 2 << 10  # bytes of the first read after the span's end; each next read is twice as large


class _Delimiter(NamedTuple):
    """The delimiter of documents. ``pattern`` matches it; ``undecided`` returns where data may end within a delimiter."""

    pattern: re.Pattern[bytes]
    undecided: Callable[[bytes], int]
    separator: bytes = b""  # removed from documents, as blank lines around a document always are


def reader_of(form: Format) -> FormatReader:
    """Return a reader of a format that has a separator.

    A file is not cut if its separator may overlap itself, as ``--`` does in ``---``: it is sought from the beginning.
    """
    separator = form.separator.encode()
    if form.separator == BLANK_LINE:
        delimiter = _Delimiter(re.compile(rb"\n(?=[ \t\r\v\f]*\n)"), _last_line_if_blank)
        overlaps = False
    else:
        removed = b"" if form.separator == LINE_END else separator
        delimiter = _Delimiter(re.compile(re.escape(separator)), partial(_partial_separator, len(separator)), removed)
        overlaps = any(separator.startswith(separator[at:]) for at in range(1, len(separator)))
    return FormatReader(partial(_read, delimiter), borders=no_borders if overlaps else line_borders)


def _read(delimiter: _Delimiter, stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a document for each text between delimiters, unless it is blank. ``line`` is the line in which it begins.

    Blank lines around a document and its last line end are removed. A span owns the documents whose preceding delimiter
    starts in the span or in the byte before it.
    """
    for byte, pieces in _pieces(stream, delimiter):
        records: list[Record] = []
        for piece in pieces:
            begin, text = _text_of(piece.removesuffix(delimiter.separator))
            if text:
                line = 0 if keys.by_byte else tally.lines + 1 + piece.count(b"\n", 0, begin)
                record = _record(text, keys, line, byte + begin)
                if record is not None:
                    tally.documents += not isinstance(record, BadRecord)
                    records.append(record)
            byte += len(piece)
            tally.lines += piece.count(b"\n")
        yield records


def _record(text: bytes, keys: RecordKeys, line: int, byte: int) -> Record | None:
    if sign := binary_sign(text):
        return keys.bad(line, byte, BINARY, sign)
    try:
        decoded = text.removeprefix(BOM_UTF8).decode()  # joined files have such marks
    except UnicodeDecodeError as error:
        return keys.bad(line, byte, INVALID_UTF8, f"byte {error.start} of the document: {error.reason}")
    is_blank = not decoded or decoded.isspace()  # also if its blanks are not ASCII
    return None if is_blank else keys.document(decoded, "", line, byte=byte)


def _text_of(piece: bytes) -> tuple[int, bytes]:
    """Return the offset of the text in a piece, and the text without blank lines around it and its last line end."""
    blank_lines = _BLANK_LINES.match(piece)
    begin = blank_lines.end() if blank_lines else 0
    last = len(piece.rstrip(_BLANKS + b"\n"))
    if last <= begin:
        return begin, b""
    end = piece.find(b"\n", last)
    return begin, piece[begin:] if end < 0 else piece[begin:end].removesuffix(b"\r")


def _pieces(stream: ByteStream, delimiter: _Delimiter) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lists of consecutive pieces, with the offset of the first. A piece ends with a delimiter or the data."""
    stop = stream.stop
    skips = stream.start > 0  # bytes before the first delimiter belong to the previous span
    position = -1  # offset of the buffer in the data
    parts: list[bytes] = []  # parts of the piece whose end was not read yet
    size, buffer = 0, b""
    for block in _blocks(stream):
        if position < 0:
            position = stream.start - 1 if skips else stream.text_start
        buffer += block
        pieces: list[bytes] = []
        at, begin = 0, position - size
        ends = False
        for match in delimiter.pattern.finditer(buffer):
            ends = stop is not None and position + match.start() >= stop - 1
            if skips:
                begin = position + match.end()
            else:
                pieces.append(b"".join((*parts, buffer[at : match.end()])))
            at, skips, parts, size = match.end(), False, [], 0
            if ends:
                break
        yield begin, pieces
        if ends:
            return
        rest = max(at, delimiter.undecided(buffer))
        if not skips:
            parts.append(buffer[at:rest])
            size += rest - at
        position, buffer = position + rest, buffer[rest:]
        if size > _LONGEST:
            raise UnreadableFileError(f"a document of more than {_LONGEST >> 20} MiB; is its separator the right one?")
        if skips and stop is not None and position >= stop - 1:
            return
    if not skips:
        piece = b"".join((*parts, buffer))
        yield position - size, [piece]


def _blocks(stream: ByteStream) -> Iterator[bytes]:
    """Yield the byte before the span, the blocks of the span, and blocks of the bytes after it."""
    if stream.start:
        stream.file.seek(stream.start - 1)
        yield stream.file.read(1)
    yield from stream.raw() if stream.start else stream.text()
    step = _FIRST_STEP
    while stream.stop is not None and (block := stream.file.read(step)):
        yield block
        step = min(BLOCK, 2 * step)


def _last_line_if_blank(data: bytes) -> int:
    """Return the offset of the last line end if only blanks follow it: more bytes decide whether that line is blank."""
    at = len(data.rstrip(_BLANKS))
    return at - 1 if data[at - 1 : at] == b"\n" else len(data)


def _partial_separator(length: int, data: bytes) -> int:
    return max(0, len(data) - length + 1)
