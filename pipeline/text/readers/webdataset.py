"""WebDataset tars of text (``--format webdataset``): neighbouring members with one key are one record, a sample."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from ...shards.foreign import sample_parts
from ..document import Document, Record, RecordKeys, Tally
from .byte_stream import ByteStream, UnreadableFileError
from .format_reader import FormatReader
from .tar import files_of

# The decoders of webdataset for what a record can hold, by the ending of a member's name.
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.removeprefix(BOM_UTF8).decode()),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
}


def read_samples(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each sample; its ``line`` is the number of the sample in the tar.

    Keys and fields are split from names as webdataset does. ``__key__`` and ``id`` of a record are the sample's key. Its
    other fields are those of a ``json`` member that holds an object, then the members themselves (``txt``, ``json``,
    ``cls``), then ``text``, which is the ``txt`` member. Members that hold neither text nor numbers are left out.
    """

    def members() -> Iterator[tuple[str, str, bytes]]:
        for member, name, archive in files_of(stream):
            parts = sample_parts(name) if member.is_file else None
            if parts is None or parts[1].rpartition(".")[2] not in _DECODERS:
                tally.leave_out(name)
                continue
            archive.seek(member.data)
            yield *parts, archive.read(member.size)

    for key, sample in groupby(members(), key=lambda member: member[0]):
        tally.lines += 1
        record = _record(key, [member[1:] for member in sample], keys, tally.lines)
        tally.documents += isinstance(record, Document)
        yield [record]
    if not tally.lines:
        raise UnreadableFileError(
            f"no sample of text is in it; samples have members such as {', '.join(list(_DECODERS)[::3])}"
        )


def _record(key: str, members: list[tuple[str, bytes]], keys: RecordKeys, line: int) -> Record:
    """Return the document, or the bad record, of a sample."""
    fields: dict[str, Any] = {}
    for name, data in members:
        if name in fields:
            return keys.bad(line, None, "a member twice in one sample", f"{key}.{name}")
        try:
            fields[name] = _DECODERS[name.rpartition(".")[2]](data)
        except (ValueError, RecursionError) as error:
            return keys.bad(line, None, "member whose content does not fit its ending", f"{key}.{name}: {error}")
    inner = fields.get("json")
    record = {**(inner if isinstance(inner, dict) else {}), **fields, "__key__": key, "id": key}
    return keys.judge(record | ({"text": fields["txt"]} if "txt" in fields else {}), line, None)


READER = FormatReader(read_samples, unpacks=True)
