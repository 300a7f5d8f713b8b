"""WARC and WET files: pages as a crawler stored them, and texts that somebody extracted.

A file of gzip members, as WARC files are, is cut at any byte: a span holds the members that begin in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from ...errors import ConfigError, not_installed
from ..document import INVALID_UTF8, Document, Record, RecordKeys, Tally, Unselected
from ..extract import MOST_BYTES, OVER_A_LIMIT, RESILIPARSE, Extractor, SkippedPageError
from ..storage.input_file import InputFile
from ..storage.open_input import open_input
from .byte_stream import ByteStream, UnreadableFileError, compression
from .format_reader import FormatReader, line_cuts

_BEGINNING = b"WARC/"  # of each record
_WITHOUT_TEXT = ("warcinfo", "request", "metadata", "revisit")  # records that stand beside those of pages
_RECORDS = 32  # at a time: few, since each may be a page that takes milliseconds
_PIECE = 1 << 18
_HEAD = 4096  # bytes of a page that tell what it is
_HTML = re.compile(rb"<(?:html|!doctype html)", re.IGNORECASE)
_TEXTUAL = ("text/", "application/octet-stream", "application/xml", "application/xhtml")  # of Cyrillic: the second
_MEDIA_TYPE = re.compile(r"\w+/[\w.+-]{1,60}", re.ASCII)


class _Page(NamedTuple):
    """The payload of a response, unpacked."""

    body: bytes
    kind: str  # its media type
    charset: str | None
    status: int | None


def read_warc(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a document for each page of HTML (``response``) and each text (``conversion``); ``line`` counts all records.

    Fields are ``id``, ``url``, ``date`` and the headers of the record by their names. Other pages are ``Unselected``, with the
    reason; records that stand beside those of pages, such as requests, are passed over.
    """
    extractor = Extractor(keys.extract or RESILIPARSE)
    records: list[Record] = []
    try:
        for headers, block in _records(stream):
            tally.lines += 1
            if block is not None:
                record = _judge(headers, block, keys, tally.lines, extractor)
                tally.documents += isinstance(record, Document)
                records.append(record)
            if len(records) == _RECORDS:
                yield records
                records = []
    except UnreadableFileError:
        yield records
        raise
    yield records


def member_cuts(file: InputFile, unit_bytes: int) -> list[int]:
    """Return even cuts of a file of gzip members: a span holds those that begin in it. Other files are not cut."""
    with open_input(file, in_order=False) as opened:
        return line_cuts(file, unit_bytes) if compression(opened) == "gzip" else []


def _records(stream: ByteStream) -> Iterator[tuple[dict[str, str], bytes | None]]:
    """Yield the headers of each record, and the block of those that may hold text; b"" for one that is too long."""
    try:
        from fastwarc.warc import ArchiveIterator
    except ImportError:
        raise not_installed("WARC files", "fastwarc resiliparse") from None
    try:
        members = _Stream(stream.members(_BEGINNING))
        for record in ArchiveIterator(cast(BinaryIO, members), parse_http=False, stream_detect=False):
            headers = dict(record.headers.items())
            length = headers.get("Content-Length", "")
            block = None
            if headers.get("WARC-Type") not in _WITHOUT_TEXT:
                block = record.reader.read() if record.content_length <= MOST_BYTES else b""
            size = record.consume() if not block else len(block)
            if length != str(size):
                raise UnreadableFileError(f"a record of {length or 'no stated number of'} bytes is cut after {size}")
            yield headers, block
    except OSError as error:
        if error.errno is not None:
            raise  # the disk's fault, not the file's
        raise UnreadableFileError(f"not a whole WARC file ({error}) near byte {stream.bytes_read}") from None


def _judge(headers: dict[str, str], block: bytes, keys: RecordKeys, line: int, extractor: Extractor) -> Record:
    """Make a document of a record; where its fields leave it out, before its text is extracted."""
    url = headers.get("WARC-Target-URI", "").strip("<>")
    fields: dict[str, Any] = {
        **headers,
        "id": headers.get("WARC-Record-ID"),
        "url": url,
        "date": headers.get("WARC-Date"),
    }
    if keys.where is not None and (metadata := keys.metadata(fields)) is not None and not keys.where.holds(metadata):
        return Unselected(keys.file, line, 1, keys.source)
    if not block and headers["Content-Length"] != "0":
        return Unselected(keys.file, line, 1, keys.source, OVER_A_LIMIT)
    try:
        if headers.get("WARC-Type") == "conversion":
            text = block.decode()
        elif headers.get("WARC-Type") == "response":
            page = _page(block, headers)
            text = extractor(page.body, page.charset, url or None)
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


def _page(block: bytes, headers: dict[str, str]) -> _Page:
    """Unpack a response. Raises ``SkippedPageError`` for one that is no page of HTML, ``OSError`` where it cannot be unpacked."""
    from resiliparse.parse.encoding import detect_mime

    try:
        page = _unpack(block, "all")
    except OSError:  # as crawlers leave it that unpack a body, and keep what its server said of the packing
        page = _unpack(block, "none")
        if not _HTML.search(page.body[:_HEAD]):
            raise
    if page.status is not None and not 200 <= page.status < 300:
        raise SkippedPageError(f"page of status {page.status}")
    kind, seen = headers.get("WARC-Identified-Payload-Type") or page.kind, detect_mime(page.body[:_HEAD])
    if not seen.startswith(_TEXTUAL) or not kind:  # whatever a picture or PDF is called
        kind = "text/html" if _HTML.search(page.body[:_HEAD]) else seen
    kind = kind.partition(";")[0].strip().lower()
    if "html" not in kind:
        raise SkippedPageError(f"page of {kind if _MEDIA_TYPE.fullmatch(kind) else 'an unknown type'}")
    return page


def _unpack(block: bytes, decode: Literal["all", "none"]) -> _Page:
    from fastwarc.warc import WarcRecord

    record = WarcRecord()
    record.set_bytes_content(block)
    record.is_http = True
    record.parse_http(auto_decode=decode)
    parts: list[bytes] = []
    while sum(map(len, parts)) <= MOST_BYTES and (part := record.reader.read(_PIECE)):  # it allocates what is asked for
        parts.append(part)
    status = record.http_headers.status_code if record.http_headers is not None else None
    return _Page(b"".join(parts), record.http_content_type or "", record.http_charset, status)


class _Stream:
    """Blocks of bytes as a file that is read in order."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = next(self._blocks, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def tell(self) -> int:
        return 0  # fastwarc asks for places, which nothing here uses

    def seek(self, offset: int, whence: int = 0) -> int:
        return 0


READER = FormatReader(read_warc, cuts=member_cuts, cuts_compressed=True)
