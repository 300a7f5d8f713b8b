"""Scores that another program made, on a GPU for example, joined to documents as fields.

A table has the key of each text and its numbers. The key is the 128-bit BLAKE2b of the text in UTF-8, as it was read, before
any edit. A build sorts the table once, when it is planned, and keeps it in the work directory. All workers map it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filters.rules.named_files import NamedFile

from ...atomic import read_json, write_json
from ...errors import ConfigError, first_line
from ...text.document import Document
from ...text.hashes import text_hashes
from ..counts.sums import Counts
from .transform import Decision, Transform

KEY = "key"
_KEY_BYTES = 16
_KEY = np.dtype(f"S{_KEY_BYTES}")
_NAMES, _KEYS, _VALUES = "names.json", "keys.npy", "values.npy"


class Scores:
    """The numbers of each key. ``keys`` are 16 bytes each and ascend; ``values`` are float64 ``[n, names]``."""

    def __init__(self, names: Sequence[str], keys: NDArray[np.bytes_], values: NDArray[np.float64]) -> None:
        self.names = tuple(names)
        self._keys = keys
        self._values = values

    @classmethod
    def read(cls, path: str) -> tuple[Scores, str]:
        """Return the scores in a Parquet file with a column ``key`` and columns of numbers, and the file's sha256.

        Raises ``ConfigError`` if the file is not Parquet, or if a column has no numbers. A key must be 32 hexadecimal digits or
        16 bytes, and all rows of a key must have the same numbers.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq
        import pyarrow.types as types

        named = NamedFile.read(path)
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"scores {path}: not a whole parquet file ({first_line(error)})") from None
        if KEY not in table.column_names:
            raise ConfigError(f"scores {path}: no column {KEY!r}; `shardwright texts` writes the keys of texts")
        names = [name for name in table.column_names if name != KEY]
        for name in names:
            kind = table.schema.field(name).type
            if not (types.is_floating(kind) or types.is_integer(kind)):
                raise ConfigError(f"scores {path}: column {name!r} is {kind}, not numbers; leave it out")
        if not names:
            raise ConfigError(f"scores {path}: no column of numbers beside {KEY!r}")
        keys = _keys(path, table.column(KEY))
        columns = [np.array(table.column(name).to_pylist(), np.float64) for name in names]
        values = np.stack(columns, axis=1) if len(keys) else np.zeros((0, len(names)))
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        same = keys[1:] == keys[:-1]
        differs = same & ~((values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))).all(axis=1)
        if differs.any():
            key = keys[np.argmax(differs)].ljust(_KEY_BYTES, b"\0").hex()
            raise ConfigError(f"scores {path}: key {key} has several rows with different numbers; keep one of them")
        first = np.ones(len(keys), bool)
        first[1:] = ~same
        return cls(names, keys[first], values[first]), named.sha256

    def save(self, directory: Path) -> None:
        write_json(directory / _NAMES, list(self.names))
        np.save(directory / _KEYS, self._keys)
        np.save(directory / _VALUES, self._values)

    @classmethod
    def load(cls, directory: Path) -> Scores:
        """Map what `save` wrote."""
        names = read_json(directory / _NAMES)
        keys, values = (np.load(directory / name, mmap_mode="r") for name in (_KEYS, _VALUES))
        return cls(names, keys, values)

    def look_up(self, texts: Sequence[str]) -> list[dict[str, float | None] | None]:
        """Return the numbers of each text by name, or None if the table lacks the text."""
        wanted = text_hashes(texts).view(_KEY).ravel()
        rows = np.searchsorted(self._keys, wanted)
        known = rows < len(self._keys)
        known[known] = self._keys[rows[known]] == wanted[known]
        results: list[dict[str, float | None] | None] = [None] * len(texts)
        for at, numbers in zip(np.flatnonzero(known).tolist(), self._values[rows[known]].tolist(), strict=True):
            results[at] = {n: None if v != v else v for n, v in zip(self.names, numbers, strict=True)}
        return results


def _keys(path: str, column: Any) -> NDArray[np.bytes_]:
    data = []
    for row, value in enumerate(column.to_pylist()):
        try:
            key = value if isinstance(value, bytes) else bytes.fromhex(value)
        except (TypeError, ValueError):
            key = b""
        if len(key) != _KEY_BYTES:
            raise ConfigError(
                f"scores {path}, row {row}: key {value!r} is not 32 hexadecimal digits or {_KEY_BYTES} bytes"
            )
        data.append(key)
    return np.array(data, _KEY)


class JoinScores(Transform):
    """Adds scores to documents as fields. It runs first, since scores belong to texts as they are read."""

    name = "scores"

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._none = dict.fromkeys(scores.names)

    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        results = self._scores.look_up([document.text for document in documents])
        for document, numbers in zip(documents, results, strict=True):
            document.metadata |= self._none if numbers is None else numbers
        counts.add("cut", "documents without a score", number=sum(numbers is None for numbers in results))
        return documents
