"""Parquet: text and id columns, row group by row group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from ...errors import first_line
from ..document import INVALID_UTF8, Document, Record, RecordKeys, Tally, Unselected, kind_of, scalar_name
from ..fields import MISFIT, as_json, shown
from ..storage.input_file import InputFile
from ..storage.open_input import open_input
from ..storage.parquet_ranges import expect_columns, read_footer
from ..storage.remote_file import RemoteFile
from ..where import Range
from .byte_stream import ByteStream, UnreadableFileError
from .csv import FIELD_CURE, no_column, two_columns
from .format_reader import FormatReader

_ROWS = 64  # rows in a batch: few, so that the first batch needs only the first page
_BUFFER_BYTES = 64 << 10


def read_parquet(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each row of the row groups from ``stream.start`` to ``stream.stop``, page by page.

    ``stream.bytes_read`` is estimated: the file's size times the share of its rows that were read.
    """
    with faults_of("parquet"):
        yield from _read_groups(stream, keys, tally)


@contextmanager
def faults_of(kind: str) -> Iterator[None]:
    """Raise ``UnreadableFileError`` for errors of pyarrow in the block, which reads a file of this kind."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # a column name that is not UTF-8
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        raise UnreadableFileError(f"not a whole {kind} file ({first_line(error)})") from None


def group_borders(file: InputFile, unit_bytes: int) -> list[int]:
    """Return the row groups, without the first, at which spans of at least ``unit_bytes`` of unpacked data begin."""
    borders, size = [], 0
    for number, group in enumerate(_row_groups(file)):
        if size >= unit_bytes:
            borders.append(number)
            size = 0
        size += group.total_byte_size
    return borders


def rows_of_groups(file: InputFile) -> list[int]:
    """Return the number of rows of each row group; an empty list if the file cannot be read."""
    return [group.num_rows for group in _row_groups(file)]


def _row_groups(file: InputFile) -> list[Any]:
    import pyarrow as pa

    try:
        metadata = _metadata(file)
    except (pa.ArrowException, OSError):
        return []  # the reader raises the error later
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]


def _metadata(file: InputFile) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.stored is None:
        return pq.read_metadata(file.path)
    with open_input(file, in_order=False) as opened:
        assert isinstance(opened, RemoteFile)
        try:
            return read_footer(opened)
        except pa.ArrowException:  # ask again: one wrong answer must not decide how the file is cut
            return read_footer(opened)


def _read_groups(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    table = _open(stream)
    columns = find_columns(table.schema_arrow, keys)
    names = [".".join(path) for path in columns.values()]
    stop = table.num_row_groups if stream.stop is None else stream.stop
    skipped = {group: _rows_to_skip(table, group, keys, columns) for group in range(stream.start, stop)}
    if isinstance(stream.file, RemoteFile):
        expect_columns(stream.file, table.metadata, names, [group for group in skipped if not skipped[group]])
    size, all_rows = stream.file.seek(0, os.SEEK_END), max(1, table.metadata.num_rows)
    before = sum(table.metadata.row_group(group).num_rows for group in range(stream.start))
    lines = tally.lines
    for group, rows in skipped.items():
        if rows:
            tally.lines += rows
            yield [Unselected(keys.file, tally.lines - rows + 1, rows, keys.source)]
            continue
        batches = table.iter_batches(_ROWS, row_groups=[group], columns=names, use_threads=False)
        for records in rows_of(batches, columns, keys, tally):
            stream.bytes_read = size * (before + tally.lines - lines) // all_rows - size * before // all_rows
            yield records
    if stop == table.num_row_groups:
        stream.bytes_read = size - size * before // all_rows


def find_columns(schema: Any, keys: RecordKeys) -> dict[str, list[str]]:
    """Return the path of each column that documents need, by field name.

    The column of ids may be missing, and that of a field which another input has: newer files may have more columns. Raises
    ``UnreadableFileError`` if any other column is missing, or if a column has the wrong type.
    """
    import pyarrow.types as types

    kept = [field.name for field in keys.kept]
    columns = {}
    for name in dict.fromkeys((keys.text_key, keys.id_key, *kept)):
        column = find_column(schema, name)
        if column is not None:
            columns[name], kind = column
            plain = getattr(_value_type(kind), "storage_type", _value_type(kind))
            checks = _textual() if keys.vocabulary is None else _lists()
            if name == keys.text_key and not any(check(plain) for check in checks):
                raise UnreadableFileError(
                    f"column {name!r} is {kind}, not {keys.wanted}; {keys.key_name} names the one to read"
                )
            if name == keys.id_key and types.is_nested(kind):
                raise UnreadableFileError(
                    f"column {name!r} is {kind}, not a name or number; --id-key names the one to read"
                )
        elif name == keys.text_key:
            raise UnreadableFileError(no_column(name, schema.names, f"{keys.key_name} names the one to read"))
        elif name in kept and not keys.elsewhere(name):
            raise UnreadableFileError(no_column(name, schema.names, FIELD_CURE))
    return columns


def has_column(stream: ByteStream, name: str) -> bool:
    with faults_of("parquet"):
        return find_column(_open(stream).schema_arrow, name) is not None


def rows_of(
    batches: Iterable[Any], columns: Mapping[str, list[str]], keys: RecordKeys, tally: Tally
) -> Iterator[list[Record]]:
    """Yield a list for each record batch, with a record for each row."""
    for batch in batches:
        values = {name: _values(_column(batch, path)) for name, path in columns.items() if name != keys.text_key}
        read_texts = _texts if keys.vocabulary is None else _ids
        texts = values[keys.text_key] = read_texts(_column(batch, columns[keys.text_key]))
        missing = [None] * len(texts)
        ids = values.get(keys.id_key, missing)
        records: list[Record] = []
        for row, (text, id) in enumerate(zip(texts, ids, strict=True)):
            tally.lines += 1
            record = _record(text, id, tally.lines, keys)
            if keys.kept and isinstance(record, Document):
                record = _with_fields(record, [values.get(field.name, missing)[row] for field in keys.kept], keys)
            tally.documents += isinstance(record, Document)
            records.append(record)
        yield records


def _open(stream: ByteStream) -> Any:
    import pyarrow.parquet as pq

    footer = read_footer(stream.file) if isinstance(stream.file, RemoteFile) else None
    file = stream.path if stream.is_local else stream.file
    # With a buffer, a column chunk is read page by page: a row group of 426 MB takes 44 MB of memory, not 341 MB.
    options = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES}
    return pq.ParquetFile(file, metadata=footer, page_checksum_verification=True, **options)


def _record(text: Any, id: Any, line: int, keys: RecordKeys) -> Record:
    for name, value in ((keys.text_key, text), (keys.id_key, id)):
        if isinstance(value, Exception):
            return _unreadable(name, value, line, keys)
    if text is None:
        return keys.bad(line, None, f"{keys.text_key!r} is {kind_of(text)}, not {keys.wanted}")
    return keys.document(text, "" if id is None else scalar_name(id), line)


def _with_fields(document: Document, values: list[Any], keys: RecordKeys) -> Record:
    """Return the document with its other fields, or a bad record if one does not fit its type."""
    for field, value in zip(keys.kept, values, strict=True):
        if isinstance(value, Exception):
            return _unreadable(field.name, value, document.line, keys)
        if (fit := field.fit(value)) is MISFIT:
            return keys.bad(document.line, None, field.misfit(value), f"it is {shown(value)}")
        document.metadata[field.name] = fit
    return document


def _unreadable(name: str, error: Exception, line: int, keys: RecordKeys) -> Record:
    if isinstance(error, UnicodeDecodeError):
        return keys.bad(line, None, INVALID_UTF8, f"column {name!r}, byte {error.start}: {error.reason}")
    return keys.bad(line, None, f"column {name!r} cannot be read", str(error))


def _rows_to_skip(table: Any, group: int, keys: RecordKeys, columns: Mapping[str, list[str]]) -> int:
    """Return the number of rows of a row group if its statistics rule out that one is selected, else 0."""
    if keys.where is None:
        return 0
    metadata = table.metadata.row_group(group)
    numbers = {metadata.column(number).path_in_schema: number for number in range(metadata.num_columns)}
    ranges = {}
    read = {field.name for field in keys.where.fields}
    for field in keys.kept:
        if field.name not in read:
            continue
        if field.name not in columns:
            ranges[field.name] = Range(None, None, nulls=True)
            continue
        number = numbers.get(".".join(columns[field.name]))
        found = find_column(table.schema_arrow, field.name)
        if number is None or found is None or not _is_plain(found[1]):
            continue
        statistics = metadata.column(number).statistics
        if statistics is None or not statistics.has_min_max or not statistics.has_null_count:
            continue
        low, high = statistics.min, statistics.max
        if field.fit(low) is not MISFIT and field.fit(high) is not MISFIT:
            ranges[field.name] = Range(low, high, nulls=statistics.null_count > 0, nan=isinstance(low, float))
    return 0 if keys.where.may_hold(ranges) else metadata.num_rows


def _textual() -> tuple[Callable[[Any], bool], ...]:
    import pyarrow.types as types

    texts = types.is_string, types.is_large_string, types.is_string_view, types.is_null
    return *texts, types.is_binary, types.is_large_binary, types.is_binary_view


def _lists() -> tuple[Callable[[Any], bool], ...]:
    import pyarrow.types as types

    kinds = types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view
    return tuple(lambda kind, check=check: check(kind) and types.is_integer(kind.value_type) for check in kinds)


def find_column(fields: Any, key: str) -> tuple[list[str], Any] | None:
    """Return path and type of the column ``key``. If there is none, dots in ``key`` lead into structs."""
    import pyarrow.types as types

    names = [field.name for field in fields]
    if names.count(key) > 1:
        raise UnreadableFileError(two_columns(key, names.count(key)))
    for field in fields:
        if field.name == key:
            return [field.name], field.type
        if key.startswith(f"{field.name}.") and types.is_struct(field.type):
            inner = [field.type.field(number) for number in range(field.type.num_fields)]
            if column := find_column(inner, key[len(field.name) + 1 :]):
                return [field.name, *column[0]], column[1]
    return None


def _column(batch: Any, path: list[str]) -> Any:
    column = batch.column(path[0])
    if path[1:]:
        import pyarrow.compute as pc  # takes a third of a second, and most files do not need it

        for name in path[1:]:
            column = pc.struct_field(column, name)
    return column


def _values(column: Any) -> list[Any]:
    """Return a column as values of JSON. An error replaces a value that cannot be read.

    A time becomes text (ISO 8601), a duration a number of seconds, a map an object. Bytes become text if their size is not
    fixed and they are UTF-8, else hexadecimal digits.
    """
    import pyarrow.types as types

    values = _python_values(column)
    if types.is_fixed_size_binary(_value_type(column.type)):
        return [value if value is None else value.hex() for value in values]
    return values if _is_plain(column.type) else [_plain(value) for value in values]


def _is_plain(kind: Any) -> bool:
    """Whether the values of a column, from pyarrow and from the statistics of Parquet, are values of JSON."""
    import pyarrow.types as types

    texts = types.is_string, types.is_large_string, types.is_string_view
    numbers = types.is_integer, types.is_floating, types.is_boolean
    return any(check(_value_type(kind)) for check in (*texts, *numbers))


def _value_type(kind: Any) -> Any:
    import pyarrow.types as types

    return kind.value_type if types.is_dictionary(kind) else kind


def _texts(column: Any) -> list[Any]:
    """Return a column of texts. An error replaces a text that is not UTF-8."""
    return [_decoded(value) if isinstance(value, bytes) else value for value in _python_values(column)]


def _python_values(column: Any) -> list[Any]:
    """Return a column as Python values of pyarrow. An error replaces a value that Python cannot represent."""
    import pyarrow.types as types

    if types.is_dictionary(column.type):  # dictionary_decode does not work for strings of Polars
        words = _python_values(column.dictionary)
        return [None if index is None else words[index] for index in column.indices.to_pylist()]
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except (ArithmeticError, LookupError, ValueError):  # text that is not UTF-8, a year after 9999
        values = [_python_value(value) for value in column]
    return values


def _python_value(value: Any) -> Any:
    try:
        return value.as_py(maps_as_pydicts="strict")
    except (ArithmeticError, LookupError, ValueError) as error:
        return error


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str() | Exception():
            return value
        case bytes():
            text = _decoded(value)
            return text if isinstance(text, str) and "\0" not in text else value.hex()
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
    try:
        return as_json(value)
    except TypeError:
        return str(value)


def _ids(column: Any) -> list[Any]:
    """Return a column of lists of ids as one array for each row, or None for a missing list."""
    import pyarrow as pa

    lists = column.cast(pa.large_list(column.type.value_type))
    values, ends = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_pylist()
    rows = zip(pairwise(ends), lists.is_valid().to_pylist(), strict=True)
    return [values[begin:end] if valid else None for (begin, end), valid in rows]


def _decoded(value: bytes) -> str | UnicodeDecodeError:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return error


READER = FormatReader(
    read_parquet, borders=group_borders, in_order=False, part_rows=rows_of_groups, has_column=has_column
)
