"""One shard: a memory map and its index, as token arrays without a copy."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptShardError, ManifestError, TruncatedShardError
from .foreign import foreign_index
from .format import TAIL
from .index import Index, check_bytes, compare, parse_footer, parse_index, parse_table
from .manifest import ShardInfo
from .tar import CURE, map_open, opened


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
            raise CorruptShardError(f"{self.path}: byte {len(data) - TAIL}: no index footer at the end; {CURE}")
        if index is None:
            index = foreign_index(self.path, cache_dir)
        if expected is not None:
            compare(str(path), index.footer, expected)
        if verify and expected is not None:
            found = hashlib.sha256(data).hexdigest()
            if found != expected.sha256:
                raise CorruptShardError(f"{self.path}: sha256 {found}, but the manifest says {expected.sha256}; {CURE}")
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
        return parse_table(self.tokens.view(np.uint8)[offset : offset + size].tobytes(), str(self.path), offset)

    def close(self) -> None:
        """Release the map; views that were returned before keep their memory valid."""
        self.tokens = self.tokens[:0].copy()


def read_index(path: str | Path, cache_dir: str | Path | None = None) -> Index:
    """Return the index of a shard, from its footer or, for a tar of another tool, by a scan of its headers."""
    _, index = _map(path)
    if index is None:
        index = foreign_index(path, cache_dir)
    return index


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
        raise CorruptShardError(f"{name}: byte {size - TAIL}: no index footer at the end; {CURE}")
    check_bytes(name, size, footer)
    compare(name, footer, expected)


def _check_size(name: str, size: int, expected: ShardInfo | None) -> None:
    if expected is not None and size != expected.bytes:
        kind = TruncatedShardError if size < expected.bytes else ManifestError
        raise kind(f"{name}: {size} bytes, but the manifest says {expected.bytes}; {CURE}")
