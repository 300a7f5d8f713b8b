"""Documents in, one atomic, reproducible, indexed tar out."""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..atomic import atomic_file
from ..errors import ConfigError
from .extents.extent_table import ExtentTable
from .format import (
    BLOCK,
    END,
    FOOTER_NAME,
    HEADERS,
    KEY_COLUMN,
    LENGTHS_NAME,
    NPY_HEADER,
    STARTS_NAME,
    TABLE_NAME,
    TAIL,
    TOKEN_DTYPES,
    footer_payload,
    member_header,
    npy_header,
    padding,
    wrong_key,
)
from .manifest import ShardInfo
from .tar_members import map_file

WRITE_BYTES = 1 << 20  # members are joined into writes of about this size


class TarStream:
    """Appends members to a file; counts and hashes the bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()
        self._file = file
        self._parts: list[bytes] = []
        self._pending = 0

    def put(self, data: bytes) -> None:
        self._parts.append(data)
        self._pending += len(data)
        self.size += len(data)
        if self._pending >= WRITE_BYTES:
            self.flush()

    def member(self, name: str, *payload: bytes) -> int:
        """Append one member and return the offset of its payload."""
        size = sum(map(len, payload))
        self.put(member_header(name, size))
        offset = self.size
        for part in payload:
            self.put(part)
        self.put(bytes(padding(size)))
        return offset

    def flush(self) -> None:
        block = b"".join(self._parts)
        self.sha256.update(block)
        self._file.write(block)
        self._parts, self._pending = [], 0


class TokenBlocks:
    """Token ids in blocks, so that a shard can be written without all of its ids in memory.

    Every block has ``dtype``, uint16 or uint32. Blocks may end anywhere.
    """

    def __init__(self, dtype: DTypeLike, blocks: Iterable[NDArray[np.unsignedinteger[Any]]]) -> None:
        self.dtype = np.dtype(dtype)
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def take(self, tokens: int) -> bytes:
        """Return the bytes of the next tokens; fewer only at the end."""
        wanted = tokens * self.dtype.itemsize
        parts = []
        while wanted:
            if not self._rest:
                block = next(self._blocks, None)
                if block is None:
                    break
                if block.dtype != self.dtype:
                    raise ConfigError(f"a block of tokens is {block.dtype.str}, but {self.dtype.str} was announced")
                self._rest = np.ascontiguousarray(block).view(np.uint8).data
            parts.append(self._rest[:wanted])
            self._rest = self._rest[wanted:]
            wanted -= len(parts[-1])
        return b"".join(parts)


def write_shard(
    path: str | Path,
    *,
    tokens: NDArray[np.unsignedinteger[Any]] | TokenBlocks,
    lengths: Sequence[int] | NDArray[np.integer[Any]],
    keys: Sequence[str],
    table: Mapping[str, Sequence[Any]] | None = None,
    tokens_per_sample: int = 0,
) -> tuple[ShardInfo, ExtentTable]:
    """Write documents as one shard, whole or not at all; return its entry for the manifest, and its extents.

    ``tokens``: the ids of all documents, joined: a 1-D array of uint16 or uint32, or its blocks. ``lengths``: the tokens of
    each document. ``keys``: the key of each. ``table``: columns of provenance with one JSON value per document; ``key`` and
    ``crc32`` (of the document's token bytes) are added, so that damage can be traced to a document. With
    ``tokens_per_sample`` above 0, neighbours share one member, named by the first, until it holds that many tokens. Equal
    arguments give equal bytes.

    Raises ``ConfigError`` if columns differ in length, tokens have another dtype, or the lengths do not sum to the number of
    tokens. It also raises ``ConfigError`` if a key is empty, too long, dotted, or does not ascend.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> info, extents = write_shard(
    ...     f"{folder.name}/train-000000.tar",
    ...     tokens=np.arange(5, dtype=np.uint16), lengths=[2, 3], keys=["000", "001"],
    ... )
    >>> info.documents, info.tokens, info.bytes, extents.tokens.tolist()
    (2, 5, 7168, [5])
    """
    path = Path(path)
    sizes = np.asarray(lengths, dtype=np.int64)
    # The key comes first, so that it can be read without the rest.
    columns: dict[str, list[Any]] = {KEY_COLUMN: []}
    columns |= {name: list(column) for name, column in (table or {}).items()}
    columns[KEY_COLUMN] = list(keys)
    _check(tokens, sizes, keys, columns)
    blocks = tokens if isinstance(tokens, TokenBlocks) else TokenBlocks(tokens.dtype, [tokens])
    dtype = blocks.dtype
    groups = _groups(sizes, tokens_per_sample)
    starts, payload_bytes = _lay_out(sizes, groups, dtype.itemsize)
    extents = ExtentTable.of_shard(starts, sizes, dtype, payload_bytes, indexed=True, name=str(path))

    with atomic_file(path) as file:
        tar = TarStream(file)
        columns["crc32"] = _put_samples(tar, blocks, sizes, keys, groups)
        index = [
            (STARTS_NAME, npy_header("<u8", len(sizes)) + starts.astype("<u8").tobytes()),
            (LENGTHS_NAME, npy_header("<u4", len(sizes)) + sizes.astype("<u4").tobytes()),
            (TABLE_NAME, json.dumps(columns, separators=(",", ":"), ensure_ascii=False).encode()),
        ]
        spans = [[tar.member(name, data), len(data)] for name, data in index]
        counts: dict[str, Any] = {"documents": len(sizes), "tokens": int(sizes.sum()), "bytes": tar.size + TAIL}
        locations = dict(zip(("starts", "lengths", "table"), spans, strict=True))
        checksums: dict[str, Any] = {
            "index_crc32": zlib.crc32(index[1][1], zlib.crc32(index[0][1])),
            "table_crc32": zlib.crc32(index[2][1]),
        }
        tar.member(FOOTER_NAME, footer_payload({"dtype": dtype.str, **counts, **locations, **checksums}))
        tar.put(END)
        tar.flush()
        file.flush()
        extents = extents.with_checksums(memoryview(map_file(file.name)))
    info = ShardInfo(name=path.name, **counts, sha256=tar.sha256.hexdigest(), **checksums)
    return info, extents


def _lay_out(
    sizes: NDArray[np.int64], groups: Sequence[tuple[int, int]], itemsize: int
) -> tuple[NDArray[np.int64], int]:
    """Return the offset of each document's first token, and the end of the last member."""
    ends = np.concatenate([[0], np.cumsum(sizes)]) * itemsize
    bounds = np.array([0, *(last for _, last in groups)], np.int64)
    payloads = NPY_HEADER + np.diff(ends[bounds])
    members = np.concatenate([[0], np.cumsum(BLOCK + payloads + -payloads % BLOCK)])
    shifts = members[:-1] + HEADERS - ends[bounds[:-1]]  # from offsets among the tokens to offsets in the file
    return ends[:-1] + np.repeat(shifts, np.diff(bounds)), int(members[-1])


def _put_samples(
    tar: TarStream,
    blocks: TokenBlocks,
    sizes: NDArray[np.int64],
    keys: Sequence[str],
    groups: Sequence[tuple[int, int]],
) -> list[int]:
    """Append the members with tokens; return the checksum of each document."""
    ends = np.concatenate([[0], np.cumsum(sizes)]) * blocks.dtype.itemsize
    checksums: list[int] = []
    for first, last in groups:
        begin, end = int(ends[first]), int(ends[last])
        count = (end - begin) // blocks.dtype.itemsize
        payload = blocks.take(count)
        if len(payload) < end - begin:
            raise ConfigError(f"lengths sum to {int(sizes.sum())} tokens, but the blocks held fewer")
        tar.member(keys[first] + ".npy", npy_header(blocks.dtype, count), payload)
        bounds = (ends[first : last + 1] - begin).tolist()
        checksums += [zlib.crc32(memoryview(payload)[a:b]) for a, b in itertools.pairwise(bounds)]
    if blocks.take(1):
        raise ConfigError(f"lengths sum to {int(sizes.sum())} tokens, but the blocks held more")
    return checksums


def _groups(sizes: NDArray[np.int64], tokens_per_sample: int) -> list[tuple[int, int]]:
    """Return runs ``[first, last)`` of documents, each of which becomes one member."""
    groups, first, tokens = [], 0, 0
    for j, size in enumerate(sizes.tolist()):
        tokens += size
        if tokens >= tokens_per_sample:
            groups.append((first, j + 1))
            first, tokens = j + 1, 0
    if first < len(sizes):
        groups.append((first, len(sizes)))
    return groups


def _check(
    tokens: NDArray[Any] | TokenBlocks,
    sizes: NDArray[np.int64],
    keys: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
) -> None:
    dimensions = 1 if isinstance(tokens, TokenBlocks) else tokens.ndim
    if tokens.dtype.str not in TOKEN_DTYPES or dimensions != 1:
        raise ConfigError(
            f"tokens must be a 1-D array of {' or '.join(TOKEN_DTYPES)}, got {tokens.dtype.str}, {dimensions}-D"
        )
    if len(sizes) and (int(sizes.min()) < 0 or int(sizes.max()) >= 1 << 32):
        raise ConfigError(f"lengths must be 0 to 2**32 - 1, got {int(sizes.min())} to {int(sizes.max())}")
    if not isinstance(tokens, TokenBlocks) and int(sizes.sum()) != len(tokens):
        raise ConfigError(f"lengths sum to {int(sizes.sum())} tokens, but {len(tokens)} were given")
    for name, column in [("keys", keys), *columns.items()]:
        if len(column) != len(sizes):
            raise ConfigError(f"column {name!r} has {len(column)} values for {len(sizes)} documents")
    if (wrong := wrong_key(keys)) is not None:
        raise ConfigError(wrong)
