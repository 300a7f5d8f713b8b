"""Files of raw text as the data of a stream; what reads them is loaded when they are streamed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .holdout import held_out

if TYPE_CHECKING:
    from ...text.discovery import InputFile
    from ...text.document import Document
    from ...text.tokenizer.tokenizer import Tokenizer

PACKED = 3  # compressed text is counted as so many times its size
_COUNTED_BYTES = 64 << 20  # of input: if it holds fewer records than were asked for, more are estimated from it
_KEYS = 256  # documents that are judged at once


class TextData:
    """Files of raw text and the tokenizer that makes ids of them, as the source of a stream.

    ``skip`` passes over records that cannot be used, and over the rest of a file that cannot be read on, and counts
    them; without it they raise ``InputError``.
    """

    name = ""
    split = "text"

    def __init__(
        self, files: list[InputFile], tokenizer: Tokenizer, *, text_key: str, id_key: str, skip: bool, eos: bool
    ) -> None:
        self.files = files
        self.encoder = tokenizer
        self.text_key = text_key
        self.id_key = id_key
        self.skip = skip
        self.eos = eos
        self.dtype = tokenizer.dtype
        self.eos_id = tokenizer.eos_id
        self.tokenizer: str | None = tokenizer.sha256
        # Of each split that made this: the share held out, and whether this is what was.
        self.splits: tuple[tuple[Fraction, bool], ...] = ()
        self._found = {file.name: _stamp(file) for file in files}
        from ...text.formats import is_packed

        self.bytes = sum(self._found[file.name][0] * (PACKED if is_packed(file) else 1) for file in files)
        self._counted: dict[int, int] = {}  # records, by how many were asked for

    def __repr__(self) -> str:
        named = repr(str(self.files[0].path)) if len(self.files) == 1 else f"{len(self.files):,} files"
        halves = "".join(f".split(val={float(share):g})[{int(held)}]" for share, held in self.splits)
        return f"TextDataset({named}, tokenizer={self.encoder.name!r}){halves}"

    def size_of(self, file: InputFile) -> int:
        """Return the bytes that a file had when the stream was made."""
        return self._found[file.name][0]

    def records(self, most: int) -> int:
        """Return how many documents there are, at most ``most``: counted in the first 64 MiB, then estimated by bytes."""
        if most not in self._counted:
            self._counted[most] = self._count(most)
        return self._counted[most]

    def _count(self, most: int) -> int:
        from ...text.document import Document
        from ...text.formats import is_packed
        from ...text.readers.reader import Reader

        found = done = 0  # documents, and bytes of the files before this one
        batch: list[Document] = []
        for file in self.files:
            weight = PACKED if is_packed(file) else 1
            reader = Reader(file, text_key=self.text_key, id_key=self.id_key)
            with suppress(InputError):  # it is raised when the file is read for the stream
                for record in reader:
                    if isinstance(record, Document):
                        batch.append(record)
                    if len(batch) >= min(_KEYS, most):
                        found, batch = found + int(self.selects(batch).sum()), []
                        if found >= most:
                            return most
                        if (read := done + reader.bytes_read * weight) >= _COUNTED_BYTES:
                            return min(most, found * self.bytes // read)
            done += self.size_of(file) * weight
        return min(most, found + int(self.selects(batch).sum()))

    def selects(self, documents: list[Document]) -> NDArray[np.bool_]:
        """Say of each document whether the splits that made this leave it here."""
        kept = np.ones(len(documents), bool)
        if self.splits and documents:
            keys = [_key(document) for document in documents]
            for level, (share, held) in enumerate(self.splits):
                kept &= held_out(keys, share, level) == held
        return kept

    def halves(self, share: Fraction) -> tuple[TextData, TextData]:
        """Return the rest and what is held out, to be told apart when documents are read."""
        rest, held = copy.copy(self), copy.copy(self)
        for data, is_held in ((rest, False), (held, True)):
            data.splits = (*self.splits, (share, is_held))
            vars(data).pop("fingerprint", None)  # of the whole
            data._counted = {}
        return rest, held

    def check(self, file: InputFile) -> None:
        """Raise ``InputError`` for a file that is gone or changed since the stream was made."""
        try:
            stamp = _stamp(file)
        except OSError as error:
            raise InputError(f"{file.path}: cannot be read any more: {error.strerror}; bring it back") from None
        if stamp != self._found[file.name]:
            raise InputError(
                f"{file.name} changed since the stream was made, so its order is another one; create the stream again, "
                "and do not write to files that are read"
            )

    @cached_property
    def fingerprint(self) -> str:
        """What the order and the ids depend on: each file's name, size, first and last MiB, in order; the tokenizer.

        Made when a state is first saved or loaded, for very many files take a while. Raises ``InputError`` for a file that
        changed since the stream was made.
        """
        from ...text.discovery import fingerprint

        for file in self.files:
            self.check(file)
        with ThreadPoolExecutor(16, thread_name_prefix="shardwright-fingerprint") as threads:
            files = list(threads.map(fingerprint, self.files))
        splits = [[str(share), held] for share, held in self.splits]
        told = [files, self.tokenizer, self.text_key, self.id_key, self.skip, self.eos, splits]
        return hashlib.sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()


def _key(document: Document) -> str:
    """Return what a document is split by: its id, or where its record has none a hash of its text."""
    from ...text.document import made_id, made_id_at

    made = (made_id(document.file, document.line), made_id_at(document.file, document.byte or 0))
    if document.id and document.id not in made:
        return document.id
    return hashlib.blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _stamp(file: InputFile) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns
