"""Tars: each member is read like a file of that name. A compressed tar is first unpacked to a temporary file."""

from __future__ import annotations

import errno
import io
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO, cast

from ...errors import ShardError
from ...paths import is_hidden
from ...shards.tar_members import Member, walk_or_raise
from ..document import Record, RecordKeys, Tally
from ..formats import Format, find_format
from .byte_stream import ByteStream, UnreadableFileError, compression
from .format_reader import FormatReader, load_reader

UNREADABLE_MEMBER = "member that cannot be read further"
_DIRECTORY = b"5"


def read_tar(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield the records of each member whose name has a known ending, in the order of the tar.

    The ``file`` of a record is ``TAR/MEMBER``, and its ``line`` counts in the member. Hidden members are skipped. ``tally``
    counts other members without text (unknown endings, tars, links, devices). A member that cannot be read further yields
    its records before the fault, then a bad record. Raises ``UnreadableFileError`` if the tar is cut or corrupt, or if no
    member can be read.
    """
    read = 0
    for member, name, archive in files_of(stream):
        form = find_format(name) if member.is_file else None
        if form is None or form.module == "tar":
            tally.leave_out(name)
            continue
        read += 1
        contents = ByteStream(cast(BinaryIO, _MemberFile(archive, member, f"{stream.path}/{name}")))
        for records in _records(contents, name, form, keys, tally):
            if archive is stream.file:
                stream.bytes_read = member.data + contents.bytes_read
            yield records
    if not read:
        found = f"only {tally.left_out_text}" if tally.left_out else "no file"
        raise UnreadableFileError(
            f"no member can be read, {found}; give members known endings, as for files, or stream a shard of tokens"
        )


def files_of(stream: ByteStream) -> Iterator[tuple[Member, str, BinaryIO]]:
    """Yield the members of a tar that are neither directories nor hidden, each with its name and the unpacked tar.

    Raises ``UnreadableFileError`` after the last whole member if the tar is cut or corrupt.
    """
    packed = bool(compression(stream.file))
    archive, damage = _unpacked(stream) if packed else (stream.file, None)
    try:
        for member in walk_or_raise(_Slices(archive), stream.path):
            name = _name(member)
            if not (is_hidden(name) or member.kind == _DIRECTORY or name.endswith("/")):
                stream.bytes_read = stream.bytes_read if packed else member.data
                yield member, name, archive
    except ShardError as error:
        raise damage or UnreadableFileError(str(error).removeprefix(f"{stream.path}: ")) from None
    finally:
        if packed:
            archive.close()
    if damage:
        raise damage
    if not packed:
        stream.bytes_read = stream.file.seek(0, io.SEEK_END)


def _unpacked(stream: ByteStream) -> tuple[BinaryIO, UnreadableFileError | None]:
    """Return a temporary file of the unpacked data, and the error if damage ended them early."""
    file, damage = tempfile.TemporaryFile(prefix="shardwright-"), None  # noqa: SIM115 - it ends with this object
    try:
        for block in stream.blocks():
            file.write(block)
        file.flush()
    except UnreadableFileError as error:
        damage = error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            error.errno, f"{tempfile.gettempdir()}, where it is unpacked, is full; set TMPDIR to another folder"
        ) from None
    return cast(BinaryIO, file), damage


def _name(member: Member) -> str:
    """Return the name of a member as text. A byte that is not UTF-8 becomes an escape such as ``\\xff``."""
    return member.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").removeprefix("./")


def _records(stream: ByteStream, name: str, form: Format, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield the records of one member, and count them in the tally of the tar."""
    keys = replace(keys, file=f"{keys.file}/{name}", record=form.record, tar=keys.file)
    lines, documents, of_member = tally.lines, tally.documents, Tally()
    try:
        if form.compressible:
            stream.check_compression()
        for records in load_reader(form).read(stream, keys, of_member):
            tally.lines, tally.documents = lines + of_member.lines, documents + of_member.documents
            yield records
    except UnreadableFileError as error:
        tally.lines += 1
        yield [keys.bad(of_member.lines + 1, None, UNREADABLE_MEMBER, str(error))]


class _Slices:
    """A file as a sequence of bytes whose slices are read in ascending order, as the walk over a tar needs it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __len__(self) -> int:
        return self._file.seek(0, io.SEEK_END)

    def __getitem__(self, bounds: slice) -> bytes:
        self._file.seek(bounds.start)
        return self._file.read(bounds.stop - bounds.start)


class _MemberFile(io.RawIOBase):
    """The payload of one member as a read-only file."""

    def __init__(self, file: BinaryIO, member: Member, name: str) -> None:
        super().__init__()
        self.name = name
        self._file = file
        self._start, self._size = member.data, member.size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._start + self._at)
        data = self._file.read(size)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


READER = FormatReader(read_tar, unpacks=True, has_column=lambda stream, name: False)  # its members are not looked at
