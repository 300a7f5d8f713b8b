"""The response of a web server as a crawler stored it: status, headers, and the unpacked body."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ..extract import MOST_BYTES

_BEGINNING = re.compile(rb"(?:HTTP/|ICY )\S*\s*(\d{3})?", re.IGNORECASE)
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(r"\n[ \t]+")
# The line before a chunk, with its extensions.
_CHUNK = re.compile(rb"(?:\r?\n)?([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\n]*?)?\r?\n")
_PIECE = 1 << 14


class Response(NamedTuple):
    """The response of a server. ``fault`` says why its body could not be unpacked; it is '' otherwise."""

    status: int | None
    headers: dict[str, str]
    body: bytes
    fault: str


def read_response(block: bytes) -> Response | None:
    """Return the response in the block of a record, or None if the block does not begin as a response.

    A body that is not packed as the headers say is returned unchanged: some crawlers unpack it and keep the headers.
    """
    beginning = _BEGINNING.match(block)
    if beginning is None:
        return None
    end = _END_OF_HEAD.search(block)
    headers = read_headers(block[: end.start()] if end else block)
    body, fault = block[end.end() :] if end else b"", ""
    codings = ",".join((headers.get("content-encoding", ""), headers.get("transfer-encoding", "")))
    for coding in reversed(codings.lower().split(",")):
        if coding.strip() == "chunked":
            body = _joined(body)
        elif (pieces := _unpacked(body, coding.strip())) is not None:
            unpacked, error = _read(pieces)
            body, fault = unpacked or body, "" if unpacked else error
    return Response(int(beginning[1]) if beginning[1] else None, headers, body, fault)


def read_headers(head: bytes) -> dict[str, str]:
    """Return the headers after the first line, by names in lower case. Commas join the values of equal names.

    >>> read_headers(b"WARC/1.0\\r\\nWARC-Type: response\\ncontent-length:  0001")
    {'warc-type': 'response', 'content-length': '0001'}
    """
    headers: dict[str, str] = {}
    for line in _FOLD.sub(" ", head.decode("utf-8", "replace").replace("\r\n", "\n")).split("\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            name, value = name.strip().lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _joined(body: bytes) -> bytes:
    """Return the joined chunks of a body. Bytes that are not a chunk are kept."""
    parts: list[bytes] = []
    at = 0
    while chunk := _CHUNK.match(body, at):
        if not (size := int(chunk[1], 16)):
            return b"".join(parts)
        at = chunk.end() + size
        parts.append(body[chunk.end() : at])
    return b"".join((*parts, body[at:]))


def _unpacked(body: bytes, coding: str) -> Iterator[bytes] | None:
    """Return the pieces of a packed body after unpacking, or None if the coding is unknown."""
    from fastwarc.stream_io import BrotliReader, ZstdReader

    match coding:
        case "gzip" | "x-gzip":
            return _inflated(body, 31)
        case "deflate":  # some servers leave out the two bytes with which zlib begins
            has_head = body[:1].hex().endswith("8") and int.from_bytes(body[:2], "big") % 31 == 0
            return _inflated(body, 15 if has_head else -15)
        case "br":
            return iter(partial(BrotliReader(io.BytesIO(body)).read, _PIECE), b"")
        case "zstd":
            return iter(partial(ZstdReader(io.BytesIO(body)).read, _PIECE), b"")
    return None


def _inflated(body: bytes, wbits: int) -> Iterator[bytes]:
    """Yield the unpacked data of each member of a body. ``wbits`` names the kind of their headers, as in zlib."""
    while body:
        unpacker, at = zlib.decompressobj(wbits), 0
        while at < len(body) and not unpacker.eof:
            yield unpacker.decompress(body[at : at + _PIECE])
            at += _PIECE
        body = unpacker.unused_data + body[at:]


def _read(pieces: Iterator[bytes]) -> tuple[bytes, str]:
    """Join pieces up to a fault or just over the limit of a page. Return them and the fault."""
    parts: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            parts.append(piece)
            if (size := size + len(piece)) > MOST_BYTES:
                break
    except (OSError, zlib.error) as fault:
        return b"".join(parts), str(fault)
    return b"".join(parts), ""
