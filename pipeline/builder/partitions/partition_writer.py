"""Writes the documents of a partition, with their hashes, signatures and segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, get_type_hints

import numpy as np
import orjson
from numpy.typing import NDArray

from ...errors import BuildError
from ...shards.manifest import REJECTED_NAME
from ...text.document import BadRecord, Document
from ...text.fields import MISFIT, parse_fields
from ...text.hashes import text_hash, text_hashes
from ..counts.samples import Sample, Samples, sample_keys
from ..dedup.minhash import MinHasher
from ..dedup.segments import Segments
from ..recipe import Recipe
from .partition import DOCUMENTS

_ROWS = 512  # documents hashed and written together, at most
_CHARACTERS = 1 << 22  # or fewer documents: the one that reaches so many is the last


class PassedDocument(NamedTuple):
    """A document that passed the filters."""

    text: str
    id: str
    part: str
    file: str
    span: int  # the number of its span in the unit
    line: int  # counted from the start of the span
    language: str
    score: float
    characters: int
    metadata: str  # `MetadataColumn`
    origin: str  # of a part: the hash, in hexadecimal, of the text that a transform split; '' of a whole document


class MetadataColumn:
    """The fields of records that the recipe keeps, as one column of JSON; '' if it keeps none."""

    def __init__(self, keep_fields: Sequence[str]) -> None:
        self._fields = parse_fields(keep_fields)
        self.names = [field.name for field in self._fields]

    def checked(self, document: Document) -> Document | BadRecord:
        """Return a document as it was read, or a bad record if JSON cannot hold one of its lists or objects."""
        for field in self._fields:
            if isinstance(value := document.metadata.get(field.name), list | dict):
                try:
                    orjson.dumps(value)
                except TypeError as error:
                    reason = f"{field.name!r} holds what JSON cannot keep"
                    return BadRecord(document.file, document.line, None, reason, str(error), document.source)
        return document

    def encode(self, documents: Sequence[Document]) -> list[str]:
        """Return the fields of each document. Raises ``BuildError`` if a transform set a value of another type."""
        return [self._encode(document) for document in documents] if self._fields else [""] * len(documents)

    def _encode(self, document: Document) -> str:
        fitted = {}
        for field in self._fields:
            value = document.metadata.get(field.name)
            fitted[field.name] = fit = field.fit(value)
            if fit is MISFIT:
                raise BuildError(f"{document.location()}: field {field.misfit(value)}; mend the transform that sets it")
        try:
            return orjson.dumps(fitted).decode()
        except TypeError as error:
            raise BuildError(f"{document.location()}: keep_fields: {error}; keep plain JSON values") from error

    def decode(self, values: Iterable[str]) -> dict[str, list[Any]]:
        rows = [orjson.loads(value) for value in values] if self._fields else []
        return {name: [row[name] for row in rows] for name in self.names}


class PartitionWriter:
    """Writes the documents of a partition, a batch at a time."""

    def __init__(
        self, directory: Path, hasher: MinHasher | None, find: Callable[[Sequence[str]], Segments] | None = None
    ) -> None:
        """``hasher`` signs texts. ``find`` finds the segments whose hashes are written."""
        import pyarrow as pa

        kinds = {str: pa.large_string(), int: pa.int64(), float: pa.float32()}
        self._schema = pa.schema({name: kinds[kind] for name, kind in get_type_hints(PassedDocument).items()})
        self._directory = directory
        self._hasher = hasher
        self._find = find
        self._passages: list[NDArray[np.uint64]] = []
        self._rows: list[PassedDocument] = []
        self._characters = 0

    def __enter__(self) -> PartitionWriter:
        self._arrow = _new_file(self._directory / DOCUMENTS, self._schema)
        self._hashes = open(self._directory / "hashes.bin", "wb")
        self._signatures = open(self._directory / "signatures.bin", "wb")
        return self

    def add(self, row: PassedDocument) -> None:
        self._rows.append(row)
        self._characters += row.characters
        if len(self._rows) >= _ROWS or self._characters >= _CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        columns = list(zip(*self._rows, strict=True))
        texts = list(columns[0])
        text_hashes(texts).tofile(self._hashes)
        if self._hasher is not None:
            self._hasher.signatures(texts).tofile(self._signatures)
        if self._find is not None:
            self._passages.append(np.unique(self._find(texts).hashes))
        arrays = [_column(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)]
        self._arrow.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._rows, self._characters = [], 0

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._flush()
                if self._find is not None:
                    joined = np.concatenate([np.zeros(0, np.uint64), *self._passages])
                    np.unique(joined).tofile(self._directory / "passages.bin")
        finally:
            self._arrow.close()
            self._hashes.close()
            self._signatures.close()


class DocumentFile:
    """Writes the documents of a partition again, a record batch at a time. Without a batch, there is no file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / DOCUMENTS
        self._arrow: Any = None

    def __enter__(self) -> DocumentFile:
        return self

    def write(self, batch: Any) -> None:
        self._arrow = self._arrow or _new_file(self._path, batch.schema)
        self._arrow.write_batch(batch)

    def __exit__(self, *_: object) -> None:
        if self._arrow is not None:
            self._arrow.close()


