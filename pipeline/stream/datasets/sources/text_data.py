"""Raw text as the data of a stream: files, or a live source. The code that reads text is imported when it is streamed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError, DamagedInputError, InputError
from ...lanes import TextWindowSize, best_fit_tokens, lane_bytes
from .holdout import held_out

if TYPE_CHECKING:
    from ....text.discovery import InputFile
    from ....text.document import Document, OnError
    from ....text.extract import Extract
    from ....text.fields import Field
    from ....text.token_ids import Vocabulary
    from ....text.tokens.tokenizer import Tokenizer
    from ....text.where import Where
    from .live_source import LiveSource

_COUNTED_BYTES = 64 << 20  # of input in which records are counted; the total is estimated from these
_KEYS = 256  # documents whose part of a split is computed at once


class TextData:
    """Files of raw text and their tokenizer, as the source of a stream.

    If a record cannot be used, ``on_error="stop"`` raises ``InputError``, "records" counts and skips it, and "skip" also skips
    the rest of a file that cannot be read further.
    """

    live = False
    split = "text"
    token_bytes = 4  # about as many bytes of text become one token

    def __init__(
        self,
        files: list[InputFile],
        tokenizer: Tokenizer,
        *,
        text_key: str,
        id_key: str,
        on_error: OnError,
        eos: bool,
        bos: bool = False,
        fields: tuple[Field, ...] = (),
        where: Where | None = None,
        normalize: bool = False,
        extract: Extract | None = None,
        extract_name: str = "",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.files = files
        self.tokenizer = tokenizer
        self.text_key = text_key
        self.id_key = id_key
        self.fields = fields  # of records, for filters
        self.where = where  # which records are read
        self.normalize = normalize
        self.extract = extract  # extracts text from HTML; None for the default, whose name in states is ''
        self._extract_name = extract_name
        self.vocabulary = vocabulary  # of the ids that records hold; None if they hold text
        self.on_error = on_error
        self.marks = {"bos": bos, "eos": eos}
        self.dtype = tokenizer.dtype
        self.eos_id = tokenizer.eos_id
        self.vocab_size: int | None = tokenizer.vocab_size
        self.tokenizer_sha256: str | None = tokenizer.sha256
        self.tokenizer_name: str | None = tokenizer.name
        # For each split so far, the share held out, and whether this is the part held out.
        self.splits: tuple[tuple[Fraction, bool], ...] = ()
        self.subset = Fraction(1)  # the share of the documents that `.subset` keeps
        self.withheld: dict[str, str] = {}  # why documents are masked, by their ids
        self._stamps = {file.name: _stamp(file) for file in files}
        self.bytes = sum(map(self.weight_of, files))
        self._counted: dict[int, int] = {}  # the results of `records`, by `most`
        self._known: dict[str, bool] = {}  # whether a file may have a field

    def __repr__(self) -> str:
        named = repr(str(self.files[0].path)) if len(self.files) == 1 else f"{len(self.files):,} files"
        splits = "".join(f".split(val={float(share):g})[{int(is_val)}]" for share, is_val in self.splits)
        splits += f".subset({float(self.subset):g})" if self.subset < 1 else ""
        splits += f".without({len(self.withheld):,} documents)" if self.withheld else ""
        return f"TextDataset({named}, tokenizer={self.tokenizer.name!r}){splits}"

    def size_of(self, file: InputFile) -> int:
        """Return the bytes that a file had when the stream was made."""
        return self._stamps[file.name][0]

    def weight_of(self, file: InputFile) -> int:
        """Return about how many bytes of text a file holds: its size, or three times that if it is compressed."""
        from ....text.formats import text_times

        return self.size_of(file) * text_times(file)

    def records(self, most: int) -> int:
        """Return how many documents there are, at most ``most``: counted in the first 64 MiB, then estimated from bytes."""
        if most not in self._counted:
            self._counted[most] = self._count(most)
        return self._counted[most]

    def _count(self, most: int) -> int:
        from ....text.document import Document
        from ....text.formats import text_times
        from ....text.readers.document_reader import DocumentReader
        from ....text.storage.remote_file import FIRST_BYTES

        count = done = 0  # documents, and bytes of the files before this one
        batch: list[Document] = []
        for file in self.files:
            times = text_times(file)
            reader = DocumentReader(file, **self.reading, first_bytes=FIRST_BYTES)
            try:
                for record in reader:
                    if isinstance(record, Document):
                        batch.append(record)
                    if len(batch) >= min(_KEYS, most):
                        count, batch = count + int(self.selects(batch).sum()), []
                        if count >= most:
                            return most
                        if (read := done + reader.bytes_read * times) >= _COUNTED_BYTES:
                            return min(most, count * self.bytes // read)
            except InputError as error:
                # The stream raises damage when it gets there. If one rank alone got a wrong answer, ranks would assign lanes
                # differently, so other errors are raised here.
                damaged, skips = isinstance(error, DamagedInputError), self.on_error == "skip"
                if not (damaged and skips if file.stored is not None else damaged or skips):
                    raise
            done += self.weight_of(file)
        return min(most, count + int(self.selects(batch).sum()))

    @property
    def reading(self) -> dict[str, Any]:
        """The options of a `DocumentReader` for these files."""
        from ....text.readers.document_reader import field_finder

        keys: dict[str, Any] = {"text_key": self.text_key, "id_key": self.id_key, "keep": self.fields}
        keys["elsewhere"] = field_finder(partial(iter, self.files), self._known)
        return keys | {"where": self.where, "extract": self.extract, "vocabulary": self.vocabulary}

    def selects(self, documents: list[Document]) -> NDArray[np.bool_]:
        """Say for each document whether it is in this part of all splits."""
        kept = np.ones(len(documents), bool)
        if (self.splits or self.subset < 1) and documents:
            keys = [_key(document) for document in documents]
            for level, (share, is_val) in enumerate(self.splits):
                kept &= held_out(keys, share, level) == is_val
            if self.subset < 1:
                kept &= held_out(keys, self.subset, None)
        return kept

    def without(self, documents: Iterable[str], reason: str) -> Self:
        """Return the same texts with documents masked, given by their ids."""
        return self.part(withheld={**dict.fromkeys(documents, reason), **self.withheld})

    def withheld_names(self) -> list[str]:
        return sorted(self.withheld)

    def origin(self, document: Document) -> dict[str, Any]:
        where = {"line": document.line} if document.line else {"byte": document.byte}
        masked = {"withheld": self.withheld[document.id]} if document.id in self.withheld else {}
        return {"file": document.file, **where, "id": document.id, **document.metadata, **masked}

    def load_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def sizes(self) -> str:
        return f"{len(self.files):,} files, {self.bytes:,} bytes of text"

    def check_stage(self, method: str) -> None:
        return

    def check_rules(self, fields: Sequence[str]) -> None:
        if self.vocabulary is not None:
            raise ConfigError("rules and languages judge text, and these records hold ids: filter them by a function")
        kept = {field.name for field in self.fields}
        if missing := [field for field in fields if field.partition(":")[0] not in kept]:
            raise ConfigError(
                f"rules read fields of records that the texts do not keep: give TextDataset fields={tuple(missing)!r}"
            )

    @property
    def total_tokens(self) -> int:
        """About how many tokens there are."""
        return self.bytes // self.token_bytes

    def window(
        self, lanes: int, mixed: int, stated: int | None, *, is_shuffled: bool, is_sequential: bool
    ) -> str | None:
        return None if stated is None else f"{stated} blocks"

    def window_size(
        self, lanes: int, sources: int, *, is_shuffled: bool, window: int | None, best_fit: int | None
    ) -> TextWindowSize:
        """Return how long the windows of ``lanes`` lanes are if ``sources`` sources share the memory.

        ``window`` is the number of blocks that the user stated for all lanes; ``best_fit`` the tokens of a row under best fit.
        """
        size = lane_bytes(lanes, sources) if is_shuffled else 0
        if self.tokenizer.encoder == "bytes":
            size //= 2  # each byte of text is a token of two bytes
        least = 0 if best_fit is None else best_fit_tokens(best_fit, size // self.token_bytes) * self.token_bytes
        blocks = None if window is None else max(1, window // lanes)
        return TextWindowSize(max(size, least), least, blocks)

    def hold_out(self, share: Fraction) -> tuple[TextData, TextData]:
        """Return the rest and the part held out. Documents are told apart when they are read."""
        rest, val = (self.part(splits=(*self.splits, (share, is_val))) for is_val in (False, True))
        return rest, val

    def part(self, **changes: Any) -> Self:
        """Return the same texts, of which other documents are read."""
        part = copy.copy(self)
        vars(part).pop("fingerprint", None)  # that of the whole
        vars(part).update(changes, _counted={})
        return part

    def check(self, file: InputFile) -> None:
        """Raise ``InputError`` for a local file that was removed or changed since the stream was made.

        Remote files are checked elsewhere: each range that is read is compared with the version that was listed.
        """
        if file.stored is not None:
            return
        try:
            stamp = _stamp(file)
        except OSError as error:
            raise InputError(f"{file.path}: cannot be read any more: {error.strerror}; restore it") from None
        if stamp != self._stamps[file.name]:
            raise InputError(
                f"{file.name} changed since the stream was made, so the order of its documents would change; create the stream "
                "again, and do not write to files that are read"
            )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that order and ids depend on: the tokenizer, and name, size, first and last MiB of each file.

        It is computed when a state is first saved or loaded, since very many files take a while. Raises ``InputError`` for a
        file that changed since the stream was made.
        """
        from ....text.discovery import fingerprint

        for file in self.files:
            self.check(file)
        with ThreadPoolExecutor(16, thread_name_prefix="shardwright-fingerprint") as threads:
            files = list(threads.map(fingerprint, self.files))
        splits = [[str(share), is_val] for share, is_val in self.splits]
        facts: list[Any] = [files, self.tokenizer_sha256, self.text_key, self.id_key, self.on_error]
        facts += [self.marks["eos"], splits]
        if self.fields:
            facts.append([str(field) for field in self.fields])  # their types decide which records are bad
        if self.where is not None:
            facts.append({"where": self.where.text})
        if self.normalize:
            facts.append({"normalize": True})
        if self.marks["bos"]:
            facts.append({"bos": True})
        if self.vocabulary is not None:
            facts.append({"tokens": True})
        if self._extract_name:
            facts.append({"extract": self._extract_name})
        if any(file.forced_format for file in self.files):
            facts.append({"format": [file.forced_format for file in self.files]})
        if self.subset < 1:
            facts.append({"subset": str(self.subset)})
        return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


