"""The bytes of one input file, in blocks and lines: decompressed by content, hashed, checked to the last byte."""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from ..document import BINARY
from ..formats import PACKED
from ..storage.input_file import InputFile, as_input

BLOCK = 1 << 20
_PIECE = 32 << 10  # compressed bytes per step: bounds the bytes that one step unpacks
_HEAD = 10  # bytes that tell whether a file is compressed
_MARKS = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")  # first bytes of compressed files
_HEADS = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "bzip2": re.compile(rb"BZh.(?:1AY&SY|\x17rE8P\x90)", re.DOTALL),  # its first block, or the end of an empty stream
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # a frame, or one that holds no data
}
_BINARY = (
    *((b"%PDF-1.", "PDF"), (b"%PDF-2.", "PDF"), (b"PK\3\4", "zip archive"), (b"7z\xbc\xaf", "7z archive")),
    *((b"\x7fELF", "program"), (b"\x89PNG", "picture"), (b"\xff\xd8\xff", "picture"), (b"\x93NUMPY", "npy array")),
    (b"{\\rtf", "rich text file"),
)
_LONGEST_LINE = 1 << 29
PEEKED = 4096  # bytes at a time of what is read twice
_TEXT_HEAD = 4096  # bytes that tell whether text is UTF-16
UTF16 = "UTF-16 text; convert it to UTF-8 first"


class UnreadableFileError(Exception):
    """A file cannot be read further. The message does not name the file; the caller adds the name."""


