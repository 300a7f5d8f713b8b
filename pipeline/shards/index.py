"""The index of a shard, parsed from its last bytes and checked: the offsets and lengths of its documents."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ..errors import CorruptShardError, ManifestError, TruncatedShardError
from .format import BLOCK, END, FOOTER_NAME, FORMAT_NAME, FORMAT_VERSION, NPY_HEADER, TAIL, TOKEN_DTYPES, padding
from .manifest import ShardInfo
from .tar_members import REPAIR

# For each document, the byte of the file at which it starts, and its number of tokens.
BlockIndex = tuple[NDArray[np.int64], NDArray[np.uint32]]
Footer = dict[str, Any]  # the fields of a shard's footer (see `pipeline.shards.format`); empty if the tar has no footer


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The offsets and lengths of the documents of a shard.

    ``starts``: int64 byte offset of each document's first token; ``lengths``: int64 tokens of each; ``dtype``: of the
    stored tokens; ``footer``: the footer's fields, empty if the tar has none; ``contents``: a hash that differs for shards of
    different contents.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    dtype: np.dtype[Any]
    footer: Footer
    contents: str = ""

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.lengths)


Read = Callable[[int, int], bytes]  # takes an offset and a size, and returns these bytes of a shard


def footer_of(tail: bytes, size: int, name: str, expected: ShardInfo | None = None) -> Footer | None:
    """Return the footer of a shard of ``size`` bytes, which errors call ``name``; None for a tar of another tool.

    ``tail`` is the last ``TAIL`` bytes, or all of a shorter file. ``expected`` is the shard's entry in the manifest.
    Raises ``ManifestError`` if the shard disagrees with its entry, ``TruncatedShardError`` if the shard is cut, and
    ``CorruptShardError`` if the footer is missing or damaged.
    """
    if expected is not None and size != expected.bytes:
        kind = TruncatedShardError if size < expected.bytes else ManifestError
        raise kind(f"{name}: {size} bytes, but the manifest says {expected.bytes}; {REPAIR}")
    footer = _parse_footer(tail, name, size)
    if footer is not None and footer["bytes"] != size:
        raise CorruptShardError(f"{name}: {size} bytes, but its footer says {footer['bytes']}; {REPAIR}")
    if expected is not None:
        if footer is None:
            raise CorruptShardError(f"{name}: byte {size - TAIL}: no index footer at the end; {REPAIR}")
        _compare(name, footer, expected)
    return footer


def index_of(read: Read, size: int, name: str, expected: ShardInfo | None = None) -> ShardIndex | None:
    """Return the index of a shard from two reads; None for a tar of another tool. Raises the errors of `footer_of`."""
    tail = read(max(0, size - TAIL), min(size, TAIL))
    footer = footer_of(tail, size, name, expected)
    if footer is None:
        return None
    contents = hashlib.blake2b(tail, digest_size=16).hexdigest()  # the footer has checksums of everything else
    return replace(parse_index(footer, name, read), contents=contents)


def _parse_footer(block: bytes, name: str, size: int) -> Footer | None:
    if len(block) < TAIL or not block.startswith(FOOTER_NAME.encode() + b"\0") or block[-len(END) :] != END:
        return None
    try:
        footer: Footer = orjson.loads(block[BLOCK : 2 * BLOCK])
        spans = [footer["starts"], footer["lengths"], footer["table"]]
        numbers = [footer["version"], footer["documents"], footer["tokens"], footer["bytes"]]
        numbers += [footer["index_crc32"], footer["table_crc32"], *(number for span in spans for number in span)]
        known = footer["format"] == FORMAT_NAME and footer["dtype"] in TOKEN_DTYPES
        if not known or not {*map(type, numbers)} <= {int} or min(numbers) < 0:
            raise ValueError("fields of wrong types or values for this format")
        if any(len(span) != 2 or span[0] + span[1] > size - TAIL for span in spans):
            raise ValueError("the index is outside the file")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptShardError(
            f"{name}: {FOOTER_NAME} at byte {size - TAIL}: {type(error).__name__}: {error}; {REPAIR}"
        ) from error
    if footer["version"] != FORMAT_VERSION:
        raise ManifestError(f"{name}: shard format {footer['version']}, but this release reads {FORMAT_VERSION}")
    return footer


def parse_index(footer: Footer, name: str, read: Read) -> ShardIndex:
    """Return the index that a footer points to, from one read; raises ``CorruptShardError`` if they disagree."""
    count = footer["documents"]
    starts_at, starts_size = footer["starts"]
    lengths_at, lengths_size = footer["lengths"]
    fits = starts_size == NPY_HEADER + 8 * count and lengths_size == NPY_HEADER + 4 * count
    if not fits or lengths_at != starts_at + starts_size + padding(starts_size) + BLOCK:
        raise CorruptShardError(f"{name}: byte {starts_at}: index sizes do not fit {count} documents")
    raw = memoryview(read(starts_at, lengths_at + lengths_size - starts_at))
    crc = zlib.crc32(raw[-lengths_size:], zlib.crc32(raw[:starts_size]))
    if crc != footer["index_crc32"]:
        raise CorruptShardError(
            f"{name}: byte {starts_at}: the index has checksum {crc}, but its footer says {footer['index_crc32']}; {REPAIR}"
        )
    starts = np.frombuffer(raw, "<i8", count, NPY_HEADER)  # a start of 2**63 or more becomes negative
    lengths = np.frombuffer(raw, "<u4", count, lengths_at - starts_at + NPY_HEADER).astype(np.int64)
    tokens = int(lengths.sum())
    if tokens != footer["tokens"]:
        raise CorruptShardError(
            f"{name}: byte {lengths_at}: documents hold {tokens} tokens, but the footer says {footer['tokens']}"
        )
    dtype = np.dtype(footer["dtype"])
    if count and (starts.min() < 0 or int((starts + lengths * dtype.itemsize).max()) > starts_at):
        raise CorruptShardError(f"{name}: byte {starts_at}: the index points outside the samples")
    return ShardIndex(starts, lengths, dtype, footer)


def parse_table(raw: bytes, name: str, offset: int) -> dict[str, list[Any]]:
    """Return the columns of provenance from the bytes of a shard's table; it starts at byte ``offset``."""
    try:
        columns: dict[str, list[Any]] = parse_json(raw)
        if not isinstance(columns, dict):
            raise ValueError("no columns by name")
    except ValueError as error:
        raise CorruptShardError(f"{name}: byte {offset}: table of documents: {error}; {REPAIR}") from error
    return columns