def _key(document: Document) -> str:
    """Return the key by which a document is split: its id, else a hash of its text or tokens."""
    from ....text.document import made_id, made_id_at

    made = (made_id(document.file, document.line), made_id_at(document.file, document.byte or 0))
    if document.id and document.id not in made:
        return document.id
    text = document.text.encode("utf-8", "surrogatepass") if document.tokens is None else document.tokens.tobytes()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _stamp(file: InputFile) -> tuple[int, int]:
    if file.stored is not None:
        return file.stored.size, 0
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


_BLOCK_BYTES = 32 << 10  # of ``.shuffle(window=)``
_SHUFFLED_BYTES = 16 << 20
_ORDERED_BYTES = 1 << 20


class LiveData(TextData):
    """A live source and the tokenizer of its texts.

    Each rank reads a part of the source in one lane that all its rows share, so a state loads only on as many ranks. Nothing
    identifies a live source, so its fingerprint covers only the tokenizer and the settings.
    """

    live = True

    def __init__(self, source: LiveSource, tokenizer: Tokenizer, **options: Any) -> None:
        super().__init__([], tokenizer, **options)
        self.source = source

    def __repr__(self) -> str:
        return f"TextDataset({self.source.name}, tokenizer={self.tokenizer.name!r})"

    def sizes(self) -> str:
        return "a live source of unknown size"

    def records(self, most: int) -> int:
        """Return ``most``: the number is unknown, and every lane of a mix gets some."""
        return most

    def window_size(
        self, lanes: int, sources: int, *, is_shuffled: bool, window: int | None, best_fit: int | None
    ) -> TextWindowSize:
        size = _ORDERED_BYTES
        if is_shuffled:
            size = _SHUFFLED_BYTES if window is None else window * _BLOCK_BYTES
        least = 0 if best_fit is None else 4 * best_fit_tokens(best_fit, size // 4)
        return TextWindowSize(max(size, least), least)
