"""The file of a table of extents: ``extents.npz`` beside ``manifest.json``, which names it with its size and SHA-256.

The file describes all shards of a dataset: splits in the order of their names, the shards of each in the order of the
manifest. `pipeline.shards.extents.extent_table` defines what an extent is. It is an uncompressed npz of 1-D arrays::

    dtype         of the tokens, as text: <u2 or <u4
    extents       <i8, per shard: how many it has
    sizes         <u4 (<u8 where a value needs it), per extent: bytes, at least 1
    tokens        the same, per extent
    documents     the same, per extent: at least 1
    index_crc32   <u4, per extent: CRC-32 (zlib's) of its items of `__index__/starts` as <u8, then of `__index__/lengths` as <u4
    crc32         <u4, per extent: CRC-32 of its bytes; left out where it is not known

Everything else is a sum: the offset of an extent in its shard is the sizes of the shard's extents before it, its first
document the documents of these. Equal tables give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...atomic import atomic_file
from ...errors import ManifestError
from ..dataset_folder import REPAIR
from ..manifest import EXTENTS_NAME, FileInfo
from .extent_table import CHECKSUMS, COUNTS, ExtentTable


def encode_table(table: ExtentTable) -> bytes:
    """Return a table as its file holds it; shards without an index in the file keep none.

    >>> table = ExtentTable.of_documents(np.array([3, 4]), "<u2")
    >>> decode_table(encode_table(table), indexed=False).tokens.tolist()
    [7]
    """
    columns: dict[str, Any] = {"dtype": np.array(table.dtype.str), "extents": table.extents.astype("<i8")}
    columns |= {name: getattr(table, name) for name in COUNTS}
    columns |= {name: column for name in CHECKSUMS if (column := getattr(table, name)) is not None}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **columns)
    return file.getvalue()


def decode_table(raw: bytes, name: str = EXTENTS_NAME, *, indexed: bool = True) -> ExtentTable:
    """Return the table that a file holds; ``indexed`` says whether its shards hold their index, as those of datasets do.

    Raises ``ManifestError``, which calls the file ``name``, for a file that is no table.
    """
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            dtype, extents = np.dtype(str(file["dtype"])), file["extents"]
            columns = {key: file[key] for key in (*COUNTS, *CHECKSUMS) if key in file or key != "crc32"}
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ManifestError(f"{name}: no table of extents: {type(error).__name__}: {error}; {REPAIR}") from error
    unlike = [key for key, column in columns.items() if column.dtype.kind != "u" or column.shape != (extents.sum(),)]
    if unlike or extents.dtype != np.int64 or extents.ndim != 1 or (len(extents) and extents.min() < 0):
        raise ManifestError(
            f"{name}: {unlike[0] if unlike else 'extents'} is no column of the table's extents; {REPAIR}"
        )
    return ExtentTable(dtype, extents, np.full(len(extents), indexed), **columns)


def write_table(folder: Path, tables: Iterable[ExtentTable], dtype: str) -> FileInfo:
    """Write the tables of shards, in the order of `Manifest.shards`, as one file; return what a manifest says of it."""
    raw = encode_table(ExtentTable.join(list(tables), dtype))
    with atomic_file(folder / EXTENTS_NAME) as file:
        file.write(raw)
    return FileInfo(EXTENTS_NAME, len(raw), hashlib.sha256(raw).hexdigest())
