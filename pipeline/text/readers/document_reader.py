"""Input files -> documents: one reader for every format, of whole files or spans.

A record that cannot be used is yielded as a ``BadRecord``, and reading goes on. If the file cannot be read further (it is
cut or corrupt, or lacks the wanted column), the documents before the fault are yielded, then ``DamagedInputError`` is
raised. If the operating system fails to read it, ``InputError`` is raised.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, BinaryIO

from ...errors import DamagedInputError, InputError
from ...notices import warn
from ...weak_methods import weakly
from ..discovery import InputFile, find_inputs, fingerprint
from ..document import BadRecord, Document, Record, RecordKeys, Tally, Unselected, made_id, selected
from ..extract import Extract
from ..fields import Field, merge_fields
from ..formats import ENDINGS, format_of
from ..storage.input_file import StrPath, as_input
from ..storage.open_input import open_input
from ..storage.remote_file import RANGE_BYTES, RemoteFile
from ..token_ids import Vocabulary
from ..where import Where
from .byte_stream import BLOCK, ByteStream, UnreadableFileError, is_compressed
from .format_reader import WHOLE, FileSpan, FormatReader, load_reader

AHEAD_BYTES = 1 << 20  # a remote file up to this size is fetched ahead

__all__ = [
    "ENDINGS",
    "BadRecord",
    "Document",
    "DocumentReader",
    "FileSpan",
    "InputFile",
    "Record",
    "Unselected",
    "find_inputs",
    "fingerprint",
    "made_id",
    "split_file",
]


class DocumentReader:
    """Iterates over the records of one file, or of a span of it, once.

    ``path`` is a path or an ``InputFile``, which gives the documents its name and source. ``text_key`` and ``id_key`` name
    fields or columns; dots lead into nested ones. An id may be any JSON scalar and becomes a string. A document without an
    id gets ``<file>:<line>``.

    ``keep``: fields that documents keep; a value that does not fit its type makes a bad record.
    ``where``: selects records. Others are yielded as ``Unselected``; Parquet's row groups without a selected one are not read.
    ``until``: the caller stops after this byte, so no later bytes of a remote file are fetched ahead.
    ``first_bytes``: the size of the first request for a remote file.
    ``whole``: several readers read all of a remote file, so the process downloads it once.
    ``block``: bytes that are read at a time. ``extract``: what makes text of HTML.
    ``warns``: warn at the end of a tar if members were left out; if False, the caller reports ``left_out``.
    ``elsewhere``: whether another input may have a field (`field_finder`). A table without its column then has nulls there.
    ``vocabulary``: ``text_key`` names lists of its ids (JSON, Parquet or Arrow); they become ``tokens``, and the text is ''.

    During reading, ``lines`` counts the lines (rows, elements) of all blocks so far, blank and bad ones included.
    ``documents`` counts the documents, and ``bytes_read`` the raw bytes of the span, in steps of up to 1 MiB. After the
    last record they are exact, and ``sha256`` is the hash of those bytes.

    In a span that begins later in the file, lines count from the span's first line: add the ``lines`` of earlier spans.
    Documents without an id get the id '' there; ``made_id`` makes one when the line is known. ``rows_before`` is the number of
    rows in earlier spans: lines count from there. ``by_byte`` makes ids of byte offsets, and lines are not counted.
    """

    def __init__(
        self,
        path: StrPath | InputFile,
        span: FileSpan | tuple[int, int | None] = WHOLE,
        *,
        text_key: str = "text",
        id_key: str = "id",
        keep: Sequence[Field] = (),
        where: Where | None = None,
        until: int | None = None,
        first_bytes: int = RANGE_BYTES,
        warns: bool = True,
        by_byte: bool = False,
        rows_before: int | None = None,
        whole: bool = False,
        block: int = BLOCK,
        extract: Extract | None = None,
        elsewhere: Callable[[str], bool] = lambda name: False,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._whole = whole
        self._block = block
        self._warns = warns
        self._until = until
        self._first_bytes = first_bytes
        self._file = file = as_input(path)
        self.path = os.fspath(path)
        self.span = FileSpan(*span)
        self.format = format_of(path)
        if (
            vocabulary is not None
            and self.format.record != "JSON object"
            and self.format.module not in ("parquet", "arrow")
        ):
            raise InputError(
                f"{self.path}: holds text, but lists of token ids are read; write it as Parquet or JSON Lines"
            )
        self._keys = RecordKeys(
            text_key,
            id_key,
            file.name,
            file.source,
            start=self.span.start if rows_before is None else 0,
            made_ids=self.span.start == 0 or rows_before is not None,
            by_byte=by_byte,
            kept=merge_fields([keep, where.fields if where else ()]),
            where=where,
            record=self.format.record,
            extract=extract,
            elsewhere=elsewhere,
            vocabulary=vocabulary,
        )
        self._tally = Tally(rows_before or 0)
        self._confirmed: Tally | None = None  # the counts before the current compressed stream
        self._stream: ByteStream | None = None
        self._opened: BinaryIO | None = None
        self.fault = ""  # why the file could not be read further

    @property
    def lines(self) -> int:
        return self._tally.lines

    @property
    def documents(self) -> int:
        return self._tally.documents

    @property
    def left_out(self) -> str:
        """A sentence about the members of a tar that were left out, or '' if there are none."""
        count = self._tally.left_out
        members = f"{count:,} member{' was' if count == 1 else 's were'} left out"
        reasons = "an unknown ending, a tar, a link or a device"
        return f"{self._keys.file}: {members} ({reasons}): {self._tally.left_out_text}" if count else ""

    @property
    def unconfirmed(self) -> int:
        """The number of documents of the last compressed stream. In a damaged file, no checksum confirms these."""
        return self._tally.documents - self._confirmed.documents if self._confirmed else 0

    @property
    def bytes_read(self) -> int:
        return self._stream.bytes_read if self._stream else 0

    @property
    def sha256(self) -> str | None:
        """The hash of the span's bytes. A local file that is read out of order is read once more for it.

        None for row groups, and for a remote file of which only parts were fetched.
        """
        if self._stream is None:
            raise ValueError("the hash is known when the records have been read")
        if self._stream.is_hashed:
            return self._stream.sha256
        if self._file.stored is not None or self.span != WHOLE:
            return None
        with open(self._file, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.batches())

    def records(self, advance: Callable[[int], object]) -> Iterator[Record]:
        """Yield the records. After each block, ``advance`` is called with the number of bytes read since the last call."""
        done = 0
        for records in self.batches():
            yield from records
            advance(self.bytes_read - done)
            done = self.bytes_read

    def batches(self) -> Iterator[list[Record]]:
        """Yield the records in lists, one for each block of the file. A list may be empty."""
        try:
            reader = load_reader(self.format)
            with self._opened or self._open(in_order=reader.in_order) as file:
                self._stream = ByteStream(file, *self.span, block=self._block, on_stream=weakly(self._confirm))
                yield from self._batches(self._stream, reader)
            _check_sha256(self._file, self._stream)
            if self._warns and self.left_out:
                warn(self.left_out)
        except UnreadableFileError as damage:
            self.fault = f"{damage}; {self._read_so_far()}"
            raise DamagedInputError(f"{self.path}: {self.fault}") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or error}; {self._read_so_far()}") from None

    def fetch_ahead(self) -> None:
        """Start to fetch the bytes of a small remote file. Does nothing for any other file."""
        if self._file.stored is not None and self._file.size <= AHEAD_BYTES and load_reader(self.format).in_order:
            self._opened = self._open(in_order=True)
            if isinstance(self._opened, RemoteFile):
                self._opened.begin()

    def _open(self, *, in_order: bool) -> BinaryIO:
        start, stop = self.span
        ahead = stop if self._until is None else self._until
        options: dict[str, Any] = {"first_bytes": self._first_bytes, "whole": self._whole}
        return open_input(self._file, start, ahead, in_order=in_order, **options)

    def _read_so_far(self) -> str:
        count = self._tally.documents
        message = f"{count:,} document{'' if count == 1 else 's'} of it had been read"
        if self._confirmed is None or not self.unconfirmed:
            return message
        which = f"those after line {lines:,}" if (lines := self._confirmed.lines) else "any"
        return f"{message}, of which no checksum confirms {which}"

    def _confirm(self) -> None:
        self._confirmed = replace(self._tally)

    def _batches(self, stream: ByteStream, reader: FormatReader) -> Iterator[list[Record]]:
        if self.format.compressible and not reader.unpacks and not (reader.divides_compressed and self.span != WHOLE):
            stream.check_compression()
        batches, where = reader.read(stream, self._keys, self._tally), self._keys.where
        return batches if where is None else (list(selected(records, where)) for records in batches)


def _check_sha256(file: InputFile, stream: ByteStream) -> None:
    """Raise ``InputError`` if all bytes of a remote file were read and their hash differs from the listing's."""
    stored = file.stored
    if stored is None or not stored.sha256 or not stream.is_hashed or stream.bytes_read != stored.size:
        return
    if stream.sha256 == stored.sha256:
        return
    raise InputError(
        f"{stored.url}: its bytes have sha256 {stream.sha256}, but the listing says {stored.sha256}: the store or something "
        "between changes them; fetch it again, or report it where the file is published"
    )


