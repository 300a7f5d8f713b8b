"""DataFrames, Arrow tables, datasets and iterables of records -> files, which can be read again.

A table becomes ``table.parquet``, records become ``records.jsonl``. Equal content becomes equal bytes, so a continued build
and a resumed stream recognize the file.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from ...atomic import temporary_path
from ...errors import InputError
from ..fields import as_json

_ROWS = 4096  # rows of a row group
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def is_in_memory(value: Any) -> bool:
    """Whether a value holds records. A path or a list of paths names files instead."""
    if isinstance(value, str | os.PathLike):
        return False
    if isinstance(value, list | tuple):
        return any(isinstance(item, Mapping) for item in value)
    return True


def split_inputs(inputs: Any) -> list[tuple[str, Any]]:
    """Return the name of the source, or '', and the value of each input. An input names files or holds records.

    ``inputs`` is one input, a list of inputs, or a dict from source names to inputs.
    """
    if isinstance(inputs, Mapping) and not _is_dataset_dict(inputs):
        pairs = [(str(name), item) for name, value in inputs.items() for _, item in split_inputs(value)]
        return [(name, item if is_in_memory(item) else f"{name}={os.fspath(item)}") for name, item in pairs]
    if isinstance(inputs, list | tuple) and not is_in_memory(inputs):
        return [pair for item in inputs for pair in split_inputs(item)]
    return [("", inputs if is_in_memory(inputs) else os.fspath(inputs))]


def can_be_read_again(value: Any) -> bool:
    """Whether an input in memory yields the same records each time, unlike a generator or a streamed dataset."""
    return not isinstance(value, Iterator) and type(value).__name__ not in ("IterableDataset", "RecordBatchReader")


def materialize(value: Any, folder: Path) -> Path:
    """Write the records of an input in memory to a file in ``folder``, and return its path.

    The file appears when it is complete. Its time of change is always 0, so that only its content matters. Raises
    ``InputError`` with the value at fault if Parquet cannot hold a table, JSON cannot hold a record, or a record is no dict.
    """
    import pyarrow as pa

    folder.mkdir(parents=True, exist_ok=True)
    try:
        batches = _arrow_batches(value)
        if batches is not None:
            return _write(folder / "table.parquet", partial(_write_table, batches))
    except (pa.ArrowException, ValueError) as error:
        raise InputError(
            f"a {type(value).__name__} that Parquet cannot hold: {'; '.join(map(str, error.args))}; make the values of each "
            "column of one type, as with .astype(str), or drop the column"
        ) from None
    return _write(folder / "records.jsonl", partial(_write_records, value))


def _write(path: Path, write: Callable[[Path], None]) -> Path:
    part = temporary_path(path)
    try:
        write(part)
        os.utime(part, ns=(0, 0))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def materialized(folder: Path) -> Path | None:
    """Return the complete file of `materialize` in a folder, or None."""
    return next((path for name in ("records.jsonl", "table.parquet") if (path := folder / name).exists()), None)


def materialize_while_running(value: Any) -> Path:
    """Write an input in memory to a temporary file that is deleted when this process ends."""
    folder = tempfile.mkdtemp(prefix="shardwright-records-")
    atexit.register(_remove, folder, os.getpid())
    return materialize(value, Path(folder))


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not at the end of a forked worker: this process still reads
        shutil.rmtree(folder, ignore_errors=True)


def _is_dataset_dict(value: Any) -> bool:
    return type(value).__name__ in ("DatasetDict", "IterableDatasetDict")


def _arrow_batches(value: Any) -> Any:
    """Return an input in memory as an Arrow reader of batches, or None for an iterable of records.

    The library of a DataFrame is looked up, not imported: the caller has imported it.
    """
    import pyarrow as pa

    if _is_dataset_dict(value):
        raise InputError(
            f"a {type(value).__name__} with the splits {', '.join(value)}; give one, as in dataset['train']"
        )
    if type(value).__name__ == "LazyFrame" and hasattr(value, "collect"):
        value = value.collect()
    if hasattr(value, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(value)
    if type(value).__name__ in ("Dataset", "IterableDataset") and hasattr(value, "with_format"):
        shown = getattr(value, "format", {})
        if shown.get("type") == "custom":  # a transform makes its records
            return None
        columns = {} if shown.get("output_all_columns", True) else {"columns": shown["columns"]}
        tables = value.with_format("arrow", **columns).iter(_ROWS)
        if (first := next(tables, None)) is None:
            return pa.RecordBatchReader.from_batches(value.features.arrow_schema, [])
        batches = (batch for table in chain([first], tables) for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(first.schema, batches)
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise _not_records_error(value)
    return None


def _not_records_error(value: Any) -> InputError:
    return InputError(
        f"an input of type {type(value).__name__}; give paths or urls, an iterable of dicts, a DataFrame, an Arrow table "
        "or a dataset"
    )


def _plain_strings(table: Any) -> Any:
    """Return a table with strings instead of categories of Polars, which Parquet cannot hold."""
    import pyarrow as pa
    import pyarrow.types as types

    for number, field in enumerate(table.schema):
        if types.is_dictionary(field.type) and types.is_string_view(field.type.value_type):
            chunks = [
                chunk.dictionary.cast(pa.large_string()).take(chunk.indices) for chunk in table.column(number).chunks
            ]
            table = table.set_column(number, field.name, pa.chunked_array(chunks, pa.large_string()))
    return table


def _write_table(batches: Any, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _plain_strings(batches.schema.empty_table()).schema.remove_metadata()  # pandas writes its version there
    waiting: list[Any] = []  # batches, fewer than a row group
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in batches:
            waiting += _plain_strings(pa.Table.from_batches([batch])).replace_schema_metadata(None).to_batches()
            table = pa.Table.from_batches(waiting, schema)
            if whole := table.num_rows // _ROWS * _ROWS:
                writer.write_table(table.slice(0, whole), _ROWS)
                waiting = table.slice(whole).to_batches()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), _ROWS)


def _write_records(records: Iterable[Any], path: Path) -> None:
    try:
        numbered = enumerate(records, 1)
    except TypeError:  # such as a tensor of no dimension
        raise _not_records_error(records) from None
    with open(path, "wb") as file:
        for number, record in numbered:
            if not isinstance(record, Mapping):
                raise InputError(
                    f"record {number} of an iterable is of type {type(record).__name__}; give dicts, as in {{'text': ...}}"
                )
            file.write(_line(dict(record), number))


def _line(record: dict[Any, Any], number: int) -> bytes:
    try:
        return orjson.dumps(record, option=_OPTIONS, default=as_json)
    except TypeError:
        pass
    for name, value in record.items():
        try:
            json.dumps({name: value}, default=_json_value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"record {number} of an iterable, field {name!r}: {error}; leave it out, or make it text or a number"
            ) from None
    # orjson refuses lone surrogates and keys that are numbers.
    return json.dumps(record, default=_json_value).encode() + b"\n"


def _json_value(value: Any) -> Any:
    """Return a value that ``json`` can write in place of one that it cannot."""
    return orjson.loads(orjson.dumps(value, option=_OPTIONS, default=as_json))
