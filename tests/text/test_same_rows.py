"""The same rows give the same documents, fields and selection, whatever the format of their file."""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import DamagedInputError
from pipeline.text.fields import parse_fields
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, Unselected
from pipeline.text.where import Where

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=5)


class Kind(NamedTuple):
    """A type of Arrow, its values, and how JSON has one."""

    type: pa.DataType
    values: st.SearchStrategy[Any]
    as_json: Callable[[Any], Any] = lambda value: value


def scaled(number: int) -> Decimal:
    return Decimal(number).scaleb(-2)


SCALARS = [
    Kind(pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    Kind(pa.uint64(), st.integers((1 << 53) - 2, (1 << 53) + 2) | st.integers(0, (1 << 64) - 1)),
    Kind(pa.float64(), st.floats(-1e15, 1e15) | st.just(float("nan"))),
    Kind(pa.float32(), st.floats(-1024, 1024, width=32)),
    Kind(pa.float16(), st.floats(-1024, 1024, width=16)),
    Kind(pa.decimal128(12, 2), st.integers(-300, 300).map(scaled), float),
    Kind(pa.decimal256(40, 0), st.integers(-(1 << 62), 1 << 62).map(Decimal), int),
    Kind(pa.duration("us"), st.integers(-9_000_000, 9_000_000).map(lambda n: timedelta(microseconds=n)), timedelta.total_seconds),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.string(), TEXTS),
    Kind(pa.large_string(), TEXTS),
    Kind(pa.string_view(), TEXTS),
    Kind(pa.dictionary(pa.int8(), pa.string()), TEXTS),
    Kind(pa.json_(), TEXTS.map(json.dumps)),
    Kind(pa.binary(), TEXTS.map(str.encode), bytes.decode),
    Kind(pa.binary(), st.binary(max_size=9).map(lambda end: b"\xff" + end), bytes.hex),
    Kind(pa.binary_view(), st.binary(max_size=9).map(lambda end: b"\0" + end), bytes.hex),
    Kind(pa.binary(4), st.binary(min_size=4, max_size=4) | st.just(b"text"), bytes.hex),
    Kind(pa.uuid(), st.uuids(), str),
    Kind(pa.date32(), st.dates(), date.isoformat),
    Kind(pa.date64(), st.dates(), date.isoformat),
    Kind(pa.time64("us"), st.times(), time.isoformat),
    Kind(pa.timestamp("us"), st.datetimes(), datetime.isoformat),
    Kind(pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC)), datetime.isoformat),
    Kind(pa.timestamp("ms"), st.datetimes().map(lambda at: at.replace(microsecond=1000)), datetime.isoformat),
    Kind(pa.dictionary(pa.int32(), pa.timestamp("us")), st.datetimes(), datetime.isoformat),
]  # fmt: skip
NESTED = [
    Kind(pa.null(), st.none()),
    Kind(pa.list_(pa.string()), st.lists(TEXTS, max_size=2)),
    Kind(pa.large_list(pa.date32()), st.lists(st.dates(), max_size=2), lambda days: [day.isoformat() for day in days]),
    Kind(pa.map_(pa.string(), pa.int32()), st.dictionaries(TEXTS, st.integers(0, 9), max_size=2)),
    Kind(
        pa.struct([("at", pa.timestamp("us")), ("score", pa.decimal128(5, 2)), ("hash", pa.binary())]),
        st.fixed_dictionaries({"at": st.datetimes(), "score": st.just(scaled(150)), "hash": st.just(b"\xfe\xff")}),
        lambda value: {"at": value["at"].isoformat(), "score": 1.5, "hash": "feff"},
    ),
]


