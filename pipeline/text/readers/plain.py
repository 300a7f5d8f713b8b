"""Plain text: a file is one document."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import PurePath

from ..code_languages import language_of
from ..document import BINARY, INVALID_UTF8, Record, RecordKeys, Tally, Unselected
from .byte_stream import UTF16, ByteStream, binary_sign, is_utf16
from .format_reader import FormatReader

SUFFIX = ".txt"


def read_plain(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield the text of the file as one document. Its id is the file's name without endings.

    The id of a tar's member includes its folders. Fields are ``path``, ``repository`` (the first folder of the path), and
    ``language``, by the ending.
    """
    member = keys.file.removeprefix(f"{keys.tar}/") if keys.tar else ""
    name = member or PurePath(stream.path).name
    path = keys.file.removeprefix(f"{keys.source}/") if keys.source else keys.file
    folder, separator, _ = path.lstrip("/").partition("/")
    fields = {"path": path, "repository": folder if separator else None, "language": language_of(path)}
    metadata = keys.metadata(fields)
    data = b"".join(stream.blocks())
    tally.lines = 1
    if metadata is None:
        yield [keys.misfit(fields, 1, None)]
        return
    if keys.where is not None and not keys.where.holds(metadata):  # before its bytes are judged: it may be a picture
        yield [Unselected(keys.file, 1, 1, keys.source)]
        return
    if is_utf16(data):
        yield [keys.bad(1, 0, INVALID_UTF8, UTF16)]
        return
    if sign := binary_sign(data):
        yield [keys.bad(1, None, BINARY, sign)]
        return
    try:
        text = data.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        yield [keys.bad(1, len(data) - len(error.object) + error.start, INVALID_UTF8, error.reason)]
        return
    tally.documents = 1
    end = name.lower().rfind(SUFFIX)
    id = fields.get(keys.id_key) or (name if end < 0 else name[:end])
    yield [keys.document(text, id, 1, metadata)]


READER = FormatReader(read_plain)