def with_values(batch: Any, values: Mapping[str, Mapping[int, Any]], keep: NDArray[np.bool_] | None = None) -> Any:
    """Return the rows ``keep`` (None: all) of a record batch of documents, with other ``values`` by column and row."""
    import pyarrow as pa

    arrays = []
    for item, column in zip(batch.schema, batch.columns, strict=True):
        if values.get(item.name):
            new = column.to_pylist()
            for row, value in values[item.name].items():
                new[row] = value
            column = _column(new, item.type)
        arrays.append(column)
    batch = pa.record_batch(arrays, schema=batch.schema)
    if keep is None or keep.all():
        return batch
    bits = pa.py_buffer(np.packbits(keep, bitorder="little").tobytes())
    return batch.filter(pa.Array.from_buffers(pa.bool_(), len(keep), [None, bits]))


def _new_file(path: Path, schema: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.new_file(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))


def make_hasher(recipe: Recipe) -> MinHasher:
    """Return the hasher that signs texts for dedup."""
    return MinHasher(
        ngram=recipe.dedup_ngram, bands=recipe.dedup_bands, rows=recipe.dedup_rows, num_perm=recipe.dedup_num_perm
    )


def _column(values: Sequence[Any], kind: Any) -> Any:
    """Return strings or numbers as an arrow array. ``pa.array`` would import pandas if it is installed."""
    import pyarrow as pa

    if kind != pa.large_string():
        dtype = np.float32 if kind == pa.float32() else np.int64  # kind.to_pandas_dtype() may need pandas
        numbers = np.array(values, dtype)
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def rejected_line(
    document: Document | PassedDocument, span: int, kind: str, reason: str | None, text: str | None = None
) -> Sample:
    """Return the line of rejected.jsonl for a document that is dropped, or cut by ``text``; `locate` completes it."""
    line: Sample = {"id": document.id, "file": document.file, "line": document.line, "kind": kind, "reason": reason}
    line |= {"hash": text_hash(document.text), "text": document.text if text is None else text}
    return line | {"span": span, "part": document.part}


class RejectedFile:
    """Writes the documents of a partition that a stage drops or cuts: to samples and, if the recipe asks, to rejected.jsonl."""

    def __init__(self, directory: Path, recipe: Recipe, samples: Samples) -> None:
        self._path, self._recipe, self._samples = directory / REJECTED_NAME, recipe, samples

    def __enter__(self) -> RejectedFile:
        self._file = open(self._path, "wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(
        self,
        row: PassedDocument,
        kind: str,
        reason: str,
        text: str | None = None,
        *,
        title: str = "",
        is_kept: bool = False,
    ) -> None:
        """Add a document, or the ``text`` that is cut from it. Its samples have a ``title``, the kind by default.

        A document that ``is_kept`` whole is only a sample.
        """
        line = rejected_line(row, row.span, kind, reason, text)
        self._samples.add(title or kind, sample_keys([line["text"]], self._recipe.seed)[0], line)
        if self._recipe.keep_rejected and not is_kept:
            write_line(self._file, line)


def write_line(file: IO[bytes], value: Mapping[str, object]) -> None:
    file.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
