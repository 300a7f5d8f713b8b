"""The file of a table of extents, version 1: ``extents.bin`` beside ``manifest.json``.

The file describes all shards of a dataset: splits in the order of their names, the shards of each in the order of the
manifest. `extents` defines what an extent is. Integers are little-endian; ``N`` is the number of shards, ``E`` of extents.

    offset     bytes   content
    0          8       the ASCII text "SWEXTENT"
    8          4       version: 1
    12         4       dtype of the tokens, ASCII: |u1, <u2, <i4, <u4 or <i8, and a zero byte
    16         4       w: bytes of an item of sizes, tokens and documents: 4, or 8 where a value needs it
    20         4       1 where the file holds crc32, else 0
    24         8       N
    32         8       E
    40         24      zeros
    64         8 N     extents of each shard
    ...        8 N     offset in the shard's file of the first item of `__index__/starts` (<u8 each); 0: it has no index
    ...        8 N     offset in the shard's file of the first item of `__index__/lengths` (<u4 each); 0: it has no index
    ...        w E     size of each extent in bytes, at least 1
    ...        w E     tokens of each extent
    ...        w E     documents of each extent, at least 1
    ...        4 E     index_crc32: CRC-32 (zlib's) of the extent's items of starts as <u8, then of its lengths as <u4
    ...        4 E     crc32: CRC-32 of the extent's bytes, where the file holds it
    ...        32      SHA-256 of all bytes before it

Everything else is a sum: an extent's offset in its shard is the sizes of the shard's extents before it, its first
document the documents of these. A reader MUST refuse a file whose size, digest or sums disagree with this page or with
the manifest.
"""

from __future__ import annotations

import hashlib
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...errors import ManifestError
from .table import COUNTS, PER_SHARD, ExtentTable, index_offsets

EXTENTS_NAME = "extents.bin"
EXTENTS_VERSION = 1
COMMAND = "shardwright index"  # writes the file, and is the cure for most that is wrong with it
MAGIC = b"SWEXTENT"

_HEADER = struct.Struct("<8sI4s2I2Q24s")
_ZEROS = bytes(24)
_DIGEST = 32
_DTYPES = {text.encode().ljust(4, b"\0"): np.dtype(text) for text in ("|u1", "<u2", "<i4", "<u4", "<i8")}
_MOST = np.uint64(1 << 44)  # of a wide count: sums of these stay within int64


def encode_table(table: ExtentTable) -> bytes:
    """Return a table as its file holds it; equal tables give equal bytes.

    >>> table = ExtentTable.of_documents(np.array([3, 4]), "<u2")
    >>> decode_table(encode_table(table)).tokens.tolist()
    [7]
    """
    counts = [getattr(table, name) for name in COUNTS]
    width = 8 if any(len(column) and int(column.max()) >= 1 << 32 for column in counts) else 4
    dtype, has_crc32 = table.dtype.str.encode(), table.crc32 is not None
    parts = [_HEADER.pack(MAGIC, EXTENTS_VERSION, dtype, width, has_crc32, table.shards, len(table), _ZEROS)]
    parts += [column.astype("<i8").tobytes() for column in (table.extents, table.starts_at, table.lengths_at)]
    parts += [column.astype(f"<u{width}").tobytes() for column in counts]
    parts += [column.astype("<u4").tobytes() for column in (table.index_crc32, table.crc32) if column is not None]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def decode_table(raw: bytes | memoryview, name: str = EXTENTS_NAME, sha256: str | None = None) -> ExtentTable:
    """Return the table that a file holds; its arrays are read-only views of ``raw``.

    ``name`` is what errors call the file; ``sha256`` (hexadecimal) is what the whole file must have, if given. Raises
    ``ManifestError`` naming file, field and value for a file that is no table of this version, is cut or damaged, or
    contradicts itself.
    """
    header = _parse_header(raw, name)
    at = _HEADER.size

    def column(dtype: str, items: int) -> NDArray[Any]:
        nonlocal at
        values: NDArray[Any] = np.frombuffer(raw, dtype, items, at)
        at += values.nbytes
        return values

    shards, extents, count = header.shards, header.extents, f"<u{header.width}"
    table = ExtentTable(
        header.dtype,
        *[column("<i8", shards) for _ in range(3)],
        *[column(count, extents) for _ in range(3)],
        *[column("<u4", extents) for _ in range(1 + header.has_crc32)],
    )
    with ThreadPoolExecutor(1) as thread:  # hashes are made without the interpreter's lock
        whole = thread.submit(_check_hashes, raw, name, sha256)
        try:
            _check(table, name)
        finally:
            whole.result()  # of a damaged file, this is the error
    return table


