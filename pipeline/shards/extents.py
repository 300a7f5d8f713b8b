"""The table of extents, version 1: how the documents of every shard are cut into runs that are read in one request.

An **extent** is a run of consecutive documents of one shard, about 192 KiB on disk. The documents of a shard are cut by
bytes. Let ``S`` be the bytes of the shard before its index (in a tar without an index: the end of the last document,
rounded up to 512; in memory: the bytes of all tokens) and ``t`` = 196,608. A document ends behind its last token.

    n = max(1, (2 S + t) // (2 t))
    extent b of 0 .. n-1 ends with the first document whose end is at or beyond (b + 1) S / n, exactly
    the last extent ends with the last document; extents without documents are dropped

A document longer than an extent therefore ends the extent that it is in, and makes it longer. The same rule holds where
several documents share one tar member. Documents of no tokens at the end, behind byte ``S``, belong to the last extent.

The **bytes** of extents tile ``[0, S)``: an extent begins with the first token of its first document (the first extent
of a shard: with byte 0) and ends where the next one begins (the last: at ``S``). The tar header in front of a
member, and the padding behind the member before, are thus the last bytes of the extent before.

The file, ``extents.bin``, describes all shards of a dataset: splits in the order of their names, the shards of each in
the order of the manifest. Integers are little-endian and unsigned; ``N`` is the number of shards, ``E`` of extents.

    offset     bytes   content
    0          8       the ASCII text "SWEXTENT"
    8          4       version: 1
    12         4       itemsize: bytes of a token in the shards: 1, 2, 4 or 8
    16         4       w: bytes of an item of sizes, tokens and documents: 4, or 8 where one of them needs it
    20         4       columns that follow: 1 for crc32, plus 2 for index_crc32
    24         8       N
    32         8       E
    40         24      zeros
    64         8 N     extents of each shard
    ...        8 N     starts_at: offset in the shard's file of the first item of `__index__/starts` (<u8 each); 0: no index
    ...        8 N     lengths_at: the same of `__index__/lengths` (<u4 each); 0: no index
    ...        w E     sizes: bytes of each extent
    ...        w E     tokens of each extent
    ...        w E     documents of each extent, at least 1
    ...        4 E     crc32: zlib's CRC-32 of the extent's bytes; present if column 1 is
    ...        4 E     index_crc32: CRC-32 of the extent's items of starts, then of lengths, as stored; if column 2 is
    ...        32      SHA-256 of all bytes before it

Everything else is a sum: an extent's offset is the bytes of its shard's extents before it, its first document the
documents of these. A reader MUST refuse a file whose size, digest or sums disagree with this page or with the manifest.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptShardError, ManifestError
from .format import BLOCK, NPY_HEADER, padding

EXTENT_BYTES = 192 << 10
EXTENTS_VERSION = 1
MAGIC = b"SWEXTENT"

_HEADER = struct.Struct("<8s4I2Q24x")
_DIGEST_BYTES = 32
_HAS_CRC32, _HAS_INDEX_CRC32 = 1, 2
_MOST = np.uint64(1 << 44)
_FIRST_ITEM = BLOCK + NPY_HEADER  # from the offset of a member of an array to the array's first item

Counts = NDArray[np.unsignedinteger[Any]]


def cut_extents(
    starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]], itemsize: int, payload_bytes: int
) -> NDArray[np.int64]:
    """Return the number of the first document of each extent of a shard, ascending from 0; none for no documents.

    ``starts`` (bytes) and ``lengths`` (tokens of ``itemsize`` bytes) say where documents lie in the first
    ``payload_bytes`` bytes. Raises ``ValueError`` for documents that overlap, descend, or lie outside these.

    >>> megabyte = 1 << 20
    >>> cut_extents(np.arange(8) * megabyte // 8, np.full(8, megabyte // 16), 2, megabyte).tolist()
    [0, 2, 4, 5, 7]
    """
    count = len(starts)
    if count == 0:
        return np.zeros(0, np.int64)
    begins = np.asarray(starts, np.int64)
    ends = begins + np.asarray(lengths, np.int64) * itemsize
    inside = begins[0] >= 0 and ends[-1] <= payload_bytes
    if not inside or not (begins <= ends).all() or not (ends[:-1] <= begins[1:]).all():
        raise ValueError(f"documents do not follow each other inside the first {payload_bytes} bytes")
    wanted = max(1, (2 * payload_bytes + EXTENT_BYTES) // (2 * EXTENT_BYTES))
    whole, rest = divmod(payload_bytes, wanted)
    cut = np.arange(1, wanted, dtype=np.int64)
    least_ends = cut * whole - (-cut * rest) // wanted  # ceil(cut * payload_bytes / wanted) without its large product
    firsts = np.unique(np.searchsorted(ends, least_ends) + 1)
    firsts = firsts[firsts < count]
    firsts = firsts[begins[firsts] < payload_bytes]
    return np.concatenate([np.zeros(1, np.int64), firsts])


@dataclass(frozen=True, eq=False)
class ExtentTable:
    """The extents of some shards, in the order of the shards.

    Per shard (int64): ``extents``, how many it has; ``starts_at`` and ``lengths_at``, the byte offsets in its file of the
    first item of its arrays of starts (<u8) and lengths (<u4), 0 where the file has no index. Per extent (uint32, or
    uint64 where a value needs it): ``sizes`` in bytes, ``tokens``, ``documents``; uint32, or None where they are not known:
    ``crc32`` of its bytes, ``index_crc32`` of its items of starts and lengths. ``itemsize`` is the bytes of a token.

    >>> table = ExtentTable.of_documents(np.array([3, 0, 4]), itemsize=2)
    >>> table.tokens.tolist(), table.documents.tolist(), table.sizes.tolist(), table.offsets.tolist()
    ([7], [3], [14], [0])
    >>> ExtentTable.from_bytes(table.to_bytes()).to_bytes() == table.to_bytes()
    True
    """

    itemsize: int
    extents: NDArray[np.int64]
    starts_at: NDArray[np.int64]
    lengths_at: NDArray[np.int64]
    sizes: Counts
    tokens: Counts
    documents: Counts
    crc32: NDArray[np.uint32] | None = None
    index_crc32: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """Return the number of extents."""
        return len(self.sizes)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.extents)

    @cached_property
    def shard_bounds(self) -> NDArray[np.int64]:
        """int64 of shape [shards + 1]: the extents of shard ``k`` are ``shard_bounds[k]`` to ``shard_bounds[k + 1]``."""
        return _bounds(self.extents)

    @cached_property
    def shard_numbers(self) -> NDArray[np.int32]:
        """int32 of shape [extents]: the shard of each extent."""
        return np.repeat(np.arange(self.shards, dtype=np.int32), self.extents)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """int64 of shape [extents]: the offset of each extent's first byte in the file of its shard."""
        return self._before(self.sizes)

    @cached_property
    def first_tokens(self) -> NDArray[np.int64]:
        """int64 of shape [extents]: the tokens of its shard before each extent."""
        return self._before(self.tokens)

    @cached_property
    def first_documents(self) -> NDArray[np.int64]:
        """int64 of shape [extents]: the number, in its shard, of each extent's first document."""
        return self._before(self.documents)

    def shard_sums(self, column: Counts) -> NDArray[np.int64]:
        """Return the sum of a column (``sizes``, ``tokens`` or ``documents``) over each shard's extents, int64."""
        return np.diff(_bounds(column)[self.shard_bounds])

    def select(self, shards: Sequence[int] | NDArray[np.integer[Any]]) -> ExtentTable:
        """Return the table of these shards alone, in this order."""
        chosen = np.asarray(shards, np.int64).reshape(-1)
        first, last = self.shard_bounds[chosen], self.shard_bounds[chosen + 1]
        rows: slice | NDArray[np.int64]
        if len(chosen) and (last[:-1] == first[1:]).all():
            rows = slice(int(first[0]), int(last[-1]))  # a view, where the shards are neighbours
        else:
            sizes = last - first
            rows = np.repeat(first - _bounds(sizes)[:-1], sizes) + np.arange(int(sizes.sum()))
        return ExtentTable(
            self.itemsize,
            self.extents[chosen],
            self.starts_at[chosen],
            self.lengths_at[chosen],
            self.sizes[rows],
            self.tokens[rows],
            self.documents[rows],
            None if self.crc32 is None else self.crc32[rows],
            None if self.index_crc32 is None else self.index_crc32[rows],
        )

    @classmethod
    def join(cls, tables: Sequence[ExtentTable]) -> ExtentTable:
        """Return one table of the shards of several, in order; a checksum that one lacks is left out.

        Raises ``ValueError`` for no tables, or tables of different itemsize.
        """
        sizes = {table.itemsize for table in tables}
        if len(sizes) != 1:
            raise ValueError(f"tables of one itemsize can be joined, got {sorted(sizes)}")

        def joined(name: str) -> Any:
            columns = [getattr(table, name) for table in tables]
            return None if any(column is None for column in columns) else np.concatenate(columns)

        names = ("extents", "starts_at", "lengths_at", "sizes", "tokens", "documents", "crc32", "index_crc32")
        return cls(sizes.pop(), *map(joined, names))

    @classmethod
    def of_shard(
        cls,
        starts: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        itemsize: int,
        payload_bytes: int,
        *,
        indexed: bool,
        crc32: Sequence[int] | None = None,
        name: str = "",
    ) -> ExtentTable:
        """Return the table of one shard from its index: ``starts`` in bytes, ``lengths`` in tokens of each document.

        ``indexed`` says whether the file holds the two arrays, behind ``payload_bytes``. ``crc32`` holds the checksum of
        each extent's bytes. Raises ``CorruptShardError`` naming the shard where its documents do not follow each other.
        """
        try:
            firsts = cut_extents(starts, lengths, itemsize, payload_bytes)
        except ValueError as error:
            raise CorruptShardError(f"{name}: its index is wrong: {error}; copy it again or rebuild it") from error
        count = len(firsts)
        bounds = np.append(firsts, len(starts))
        offsets = extent_offsets(starts, firsts, payload_bytes)
        sums = np.add.reduceat(np.asarray(lengths, np.int64), firsts) if count else np.zeros(0, np.int64)
        counts = np.diff(offsets), sums, np.diff(bounds) if count else sums
        width = np.dtype("<u4" if max((int(c.max()) for c in counts if count), default=0) < 1 << 32 else "<u8")
        starts_at = payload_bytes + _FIRST_ITEM if indexed else 0
        lengths_at = _lengths_at(payload_bytes, len(starts)) if indexed else 0
        index_crc32 = None
        if indexed:
            items = np.asarray(starts).astype("<u8", copy=False), np.asarray(lengths).astype("<u4")
            index_crc32 = [
                zlib.crc32(items[1][a:b].data, zlib.crc32(items[0][a:b].data))
                for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
            ]
        sizes, tokens, documents = (column.astype(width) for column in counts)
        return cls(
            itemsize,
            np.array([count]),
            np.array([starts_at]),
            np.array([lengths_at]),
            sizes,
            tokens,
            documents,
            None if crc32 is None else np.array(crc32, "<u4"),
            None if index_crc32 is None else np.array(index_crc32, "<u4"),
        )

    @classmethod
    def of_documents(cls, lengths: NDArray[np.integer[Any]], itemsize: int) -> ExtentTable:
        """Return the table of documents that lie in memory one behind the other, without checksums, as of one shard."""
        ends = np.cumsum(lengths, dtype=np.int64) * itemsize
        starts = ends - np.asarray(lengths, np.int64) * itemsize
        return cls.of_shard(starts, lengths, itemsize, int(ends[-1]) if len(ends) else 0, indexed=False)

    def to_bytes(self) -> bytes:
        """Return the table as its file holds it; equal tables give equal bytes."""
        counts = (self.sizes, self.tokens, self.documents)
        wide = any(len(column) and int(column.max()) >= 1 << 32 for column in counts)
        flags = (self.crc32 is not None) * _HAS_CRC32 + (self.index_crc32 is not None) * _HAS_INDEX_CRC32
        width = 8 if wide else 4
        parts = [_HEADER.pack(MAGIC, EXTENTS_VERSION, self.itemsize, width, flags, self.shards, len(self))]
        parts += [column.astype("<u8").tobytes() for column in (self.extents, self.starts_at, self.lengths_at)]
        parts += [column.astype(f"<u{width}", copy=False).tobytes() for column in counts]
        parts += [column.tobytes() for column in (self.crc32, self.index_crc32) if column is not None]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return b"".join([*parts, digest.digest()])

    @classmethod
    def from_bytes(cls, raw: bytes, name: str = "extents.bin", sha256: str | None = None) -> ExtentTable:
        """Return the table that a file holds; its arrays are views of ``raw``.

        ``name`` is what errors call the file; ``sha256`` (hexadecimal) is what the whole file must have, if given.
        Raises ``ManifestError`` naming the file, the field and its value for a file that is no table of this version, is
        cut or damaged, or contradicts itself.
        """
        header = _read_header(raw, name, sha256)
        shards, count, at = header.shards, header.extents, _HEADER.size

        def column(dtype: str, items: int) -> NDArray[Any]:
            nonlocal at
            values = np.frombuffer(raw, dtype, items, at)
            at += values.nbytes
            return values

        per_shard = [column("<i8", shards) for _ in range(3)]
        counts = [column(f"<u{header.width}", count) for _ in range(3)]
        sums = [column("<u4", count) if header.flags & flag else None for flag in (_HAS_CRC32, _HAS_INDEX_CRC32)]
        table = cls(header.itemsize, *per_shard, *counts, *sums)
        _check(table, name)
        return table

    def _before(self, column: Counts) -> NDArray[np.int64]:
        bounds = _bounds(column)
        return bounds[:-1] - np.repeat(bounds[self.shard_bounds[:-1]], self.extents)


def extent_offsets(
    starts: NDArray[np.integer[Any]], firsts: NDArray[np.int64], payload_bytes: int
) -> NDArray[np.int64]:
    """Return where the extents of a shard begin in its file, given the first document of each, and the end of the last."""
    if not len(firsts):
        return np.zeros(1, np.int64)
    return np.concatenate([[0], np.asarray(starts, np.int64)[firsts[1:]], [payload_bytes]])


@dataclass(frozen=True, slots=True)
class _Header:
    itemsize: int
    width: int
    flags: int
    shards: int
    extents: int


def _read_header(raw: bytes, name: str, sha256: str | None) -> _Header:
    """Return the header's fields once the file is whole."""

    def refuse(field: str, value: object, wanted: object) -> ManifestError:
        return ManifestError(f"{name}: {field} {value}, but {wanted}; copy the file again or make it again")

    if raw[:8] != MAGIC[: len(raw)] or not raw:
        raise refuse("magic", repr(bytes(raw[:8])), f"a table of extents begins with {MAGIC!r}")
    if len(raw) < _HEADER.size + _DIGEST_BYTES:
        raise refuse("size", f"{len(raw)} bytes", f"a table takes {_HEADER.size + _DIGEST_BYTES} or more")
    _, version, itemsize, width, flags, shards, extents = _HEADER.unpack_from(raw)
    if version != EXTENTS_VERSION:
        raise refuse("version", version, f"this release reads {EXTENTS_VERSION}")
    if itemsize not in (1, 2, 4, 8) or width not in (4, 8) or flags > 3:
        raise refuse("itemsize, width, columns", (itemsize, width, flags), "1, 2, 4 or 8; 4 or 8; 0 to 3 are known")
    per_extent = 3 * width + 4 * flags.bit_count()
    size = _HEADER.size + 24 * shards + per_extent * extents + _DIGEST_BYTES
    if size != len(raw):
        raise refuse("size", f"{len(raw)} bytes", f"{shards} shards with {extents} extents take {size}")
    view = memoryview(raw)
    digest = hashlib.sha256(view[:-_DIGEST_BYTES])
    if digest.digest() != view[-_DIGEST_BYTES:]:
        raise refuse("digest", raw[-_DIGEST_BYTES:].hex(), f"its bytes have {digest.hexdigest()}: it is damaged")
    if sha256 is not None:
        digest.update(view[-_DIGEST_BYTES:])
        if digest.hexdigest() != sha256:
            raise refuse("sha256", digest.hexdigest(), f"the manifest says {sha256}: it is the table of other shards")
    if any(raw[_HEADER.size - 24 : _HEADER.size]):
        raise refuse("bytes 40 to 64", raw[_HEADER.size - 24 : _HEADER.size].hex(), "they are zeros")
    return _Header(itemsize, width, flags, shards, extents)


def _check(table: ExtentTable, name: str) -> None:
    """Raise ``ManifestError`` where the values of a table contradict each other, so that a reader can rely on its sums."""

    def refuse(field: str, wrong: NDArray[np.bool_], of: str, values: NDArray[Any], wanted: str) -> None:
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ManifestError(f"{name}: {field} of {of} {at} is {values[at]}, but {wanted}; make the file again")

    counts = table.extents
    refuse("extents", (counts < 0) | (counts > len(table)), "shard", counts, f"the table has {len(table)} extents")
    if int(counts.sum()) != len(table):
        raise ManifestError(
            f"{name}: extents of all shards sum to {int(counts.sum())}, but the table has {len(table)}; make the file again"
        )
    refuse("documents", table.documents == 0, "extent", table.documents, "it is at least 1")
    if table.sizes.itemsize == 8:  # so that no sum overflows
        for field, column in (("sizes", table.sizes), ("documents", table.documents)):
            refuse(field, column > _MOST, "extent", column, f"{_MOST} is the most")
    most = table.sizes >> np.uint8(table.itemsize.bit_length() - 1)
    refuse(
        "tokens", table.tokens > most, "extent", table.tokens, f"its bytes hold fewer tokens of {table.itemsize} bytes"
    )
    payload, documents = table.shard_sums(table.sizes), table.shard_sums(table.documents)
    indexed = (table.starts_at != 0) | (table.lengths_at != 0)
    starts_at = np.where(indexed, payload + _FIRST_ITEM, 0)
    lengths_at = np.where(indexed, starts_at + 8 * documents + -(NPY_HEADER + 8 * documents) % BLOCK + _FIRST_ITEM, 0)
    for field, found, wanted in (
        ("starts_at", table.starts_at, starts_at),
        ("lengths_at", table.lengths_at, lengths_at),
    ):
        refuse(field, found != wanted, "shard", found, "it does not lie where the shard's documents and bytes put it")


def _lengths_at(payload_bytes: int, documents: int) -> int:
    """Return the offset of the first length in a shard whose index begins at ``payload_bytes``."""
    size = NPY_HEADER + 8 * documents
    return payload_bytes + BLOCK + size + padding(size) + _FIRST_ITEM


def _bounds(counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the sums before each item, and of all."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, dtype=np.int64, out=bounds[1:])
    return bounds
