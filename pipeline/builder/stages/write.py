"""The write stage: token counts -> a layout of shards -> shards, each whole or not there at all.

If the recipe keeps texts, a file beside each shard has the texts of its documents, in the same order.

    texts/train-000000.parquet      id, text as it was tokenized, source, language, split, and the fields that are kept
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from ...atomic import atomic_file, read_json, write_json
from ...shards.extents.table_file import encode_table
from ...shards.format import COLUMN
from ...shards.manifest import TEXTS_NAME, FileInfo, ShardInfo, Split
from ...shards.shard_plan import SPLITS, TRAIN, ShardPlan, lay_out
from ...shards.writer import TokenBlocks
from ...shards.writer import write_shard as write_tar
from ...text.fields import Field, parse_fields
from ..build_tokenizer import load_build_tokenizer
from ..counts.attribution import attributed, attribution_of
from ..partitions.partition import Origin, Partition, partitions
from ..partitions.partition_writer import MetadataColumn
from ..work.workspace import Workspace
from .dedup import cluster_sizes
from .split import NEITHER, load_split, split_sizes
from .stage import Run, Stage, Step, once
from .tokenize import token_lengths, tokens_folder

_BLOCK_TOKENS = 1 << 20  # read at once; a longer document is read whole
_TEXT_ROWS = 1_000  # written at once
_ARROW_TYPES = {"str": "string", "int": "int64", "float": "float64", "bool": "bool"}  # a field without a type is JSON
_SPLITS = "splits.json"
PROVENANCE = (*Origin._fields, "language", "score", "hash", "cluster_size")


class _Member(NamedTuple):
    """The documents of a partition that belong to a shard, and their numbers among all that are written."""

    partition: Partition
    chosen: NDArray[np.bool_]
    ordinals: NDArray[np.int64]


class WriteStage(Stage):
    """Cuts each split into shards, now that every token is counted, and writes them beside the work directory."""

    name = "write"

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        workspace = run.workspace
        layout: list[ShardPlan] = []
        for split in SPLITS:
            lengths, runs = split_lengths(workspace, split), source_runs(workspace, split)
            layout += lay_out(lengths, split, run.plan.recipe.tokens_per_shard, runs)
        yield Step(
            units=layout,
            function=functools.partial(write_shard, workspace),
            makes=functools.partial(_last_path, workspace),
            prepare=functools.partial(load_build_tokenizer, workspace),
        )
        path = workspace.folder(self.name) / _SPLITS
        yield once(path, _write_splits, path, workspace, layout)


def _write_splits(path: Path, workspace: Workspace, layout: Sequence[ShardPlan]) -> None:
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for shard in layout:
        splits[shard.split].append(read_entry(workspace, shard.name)["shard"])
    write_json(path, splits)


def read_splits(workspace: Workspace) -> dict[str, Split]:
    """Return the shards of each split, for the manifest; an empty validation split is left out."""
    written = read_json(workspace.folder(WriteStage.name) / _SPLITS)
    splits = {name: Split(tuple(ShardInfo(**shard) for shard in shards)) for name, shards in written.items()}
    return {name: split for name, split in splits.items() if split.shards or name == SPLITS[TRAIN]}


def split_lengths(workspace: Workspace, split: str) -> NDArray[np.int64]:
    """Return the tokens of each document of a split."""
    number = SPLITS.index(split)
    lengths = [token_lengths(partition)[load_split(partition) == number] for partition in partitions(workspace)]
    return np.concatenate([np.zeros(0, np.int64), *lengths])


def source_runs(workspace: Workspace, split: str) -> list[tuple[str, int]]:
    """Return the runs of a split's documents that have the same source: the source, and how many documents."""
    counts = split_sizes(workspace)[:, SPLITS.index(split)].tolist()
    runs = [(partition.source, n) for partition, n in zip(partitions(workspace), counts, strict=True) if n]
    return [(name, sum(n for _, n in some)) for name, some in itertools.groupby(runs, itemgetter(0))]


def write_shard(workspace: Workspace, shard: ShardPlan) -> None:
    """Write one shard, its texts if they are kept and, in the work directory, its extents and its entry.

    The entry has the ``shard`` and its ``texts`` for the manifest, and the counts of their ``attribution``. Memory holds one
    block of its tokens at a time.
    """
    dtype, recipe = load_build_tokenizer(workspace).dtype, workspace.plan.recipe
    members = list(_members(workspace, shard))
    table = _provenance(members, recipe.keep_fields)
    lengths = np.concatenate([token_lengths(partition)[chosen] for partition, chosen, _ in members])
    entry: dict[str, Any] = {}
    if fields := attributed(recipe.keep_fields):
        entry["attribution"] = attribution_of(table, lengths.tolist(), fields, shard.source)
    info, extents = write_tar(
        workspace.output / shard.name,
        tokens=TokenBlocks(dtype, _tokens(dtype, members)),
        lengths=lengths,
        keys=[f"{ordinal:012d}" for *_, ordinals in members for ordinal in ordinals.tolist()],
        table=table,
        tokens_per_sample=recipe.tokens_per_sample,
    )
    entry["shard"] = info._replace(source=shard.source).to_json()
    if recipe.keep_texts is not None:
        texts = itertools.chain.from_iterable(p.texts(np.flatnonzero(chosen).tolist()) for p, chosen, _ in members)
        name = texts_name(shard.name, recipe.keep_texts)
        path = workspace.output / name
        write_texts(path, texts, table, parse_fields(recipe.keep_fields), source=shard.source, split=shard.split)
        entry["texts"] = FileInfo.of(path, name)._asdict()
        workspace.finish(name)
    workspace.finish(shard.name)
    with atomic_file(extents_path(workspace, shard.name)) as file:
        file.write(encode_table(extents))
    write_json(_entry_path(workspace, shard.name), entry)