class _Header(NamedTuple):
    dtype: np.dtype[Any]
    width: int
    has_crc32: int
    shards: int
    extents: int


def _parse_header(raw: bytes | memoryview, name: str) -> _Header:
    """Return the header of a file that has the size that it states."""
    if not raw or raw[:8] != MAGIC[: len(raw)]:
        _refuse(name, "magic", bytes(raw[:8]), f"a table of extents begins with {MAGIC!r}")
    if len(raw) < _HEADER.size + _DIGEST:
        _refuse(name, "size", len(raw), f"the least is {_HEADER.size + _DIGEST} bytes: it is cut")
    _, version, descr, width, has_crc32, shards, extents, zeros = _HEADER.unpack_from(raw)
    if version != EXTENTS_VERSION:
        _refuse(name, "version", version, f"this release reads {EXTENTS_VERSION}")
    dtype = _DTYPES.get(descr)
    if dtype is None:
        _refuse(name, "dtype", descr, f"tokens have one of {', '.join(str(each) for each in _DTYPES.values())}")
    if width not in (4, 8) or has_crc32 > 1 or zeros != _ZEROS:
        _refuse(name, "bytes 16 to 64", raw[16:64].hex(), "version 1 has no such header")
    size = _HEADER.size + 24 * shards + (3 * width + 4 + 4 * has_crc32) * extents + _DIGEST
    if size != len(raw):
        _refuse(name, "size", len(raw), f"{shards} shards with {extents} extents take {size} bytes")
    return _Header(dtype, width, has_crc32, shards, extents)


def _check_hashes(raw: bytes | memoryview, name: str, sha256: str | None) -> None:
    """Raise unless the file has the hash that it ends with, and the ``sha256`` that is expected, if given."""
    view = memoryview(raw)
    digest = hashlib.sha256(view[:-_DIGEST])
    if digest.digest() != view[-_DIGEST:]:
        _refuse(name, "digest", raw[-_DIGEST:].hex(), f"its bytes have {digest.hexdigest()}: it is damaged")
    digest.update(view[-_DIGEST:])
    if sha256 is not None and digest.hexdigest() != sha256:
        _refuse(name, "sha256", digest.hexdigest(), f"the manifest says {sha256}: it is the table of other shards")


def _check(table: ExtentTable, name: str) -> None:
    """Refuse a table whose values contradict each other, so that a reader can rely on its sums."""

    def hold(field: str, wrong: NDArray[np.bool_], message: str) -> None:
        if wrong.any():
            at, unit = int(np.argmax(wrong)), "shard" if field in PER_SHARD else "extent"
            _refuse(name, f"{field} of {unit} {at}", int(getattr(table, field)[at]), message)

    total = len(table)
    counts = table.extents
    hold("extents", (counts < 0) | (counts > total), f"the table has {total} extents")
    if int(counts.sum()) != total:
        _refuse(name, "extents of all shards", int(counts.sum()), f"the table has {total} extents")
    for field in ("sizes", "documents"):
        hold(field, getattr(table, field) == 0, "an extent has 1 or more")
    if table.sizes.itemsize == 8:
        for field in COUNTS:
            hold(field, getattr(table, field) > _MOST, f"{_MOST} is the most")
    shift = table.sizes.dtype.type(table.itemsize.bit_length() - 1)
    hold("tokens", table.tokens > table.sizes >> shift, "its bytes do not hold so many")
    payload, documents = table.per_shard(table.size_sums), table.per_shard(table.document_sums)
    indexed = (table.starts_at != 0) | (table.lengths_at != 0)
    for field, expected in zip(PER_SHARD[1:], index_offsets(payload, documents), strict=True):
        hold(field, indexed & (getattr(table, field) != expected), "the shard's bytes and documents put it elsewhere")


def _refuse(name: str, field: str, value: object, wanted: str) -> NoReturn:
    raise ManifestError(f"{name}: {field} is {value!r}, but {wanted}; copy it again, or write it again: {COMMAND}")
