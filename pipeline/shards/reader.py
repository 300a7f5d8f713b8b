"""One shard: a memory map and its index, as token arrays without a copy."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ..errors import CorruptShardError, ManifestError, TruncatedShardError
from .format import (
    BLOCK,
    END,
    FOOTER_NAME,
    FORMAT_NAME,
    FORMAT_VERSION,
    KEY_COLUMN,
    NPY_HEADER,
    TAIL,
    TOKEN_DTYPES,
    padding,
)
from .manifest import ShardInfo
from .tar import map_open, opened

_KEYS_BEGIN = f'{{"{KEY_COLUMN}":['.encode()
_USUAL_KEY = 16  # bytes of a key of twelve signs in the table, and one to spare


@dataclass(frozen=True, slots=True)
class Index:
    """Where the documents of a shard lie.

    ``starts``: int64 byte offset of each document's first token; ``lengths``: int64 tokens of each; ``dtype``: of the
    stored tokens; ``footer``: the footer's fields, empty for a tar that has none.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    dtype: np.dtype[Any]
    footer: dict[str, Any]


class Shard:
    """An open shard.

    ``tokens`` is the whole file as a read-only 1-D array of the stored dtype, ``starts`` (int64, in elements of
    ``tokens``) and ``lengths`` (int64) say where each document lies in it. Memory is the page cache's, so an open shard
    costs its index, 16 bytes a document. ``footer`` holds the footer's fields, none for a tar without an index.

    ``expected`` is the manifest's entry: a file that disagrees with it raises ``ManifestError``, one that was cut
    ``TruncatedShardError``, one whose footer or index contradict themselves ``CorruptShardError``. ``verify=True`` also
    hashes the file. A tar without an index is scanned, and its index kept in ``cache_dir`` or beside it.

    >>> import tempfile, numpy as np
    >>> from pipeline.shards.writer import write_shard
    >>> folder = tempfile.TemporaryDirectory()
    >>> info = write_shard(
    ...     f"{folder.name}/a.tar", tokens=np.arange(5, dtype=np.uint16), lengths=[2, 3], keys=["0", "1"]
    ... )
    >>> shard = Shard(f"{folder.name}/a.tar", expected=info, verify=True)
    >>> len(shard), shard.document(1).tolist()
    (2, [2, 3, 4])
    """

    def __init__(
        self,
        path: str | Path,
        expected: ShardInfo | None = None,
        verify: bool = False,
        cache_dir: str | Path | None = None,
    ) -> None:
        self._path = path
        data, index = _map(path, expected)
        if index is None and expected is not None:
            raise CorruptShardError(
                f"{self.path}: byte {len(data) - TAIL}: no index footer at the end; copy it again or rebuild it"
            )
        if index is None:
            from .foreign import foreign_index

            index = foreign_index(self.path, cache_dir)
        if expected is not None:
            compare(str(path), index, expected)
        if verify and expected is not None:
            found = hashlib.sha256(data).hexdigest()
            if found != expected.sha256:
                raise CorruptShardError(
                    f"{self.path}: sha256 {found}, but the manifest says {expected.sha256}; copy it again or rebuild it"
                )
        whole = len(data) - len(data) % index.dtype.itemsize
        self.tokens: NDArray[Any] = np.frombuffer(data, dtype=np.uint8, count=whole).view(index.dtype)
        self.starts: NDArray[np.int64] = index.starts // index.dtype.itemsize
        self.lengths: NDArray[np.int64] = index.lengths
        self.footer = index.footer

    @property
    def path(self) -> Path:
        return Path(self._path)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tokens.dtype

    def document(self, number: int) -> NDArray[Any]:
        """Return the tokens of one document as a read-only view."""
        start = self.starts[number]
        return self.tokens[start : start + self.lengths[number]]

    def table(self) -> dict[str, list[Any]]:
        """Return the columns of provenance, one value per document; empty for a tar without an index."""
        if not self.footer:
            return {}
        offset, size = self.footer["table"]
        raw = self.tokens.view(np.uint8)[offset : offset + size].tobytes()
        try:
            return json.loads(raw)
        except ValueError as error:
            raise CorruptShardError(f"{self.path}: byte {offset}: table of documents: {error}") from error

    def close(self) -> None:
        """Let go of the map; views handed out before keep what they show alive."""
        self.tokens = self.tokens[:0].copy()


