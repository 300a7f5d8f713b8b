"""The table of extents of a complete dataset, written beside its manifest, which then names it."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...atomic import atomic_file
from ...errors import ConfigError, CorruptShardError, ManifestError
from ..format import TAIL
from ..index import compare, parse_footer, parse_index
from ..manifest import FileInfo, Manifest, ShardInfo
from ..remote.transport import is_remote, local_name
from ..tar import CURE, map_file
from .file import EXTENTS_NAME, encode_table
from .loading import read_table, table_of_index
from .table import ExtentTable

Progress = Callable[[int, int], None]


def index_dataset(directory: str | Path, *, workers: int = 1, progress: Progress | None = None) -> Manifest:
    """Write the table of extents of a dataset directory, then its manifest as version 2; return the manifest.

    Every shard is read once: its sha256 is checked, and each of its extents gets its checksum. A dataset whose table is
    there and sound is left as it is. ``workers`` threads share the shards; ``progress`` is called with (bytes done, bytes
    in all). A process that is killed leaves the dataset as it was, and the same call again completes it.

    Raises ``ManifestError`` for an incomplete dataset, ``ShardError`` for a shard that is not the one the manifest names,
    and ``ConfigError`` for a url.

    >>> import tempfile, numpy as np
    >>> from pipeline.shards.manifest import Split
    >>> from pipeline.shards.writer import write_shard
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "train-000000.tar")
    >>> info = write_shard(path, tokens=np.arange(3, dtype="<u2"), lengths=[3], keys=["k"])
    >>> Manifest("<u2", {}, {"train": Split((info,))}).write(folder.name)
    >>> index_dataset(folder.name).extents.name
    'extents.bin'
    """
    if is_remote(os.fspath(directory)):
        raise ConfigError(
            f"{directory}: a table is written into a directory of this machine; index a copy, and upload it"
        )
    if workers < 1:
        raise ConfigError(f"workers must be 1 or more, got {workers}")
    folder = Path(local_name(os.fspath(directory)))
    manifest = Manifest.read(folder)
    if manifest.extents is not None and _is_sound(folder, manifest):
        return manifest
    infos = manifest.shards
    total, done, tables = sum(info.bytes for info in infos), 0, []
    with ThreadPoolExecutor(workers) as pool:  # hashes are computed without the interpreter's lock
        for info, table in zip(
            infos, pool.map(lambda info: _read_shard(folder, info, manifest.dtype), infos), strict=True
        ):
            tables.append(table)
            done += info.bytes
            if progress is not None:
                progress(done, total)
    manifest = replace(manifest, extents=write_table(folder, tables, manifest.dtype))
    manifest.write(folder)
    return manifest


def write_table(folder: Path, tables: Iterable[ExtentTable], dtype: str) -> FileInfo:
    """Write the tables of shards, in the order of `Manifest.shards`, as one file; return what a manifest says of it."""
    raw = encode_table(ExtentTable.join(list(tables), dtype))
    with atomic_file(folder / EXTENTS_NAME) as file:
        file.write(raw)
    return FileInfo(EXTENTS_NAME, len(raw), hashlib.sha256(raw).hexdigest())


def _is_sound(folder: Path, manifest: Manifest) -> bool:
    path = folder / (manifest.extents.name if manifest.extents is not None else EXTENTS_NAME)
    try:
        read_table(str(path), manifest, path.read_bytes())
    except (OSError, ManifestError):
        return False
    return True


def _read_shard(folder: Path, info: ShardInfo, dtype: str) -> ExtentTable:
    """Return the table of one shard; its bytes go through both checksums at once."""
    path = folder / info.name
    try:
        data = map_file(path)
    except FileNotFoundError:
        raise ManifestError(f"{path}: the manifest names this shard, but it is not there; copy or rebuild it") from None
    view = memoryview(data)
    footer = parse_footer(data[-TAIL:], str(path), len(data))
    if footer is None or len(data) != info.bytes:
        raise CorruptShardError(f"{path}: {len(data)} bytes, but the manifest says {info.bytes} with an index; {CURE}")
    index = parse_index(footer, str(path), len(data), lambda start, length: data[start : start + length])
    compare(str(path), footer, info)
    if index.dtype.str != dtype:
        raise ManifestError(f"{path}: tokens of {index.dtype.str}, but the manifest says {dtype}; {CURE}")
    table = table_of_index(index, str(path))
    sha256, crc32, end = hashlib.sha256(), [], 0
    for size in table.sizes.tolist():
        extent = view[end : end + size]
        sha256.update(extent)
        crc32.append(zlib.crc32(extent))
        end += size
    sha256.update(view[end:])
    if sha256.hexdigest() != info.sha256:
        raise CorruptShardError(f"{path}: sha256 {sha256.hexdigest()}, but the manifest says {info.sha256}; {CURE}")
    return replace(table, crc32=np.array(crc32, "<u4"))