def texts_name(shard: str, kind: str) -> str:
    """Return the file of the texts of a shard, in the directory of the dataset."""
    return f"{TEXTS_NAME}/{shard.removesuffix('.tar')}.{kind}"


def write_texts(
    path: Path,
    texts: Iterator[str],
    table: Mapping[str, Sequence[Any]],
    fields: Sequence[Field],
    *,
    source: str,
    split: str,
) -> None:
    """Write the texts of a shard, each with its id, language and kept fields from ``table``."""
    path.parent.mkdir(exist_ok=True)
    names = ["id", "language", *(f"{COLUMN}{field.name}" for field in fields)]
    columns = zip(texts, *(table[name] for name in names), strict=True)
    rows = (
        {"id": id, "text": text, "source": source, "language": language, "split": split}
        | {field.name: value for field, value in zip(fields, values, strict=True)}
        for text, id, language, *values in columns
    )
    with atomic_file(path) as file:
        write = _write_parquet if path.suffix == ".parquet" else _write_lines
        write(file, iter(lambda: list(itertools.islice(rows, _TEXT_ROWS)), []), fields)


def _write_lines(file: IO[bytes], parts: Iterable[list[dict[str, Any]]], fields: Sequence[Field]) -> None:
    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as stream:
        for rows in parts:
            stream.write(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))


def _write_parquet(file: IO[bytes], parts: Iterable[list[dict[str, Any]]], fields: Sequence[Field]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    untyped = [field.name for field in fields if not field.kind]
    columns = dict.fromkeys(("id", "text", "source", "language", "split"), "string")
    columns |= {field.name: _ARROW_TYPES.get(field.kind, "string") for field in fields}
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in parts:
            for row, name in itertools.product(rows, untyped):
                if not isinstance(row[name], str | None):
                    row[name] = orjson.dumps(row[name]).decode()
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _tokens(dtype: np.dtype[Any], members: Iterable[_Member]) -> Iterator[NDArray[np.unsignedinteger[Any]]]:
    """Yield the tokens of the chosen documents of each partition, some documents at a time."""
    for partition, chosen, _ in members:
        sizes = token_lengths(partition)
        path, ends = tokens_folder(partition) / "tokens.bin", np.cumsum(sizes)
        first = 0
        while first < len(sizes):
            begin = int(ends[first] - sizes[first])
            last = max(first + 1, int(np.searchsorted(ends, begin + _BLOCK_TOKENS, side="right")))
            if chosen[first:last].any():
                count = int(ends[last - 1]) - begin
                block = np.fromfile(path, dtype, count, offset=begin * dtype.itemsize)
                yield block[np.repeat(chosen[first:last], sizes[first:last])]
            first = last


def _members(workspace: Workspace, shard: ShardPlan) -> Iterator[_Member]:
    """Yield the members of a shard: for each partition, which of its documents are in the shard."""
    counts = split_sizes(workspace)
    ends = np.cumsum(counts, axis=0)
    starts, number = ends - counts, SPLITS.index(shard.split)
    holding = (starts[:, number] < shard.last) & (ends[:, number] > shard.first) & (counts[:, number] > 0)
    for at in np.flatnonzero(holding).tolist():
        partition = Partition(workspace, at)
        splits = load_split(partition)
        mine = splits == number
        numbers = starts[at, number] + np.cumsum(mine) - 1
        ordinals = starts[at].sum() + np.cumsum(splits != NEITHER) - 1
        chosen = mine & (numbers >= shard.first) & (numbers < shard.last)
        yield _Member(partition, chosen, ordinals[chosen])


def _provenance(members: Iterable[_Member], keep_fields: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns of the table of a shard: the origins of its documents, and the fields that are kept."""
    metadata = MetadataColumn(keep_fields)
    columns: dict[str, list[Any]] = {name: [] for name in PROVENANCE}
    columns |= {f"{COLUMN}{name}": [] for name in metadata.names}  # as rules name them
    for partition, chosen, _ in members:
        rows, every = np.flatnonzero(chosen), partition.origins()
        origins = [every[row] for row in rows.tolist()]
        for name in Origin._fields:
            columns[name] += [getattr(origin, name) for origin in origins]
        values = partition.values("language", "score", "metadata")
        columns["language"] += [values["language"][row] for row in rows.tolist()]
        columns["score"] += [round(values["score"][row], 4) for row in rows.tolist()]
        held = np.fromfile(partition.held_path, np.uint8).reshape(-1, 16)
        columns["hash"] += [digest.tobytes().hex() for digest in held[rows]]
        columns["cluster_size"] += cluster_sizes(partition)[rows].tolist()
        for name, column in metadata.decode(values["metadata"][row] for row in rows.tolist()).items():
            columns[f"{COLUMN}{name}"] += column
    return columns


def extents_path(workspace: Workspace, name: str) -> Path:
    """Return the file of the extents of one shard. The end of the build joins those of all shards."""
    return workspace.folder(WriteStage.name) / f"{name}.extents"


def _entry_path(workspace: Workspace, name: str) -> Path:
    return workspace.folder(WriteStage.name) / f"{name}.json"


def read_entry(workspace: Workspace, name: str) -> dict[str, Any]:
    """Return the entry of a shard that `write_shard` wrote."""
    entry: dict[str, Any] = read_json(_entry_path(workspace, name))
    return entry


def _last_path(workspace: Workspace, shard: ShardPlan) -> Path:
    """Return the path of a shard's entry, which is written last, or of the shard if somebody removed it from the output."""
    path, entry = workspace.output / shard.name, _entry_path(workspace, shard.name)
    is_gone = workspace.bucket is None and entry.exists() and not path.exists()
    return path if is_gone else entry
