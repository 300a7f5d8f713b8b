"""Arrow files, as ``datasets.Dataset.save_to_disk`` writes them: the stream format, or the file format."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from ..document import Record, RecordKeys, Tally
from .byte_stream import ByteStream
from .format_reader import FormatReader
from .parquet import faults_of, find_column, find_columns, rows_of

_MAGIC = b"ARROW1"


def read_arrow(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each row, batch by batch. Raises ``UnreadableFileError`` if it is not a whole Arrow file."""
    with faults_of("Arrow"):
        batches, schema = _open(stream)
        ended = 0  # offset of the previous batch's end; it stays 0 for a mapped file, whose handle is not read
        for records in rows_of(batches, find_columns(schema, keys), keys, tally):
            stream.bytes_read, ended = ended, stream.file.tell()
            yield records
        stream.bytes_read = stream.file.seek(0, io.SEEK_END)


def has_column(stream: ByteStream, name: str) -> bool:
    with faults_of("Arrow"):
        return find_column(_open(stream)[1], name) is not None


def _open(stream: ByteStream) -> tuple[Iterator[Any], Any]:
    import pyarrow as pa

    stream.file.seek(0)
    is_file = stream.file.read(len(_MAGIC)) == _MAGIC
    stream.file.seek(0)
    opened = pa.memory_map(stream.path) if stream.is_local else stream.file
    if is_file:
        file = pa.ipc.open_file(opened)
        return (file.get_batch(number) for number in range(file.num_record_batches)), file.schema
    opened_stream = pa.ipc.open_stream(opened)
    return iter(opened_stream), opened_stream.schema


READER = FormatReader(read_arrow, has_column=has_column)
