"""Input files -> documents: one reader for every format, whole or by spans.

A record that cannot be used is yielded as a ``BadRecord`` and costs only itself. A file that cannot be read further (cut,
corrupt, without the column that is wanted) raises ``DamagedInputError``, after the documents before the fault were
yielded; one that the machine fails to read, ``InputError``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
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

AHEAD_BYTES = 1 << 20  # of a small file

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

    ``path`` is a path or an ``InputFile``, whose name and source the documents then have. ``text_key`` and ``id_key`` name
    fields or columns; dots lead into nested ones. An id may be any JSON scalar and becomes a string; a document without one
    is called ``<file>:<line>``.

    Documents keep the fields ``keep`` of their records; a value that does not fit its type makes a bad record. With
    ``where``, records that it does not select are ``Unselected``, and parts of Parquet files that hold no others are not
    read. ``until`` says that the caller stops after so many bytes: of a remote file, none beyond them are fetched ahead.
    ``first_bytes`` is how many of a remote file are asked for first; of one that is read ``whole``, by several readers, a
    process downloads all bytes once. ``block`` bytes are read at a time. ``extract`` makes text of HTML. At the
    end of a tar of which members were left out, a warning says so, unless ``warns`` is False: then the caller says it
    (``left_out``). ``vocabulary``: ``text_key`` names lists of its ids, of JSON, Parquet or Arrow; documents
    have them as ``tokens``, and the text ''.

    While it is read, ``lines`` counts the lines (rows, elements) of the blocks begun, blank and bad ones included,
    ``documents`` those that gave one, and ``bytes_read`` the raw bytes of the span, in steps of up to a MiB; at the end
    they are exact and ``sha256`` is the hash of those bytes.

    In a span that does not begin the file, lines are counted from the span's own first: add the ``lines`` of the spans
    before it. Documents without an id have the id '' there, for ``made_id`` to name when the line is known. Where
    ``rows_before`` says how many rows the spans before hold, they are counted on from these. ``by_byte`` names the documents
    of a file of lines by their byte offsets; lines are not counted.
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
                f"{self.path}: holds text, where lists of token ids are read; write it as Parquet or JSON Lines"
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
            vocabulary=vocabulary,
        )
        self._tally = Tally(rows_before or 0)
        self._confirmed: Tally | None = None  # what lies before the current compressed stream
        self._stream: ByteStream | None = None
        self._opened: BinaryIO | None = None
        self.fault = ""  # why the file could not be read further, if so

    @property
    def lines(self) -> int:
        return self._tally.lines

    @property
    def documents(self) -> int:
        return self._tally.documents

    @property
    def left_out(self) -> str:
        """What to say of the members of a tar that were left out; '' where there are none."""
        count = self._tally.left_out
        members = f"{count:,} member{' was' if count == 1 else 's were'} left out"
        reasons = "an ending not known, a tar, a link or a device"
        return f"{self._keys.file}: {members} ({reasons}): {self._tally.left_out_text}" if count else ""

    @property
    def unconfirmed(self) -> int:
        """Documents of the compressed stream that was read last: in a damaged file, those no checksum confirms."""
        return self._tally.documents - self._confirmed.documents if self._confirmed else 0

    @property
    def bytes_read(self) -> int:
        return self._stream.bytes_read if self._stream else 0

    @property
    def sha256(self) -> str | None:
        """The hash of the bytes of the span, of a local file that is read out of order by another pass over the whole.

        None for a remote file of which only parts were fetched, and for row groups.
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

    def batches(self) -> Iterator[list[Record]]:
        """Yield the records in lists, some of them empty: each holds what one block of the file does."""
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
        """Have the bytes of a small remote file fetched before they are read; the others are left."""
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
        if self.format.compressible and not reader.unpacks and not (reader.cuts_compressed and self.span != WHOLE):
            stream.check_compression()
        batches, where = reader.read(stream, self._keys, self._tally), self._keys.where
        return batches if where is None else (list(selected(records, where)) for records in batches)


def _check_sha256(file: InputFile, stream: ByteStream) -> None:
    """Raise ``InputError`` where all bytes of a remote file were read, and have another hash than its store told."""
    stored = file.stored
    if stored is None or not stored.sha256 or not stream.is_hashed or stream.bytes_read != stored.size:
        return
    if stream.sha256 == stored.sha256:
        return
    raise InputError(
        f"{stored.url}: its bytes have sha256 {stream.sha256}, but the listing says {stored.sha256}: the store or something "
        "between changes them; fetch it again, or report it where the file is published"
    )


def split_file(path: StrPath | InputFile, unit_bytes: int) -> list[FileSpan]:
    """Cut a file into spans of about ``unit_bytes`` that can be read apart and together hold each record once.

    Plain JSON Lines and texts of many documents are cut anywhere (a span owns the lines that start in it), and so are WARC
    files of gzip members; Parquet between row groups. Everything else is one span, and so is a remote file of up to
    ``unit_bytes``. The cut depends on the file and ``unit_bytes`` alone.
    """
    file, form = as_input(path), format_of(path)
    unit_bytes = max(unit_bytes, 8)  # so that the first piece holds more than a byte order mark
    # The row groups of a local file are known for a read of its end; of a remote one that is a request.
    if (form.compressible or file.stored) and file.size <= unit_bytes:
        return [WHOLE]
    reader = load_reader(form)
    if form.compressible and not reader.cuts_compressed and is_compressed(file):
        return [WHOLE]
    cuts = reader.cuts(file, unit_bytes)
    return [FileSpan(start, stop) for start, stop in zip([0, *cuts], [*cuts, None], strict=True)]