class ByteStream:
    """Reads one file, or its bytes ``[start, stop)`` and the rest of the line that crosses ``stop``.

    ``bytes_read`` counts the raw bytes of the range that were read, and ``sha256`` is their hash. It is the hash of the
    whole file if no range was given and all was read. ``on_stream`` is called before each compressed stream of the file:
    the checksums of earlier streams, if they have any, confirm everything before it.
    """

    def __init__(
        self,
        file: BinaryIO,
        start: int = 0,
        stop: int | None = None,
        *,
        block: int = BLOCK,
        on_stream: Callable[[], object] = lambda: None,
    ) -> None:
        self.file = file
        self.start = start
        self.stop = stop
        self.is_local = isinstance(file, io.BufferedReader)
        self.bytes_read = 0
        self.is_hashed = False
        self.text_start = start
        self._block = block
        self._position = start
        self._on_stream = on_stream
        self._digest = hashlib.sha256()

    @property
    def path(self) -> str:
        return self.file.name

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def raw(self, size: int = 0) -> Iterator[bytes]:
        """Yield the bytes of the range as they are in the file, ``size`` or one block at a time."""
        size = size or self._block
        self.is_hashed = True
        self.file.seek(self.start)
        while block := self.file.read(size if self.stop is None else min(size, self.stop - self.file.tell())):
            self.bytes_read += len(block)
            self._digest.update(block)
            yield block

    def blocks(self) -> Iterator[bytes]:
        """Yield the data of the range, decompressed if the file's first bytes are those of gzip, zstd, bzip2 or xz.

        Raises ``UnreadableFileError`` if a stream is cut, corrupt or followed by other bytes, after the data before.
        """
        kind = "" if self.stop is not None else compression(self.file)
        return self._unpack(kind, self.raw(_PIECE)) if kind else self.raw()

    def members(self, beginning: bytes) -> Iterator[bytes]:
        """Yield the data of the gzip members of the range. Ranges meet at members whose data begin with ``beginning``.

        So a later range begins with its first such member, and a range ends before the first such member after its end. For a
        whole file, yield its data however it is compressed. An empty block precedes each compressed stream.
        """
        if self.start == 0 and self.stop is None:
            kind = compression(self.file)
            return self._unpack(kind, self.raw(_PIECE), beginning) if kind else self.raw()
        pieces = self._pieces_to_end()
        return self._unpack("gzip", self._from_member(pieces, beginning) if self.start else pieces, beginning)

    def _pieces_to_end(self) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to the end of the file; ``_position`` is the offset after the last piece."""
        for piece in itertools.chain(self.raw(_PIECE), iter(lambda: self.file.read(_PIECE), b"")):
            self._position += len(piece)
            yield piece

    def _from_member(self, pieces: Iterator[bytes], beginning: bytes) -> Iterator[bytes]:
        """Yield the bytes from the first member in the range whose data begin with ``beginning``."""
        data = b""
        for piece in pieces:
            data, at = data + piece, -1
            while (at := data.find(_MARKS[0], at + 1)) >= 0:
                if self.stop is not None and self._position - len(data) + at >= self.stop:
                    return
                begins = _member_begins(data[at:], beginning)
                if begins is None and len(data) - at < BLOCK:
                    break
                if begins:
                    yield data[at:]
                    yield from pieces
                    return
            data = data[at if at >= 0 else -1 :]
            if self.stop is not None and self._position - len(data) >= self.stop:
                return

    def check_compression(self) -> None:
        """Raise ``UnreadableFileError`` if the name says that the file is compressed, but its bytes are neither so nor text.

        Also raises if a compressed file was cut as plain text: the name alone decides how a remote file is cut.
        """
        if self.stop is not None and self.start == 0 and not self.is_local and compression(self.file):
            raise UnreadableFileError(
                "compressed data under a name without .gz, .zst, .bz2 or .xz; give it the name of what it holds"
            )
        if not self.path.lower().endswith(PACKED) or compression(self.file):
            return
        self.file.seek(0)
        head = self.file.read(BLOCK)
        if not head:
            raise UnreadableFileError("0 bytes, so it is not a compressed stream")
        if any(mark.startswith(head) or (len(head) < _HEAD and head.startswith(mark)) for mark in _MARKS):
            raise UnreadableFileError(f"the compressed stream is cut off at byte {len(head)}, before its end")
        text = codecs.getincrementaldecoder("utf-8")("ignore").decode(head[:4096])
        if b"\0" in head[:4096] or 10 * len(text.encode()) < 9 * min(len(head), 4096):
            raise UnreadableFileError("neither gzip nor zstd, bzip2 or xz data, nor plain text under a wrong name")

    def starts_with(self, mark: bytes) -> bool:
        """Whether the text, after leading blanks, starts with ``mark``. For a stream not yet read."""
        for block in ByteStream(self.file, self.start, self.stop, block=PEEKED).text():
            if text := block.lstrip():
                return text.startswith(mark)
        return False

    def text(self) -> Iterator[bytes]:
        """Yield blocks of text from the first line that starts in the range, without a byte order mark of UTF-8.

        ``text_start`` is the offset of that line in the data.
        """
        if not self.start:
            return self._past_mark(self.blocks())
        self.file.seek(self.start - 1)
        return self.raw() if self.file.read(1) == b"\n" else self._past_first_line(self.raw())

    def line_end(self) -> bytes:
        """Return the line end of the first line: a line feed, or a carriage return alone. For a stream not yet read."""
        head = next(filter(None, ByteStream(self.file, self.start, self.stop, block=self._block).text()), b"")
        first = re.search(rb"\r\n?|\n", head)
        return b"\r" if first and first[0] == b"\r" else b"\n"

    def lines(self, end: bytes = b"\n") -> Iterator[list[bytes]]:
        """Yield every line that starts in the range, in batches, without the ``end`` of each.

        Only ``end`` ends a line: U+2028 and similar characters are text. The last line of a file may lack it. A range of a
        file must have line feeds as line ends.
        """
        tail: list[bytes] = []
        length = 0
        for block in self.text():
            cut = block.rfind(end)
            if cut < 0:
                tail += [block] if block else []
                length += len(block)
                if length > _LONGEST_LINE:
                    raise UnreadableFileError(
                        f"a line of more than {_LONGEST_LINE >> 20} MiB; is this one document a line?"
                    )
                continue
            lines = block[:cut].split(end)
            if tail:
                lines[0] = b"".join((*tail, lines[0]))
            tail = [block[cut + 1 :]] if cut + 1 < len(block) else []
            length = len(block) - cut - 1
            yield lines
        if tail:
            yield [b"".join((*tail, self._rest_of_line()))]

    def _rest_of_line(self) -> bytes:
        """Return the bytes after the range up to the next line feed."""
        rest = []
        step = 2 << 10  # small: a remote file fetched these bytes together with the range
        while self.stop is not None and (block := self.file.read(step)):
            rest.append(block.partition(b"\n")[0])
            if len(rest[-1]) < len(block):
                break
            step = min(2 * step, BLOCK)  # each read may be a request
        return b"".join(rest)

    def _past_first_line(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        self.text_start = self.start
        for block in blocks:
            cut = block.find(b"\n") + 1
            self.text_start += cut or len(block)
            if cut:
                yield block[cut:]
                break
        yield from blocks

    def _past_mark(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        head = b""
        for block in blocks:
            head += block
            if len(head) >= _TEXT_HEAD:
                break
        if is_utf16(head):
            raise UnreadableFileError(UTF16)
        if (sign := binary_sign(head)) and "NUL" not in sign:
            raise UnreadableFileError(f"{BINARY}: {sign}; read it under the name of what it holds, without --format")
        if head.startswith(codecs.BOM_UTF8):
            self.text_start = len(codecs.BOM_UTF8)
        yield head[self.text_start :]
        yield from blocks

    def _unpack(self, kind: str, pieces: Iterator[bytes], beginning: bytes = b"") -> Iterator[bytes]:
        stream: Any = None
        bound = () if kind == "zstd" else (BLOCK,)  # most bytes that one step unpacks; zstd takes no bound
        members = 0
        for piece in pieces:
            data = b""
            while piece or (stream is not None and len(data) == BLOCK):  # a full block: there may be more
                if stream is None:
                    if kind in ("gzip", "xz") and members:  # zeros between and after streams are padding
                        piece = piece.lstrip(b"\0")
                        if not piece:
                            break
                    if self.stop is not None and self._position - len(piece) >= self.stop:
                        more = next(pieces, b"")
                        if _member_begins(piece + more, beginning):
                            return
                        piece += more  # no record begins here, so the next span does not begin with this member
                    self._on_stream()
                    if beginning:
                        yield b""
                    stream, members = _decompressor(kind), members + 1
                try:
                    data = stream.decompress(piece, *bound)
                except Exception as error:
                    what = f"corrupt {kind} data" if members == 1 else f"corrupt {kind} data, or stray bytes after it,"
                    if "ictionary" in str(error):
                        what = f"data that need a {kind} dictionary (unpack them first by zstd -d -D DICTIONARY),"
                    raise UnreadableFileError(f"{what} near byte {self.bytes_read} ({error})") from None
                if data:
                    yield data
                if stream.eof:
                    piece, stream = stream.unused_data, None
                else:
                    piece = stream.unconsumed_tail if kind == "gzip" else b""
        if stream is not None:
            cause = "" if members == 1 else "stray bytes follow the data, or "
            raise UnreadableFileError(f"{cause}the {kind} stream is cut off at byte {self.bytes_read}, before its end")


def _member_begins(data: bytes, beginning: bytes) -> bool | None:
    """Whether data are a gzip member whose text starts with ``beginning``; None if they are too few to tell."""
    member = _decompressor("gzip")
    try:
        text = member.decompress(data, len(beginning))
    except Exception:  # isal raises a class of its own that is not public
        return False
    return text == beginning if member.eof or len(text) == len(beginning) else None


def is_utf16(text: bytes) -> bool:
    """Whether text is UTF-16: it has the byte order mark, or many zeros, all at even or all at odd offsets.

    >>> [is_utf16("Ein Text.".encode(form)) for form in ("utf-16", "utf-16-le", "utf-16-be", "utf-8")]
    [True, True, True, False]
    """
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    even, odd = text[0:_TEXT_HEAD:2].count(0), text[1:_TEXT_HEAD:2].count(0)
    return min(even, odd) == 0 and max(even, odd) > max(1, min(len(text), _TEXT_HEAD) // 20)


def binary_sign(data: bytes) -> str:
    """Return a sign that data are not text, or '' if there is none.

    >>> binary_sign(b"%PDF-1.7"), binary_sign(b"a \\0 b"), binary_sign(b"text")
    ('it begins as a PDF does', 'a NUL at byte 2', '')
    """
    kind = next((name for mark, name in _BINARY if data.startswith(mark)), "")
    kind = "tar" if data[257:262] == b"ustar" and b"\0" in data[:512] else kind  # "custard" is a word
    if kind:
        return f"it begins as a {kind} does"
    return f"a NUL at byte {data.find(0)}" if 0 in data else ""


def _decompressor(kind: str) -> Any:
    """Return a decompressor for one member or frame."""
    if kind == "gzip":
        from isal import isal_zlib

        return isal_zlib.decompressobj(wbits=31)
    if kind == "zstd":
        import zstandard

        # `zstd --long=31` writes windows of 2 GiB. A window is allocated only if a frame asks for it.
        return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    if kind == "xz":
        import lzma

        return lzma.LZMADecompressor(lzma.FORMAT_XZ)
    import bz2

    return bz2.BZ2Decompressor()


def compression(file: BinaryIO) -> str:
    """Return the compression of a file by its first bytes, or '' if it is not compressed."""
    file.seek(0)
    head = file.read(_HEAD)
    return next((kind for kind, mark in _HEADS.items() if mark.match(head)), "")


def is_compressed(path: str | os.PathLike[str] | InputFile) -> bool:
    """Whether a file is compressed, by its first bytes. The name decides for an empty or a remote file."""
    if as_input(path).stored is None:
        with open(path, "rb") as file:
            if file.read(1):
                return bool(compression(file))
    return os.fspath(path).lower().endswith(PACKED)