def read_index(path: str | Path, cache_dir: str | Path | None = None) -> Index:
    """Return the index of a shard, from its footer or, for a tar of another tool, by a scan of its headers."""
    _, index = _map(path)
    if index is None:
        from .foreign import foreign_index

        index = foreign_index(path, cache_dir)
    return index


def parse_footer(tail: bytes, name: str, size: int) -> dict[str, Any] | None:
    """Return the footer's fields from the last 2,048 bytes of a file of ``size`` bytes, or None if it has none."""
    block = tail[-TAIL:]
    if len(block) < TAIL or not block.startswith(FOOTER_NAME.encode() + b"\0") or block[-len(END) :] != END:
        return None
    try:
        footer = orjson.loads(block[BLOCK : 2 * BLOCK])
        spans = [footer[key] for key in ("starts", "lengths", "table")]
        numbers = [footer[key] for key in ("version", "documents", "tokens", "bytes", "index_crc32")]
        numbers += [number for span in spans for number in span]
        known = footer["format"] == FORMAT_NAME and footer["dtype"] in TOKEN_DTYPES
        if not known or not {*map(type, numbers)} <= {int} or min(numbers) < 0:
            raise ValueError("fields of other kinds than this format has")
        if any(len(span) != 2 or span[0] + span[1] > size - TAIL for span in spans):
            raise ValueError("an index that lies outside the file")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptShardError(
            f"{name}: {FOOTER_NAME} at byte {size - TAIL}: {type(error).__name__}: {error}; copy it again or rebuild it"
        ) from error
    if footer["version"] != FORMAT_VERSION:
        raise ManifestError(f"{name}: shard format {footer['version']}, but this release reads {FORMAT_VERSION}")
    return footer


def _map(path: str | Path, expected: ShardInfo | None = None) -> tuple[mmap.mmap, Index | None]:
    """Map a shard whose size is the expected one; return its own index too, checked, or None for a tar of another tool.

    The index is read, not mapped: to copy some kilobytes takes less time than to map their pages.
    """
    with opened(path) as (handle, size):
        _check_size(str(path), size, expected)

        def read(start: int, length: int) -> bytes:
            return os.pread(handle, length, start)

        footer = parse_footer(read(max(0, size - TAIL), TAIL), str(path), size)
        index = parse_index(footer, str(path), size, read) if footer is not None else None
        return map_open(handle), index


def check_shard(handle: int, name: str, expected: ShardInfo | None) -> None:
    """Hold an open shard to its entry in the manifest by its size and its footer, which is all that is read.

    Raises as `Shard` does; a tar of another tool is held to nothing.
    """
    size = os.fstat(handle).st_size
    _check_size(name, size, expected)
    if expected is None:
        return
    footer = parse_footer(os.pread(handle, TAIL, max(0, size - TAIL)), name, size)
    if footer is None:
        raise CorruptShardError(f"{name}: byte {size - TAIL}: no index footer at the end; copy it again or rebuild it")
    if footer["bytes"] != size:
        raise _wrong_size(name, size, footer)
    _compare(name, footer, expected)


def _check_size(name: str, size: int, expected: ShardInfo | None) -> None:
    if expected is not None and size != expected.bytes:
        kind = TruncatedShardError if size < expected.bytes else ManifestError
        raise kind(f"{name}: {size} bytes, but the manifest says {expected.bytes}; copy it again or rebuild it")


def _wrong_size(name: str, size: int, footer: dict[str, Any]) -> CorruptShardError:
    return CorruptShardError(
        f"{name}: {size} bytes, but its footer says {footer['bytes']}; copy it again or rebuild it"
    )


