"""The texts of a dataset beside its shards: one file for each shard, which holds its documents in their order.

texts/train-000000.parquet      id, text as it was tokenized, source, language, split, and the fields that are kept
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import orjson
import zstandard

from ...atomic import atomic_file
from ...shards.format import COLUMN
from ...shards.manifest import TEXTS_NAME
from ...text.fields import Field

_ROWS = 1_000  # written at once
_TYPES = {"str": "string", "int": "int64", "float": "float64", "bool": "bool"}  # of Arrow; what has no type is JSON

Rows = list[dict[str, Any]]


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
    """Write the texts of a shard, whose ``table`` says where each came from."""
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
        write(file, iter(lambda: list(itertools.islice(rows, _ROWS)), []), fields)


def _write_lines(file: IO[bytes], parts: Iterable[Rows], fields: Sequence[Field]) -> None:
    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as stream:
        for rows in parts:
            stream.write(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))


def _write_parquet(file: IO[bytes], parts: Iterable[Rows], fields: Sequence[Field]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    untyped = [field.name for field in fields if not field.kind]
    columns = dict.fromkeys(("id", "text", "source", "language", "split"), "string")
    columns |= {field.name: _TYPES.get(field.kind, "string") for field in fields}
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in parts:
            for row, name in itertools.product(rows, untyped):
                if not isinstance(row[name], str | None):
                    row[name] = orjson.dumps(row[name]).decode()
            writer.write_table(pa.Table.from_pylist(rows, schema))
