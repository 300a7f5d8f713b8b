"""`FormatReader`, which the module of each format defines: how to read its files, and where they may be cut."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..document import Record, RecordKeys, Tally
from ..formats import Format
from ..storage.input_file import InputFile
from .byte_stream import ByteStream


class FileSpan(NamedTuple):
    """A part of a file, in bytes, or in row groups for Parquet. ``stop`` None means the end of the file."""

    start: int = 0
    stop: int | None = None


WHOLE = FileSpan()


def no_borders(file: InputFile, unit_bytes: int) -> list[int]:
    """Return no borders: the file is one span."""
    return []


def line_borders(file: InputFile, unit_bytes: int) -> list[int]:
    """Return borders at equal distances. Any byte is valid, as a span owns the lines that start in it."""
    size = file.size
    units = -(-size // unit_bytes)
    return [size * unit // units for unit in range(1, units)]


@dataclass(frozen=True, slots=True)
class FormatReader:
    """How to read files of one format. The format's module defines it as ``READER``, or returns it from ``reader_of(form)``.

    ``read`` yields the records from ``stream.start`` to ``stream.stop`` in lists, one for each block of the file, before it
    reads the next block. It counts lines and documents in the tally. A record that cannot be used is a ``BadRecord``. If
    the file cannot be read further, it raises ``UnreadableFileError``.

    ``borders`` returns, in ascending order, where an uncompressed file divides into spans of about ``unit_bytes``; the result
    depends on the file alone. ``divides_compressed``: compressed files may be divided, too.
    ``unpacks``: a compressed file is unpacked to the disk before it is read.
    ``in_order``: ``read`` goes from the file's beginning to its end, so a remote file is fetched ahead.
    ``part_rows`` returns the number of rows of each part, such as a row group, that spans count; streams read parts separately.
    ``has_column`` tells whether a table has a column; without it, any record may have any field.
    """

    read: Callable[[ByteStream, RecordKeys, Tally], Iterator[list[Record]]]
    borders: Callable[[InputFile, int], list[int]] = no_borders
    in_order: bool = True
    divides_compressed: bool = False
    unpacks: bool = False
    part_rows: Callable[[InputFile], list[int]] | None = None
    has_column: Callable[[ByteStream, str], bool] | None = None

    @property
    def cut_anywhere(self) -> bool:
        """Whether an uncompressed file may be cut at any byte."""
        return self.borders is line_borders


@functools.cache
def load_reader(form: Format) -> FormatReader:
    """Return the reader of a format. The first call imports its module and the libraries that the module needs."""
    module = importlib.import_module(f"{__package__}.{form.module}")
    reader: FormatReader = module.reader_of(form) if hasattr(module, "reader_of") else module.READER
    return reader
