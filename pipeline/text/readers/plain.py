"""Plain text: a file is one document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ..document import INVALID_UTF8, Record, RecordKeys, Tally
from .byte_stream import UTF16, ByteStream, is_utf16
from .format_reader import FormatReader

SUFFIX = ".txt"


def read_plain(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield the one document that a text file is, to the byte; its id is the file's name without endings.

    The id of a tar's member has the folders of its name, too.
    """
    member = keys.file.removeprefix(f"{keys.tar}/") if keys.tar else ""
    name = member or PurePath(stream.path).name
    data = b"".join(stream.blocks())
    tally.lines = 1
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield [keys.bad(1, error.start, INVALID_UTF8, UTF16 if is_utf16(data) else error.reason)]
        return
    if is_utf16(data):
        yield [keys.bad(1, 0, INVALID_UTF8, UTF16)]
        return
    tally.documents = 1
    end = name.lower().rfind(SUFFIX)
    yield [keys.document(text, name if end < 0 else name[:end], 1)]


READER = FormatReader(read_plain)
