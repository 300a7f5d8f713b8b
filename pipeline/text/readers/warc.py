"""WARC and WET files: pages as a crawler stored them, or texts extracted from pages.

A file of gzip members, as WARC files are, may be cut at any byte: a span owns the members that begin in it. A member whose
data begin with ``WARC/`` begins a record, even if the previous record states a length beyond it.
"""

from __future__ import annotations

import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from ...errors import ConfigError, not_installed
from ..document import INVALID_UTF8, Document, Record, RecordKeys, Tally, Unselected
from ..extract import MOST_BYTES, OVER_A_LIMIT, RESILIPARSE, Extractor, SkippedPageError
from ..storage.input_file import InputFile
from ..storage.open_input import open_input
from .byte_stream import ByteStream, UnreadableFileError, compression
from .format_reader import FormatReader, line_borders
from .http_response import read_headers, read_response

_BEGINNING = b"WARC/"  # the first bytes of each record
_VERSION = re.compile(rb"WARC/\d")
_ANOTHER = re.compile(rb"^WARC/\d\.", re.MULTILINE)
_WITHOUT_TEXT = ("warcinfo", "request", "metadata", "revisit")  # types of records without pages
_RECORDS = 32  # records in a batch: few, since the extraction of a page may take milliseconds
_PIECE = 1 << 18
_LONGEST_HEAD = 1 << 20  # bytes of the headers of a record
_HEAD = 4096  # bytes of a page that show its media type
_HTML = re.compile(rb"<(?:html|!doctype html)", re.IGNORECASE)
# Some Cyrillic texts seem to be an octet-stream.
_TEXTUAL = ("text/", "application/octet-stream", "application/xml", "application/xhtml")
_MEDIA_TYPE = re.compile(r"\w+/[\w.+-]{1,60}", re.ASCII)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:+-]+)", re.ASCII | re.IGNORECASE)


class _Record(NamedTuple):
    """A record: its headers by names in lower case, the length that they state, and its block."""

    headers: dict[str, str]
    length: int
    block: bytes | None  # None if records of its type hold no page, b"" if it is over the limit


