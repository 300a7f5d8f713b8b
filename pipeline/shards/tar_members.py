"""A strict walk over the headers of any plain tar: it raises an error at damage that other readers take for the end.

It reads ustar, old (v7) tars, GNU long names, PAX paths and sizes, and base-256 sizes. It refuses compressed and sparse tars.
"""

from __future__ import annotations

import mmap
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import CorruptShardError, ShardError, TruncatedShardError
from ..paths import special_kind
from .format import BLOCK

REPAIR = "copy it again or rebuild it"
MAX_META = 1 << 20  # a longer name or PAX record is damaged: paths have 4 KiB at most

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ZERO = bytes(BLOCK)
_CHUNK = 1 << 20
_REGULAR = (b"0", b"\0", b"7")
_EMPTY = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, directories, pipes: never a payload


class Sliceable(Protocol):
    """The bytes of a file: a map, bytes, or an object that reads slices of the file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class Member(NamedTuple):
    """A member of a tar: the ``offset`` of its first header, the offset (``data``) and ``size`` of its payload, its ``kind``."""

    name: str
    offset: int
    data: int
    size: int
    kind: bytes

    @property
    def is_file(self) -> bool:
        return self.kind in _REGULAR


class TarDamage(Exception):
    """Damage that ended a walk: at byte ``offset``, in or after ``member``; ``cut``: the file ends too early."""

    def __init__(self, member: str, offset: int, reason: str, *, cut: bool = False) -> None:
        super().__init__(reason)
        self.member = member
        self.offset = offset
        self.cut = cut


@contextmanager
def opened(path: str | Path) -> Iterator[tuple[int, int]]:
    """Open a file and yield its descriptor and size; raises ``ShardError`` if it cannot be opened, or is empty."""
    # Streams open thousands of files, and open() takes three times as long. O_NONBLOCK: opening a FIFO does not block.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ShardError(f"{path}: the shard is not there; {REPAIR}") from None
    except OSError as error:
        raise ShardError(
            f"{path}: the shard cannot be opened: {error.strerror}; let this user read it, or copy it again"
        ) from error
    try:
        status = os.fstat(handle)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise CorruptShardError(f"{path} is {special_kind(path) or 'no file'}; write the shard to a file")
        if size == 0:
            raise TruncatedShardError(f"{path}: byte 0: the file is empty; {REPAIR}")
        yield handle, size
    finally:
        os.close(handle)


def map_file(path: str | Path) -> mmap.mmap:
    """Return a read-only map of a file; raises ``TruncatedShardError`` if it is empty."""
    with opened(path) as (handle, _):
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)


def walk_or_raise(data: Sliceable, path: str | Path) -> Iterator[Member]:
    """Yield the members of a plain tar in file order.

    Raises ``TruncatedShardError`` if the tar is cut: between members, in a header, in a payload, before its two end blocks.
    Raises ``CorruptShardError`` if a header's checksum is wrong, a block is zeroed, or bytes follow the end.
    """
    try:
        yield from walk(data)
    except TarDamage as damage:
        location = f"member {damage.member!r}" if damage.member else "the first header"
        kind = TruncatedShardError if damage.cut else CorruptShardError
        raise kind(f"{path}: {location}, byte {damage.offset}: {damage}; {REPAIR}") from None


def walk(data: Sliceable) -> Iterator[Member]:
    """Yield the members of a tar; raises `TarDamage` at the first damage."""
    size, position, last = len(data), 0, ""
    fixed: dict[str, str] = {}  # PAX records that hold for all later members
    while True:
        position, member = _next_member(data, position, size, last, fixed)
        if member is None:
            return
        last = member.name
        yield member


def _next_member(
    data: Sliceable, position: int, size: int, last: str, fixed: dict[str, str]
) -> tuple[int, Member | None]:
    """Return the offset after the next member, and the member (None at the end), named by the blocks before its header."""
    offset = position
    long_name: str | None = None
    records: dict[str, str] = {}
    while True:
        block = data[position : position + BLOCK]
        if len(block) < BLOCK:
            raise _truncation(position, size, last, bool(records) or long_name is not None)
        if block == _ZERO:
            if offset != position:
                raise TarDamage(last, position, "a zeroed block where a member's header belongs")
            _check_end(data, position, size, last)
            return position, None
        header = _parse_header(block, position, last)
        name, length, kind = header.name, header.size, header.type
        if kind not in (b"L", b"K", b"x", b"g"):
            break
        payload = _meta(data, position + BLOCK, length, size, name)
        if kind == b"L":
            long_name = _text(payload.split(b"\0", 1)[0])
        elif kind != b"K":  # K is the long target of a link, which has no payload
            (fixed if kind == b"g" else records).update(_pax_records(payload, position, name))
        position += BLOCK + length + -length % BLOCK
    records = {**fixed, **records}
    if kind == b"S" or any(key.startswith("GNU.sparse") for key in records):
        raise TarDamage(name, position, "a sparse member, whose bytes are not stored as they are read")
    name = records.get("path", long_name if long_name is not None else name)
    if "size" in records:
        if not records["size"].isdecimal():
            raise TarDamage(name, position, f"a PAX size of {records['size']!r}")
        length = int(records["size"])
    if kind in _EMPTY:
        length = 0
    start = position + BLOCK
    end = start + length + -length % BLOCK
    if end > size:
        raise TarDamage(name, size, f"the file ends inside the payload, {end - size} bytes early", cut=True)
    return end, Member(name, offset, start, length, kind)


def _parse_header(block: bytes, position: int, last: str) -> tarfile.TarInfo:
    """Return the fields of a header block; raises `TarDamage` if its checksum or a number is wrong."""
    for magic, kind in _COMPRESSED.items():
        if position == 0 and block.startswith(magic):
            raise TarDamage("", 0, f"compressed with {kind}; shards are plain tars: decompress it")
    header: tarfile.TarInfo | None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        header = None
    if header is None or header.size < 0:
        reason = "the header that follows is damaged" if position else "not a tar: no header here"
        raise TarDamage(last, position, reason)
    return header


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _meta(data: Sliceable, start: int, length: int, size: int, name: str) -> bytes:
    if length > MAX_META:
        raise TarDamage(name, start - BLOCK, f"a long name or PAX header of {length} bytes, more than {MAX_META}")
    if start + length > size:
        raise TarDamage(name, size, "the file ends inside a long name or PAX header", cut=True)
    return data[start : start + length]


def _pax_records(payload: bytes, position: int, name: str) -> dict[str, str]:
    """Parse ``length key=value\\n`` records, where ``length`` counts the whole record."""
    records, at = {}, 0
    while at < len(payload):
        digits = payload[at : at + 8].split(b" ", 1)[0]
        length = int(digits) if digits.isdigit() else 0
        record = payload[at + len(digits) + 1 : at + length]
        if at + length > len(payload) or record[-1:] != b"\n" or b"=" not in record:
            raise TarDamage(name, position, f"a PAX header with the malformed record {payload[at : at + 40]!r}")
        key, value = record[:-1].split(b"=", 1)
        records[_text(key)] = _text(value)
        at += length
    return records


def _truncation(position: int, size: int, last: str, in_meta: bool) -> TarDamage:
    if position < size or in_meta:
        return TarDamage(last, size, "the file ends inside the header that follows", cut=True)
    return TarDamage(last, size, "the file ends without the end-of-archive blocks, cut between members", cut=True)


def _check_end(data: Sliceable, position: int, size: int, last: str) -> None:
    """Raise `TarDamage` unless two or more zero blocks, and nothing else, are between ``position`` and the end."""
    for start in range(position, size, _CHUNK):
        chunk = data[start : start + _CHUNK]
        rest = chunk.lstrip(b"\0")
        if rest:
            at = start + len(chunk) - len(rest)
            if at - position < 2 * BLOCK:
                reason = f"a zeroed block where the next header belongs: {size - at} bytes, not all zero, follow from byte {at}"
                raise TarDamage(last, position, reason)
            reason = f"bytes after the end of the archive (from byte {at}), or a zeroed header with members after it"
            raise TarDamage(last, at, reason)
    if size - position < 2 * BLOCK:
        raise TarDamage(last, size, "the file ends inside its two end-of-archive blocks", cut=True)
    if size % BLOCK:
        raise TarDamage(last, size, f"{size} bytes, no multiple of {BLOCK}: the file was cut or extended", cut=True)