def field_finder(files: Callable[[], Iterable[InputFile]], known: dict[str, bool]) -> Callable[[str], bool]:
    """Return a function that says whether any of the files may have a field. It keeps its answers in ``known``."""

    def may_have(file: InputFile, name: str) -> bool:
        if (has_column := load_reader(format_of(file)).has_column) is None:
            return True
        try:
            with open_input(file, in_order=False) as opened:
                return has_column(ByteStream(opened), name)
        except (UnreadableFileError, OSError):
            return False  # the error is raised when the file is read

    def find(name: str) -> bool:
        if name not in known:
            known[name] = any(may_have(file, name) for file in files())
        return known[name]

    return find


def split_file(path: StrPath | InputFile, unit_bytes: int) -> list[FileSpan]:
    """Return spans of about ``unit_bytes`` that can be read independently and together hold each record once.

    Plain JSON Lines, texts of many documents and WARC files of gzip members are cut at any byte: a span owns the lines or
    members that start in it. Parquet is cut between row groups. Any other file is one span, and so is a remote file of up
    to ``unit_bytes``. The spans depend on the file and ``unit_bytes`` alone.
    """
    file, form = as_input(path), format_of(path)
    unit_bytes = max(unit_bytes, 8)  # the first span must hold more than a byte order mark
    # A small remote file is one span: its row groups would take a request.
    if (form.compressible or file.stored) and file.size <= unit_bytes:
        return [WHOLE]
    reader = load_reader(form)
    if form.compressible and not reader.divides_compressed and is_compressed(file):
        return [WHOLE]
    borders = reader.borders(file, unit_bytes)
    return [FileSpan(start, stop) for start, stop in zip([0, *borders], [*borders, None], strict=True)]
