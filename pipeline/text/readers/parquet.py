"""Parquet: text and id columns, row group by row group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ..document import INVALID_UTF8, TEXT_KEY, Document, Fields, Record, Tally, kind_of, scalar_name
from .base import FormatReader, StrPath
from .byte_stream import Damage, Source
from .csv import no_column

_ROWS = 512


def read_parquet(source: Source, fields: Fields, tally: Tally) -> Iterator[Record]:
    """Yield a record for each row of the row groups from ``source.start`` to ``source.stop``.

    Both then become bytes: in a file of G groups the groups a to b stand for the bytes from a/G to b/G of its size,
    hashed as the groups are done. So spans that cover all groups cover all bytes, each once.
    """
    import pyarrow as pa

    try:
        yield from _read_groups(source, fields, tally)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        raise Damage(f"not a whole parquet file ({str(error).splitlines()[0]})") from None


def group_cuts(path: StrPath, unit_bytes: int) -> list[int]:
    """Return the row groups at which units of at least ``unit_bytes`` of unpacked data begin, but for the first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return []  # reading it raises the error
    cuts, held = [], 0
    for group in range(metadata.num_row_groups):
        if held >= unit_bytes:
            cuts.append(group)
            held = 0
        held += metadata.row_group(group).total_byte_size
    return cuts


def rows_of_groups(path: StrPath) -> list[int]:
    """Return the rows of each row group; none of a file that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return []  # reading it raises the error
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def group_bytes(path: StrPath, spans: Sequence[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Return the bytes that spans of row groups stand for."""
    import pyarrow.parquet as pq

    starts = _shares(os.path.getsize(path), pq.read_metadata(path).num_row_groups)
    return [(starts[start], None if stop is None else starts[stop]) for start, stop in spans]


def _shares(size: int, groups: int) -> list[int]:
    return [size * group // groups for group in range(groups + 1)] if groups else [0, size]


def _read_groups(source: Source, fields: Fields, tally: Tally) -> Iterator[Record]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(source.path, page_checksum_verification=True)
    text_path, id_path = _paths(table.schema_arrow, fields)
    columns = [".".join(path) for path in (text_path, id_path) if path]
    groups = table.num_row_groups
    start, stop = source.start, groups if source.stop is None else source.stop
    share = _shares(os.path.getsize(source.path), groups)
    source.start, source.stop = share[start], share[max(stop, 1)]
    raw = source.raw()
    for group in range(start, stop):
        for batch in table.iter_batches(_ROWS, row_groups=[group], columns=columns, use_threads=False):
            texts = _values(_column(batch, text_path))
            ids = _values(_column(batch, id_path)) if id_path else [None] * len(texts)
            for text, id in zip(texts, ids, strict=True):
                tally.lines += 1
                record = _record(text, id, tally.lines, fields)
                tally.documents += isinstance(record, Document)
                yield record
        while source.bytes_read < share[group + 1] - source.start and next(raw, b""):
            pass
    for _ in raw:  # a file without row groups has bytes too
        pass


def _record(text: Any, id: Any, line: int, fields: Fields) -> Record:
    if isinstance(text, bytes) or isinstance(id, bytes):
        return fields.bad(line, None, INVALID_UTF8)
    if text is None:
        return fields.bad(line, None, f"{fields.text_key!r} is {kind_of(text)}, not text")
    return fields.document(text, "" if id is None else scalar_name(id), line)


def _paths(schema: Any, fields: Fields) -> tuple[list[str], list[str]]:
    """Return the columns of text and id as paths (the id's is empty where there is none), or raise ``Damage``."""
    import pyarrow.types as types

    text, id = _find(schema, fields.text_key), _find(schema, fields.id_key)
    if text is None:
        raise Damage(no_column(fields.text_key, schema.names))
    kind = text[1].value_type if types.is_dictionary(text[1]) else text[1]
    textual = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    binary = (types.is_binary, types.is_large_binary, types.is_binary_view)
    if not any(check(kind) for check in textual + binary):
        raise Damage(f"column {fields.text_key!r} is {kind}, not text; {TEXT_KEY} names the one to read")
    if id is not None and types.is_nested(id[1]):
        raise Damage(f"column {fields.id_key!r} is {id[1]}, not a name or number; --id-key names the one to read")
    return text[0], id[0] if id else []


def _find(fields: Any, key: str) -> tuple[list[str], Any] | None:
    """Return path and type of the column named ``key``, or of the one inside structs that its dots spell."""
    import pyarrow.types as types

    for field in fields:
        if field.name == key:
            return [field.name], field.type
        if key.startswith(f"{field.name}.") and types.is_struct(field.type):
            inner = [field.type.field(number) for number in range(field.type.num_fields)]
            if found := _find(inner, key[len(field.name) + 1 :]):
                return [field.name, *found[0]], found[1]
    return None


def _column(batch: Any, path: list[str]) -> Any:
    import pyarrow.compute as pc

    column = batch.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _values(column: Any) -> list[Any]:
    """Return a column as Python values; text that is not UTF-8 stays bytes."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast(pa.large_binary()).to_pylist()
    return [_decoded(value) for value in values] if any(type(value) is bytes for value in values) else values


def _decoded(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


READER = FormatReader(read_parquet, cuts=group_cuts, byte_ranges=group_bytes)
