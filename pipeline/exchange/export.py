"""A dataset -> files that other tools read: Megatron's pairs, nanoGPT's arrays, Parquet."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..atomic import atomic_file, write_json
from ..errors import ConfigError, CorruptShardError, did_you_mean
from ..notices import warn
from ..objects.request_options import RequestOptions
from ..progress import Progress
from ..shards.dataset_folder import REPAIR, DatasetFolder
from ..shards.format import COLUMN
from ..shards.manifest import TOKENIZER_NAME, Manifest, ShardInfo
from ..shards.shard_access import ShardAccess
from ..text.tokens.tokenizer_files import CONFIG_NAME
from .megatron import stored_dtype, write_index
from .new_directory import new_directory

EXPORT_NAME = "export.json"
_BLOCK_TOKENS = 1 << 20


def export_tokens(
    dataset: str | os.PathLike[str],
    output: str | os.PathLike[str],
    to: str,
    *,
    requests: RequestOptions | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the documents of a dataset, split by split and in order, as files of other tools; return ``export.json``.

    ``to`` is ``"megatron"`` (``SPLIT.bin`` and ``SPLIT.idx``, which ``IndexedDataset`` reads), ``"nanogpt"`` (``SPLIT.bin``:
    only ids, uint16 or uint32) or ``"parquet"`` (``data/SPLIT-*.parquet``: ``input_ids``, and the columns of the shards'
    tables). ``export.json`` holds the dtype, the id that ends documents, and the files. The files of the tokenizer are
    copied. ``output`` must be empty or missing; it appears when it is complete.

    Raises ``ConfigError`` if the format is unknown or ``output`` is not empty, and ``ManifestError``, ``ShardError`` or
    ``StorageError`` if the dataset cannot be read. The checksum of each document is compared.

    >>> import tempfile
    >>> from .token_writer import write_shards
    >>> folder, quiet = tempfile.mkdtemp(), Progress(quiet=True)
    >>> _ = write_shards([[5, 6], [7]], f"{folder}/shards", "bytes", val_fraction=0, progress=quiet)
    >>> _ = export_tokens(f"{folder}/shards", f"{folder}/out", "nanogpt", progress=quiet)
    >>> np.fromfile(f"{folder}/out/train.bin", "<u2").tolist()
    [5, 6, 1, 7, 1]
    """
    if to not in FORMATS:
        raise ConfigError(
            f"--to (to= in Python) must be one of {', '.join(FORMATS)}, got {to!r}{did_you_mean(to, FORMATS, else_known=False)}"
        )
    folder = DatasetFolder(os.fspath(dataset), requests)
    manifest = folder.manifest()
    source = _Source(folder, ShardAccess(requests=folder.requests), manifest)
    progress = progress or Progress()
    tokens = sum(split.tokens for split in manifest.splits.values())
    if redacted := manifest.redacted_documents:
        warn(
            f"{folder.base}: {len(redacted):,} documents were redacted, and the export has end-of-text ids in their place; to "
            "leave them out, export a copy that shardwright redact --drop wrote"
        )
    with new_directory(output) as directory, progress.bar("export", tokens, "tokens") as advance:
        splits = {}
        for name, split in sorted(manifest.splits.items()):
            dtype = FORMATS[to](directory, name, source, advance)
            splits[name] = {"documents": split.documents, "tokens": split.tokens}
        for name in (TOKENIZER_NAME, CONFIG_NAME):
            if (data := folder.read_bound(name, manifest)) is not None:
                (directory / name).write_bytes(data)
        summary = {
            "format": to,
            "dataset": manifest.fingerprint,
            "dtype": dtype.name,
            "tokenizer": manifest.tokenizer["name"],
            "eos_id": manifest.tokenizer["eos_id"],
            "splits": splits,
            "files": {
                path.relative_to(directory).as_posix(): path.stat().st_size for path in sorted(directory.rglob("*.*"))
            },
        }
        write_json(directory / EXPORT_NAME, summary)
    return summary


class _Shard(NamedTuple):
    """One shard: its entry, the number of tokens of each document, and the columns of its table."""

    info: ShardInfo
    lengths: NDArray[np.int64]
    table: dict[str, list[Any]]


class _Source(NamedTuple):
    """The dataset that is read."""

    folder: DatasetFolder
    access: ShardAccess
    manifest: Manifest

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.manifest.token_dtype

    def shards(self, split: str) -> Iterator[_Shard]:
        for info in self.manifest.split(split).shards:
            path = self.folder.path(info.name)
            yield _Shard(info, self.access.index(path, info).lengths, self.access.table(path, info))

    def blocks(self, shard: _Shard) -> Iterator[tuple[NDArray[Any], int]]:
        """Yield the tokens of a few documents of a shard, and the number of these documents.

        Raises ``CorruptShardError`` if the checksum of a document differs from the table's.
        """
        path = self.folder.path(shard.info.name)
        index = self.access.index(path, shard.info)
        ends = index.starts + index.lengths * self.dtype.itemsize
        with self.access.opened(path, shard.info) as (handle, _), mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as data:
            documents: list[bytes] = []
            size = 0
            for number, (start, end) in enumerate(zip(index.starts.tolist(), ends.tolist(), strict=True)):
                document = data[start:end]
                if zlib.crc32(document) != shard.table["crc32"][number]:
                    raise CorruptShardError(
                        f"{path}: byte {start}: the checksum of document {number} differs from the table's; {REPAIR}"
                    )
                documents.append(document)
                size += len(document)
                if size >= _BLOCK_TOKENS * self.dtype.itemsize:
                    yield np.frombuffer(b"".join(documents), self.dtype), len(documents)
                    documents, size = [], 0
            yield np.frombuffer(b"".join(documents), self.dtype), len(documents)


