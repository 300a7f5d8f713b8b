"""The layout of Megatron's ``IndexedDataset``: ids in ``NAME.bin``, and the offsets of documents in ``NAME.idx``.

``NAME.bin`` holds the ids of all sequences joined. ``NAME.idx`` is, little-endian:

    9 bytes     MMIDIDX, two zero bytes
    u64         1, the version
    u8          the dtype of the ids, a number in `DTYPES`
    u64         sequences
    u64         document ends
    i32 each    ids of each sequence
    i64 each    byte of ``NAME.bin`` at which each sequence begins
    i64 each    0, then the number of sequences up to each document's end: a document may be several sequences
    i8 each     modes of sequences, in multimodal data only
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import atomic_file
from ..errors import DamagedInputError

MAGIC = b"MMIDIDX\x00\x00"
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_HEAD = struct.Struct("<9sQBQQ")
_CURE = "copy both files again"


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which Megatron stores ids of a dtype. It has no uint32."""
    return np.dtype("<i4") if dtype.itemsize == 4 else dtype


def write_index(path: Path, lengths: NDArray[np.integer[Any]], dtype: np.dtype[Any]) -> None:
    """Write the index of consecutive documents of these lengths. Each document is one sequence."""
    code = next(code for code, known in DTYPES.items() if np.dtype(known) == dtype)
    sizes = lengths.astype(np.int64) * dtype.itemsize
    with atomic_file(path) as file:
        file.write(_HEAD.pack(MAGIC, 1, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write((np.cumsum(sizes) - sizes).astype("<i8").tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


def read_documents(path: Path) -> Iterator[NDArray[Any]]:
    """Yield the mapped ids of each document of ``NAME.bin``. Raises ``DamagedInputError`` if its index does not fit."""
    index = path.with_suffix(".idx")
    raw = np.fromfile(index, np.uint8)
    head = raw[: _HEAD.size].tobytes()
    magic, version, code, sequences, ends = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0, 0, 0)
    if magic != MAGIC or version != 1 or code not in DTYPES:
        raise DamagedInputError(
            f"{index}: byte 0: not a Megatron index of version 1 and whole numbers ({head!r}); {_CURE}"
        )
    wanted = _HEAD.size + 12 * sequences + 8 * ends
    if len(raw) == wanted + sequences and sequences:
        raise DamagedInputError(f"{index}: it holds modes of sequences, so it is multimodal, not text; leave it out")
    if len(raw) != wanted:
        raise DamagedInputError(f"{index}: {len(raw)} bytes, but its {sequences} sequences need {wanted}; {_CURE}")
    dtype = np.dtype(DTYPES[code])
    lengths, rest = raw[_HEAD.size :][: 4 * sequences].view("<i4"), raw[_HEAD.size + 4 * sequences :]
    starts, bounds = rest[: 8 * sequences].view("<i8"), rest[8 * sequences :].view("<i8")
    size = path.stat().st_size
    reach = starts + lengths.astype(np.int64) * dtype.itemsize
    if sequences and (lengths.min() < 0 or starts.min() < 0 or reach.max() > size or (starts % dtype.itemsize).any()):
        raise DamagedInputError(f"{path}: {size} bytes, but its index points outside them or between ids; {_CURE}")
    if not ends or bounds[0] != 0 or bounds[-1] != sequences or (np.diff(bounds) < 0).any():
        raise DamagedInputError(f"{index}: its documents do not cover its {sequences} sequences; {_CURE}")
    tokens = np.memmap(path, dtype, "r") if size else np.empty(0, dtype)
    for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        spans = [(starts[k] // dtype.itemsize, int(lengths[k])) for k in range(first, stop)]
        pieces = [tokens[begin : begin + count] for begin, count in spans]
        yield pieces[0] if len(pieces) == 1 else np.concatenate([tokens[:0], *pieces])
