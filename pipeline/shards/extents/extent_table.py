"""How the documents of a shard are cut into extents: runs that are read in one request.

An **extent** is a run of consecutive documents of one shard, about 192 KiB on disk. The documents of a shard are cut by
bytes. Let ``S`` be the bytes of the shard before its index (in a tar without an index: the end of the last document,
rounded up to 512; in memory: the bytes of all tokens) and ``t`` = 196,608. A document starts at the byte of its first token
(without tokens: the byte where that token would be) and ends after its last token.

    n = max(1, (2 S + t) // (2 t))
    extent b of 0 .. n-2 ends with the first document whose end is at or beyond (b + 1) S / n, exactly
    extent n-1, and any for which there is no such document, ends with the last document
    extents without documents are dropped
    an extent of no bytes is joined to the extent after it; one that starts at byte S to the extent before it

A document longer than an extent therefore ends the extent that it is in, and makes it longer. The same rule holds if
several documents share one tar member.

The bytes of extents tile ``[0, S)``: an extent begins at the start of its first document (the first extent of a shard: at
byte 0) and ends where the next one begins (the last: at ``S``). The tar header of a member, and the padding of the member
before it, are thus the last bytes of the previous extent. Only documents of no tokens can make an extent of no bytes: if
they share a member, or are the last. The last rule removes such extents, except the only extent of a shard of ``S = 0``.

`pipeline.shards.extents.table_file` describes the file that holds the extents of a dataset.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import CorruptShardError
from ..format import HEADERS, NPY_HEADER, padding

EXTENT_BYTES = 192 << 10
PER_SHARD = ("extents", "indexed")
COUNTS = ("sizes", "tokens", "documents")
CHECKSUMS = ("index_crc32", "crc32")


Counts = NDArray[np.unsignedinteger[Any]]
SomeRows = NDArray[np.int64] | int


def index_crc32(starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> int:
    """Return the CRC-32 of the starts of documents (8 bytes each), then of their lengths (4 bytes each)."""
    return zlib.crc32(lengths.data, zlib.crc32(starts.data))


def cut_extents(
    starts: NDArray[np.integer[Any]],
    lengths: NDArray[np.integer[Any]],
    itemsize: int,
    payload_bytes: int,
    extent_bytes: int = EXTENT_BYTES,
) -> NDArray[np.int64]:
    """Return the number of the first document of each extent of a shard, ascending from 0; an empty array if it has none.

    ``starts`` (bytes) and ``lengths`` (tokens of ``itemsize`` bytes) locate the documents in the first ``payload_bytes``
    bytes; ``extent_bytes`` is ``t``. Raises ``ValueError`` if documents overlap, descend, or are outside the payload.

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
    wanted = max(1, (2 * payload_bytes + extent_bytes) // (2 * extent_bytes))
    whole, rest = divmod(payload_bytes, wanted)
    cut = np.arange(1, wanted, dtype=np.int64)
    least_ends = cut * whole - (-cut * rest) // wanted  # ceil(cut * payload_bytes / wanted), without overflow
    firsts = np.unique(np.searchsorted(ends, least_ends) + 1)
    firsts = firsts[firsts < count]
    offsets = np.concatenate([np.zeros(1, np.int64), begins[firsts]])
    firsts = firsts[(np.diff(offsets) > 0) & (offsets[1:] < payload_bytes)]  # an extent without bytes is no extent
    return np.concatenate([np.zeros(1, np.int64), firsts])


class IndexLocation(NamedTuple):
    """Where the index of a run of documents is: the ``first`` one, how many, and the offsets of their starts and lengths."""

    shard: int
    first: int
    documents: int
    starts: int
    lengths: int


@dataclass(frozen=True, eq=False)
class ExtentTable:
    """The extents of some shards, in the order of the shards.

    ``dtype``: of the tokens. Per shard: ``extents``, int64, how many it has; ``indexed``, bool, whether its file holds its
    index. Per extent, uint32 (uint64 if a value needs it): ``sizes`` in bytes, ``tokens``, ``documents``; uint32:
    ``index_crc32``, the CRC-32 of its documents' starts (bytes, as <u8), then of their lengths (as <u4); and ``crc32``,
    that of its bytes, None if not known.

    >>> table = ExtentTable.of_documents(np.array([3, 0, 4]), "<u2")
    >>> table.tokens.tolist(), table.documents.tolist(), table.sizes.tolist(), table.offsets.tolist()
    ([7], [3], [14], [0])
    """

    dtype: np.dtype[Any]
    extents: NDArray[np.int64]
    indexed: NDArray[np.bool_]
    sizes: Counts
    tokens: Counts
    documents: Counts
    index_crc32: NDArray[np.uint32]
    crc32: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """Return the number of extents."""
        return len(self.sizes)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.extents)

    @property
    def itemsize(self) -> int:
        """Bytes of a token."""
        return self.dtype.itemsize

    @cached_property
    def shard_bounds(self) -> NDArray[np.int64]:
        """int64 [shards + 1]: the extents of shard ``k`` are ``shard_bounds[k]`` to ``shard_bounds[k + 1]``."""
        return running_sums(self.extents)

    @cached_property
    def size_sums(self) -> NDArray[np.int64]:
        """int64 [extents + 1]: the bytes of all extents before each, including other shards; the last: of all."""
        return running_sums(self.sizes)

    @cached_property
    def token_sums(self) -> NDArray[np.int64]:
        """int64 [extents + 1]: the tokens of all extents before each; the last: of all."""
        return running_sums(self.tokens)

    @cached_property
    def document_sums(self) -> NDArray[np.int64]:
        """int64 [extents + 1]: the documents of all extents before each; the last: of all."""
        return running_sums(self.documents)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [extents]: the offset of each extent's first byte in the file of its shard."""
        return self.offset_of(np.arange(len(self)))

    def shard_of(self, rows: SomeRows) -> NDArray[np.int64]:
        """Return the shard of each given extent, int64."""
        return np.searchsorted(self.shard_bounds, rows, side="right") - 1

    def offset_of(self, rows: SomeRows) -> NDArray[np.int64]:
        """Return the offset, in the file of its shard, of the first byte of each given extent."""
        return self.size_sums[rows] - self.size_sums[self.shard_bounds[self.shard_of(rows)]]

    def first_document_of(self, rows: SomeRows) -> NDArray[np.int64]:
        """Return the number, in its shard, of the first document of each given extent."""
        return self.document_sums[rows] - self.document_sums[self.shard_bounds[self.shard_of(rows)]]

    def index_of(self, first: int, last: int) -> IndexLocation:
        """Return the location of the index of a run of extents of one shard; its offsets are 0 if the file has no index."""
        shard, document = int(self.shard_of(first)), int(self.first_document_of(first))
        count = int(self.document_sums[last] - self.document_sums[first])
        if not self.indexed[shard]:
            return IndexLocation(shard, document, count, 0, 0)
        extents = self.shard_bounds[[shard, shard + 1]]
        starts = int(np.diff(self.size_sums[extents])[0]) + HEADERS
        size = 8 * int(np.diff(self.document_sums[extents])[0])
        lengths = starts + size + padding(NPY_HEADER + size) + HEADERS
        return IndexLocation(shard, document, count, starts + 8 * document, lengths + 4 * document)

    def wrong_index(self, first: int, last: int, starts: NDArray[np.int64], lengths: NDArray[np.uint32]) -> str | None:
        """Compare the index of a run of extents of one shard with their checksums; return what is wrong, or None."""
        location = self.index_of(first, last)
        if not len(starts) == len(lengths) == location.documents:
            return (
                f"the index from document {location.first} on holds {len(starts)} starts and {len(lengths)} lengths, but the "
                f"table of extents says {location.documents} documents"
            )
        begin = 0
        counts, stated = self.documents[first:last].tolist(), self.index_crc32[first:last].tolist()
        for count, wanted in zip(counts, stated, strict=True):
            end = begin + count
            checksum = index_crc32(starts[begin:end], lengths[begin:end])
            if checksum != wanted:
                return (
                    f"byte {location.starts + 8 * begin}: the index of documents {location.first + begin} to "
                    f"{location.first + end} has checksum {checksum}, but the table of extents says {wanted}"
                )
            begin = end
        return None

    def wrong_bytes(self, first: int, last: int, data: memoryview) -> str | None:
        """Compare the bytes of a run of extents of one shard with their checksums; return what is wrong, or None.

        Returns None if the table has no ``crc32``.
        """
        if self.crc32 is None:
            return None
        begin = 0
        sizes, stated = self.sizes[first:last].tolist(), self.crc32[first:last].tolist()
        for row, size, wanted in zip(range(first, last), sizes, stated, strict=True):
            checksum = zlib.crc32(data[begin : begin + size])
            if checksum != wanted:
                offset = int(self.offset_of(row))
                return f"bytes {offset} to {offset + size} have checksum {checksum}, but the table of extents says {wanted}"
            begin += size
        return None

    def with_checksums(self, data: memoryview) -> ExtentTable:
        """Return the table of one shard with the checksums of its extents in ``data``, the bytes of its file."""
        bounds = zip(self.offsets.tolist(), (self.offsets + self.sizes).tolist(), strict=True)
        return replace(self, crc32=np.array([zlib.crc32(data[begin:end]) for begin, end in bounds], "<u4"))

    def per_shard(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the total of each shard from ``size_sums``, ``token_sums`` or ``document_sums``, int64 [shards]."""
        return np.diff(sums[self.shard_bounds])

    def select(self, shards: Sequence[int] | NDArray[np.integer[Any]]) -> ExtentTable:
        """Return the table of these shards alone, in this order; this table itself if they are all shards in order."""
        chosen = np.asarray(shards, np.int64).reshape(-1)
        if np.array_equal(chosen, np.arange(self.shards)):
            return self
        first, last = self.shard_bounds[chosen], self.shard_bounds[chosen + 1]
        rows = runs(first, last - first)
        columns: dict[str, Any] = {name: getattr(self, name)[chosen] for name in PER_SHARD}
        for name in (*COUNTS, *CHECKSUMS):
            column = getattr(self, name)
            columns[name] = None if column is None else column[rows]
        return ExtentTable(self.dtype, **columns)

    @classmethod
    def join(cls, tables: Sequence[ExtentTable], dtype: DTypeLike) -> ExtentTable:
        """Return one table of the shards of several tables, in order, with ``crc32`` if all have it.

        Raises ``ValueError`` if the tokens of one table are not of ``dtype``.
        """
        dtypes = {np.dtype(dtype), *(table.dtype for table in tables)}
        if len(dtypes) != 1:
            raise ValueError(f"tables of one dtype can be joined, got {', '.join(sorted(map(str, dtypes)))}")
        columns: dict[str, Any] = {}
        for name in (*PER_SHARD, *COUNTS, *CHECKSUMS):
            empty = np.zeros(0, {"extents": "<i8", "indexed": "?"}.get(name, "<u4"))
            parts = [empty, *(getattr(table, name) for table in tables)]
            columns[name] = None if any(part is None for part in parts) else np.concatenate(parts)
        return cls(dtypes.pop(), **columns)

    @classmethod
    def of_shard(
        cls,
        starts: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        dtype: DTypeLike,
        payload_bytes: int,
        *,
        indexed: bool,
        name: str = "",
        extent_bytes: int = EXTENT_BYTES,
    ) -> ExtentTable:
        """Return the table of one shard from its index: ``starts`` in bytes, ``lengths`` in tokens of each document.

        ``payload_bytes``: ``S``. ``indexed``: whether the file holds the two arrays, after these bytes. ``extent_bytes``: ``t``.
        Raises ``CorruptShardError``, which calls the shard ``name``, if its documents do not follow each other inside these
        bytes.
        """
        dtype = np.dtype(dtype)
        try:
            firsts = cut_extents(starts, lengths, dtype.itemsize, payload_bytes, extent_bytes)
        except ValueError as error:
            raise CorruptShardError(f"{name}: its index is wrong: {error}; copy it again or rebuild it") from error
        count = len(firsts)
        bounds = np.append(firsts, len(starts))[: count + 1]
        offsets = np.append(np.asarray(starts, np.int64)[firsts], payload_bytes)
        offsets[:1] = 0
        sizes, documents = np.diff(offsets), np.diff(bounds)[:count]
        tokens = np.add.reduceat(np.asarray(lengths, np.int64), firsts) if count else np.zeros(0, np.int64)
        largest = max(int(column.max()) for column in (sizes, tokens, documents)) if count else 0
        width = np.dtype("<u8" if largest >= 1 << 32 else "<u4")
        items = np.asarray(starts).astype("<u8", copy=False), np.asarray(lengths).astype("<u4")
        runs = [slice(*pair) for pair in pairwise(bounds.tolist())]
        return cls(
            dtype,
            np.array([count], np.int64),
            np.array([indexed]),
            *(sizes.astype(width), tokens.astype(width), documents.astype(width)),
            index_crc32=np.array([index_crc32(items[0][run], items[1][run]) for run in runs], "<u4"),
        )

    @classmethod
    def of_documents(cls, lengths: NDArray[np.integer[Any]], dtype: DTypeLike) -> ExtentTable:
        """Return the table of an array of documents in memory, as if the array were one shard without an index."""
        dtype, lengths = np.dtype(dtype), np.asarray(lengths, np.int64)
        ends = np.cumsum(lengths) * dtype.itemsize
        starts = ends - lengths * dtype.itemsize
        return cls.of_shard(starts, lengths, dtype, int(ends[-1]) if len(ends) else 0, indexed=False)


def running_sums(counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the sum before each count, and last the sum of all: int64 of one item more than ``counts``."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.asarray(counts, np.int64), out=sums[1:])  # converting first takes half the time
    return sums


def runs(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return runs of integers one after another: ``counts[k]`` of them from ``begins[k]`` on.

    >>> runs(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
