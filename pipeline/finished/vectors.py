"""Reads the user's vectors and the keys of their documents: one array, which may be mapped, and a key for each row."""

from __future__ import annotations

import functools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DamagedInputError, InputError, MissingInputError, did_you_mean, first_few, first_line

_TABLES = (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst")
_LINE_BYTES = 16 << 20  # of JSON at most
_ROWS = 4096  # of Parquet that are read at once
_PAGE_BYTES = 64 << 10  # pages are read one by one, not whole columns


@contextmanager
def open_vectors(vectors: Any, keys: Any, column: str, id_key: str) -> Iterator[tuple[NDArray[Any], list[str]]]:
    """Yield an array ``[documents, dimensions]`` of floats, and the key of each row; arguments as for `near_vectors`."""
    with tempfile.TemporaryFile(prefix="shardwright-") as file:
        ids: list[str] | None = None
        if isinstance(vectors, str | os.PathLike) and os.fspath(vectors).endswith(_TABLES):
            array, ids = _spool(vectors, column, id_key if keys is None else None, file)
        else:
            array = _array(vectors)
        if array.ndim != 2 or not array.shape[1] or array.dtype not in ("f2", "f4", "f8"):
            raise ConfigError(
                f"vectors are {array.dtype} of shape {array.shape}, but must be float16, float32 or float64 of shape [documents, "
                "dimensions]; use numpy.stack for a list of vectors, .astype('float32') for other numbers"
            )
        if keys is None and ids is None:
            raise ConfigError("no keys, and an array has no ids; give the id of each row: keys= (--keys)")
        yield array, _checked(_listed(keys, id_key) if ids is None else ids, len(array))


def _array(vectors: Any) -> NDArray[Any]:
    if not isinstance(vectors, str | os.PathLike):
        try:
            return np.asanyarray(vectors)
        except ValueError:
            raise ConfigError("vectors have different lengths; embed all documents by one model") from None
    try:
        array: NDArray[Any] = np.load(vectors, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _unread(vectors, error, "name a .npy file, or a table that ends in " + ", ".join(_TABLES)) from None
    except (ValueError, EOFError) as error:
        raise DamagedInputError(f"{vectors}: not a whole npy file ({error}); write it with numpy.save") from None
    return array


def _spool(
    path: str | os.PathLike[str], column: str, id_key: str | None, file: Any
) -> tuple[NDArray[np.float32], list[str] | None]:
    """Write the vectors of a table to an open file. Return them mapped, and the ids if ``id_key`` names them."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    ids: list[str] = []
    rows = size = 0
    for batch in _read(path, [column, *([id_key] if id_key else [])]):
        lists = batch[column]
        kind = getattr(lists.type, "value_type", lists.type)
        if not hasattr(lists, "flatten") or not (types.is_floating(kind) or types.is_integer(kind)):
            raise DamagedInputError(
                f"{path}: column {column!r} is {lists.type}, not lists of numbers; name another column= (--column)"
            )
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
        size = size or int(lengths[0])
        if (wrong := lengths != size).any() or not size:
            at = int(np.argmax(wrong))
            raise ConfigError(
                f"{path}, row {rows + at}: a vector of {lengths[at]} numbers, but the first has {size}; embed every document by "
                "one model, or leave it out"
            )
        file.write(lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32).tobytes())
        ids += _names(batch[id_key]) if id_key else []
        rows += len(batch)
    file.flush()
    array = np.memmap(file, np.float32, "r", shape=(rows, size)) if rows else np.empty((0, 1), np.float32)
    return array, ids if id_key else None


def _read(path: str | os.PathLike[str], names: list[str]) -> Iterator[Any]:
    """Yield the columns ``names`` of Parquet or JSON Lines, some rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.json import ReadOptions, open_json

    batches: Callable[[], Any]
    try:
        if os.fspath(path).endswith(_TABLES[0]):
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_PAGE_BYTES)
            known, batches = file.schema_arrow.names, functools.partial(file.iter_batches, _ROWS, columns=names)
        else:
            lines = open_json(path, ReadOptions(block_size=_LINE_BYTES))
            known, batches = lines.schema.names, lambda: lines
        if missing := [name for name in names if name not in known]:
            near = did_you_mean(missing[0], known)
            raise ConfigError(
                f"{path}: no column {missing[0]!r}{near}; name it by column= (--column) or id_key= (--id-key)"
            )
        yield from (batch for batch in batches() if len(batch))
    except OSError as error:
        raise _unread(path, error, "name a file of Parquet or JSON Lines") from None
    except pa.ArrowException as error:
        raise DamagedInputError(f"{path}: cannot be read ({first_line(error)}); write it again") from None


def _names(column: Any) -> list[str]:
    return ["" if value is None else str(value) for value in column.to_pylist()]


def _listed(keys: Any, id_key: str) -> list[str]:
    """Return keys as text: values, a column of a table, or the lines of a file."""
    if not isinstance(keys, str | os.PathLike):
        return [str(key) for key in keys]
    if os.fspath(keys).endswith(_TABLES):
        return [name for batch in _read(keys, [id_key]) for name in _names(batch[id_key])]
    try:
        lines = Path(keys).read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except OSError as error:
        raise _unread(keys, error, "name a file with an id a line, or a table of ids") from None
    except UnicodeDecodeError as error:
        raise DamagedInputError(f"{keys}: not UTF-8 ({error}); write an id a line") from None
    return [line.removesuffix("\r") for line in lines]


def _unread(path: str | os.PathLike[str], error: OSError, cure: str) -> InputError:
    kind = MissingInputError if isinstance(error, FileNotFoundError) else InputError
    return kind(f"{path}: cannot be read: {error.strerror or error}; {cure}")


def _checked(keys: list[str], rows: int) -> list[str]:
    """Return the keys. Raises ``ConfigError`` unless each row has one of its own."""
    if len(keys) != rows:
        raise ConfigError(
            f"{len(keys):,} keys for {rows:,} vectors; give the ids of the embedded documents, in their order"
        )
    if unlisted := [row for row, key in enumerate(keys) if not key.strip() or "\n" in key]:
        raise ConfigError(f"row {unlisted[0]} has the key {keys[unlisted[0]]!r}; give its document an id of one line")
    if len(set(keys)) < len(keys):
        twice = [key for key, count in Counter(keys).items() if count > 1]
        raise ConfigError(
            f"{len(twice):,} keys name several vectors: {first_few(twice)}; give each document its own id"
        )
    return keys