def read_warc(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a document for each page of HTML (``response``, ``resource``) and each text (``conversion``).

    ``line`` counts all records. Fields are ``id``, ``url``, ``date`` and the headers of the record, in upper or lower case.
    Other pages are ``Unselected``, with the reason. Records without pages, such as requests, are skipped.
    """
    try:
        import fastwarc  # noqa: F401  # it unpacks bodies
    except ImportError:
        raise not_installed("WARC files", "fastwarc resiliparse") from None
    extractor = Extractor(keys.extract or RESILIPARSE)
    records: list[Record] = []
    try:
        for record in _records(stream):
            tally.lines += 1
            if record.block is not None:
                judged = _judge(record, record.block, keys, tally.lines, extractor)
                tally.documents += isinstance(judged, Document)
                records.append(judged)
            if len(records) == _RECORDS:
                yield records
                records = []
    except UnreadableFileError:
        yield records
        raise
    yield records


def member_borders(file: InputFile, unit_bytes: int) -> list[int]:
    """Return borders at equal distances for a file of gzip members, none for others. A span owns the members that begin in it."""
    with open_input(file, in_order=False) as opened:
        return line_borders(file, unit_bytes) if compression(opened) == "gzip" else []


def _records(stream: ByteStream) -> Iterator[_Record]:
    """Yield each record. Raises ``UnreadableFileError`` if the beginning of the next one cannot be found."""
    members = _Members(stream.members(_BEGINNING))
    file = io.BufferedReader(members, _PIECE)
    line = b""
    while True:
        line = line or _next_line(file)[1]
        if line:
            if not _VERSION.match(line):
                raise UnreadableFileError(f"not a WARC file: a record begins with {line[:60]!r}")
            record, line = _read_record(line, file, members.are_packed)
            yield record
        elif not members.go_on():
            return


def _read_record(line: bytes, file: BinaryIO, are_packed: bool) -> tuple[_Record, bytes]:
    """Return the record whose first line is ``line``, and the first line of the next one, b"" at the end of the data.

    If the stated length is missing or too small, the record ends before the next record or member.
    """
    head = line
    while (line := file.readline(_LONGEST_HEAD)).strip(b"\r\n") and len(head) < _LONGEST_HEAD:
        head += line
    if not line or line.strip(b"\r\n"):
        raise UnreadableFileError(f"the headers of a record do not end within {len(head)} bytes")
    headers = read_headers(head)
    stated = headers.get("content-length", "")
    length = int(stated) if stated.isdecimal() else 0
    block = file.read(length) if length <= MOST_BYTES else b""
    size = len(block) or _skip(file, length)
    if size < length and (not are_packed or length > MOST_BYTES or _ANOTHER.search(block)):
        raise UnreadableFileError(f"a record of {length} bytes is cut after {size}")
    gap, line = _next_line(file)
    if line and not _VERSION.match(line):
        if length > MOST_BYTES or _ANOTHER.search(block):
            raise UnreadableFileError(
                f"a record of {length} bytes is followed by {line[:60]!r}, which begins no record"
            )
        rest, line = _rest(file, gap + line)
        block += rest
    return _Record(headers, length, None if _type_of(headers) in _WITHOUT_TEXT else block), line


def _next_line(file: BinaryIO) -> tuple[bytes, bytes]:
    """Return the empty lines that follow, and the first other line, b"" at the end of the data."""
    gap = b""
    while (line := file.readline(_LONGEST_HEAD)) and not line.strip(b"\r\n"):
        gap += line
    return gap, line


def _rest(file: BinaryIO, rest: bytes) -> tuple[bytes, bytes]:
    """Return the bytes up to the next record, which begin with ``rest``, and the first line of that record."""
    parts, size, is_empty = [rest], len(rest), False
    while (line := file.readline(_LONGEST_HEAD)) and not (is_empty and _VERSION.match(line)):
        parts.append(line)
        if (size := size + len(line)) > MOST_BYTES:
            raise UnreadableFileError(f"no record begins in the {size} bytes after one")
        is_empty = not line.strip(b"\r\n")
    return b"".join(parts).removesuffix(b"\r\n\r\n"), line


def _skip(file: BinaryIO, size: int) -> int:
    """Skip bytes of a file, and return how many there were."""
    left = size
    while left and (piece := file.read(min(left, _PIECE))):
        left -= len(piece)
    return size - left


def _type_of(headers: dict[str, str]) -> str:
    return headers.get("warc-type", "").lower()


def _judge(record: _Record, block: bytes, keys: RecordKeys, line: int, extractor: Extractor) -> Record:
    """Make a document of a record. If ``where`` does not select its fields, its text is not extracted."""
    headers = record.headers
    url = headers.get("warc-target-uri", "").strip("<>")
    named = {name: headers.get(name.lower()) for name in (keys.id_key, *(kept.name for kept in keys.kept))}
    fields = named | {"id": headers.get("warc-record-id"), "url": url, "date": headers.get("warc-date")}
    if keys.where is not None and (metadata := keys.metadata(fields)) is not None and not keys.where.holds(metadata):
        return Unselected(keys.file, line, 1, keys.source)
    if len(block) < record.length <= MOST_BYTES:
        detail = f"{url}: it states {record.length} bytes, and {len(block)} come before the next record"
        return keys.bad(line, None, "record that is cut", detail)
    try:
        if not block and record.length:
            raise SkippedPageError(OVER_A_LIMIT)
        if _type_of(headers) == "conversion":
            text = block.removeprefix(BOM_UTF8).decode()
        elif _type_of(headers) in ("response", "resource"):
            text = extractor(*_page(block, headers), url or None)
        else:
            raise SkippedPageError("record of another type")
    except SkippedPageError as reason:
        return Unselected(keys.file, line, 1, keys.source, str(reason))
    except UnicodeDecodeError as error:
        return keys.bad(line, None, INVALID_UTF8, f"byte {error.start} of the text: {error.reason}")
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        return keys.bad(line, None, f"page that raised {type(error).__name__}", f"{url}: {error}")
    return keys.judge(fields | {keys.text_key: text}, line, None)


def _page(block: bytes, headers: dict[str, str]) -> tuple[bytes, str | None]:
    """Return a page of HTML and the charset that it declares. Raises ``SkippedPageError`` if the block holds none.

    Raises ``OSError`` if the page cannot be unpacked.
    """
    from resiliparse.parse.encoding import detect_mime

    body, declared, fault = block, headers.get("content-type", ""), ""
    if (response := read_response(block)) is not None:
        body, declared, fault = response.body, response.headers.get("content-type", ""), response.fault
        if response.status is not None and not 200 <= response.status < 300:
            raise SkippedPageError(f"page of status {response.status}")
    elif declared.startswith("application/http"):  # a response of HTTP 0.9, which has no headers
        declared = ""
    head = body[:_HEAD]
    kind, seen = headers.get("warc-identified-payload-type") or declared, detect_mime(head)
    if not seen.startswith(_TEXTUAL) or not kind:  # bytes of a picture or PDF outweigh a declared type
        kind = "text/html" if _HTML.search(head) else seen
    elif fault and not _HTML.search(head):
        raise OSError(fault)
    kind = kind.partition(";")[0].strip().lower()
    if "html" not in kind:
        raise SkippedPageError(f"page of {kind if _MEDIA_TYPE.fullmatch(kind) else 'an unknown type'}")
    charset = _CHARSET.search(declared)
    return body, charset[1] if charset else None


class _Members(io.RawIOBase):
    """Data as a file that ends before each member that begins a record. `go_on` continues it with that member."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self.are_packed = False
        self._blocks = blocks
        self._data = memoryview(b"")
        self._has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._data and not self._has_ended:
            block = next(self._blocks, None)
            if block is None:
                return 0
            if block:
                self._data = memoryview(block)
            else:
                self._begin_member()
        if self._has_ended:
            return 0
        size = min(len(buffer), len(self._data))
        buffer[:size], self._data = self._data[:size], self._data[size:]
        return size

    def go_on(self) -> bool:
        """Continue with the next member. Return whether there is one."""
        followed, self._has_ended = self._has_ended, False
        return followed

    def _begin_member(self) -> None:
        data = b""
        while len(data) < len(_BEGINNING) and (block := next(self._blocks, None)) is not None:
            data += block
        self.are_packed = True
        self._data, self._has_ended = memoryview(data), data.startswith(_BEGINNING)


READER = FormatReader(read_warc, borders=member_borders, divides_compressed=True)