def parse_index(footer: dict[str, Any], name: str, size: int, read: Callable[[int, int], bytes]) -> Index:
    """Return the index that a shard's footer points to; one call of ``read(start, length)`` fetches its bytes.

    ``name`` and ``size`` (bytes) are the shard's. Raises ``CorruptShardError`` where they and the footer disagree.
    """
    if footer["bytes"] != size:
        raise _wrong_size(name, size, footer)
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
            f"{name}: byte {starts_at}: the index has checksum {crc}, but its footer says {footer['index_crc32']}; "
            "copy it again or rebuild it"
        )
    starts = np.frombuffer(raw, "<i8", count, NPY_HEADER)  # one beyond int64 is below 0
    lengths = np.frombuffer(raw, "<u4", count, lengths_at - starts_at + NPY_HEADER).astype(np.int64)
    held = int(lengths.sum())
    if held != footer["tokens"]:
        raise CorruptShardError(
            f"{name}: byte {lengths_at}: documents hold {held} tokens, but the footer says {footer['tokens']}"
        )
    dtype = np.dtype(footer["dtype"])
    if count and (starts.min() < 0 or int((starts + lengths * dtype.itemsize).max()) > starts_at):
        raise CorruptShardError(f"{name}: byte {starts_at}: the index points outside the samples")
    return Index(starts, lengths, dtype, footer)


def parse_keys(footer: dict[str, Any], name: str, read: Callable[[int, int], bytes]) -> NDArray[np.bytes_]:
    """Return each document's key, the first column of the table; ``read(start, length)`` is called once or twice.

    Raises ``CorruptShardError`` where there are not as many keys as documents.
    """
    (offset, size), count = footer["table"], footer["documents"]
    # Of the whole table, keys are a tenth: as many bytes as those of our own builder take, and only else all.
    for length in (min(size, 64 + _USUAL_KEY * count), size):
        raw = read(offset, length)
        end = raw.find(b'],"')  # signs that no JSON string can hold, and a column of checksums follows
        if not raw.startswith(_KEYS_BEGIN) or end >= 0:
            break
    column = raw[len(_KEYS_BEGIN) : end] if raw.startswith(_KEYS_BEGIN) and end >= 0 else b""
    keys = _even_keys(column, count)
    if keys is not None:
        return keys
    try:
        keys = np.array([key.encode() for key in json.loads(b"[%b]" % column)], dtype=bytes)
    except (ValueError, AttributeError) as error:
        raise CorruptShardError(f"{name}: byte {offset}: keys of the documents: {error}; rebuild it") from error
    if len(keys) != count:
        raise CorruptShardError(
            f"{name}: byte {offset}: the table begins with {len(keys)} keys for {count} documents; copy it again or rebuild it"
        )
    return keys


def _even_keys(column: bytes, count: int) -> NDArray[np.bytes_] | None:
    """Return the strings of a JSON list without a loop, where they have one length and nothing to escape, else None."""
    width, over = divmod(len(column) + 1, max(1, count))
    if over or width <= 3 or b"\\" in column or column.count(b'"') != 2 * count:
        return None
    table = np.frombuffer(column + b",", np.uint8).reshape(count, width)
    if not ((table[:, 0] == ord('"')) & (table[:, -2] == ord('"')) & (table[:, -1] == ord(","))).all():
        return None
    return np.ascontiguousarray(table[:, 1:-2]).view(f"S{width - 3}")[:, 0]


def compare(name: str, index: Index, expected: ShardInfo) -> None:
    """Raise ``ManifestError`` where a shard's index is not the one that its entry in the manifest describes."""
    _compare(name, index.footer, expected)


def _compare(name: str, footer: dict[str, Any], expected: ShardInfo) -> None:
    for field in ("documents", "tokens", "index_crc32"):
        found, wanted = footer[field], getattr(expected, field)
        if found != wanted:
            raise ManifestError(
                f"{name}: its footer says {field} {found}, the manifest {wanted}: another shard lies under this name; "
                "copy the right one or rebuild"
            )