def write_all(folder: Path, kind: Kind, values: list[Any], group: int) -> list[Path]:
    """Write rows with values as field ``f`` as Parquet, both formats of Arrow, JSON Lines, and CSV if it has such."""
    known = [None if value is None else kind.as_json(value) for value in values]
    others = {name: [f"{name} {k}" for k in range(len(values))] for name in ("text", "id")}
    if isinstance(kind.type, pa.BaseExtensionType):
        stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        column = pa.ExtensionArray.from_storage(kind.type, pa.array(stored, kind.type.storage_type))
    elif pa.types.is_dictionary(kind.type):
        column = pa.array(values, kind.type.value_type).dictionary_encode()
    else:
        column = pa.array(values, kind.type)
    table = pa.table({**others, "f": column})
    pq.write_table(table, folder / "a.parquet", row_group_size=group)
    for path, writer in ((folder / "stream.arrow", pa.ipc.new_stream), (folder / "file.arrow", pa.ipc.new_file)):
        with writer(path, table.schema) as file:
            file.write_table(table, group)
    rows = [dict(zip((*others, "f"), row, strict=True)) for row in zip(*others.values(), known, strict=True)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if all(value and isinstance(value, str) for value in known):  # CSV cannot tell '' from null
        with open(folder / "a.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return sorted(folder.iterdir())


def read(path: Path, *fields: str, where: str | None = None) -> list[Any]:
    """Return id, text and fields of each document, and the reason of each other record."""
    found: list[Any] = []
    for record in DocumentReader(path, keep=parse_fields(fields), where=Where.parse(where) if where else None):
        if isinstance(record, Unselected):
            found += ["not selected"] * record.count
        elif isinstance(record, BadRecord):
            found.append(record.reason)
        else:
            found.append((record.id.removeprefix(str(path)), record.text, repr(record.metadata)))
    return found


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_the_same_rows_of_any_format_give_the_same_documents(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(SCALARS + NESTED))
    values = data.draw(st.lists(st.none() | kind.values, min_size=1, max_size=6))
    paths = write_all(tmp_path_factory.mktemp("rows"), kind, values, data.draw(st.integers(1, 3)))
    known = [value for value in (kind.as_json(value) for value in values if value is not None) if value == value]
    conditions = ["f is null"]
    if kind in SCALARS and known and '"' not in str(value := data.draw(st.sampled_from(known))):
        sign = data.draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        conditions += [f"f {sign} " + (f'"{value}"' if isinstance(value, str) else json.dumps(value))]
    expected = [read(path, "f") for path in paths]
    assert all(found == expected[0] for found in expected)
    for where in conditions:
        selected = [read(path, where=where) for path in paths]
        assert all(found == selected[0] for found in selected), where


def test_a_row_group_is_not_skipped_by_statistics_of_another_unit(tmp_path: Path) -> None:
    (kind,) = (kind for kind in SCALARS if pa.types.is_duration(kind.type))
    paths = write_all(tmp_path, kind, [timedelta(seconds=1), timedelta(seconds=3)], 1)
    assert len(paths) == 4
    for path in paths:
        assert read(path, where="f < 2") == [("id 0", "text 0", "{'f': 1.0}"), "not selected"]


IDS = [
    (pa.binary(4), [b"text", b"\xff\xfe\0\1"], ["74657874", "fffe0001"]),
    (pa.binary(), ["naïve".encode(), b"\xef", (5).to_bytes(16, "big")], ["naïve", "ef", "0" * 31 + "5"]),
    (pa.timestamp("us", "UTC"), [datetime(2024, 1, 2, tzinfo=UTC)], ["2024-01-02T00:00:00+00:00"]),
    (pa.decimal128(20, 0), [Decimal(12345678901234567890)], ["12345678901234567890"]),
    (pa.uint64(), [(1 << 64) - 1], ["18446744073709551615"]),
    (pa.bool_(), [True], ["true"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values", "names"), IDS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_an_id_of_any_type_names_its_document_as_json_has_it(
    tmp_path: Path, kind: pa.DataType, values: list[Any], names: list[str]
) -> None:
    pq.write_table(pa.table({"text": ["x"] * len(values), "id": pa.array(values, kind)}), tmp_path / "a.parquet")
    assert [document[0] for document in read(tmp_path / "a.parquet")] == names


def not_utf8() -> pa.Array:
    return pa.array([b"a", b"\xff", b"b"]).view(pa.string())


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([0, 1 << 62, 1], pa.timestamp("us")), "column 'f' cannot be read"),
        (pa.array([0, (1 << 31) - 1, 1], pa.date32()), "column 'f' cannot be read"),
        (pa.array([{}, [(1, 1), (1, 2)], None], pa.map_(pa.int8(), pa.int8())), "column 'f' cannot be read"),
        (not_utf8(), "invalid UTF-8"),
        (pa.ListArray.from_arrays([0, 1, 2, 3], not_utf8()), "invalid UTF-8"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_read_costs_its_row(tmp_path: Path, column: pa.Array, reason: str) -> None:
    table = pa.table({"text": ["a", "b", "c"], "f": column})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    for path in sorted(tmp_path.iterdir()):
        first, bad, last = DocumentReader(path, keep=parse_fields(["f"]))
        assert [each.text for each in (first, last) if isinstance(each, Document)] == ["a", "c"]
        assert isinstance(bad, BadRecord)
        assert (bad.reason, bad.line) == (reason, 2)
        assert "'f'" in bad.reason + bad.detail


@pytest.mark.parametrize("column", [pa.array([b"a", b"\xff"]), not_utf8()[:2]], ids=["binary", "string"])
def test_bytes_that_are_no_text_are_no_document(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"body": column}), tmp_path / "a.parquet")
    good, bad = DocumentReader(tmp_path / "a.parquet", text_key="body")
    assert isinstance(good, Document)
    assert isinstance(bad, BadRecord)
    assert (bad.reason, bad.detail) == ("invalid UTF-8", "column 'body', byte 0: invalid start byte")


def test_columns_of_json_are_text_and_those_of_other_types_are_refused_by_name(tmp_path: Path) -> None:
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}']))
    for name, column in (("json", texts), ("uuid", pa.array([bytes(16)], pa.uuid())), ("list", pa.array([["a"]]))):
        pq.write_table(pa.table({"text": column}), tmp_path / f"{name}.parquet")
    assert read(tmp_path / "json.parquet") == [(":1", '{"a": 1}', "{}")]
    with pytest.raises(DamagedInputError, match=r"column 'text' is extension<arrow\.uuid>, not text; .*--text-key"):
        read(tmp_path / "uuid.parquet")
    with pytest.raises(DamagedInputError, match=r"column 'text' is list<element: string>, not text; .*--text-key"):
        read(tmp_path / "list.parquet")


def test_a_name_of_a_column_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    table = pa.table({"text": ["x"], "f@@": ["y"]})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    for path in sorted(tmp_path.iterdir()):
        path.write_bytes(path.read_bytes().replace(b"f@@", b"f\xff\xfe"))
        with pytest.raises(DamagedInputError, match="can't decode byte 0xff"):
            read(path)