def parse_json(raw: bytes) -> Any:
    """Return the value of a JSON text, which may hold NaN and infinity, as Python writes them."""
    try:
        return orjson.loads(raw)  # three times as fast
    except ValueError:
        return json.loads(raw)  # json reads NaN


def _compare(name: str, footer: Footer, expected: ShardInfo) -> None:
    """Raise ``ManifestError`` if a shard's footer disagrees with the shard's entry in the manifest."""
    fields = (
        ("documents", footer["documents"], expected.documents),
        ("tokens", footer["tokens"], expected.tokens),
        ("index_crc32", footer["index_crc32"], expected.index_crc32),
        ("table_crc32", footer["table_crc32"], expected.table_crc32),
    )
    for field, actual, wanted in fields:
        if actual != wanted:
            raise ManifestError(
                f"{name}: its footer says {field} {actual}, the manifest {wanted}: another shard has this name; "
                "copy the right one or rebuild"
            )


def as_index(starts: bytes | bytearray, lengths: bytes | bytearray) -> BlockIndex:
    """Return the index in the bytes of two arrays of a shard.

    >>> as_index(bytes([0, 2, 0, 0, 0, 0, 0, 0]), bytes([7, 0, 0, 0]))
    (array([512]), array([7], dtype=uint32))
    """
    return np.frombuffer(starts, "<i8"), np.frombuffer(lengths, "<u4")
