"""What each module of a format defines: how its files are read, and where they may be cut."""

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
    """A piece of a file: bytes of plain JSON Lines or text, row groups of Parquet. ``stop`` None: to the end."""

    start: int = 0
    stop: int | None = None


WHOLE = FileSpan()


def never_cut(file: InputFile, unit_bytes: int) -> list[int]:
    """Return no places to cut a file at: it is read as one span."""
    return []


def line_cuts(file: InputFile, unit_bytes: int) -> list[int]:
    """Return even cuts of a file of lines: a span holds the lines that start in it, so any byte will do."""
    size = file.size
    units = -(-size // unit_bytes)
    return [size * unit // units for unit in range(1, units)]


@dataclass(frozen=True, slots=True)
class FormatReader:
    """How the files of one format are read. Each module of a format has one, named ``READER``, or makes it: ``reader_of(form)``.

    ``read`` yields the records from ``stream.start`` to ``stream.stop`` in lists, each of what one block of the file
    holds, before it reads the next one. It counts lines and documents in the tally, and
    raises ``UnreadableFileError`` for a file that cannot be read further. A record that cannot be used is a ``BadRecord``.

    ``cuts`` returns the places, in ascending order, at which an uncompressed file may be cut into spans of about
    ``unit_bytes``; it depends on the file alone. ``cuts_compressed`` says that it is asked of compressed files, too.
    ``unpacks`` says that a compressed file is unpacked to the disk before it is read.
    ``in_order`` says that ``read`` goes over the file from its beginning to its end, so that a remote one is read ahead.
    ``part_rows`` returns the rows of the parts that the numbers of a span count, such as row groups: streams read these apart.
    """

    read: Callable[[ByteStream, RecordKeys, Tally], Iterator[list[Record]]]
    cuts: Callable[[InputFile, int], list[int]] = never_cut
    in_order: bool = True
    cuts_compressed: bool = False
    unpacks: bool = False
    part_rows: Callable[[InputFile], list[int]] | None = None

    @property
    def cut_anywhere(self) -> bool:
        """Whether an uncompressed file may be cut at any byte."""
        return self.cuts is line_cuts


@functools.cache
def load_reader(form: Format) -> FormatReader:
    """Return the reader of a format; its module, and the libraries that this imports, are loaded at the first call."""
    module = importlib.import_module(f"{__package__}.{form.module}")
    reader: FormatReader = module.reader_of(form) if hasattr(module, "reader_of") else module.READER
    return reader
