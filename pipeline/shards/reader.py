"""One shard on this machine: its documents as arrays without a copy, and its index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .foreign import foreign_index
from .index import Index, index_of, parse_table
from .manifest import ShardInfo
from .tar import map_file, opened


class Shard:
    """An open shard.

    ``tokens`` is the whole file as a read-only 1-D array of the stored dtype, ``starts`` (int64, in elements of
    ``tokens``) and ``lengths`` (int64) say where each document lies in it. ``footer`` holds the footer's fields, none for a
    tar without an index. ``expected`` is the manifest's entry; raises as `read_index` does.

    >>> import tempfile, numpy as np
    >>> from pipeline.shards.writer import write_shard
    >>> folder = tempfile.TemporaryDirectory()
    >>> info, _ = write_shard(
    ...     f"{folder.name}/a.tar", tokens=np.arange(5, dtype=np.uint16), lengths=[2, 3], keys=["0", "1"]
    ... )
    >>> shard = Shard(f"{folder.name}/a.tar", expected=info)
    >>> len(shard), shard.document(1).tolist()
    (2, [2, 3, 4])
    """

    def __init__(self, path: str | Path, expected: ShardInfo | None = None) -> None:
        self._path = path
        index = read_index(path, expected)
        data = map_file(path)
        whole = len(data) - len(data) % index.dtype.itemsize
        self.tokens: NDArray[Any] = np.frombuffer(data, dtype=np.uint8, count=whole).view(index.dtype)
        self.starts: NDArray[np.int64] = index.starts // index.dtype.itemsize
        self.lengths: NDArray[np.int64] = index.lengths
        self.footer = index.footer

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
        return parse_table(self.tokens.view(np.uint8)[offset : offset + size].tobytes(), str(self._path), offset)


def read_index(path: str | Path, expected: ShardInfo | None = None, cache_dir: str | Path | None = None) -> Index:
    """Return the index of a shard, which is held to ``expected``, its entry in the manifest.

    That of a tar of another tool comes of a scan of its headers, and is kept in ``cache_dir`` or beside the tar. Raises as
    `pipeline.shards.index.footer_of` and `pipeline.shards.foreign.foreign_index` do.
    """
    with opened(path) as (handle, size):
        index = index_of(lambda start, count: os.pread(handle, count, start), size, str(path), expected)
    return foreign_index(path, cache_dir) if index is None else index