def _write_flat(directory: Path, split: str, source: _Source, advance: Callable[[int], None]) -> np.dtype[Any]:
    """Write the ids of a split as one array without a header. Warn unless end-of-text ids are at the ends of documents only."""
    ends, lost = source.manifest.tokenizer["eos_id"], 0

    def count(block: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        nonlocal lost
        before = np.add.accumulate(np.append(0, block == ends))  # number of end-of-text ids before each position
        last = np.cumsum(lengths)
        lost += int(((before[last] - before[last - lengths] != 1) | (before[last] == before[last - 1])).sum())

    dtype = _write_array(directory, split, source, advance, source.dtype, count)
    names = {info.name for info in source.manifest.splits[split].shards}
    lost -= sum(one["tokens"] > 1 and one["shard"] in names for one in source.manifest.redacted_documents)
    if lost:
        warn(
            f"{split}.bin: {lost:,} of {source.manifest.splits[split].documents:,} documents hold the end-of-text id {ends} "
            "before their end, or do not end with it: a tool that cuts the array at this id makes other documents; --to megatron "
            "and --to parquet keep the ends of documents"
        )
    return dtype


def _write_megatron(directory: Path, split: str, source: _Source, advance: Callable[[int], None]) -> np.dtype[Any]:
    """Write a split as ``SPLIT.bin`` and ``SPLIT.idx``."""
    dtype = _write_array(directory, split, source, advance, stored_dtype(source.dtype))
    lengths = np.concatenate([np.zeros(0, np.int64), *(shard.lengths for shard in source.shards(split))])
    write_index(directory / f"{split}.idx", lengths, dtype)
    return dtype


def _write_array(
    directory: Path,
    split: str,
    source: _Source,
    advance: Callable[[int], None],
    dtype: np.dtype[Any],
    look: Callable[[NDArray[Any], NDArray[np.int64]], None] = lambda block, lengths: None,
) -> np.dtype[Any]:
    """Write the ids of a split in a dtype of equal width. ``look`` is called with each block and its documents' lengths."""
    most = np.iinfo(dtype).max
    with atomic_file(directory / f"{split}.bin") as file:
        for shard in source.shards(split):
            first = 0
            for block, documents in source.blocks(shard):
                look(block, shard.lengths[first : first + documents])
                first += documents
                if len(block) and (greatest := int(block.max())) > most:
                    raise ConfigError(
                        f"{shard.info.name}: id {greatest}, but {dtype} holds ids to {most}: choose another format"
                    )
                file.write(block.data)
                advance(len(block))
    return dtype


def _write_parquet(directory: Path, split: str, source: _Source, advance: Callable[[int], None]) -> np.dtype[Any]:
    """Write one file for each shard, all with the same schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds: dict[str, Any] = {}
    for shard in source.shards(split):
        for name, values in _columns(shard).items():
            kinds[name] = _joined(kinds.get(name, pa.null()), _kind(values))
    kinds = {name: pa.string() if kind == pa.null() else kind for name, kind in kinds.items()}
    stored = np.dtype(np.int32 if source.dtype.itemsize == 2 else np.int64)
    ids = pa.from_numpy_dtype(stored)
    schema = pa.schema({"input_ids": pa.list_(ids), **kinds})
    (directory / "data").mkdir(exist_ok=True)
    count = len(source.manifest.split(split).shards)
    for number, shard in enumerate(source.shards(split)):
        path = directory / "data" / f"{split}-{number:05d}-of-{count:05d}.parquet"
        columns = {name: _array(values, kinds[name]) for name, values in _columns(shard).items()}
        first = 0
        with ExitStack() as stack:
            file = stack.enter_context(atomic_file(path))
            writer = stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
            for block, rows in source.blocks(shard):
                offsets = np.concatenate([[0], np.cumsum(shard.lengths[first : first + rows])]).astype(np.int32)
                lists = pa.ListArray.from_arrays(offsets, pa.array(block.astype(stored)))
                slices = {name: column.slice(first, rows) for name, column in columns.items()}
                writer.write_table(pa.table({"input_ids": lists, **slices}, schema=schema))
                first += rows
                advance(len(block))
    return stored


FORMATS = {"megatron": _write_megatron, "nanogpt": _write_flat, "parquet": _write_parquet}


def _columns(shard: _Shard) -> dict[str, list[Any]]:
    """Return the columns of a shard's table by the names of the fields, without columns that only the shard needs."""
    names = {name: name.removeprefix(COLUMN) for name in shard.table if name not in ("crc32", "input_ids")}
    used = {name for name in names if not name.startswith(COLUMN)} | {"input_ids"}
    return {name if plain in used else plain: shard.table[name] for name, plain in names.items()}


def _kind(values: Sequence[Any]) -> Any:
    """Return the Arrow type of values: text if they have no common type."""
    import pyarrow as pa

    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()


def _joined(one: Any, other: Any) -> Any:
    """Return the type that holds the values of both types."""
    import pyarrow as pa

    if one in (other, pa.null()):
        return other
    if other == pa.null():
        return one
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else pa.string()


def _array(values: Sequence[Any], kind: Any) -> Any:
    """Return values as an Arrow array. In a column of text, other values become JSON."""
    import pyarrow as pa

    if kind == pa.string():
        values = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pa.array(values, kind)
