"""Fields of records: read where something names them, judged by rules and conditions, kept in the tables of shards."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import pipeline
from filters.rules.ruleset import load_rules
from pipeline.errors import ConfigError, DamagedInputError, StateError
from pipeline.text.document import BadRecord, Document, Unselected
from pipeline.text.fields import parse_fields
from pipeline.text.readers.document_reader import DocumentReader
from pipeline.text.where import Range, Where
from tests.helpers.builds import digests, run_plain, table
from tests.helpers.input_server import running_inputs

make = partial(run_plain, dedup=False)
TEXTS = [f"Text number {k}." for k in range(6)]
COLUMNS: dict[str, list[Any]] = {
    "id": [f"d{k}" for k in range(6)],
    "text": TEXTS,
    "url": [f"https://example.org/{k}" for k in range(6)],
    "int_score": [1, 2, 3, 4, 5, None],
    "lang": ["en", "de", "en", "de", "en", "en"],
}


def write_all(folder: Path, columns: dict[str, list[Any]] = COLUMNS) -> list[Path]:
    """Write the same records as JSON Lines, a JSON array, CSV and Parquet."""
    folder.mkdir()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "a.json").write_text(json.dumps(rows))
    with open(folder / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows([{key: "" if value is None else value for key, value in row.items()} for row in rows])
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=2)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the same records in every format that has fields."""
    folder = tmp_path_factory.mktemp("columns") / "in"
    write_all(folder)
    return folder


def read(path: Path, fields: Sequence[str] = (), where: str | None = None) -> list[Any]:
    return list(DocumentReader(path, keep=parse_fields(fields), where=None if where is None else Where.parse(where)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_documents_of_every_format_keep_the_named_fields_alone(inputs: Path, name: str) -> None:
    found = read(inputs / name, ["url:str", "int_score:int"])
    assert [each.metadata for each in found] == [
        {"url": url, "int_score": score} for url, score in zip(COLUMNS["url"], COLUMNS["int_score"], strict=True)
    ]
    assert [each.metadata for each in read(inputs / name)] == [{}] * 6


def test_nested_fields_are_named_by_dots(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x", "meta": {"score": 0.5}}) + "\n")
    pq.write_table(pa.table({"text": ["x"], "meta": [{"score": 0.5}]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert [each.metadata for each in read(tmp_path / name, ["meta.score:float"])] == [{"meta.score": 0.5}]


@pytest.mark.parametrize("name", ["b.jsonl", "b.csv", "b.parquet"])
def test_a_field_that_does_not_fit_its_type_is_a_counted_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "b.jsonl").write_text('{"text": "x", "score": "high"}\n{"text": "y", "score": 2}\n')
    (tmp_path / "b.csv").write_text("text,score\nx,high\ny,2\n")
    pq.write_table(pa.table({"text": ["x", "y"], "score": ["high", None]}), tmp_path / "b.parquet")
    bad, good = read(tmp_path / name, ["score:float"])
    assert isinstance(bad, BadRecord)
    assert isinstance(good, Document)
    assert (bad.reason, bad.detail) == ("'score' is of type str, not a number", "it is 'high'")
    manifest = make(tmp_path / name, tmp_path / "out", keep_fields=["score:float"])
    assert manifest.counts["bad"] == {"'score' is of type str, not a number": 1}
    assert manifest.counts["kept"] == 1


def test_a_table_without_a_column_that_is_named_is_refused_with_the_nearest(inputs: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(DamagedInputError, match=r"no column 'int_scor' .did you mean 'int_score'.* --where"):
            read(inputs / name, where="int_scor > 1")


def write_growing(folder: Path, ending: str) -> list[dict[str, Any]]:
    """Write two files, of which only the newer has the fields lang, score and meta; return the rows."""
    old = [{"text": f"old {k}", "id": f"a{k}"} for k in range(4)]
    new = [{"text": f"new {k}", "id": f"b{k}", "lang": "de" if k % 2 else "en", "score": k} for k in range(4)]
    folder.mkdir()
    for name, rows in (("2023", old), ("2024", new)):
        path = folder / f"{name}.{ending}"
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        if ending == "csv":
            with open(path, "w", newline="") as file:
                csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
        elif ending == "parquet":
            pq.write_table(pa.table(columns), path, row_group_size=2)
        elif ending == "arrow":
            with pa.ipc.new_stream(path, pa.table(columns).schema) as writer:
                writer.write_table(pa.table(columns))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [*old, *new]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ('lang != "de"', lambda row: row.get("lang") != "de"),
        ('lang == "de"', lambda row: row.get("lang") == "de"),
        ("score is null", lambda row: "score" not in row),
        ('not score >= 2 or lang is not null and id == "b3"', lambda row: row.get("score", 0) < 2 or row["id"] == "b3"),
    ],
)
def test_a_table_without_a_column_that_another_has_is_read_as_one_of_nulls(
    tmp_path: Path, ending: str, where: str, holds: Callable[[dict[str, Any]], bool]
) -> None:
    rows = write_growing(tmp_path / "in", ending)
    kept = {"keep_fields": ["lang", "score:int"], "keep_texts": "parquet"}
    manifest = make(tmp_path / "in", tmp_path / "out", where=where, **kept)
    chosen = [row for row in rows if holds(row)]
    found = [row for path in sorted((tmp_path / "out" / "texts").iterdir()) for row in pq.read_table(path).to_pylist()]
    assert {(row["id"], row["lang"], row["score"]) for row in found} == {
        (row["id"], row.get("lang"), row.get("score")) for row in chosen
    }
    assert manifest.counts["bad"] == {}
    stream = pipeline.TextDataset(tmp_path / "in", "bytes", epochs=1, where=where).documents().numpy()
    assert sum(1 for _ in stream) == len(chosen)


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_a_column_that_no_table_has_is_refused(tmp_path: Path, ending: str) -> None:
    write_growing(tmp_path / "in", ending)
    said = r"2023\.[a-z]*: no column 'langs'"
    with pytest.raises(DamagedInputError, match=said):
        make(tmp_path / "in", tmp_path / "out", where='langs != "de"')
    with pytest.raises(DamagedInputError, match=said):
        list(pipeline.TextDataset(tmp_path / "in", "bytes", epochs=1, where='langs != "de"').documents().numpy())


def damage(path: Path, start: int, size: int) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(b"\xff" * size)


def test_only_named_columns_of_row_groups_that_may_match_are_read(tmp_path: Path) -> None:
    """Everything else is overwritten: reading any of it would fail by its checksum."""
    path = tmp_path / "big.parquet"
    columns = {
        "text": [f"Some text of document {k}." for k in range(4000)],
        "int_score": [k // 1000 for k in range(4000)],
        "blob": [f"{k:064x}" for k in range(4000)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=500, write_page_checksum=True, use_dictionary=False)
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema == "blob" or group < 6:
                damage(path, column.data_page_offset, column.total_compressed_size)
    found = read(path, where="int_score >= 3")
    documents = [each for each in found if isinstance(each, Document)]
    assert [each.text for each in documents] == columns["text"][3000:]
    assert documents[0].line == 3001
    assert sum(each.count for each in found if isinstance(each, Unselected)) == 3000
    with pytest.raises(DamagedInputError):
        read(path, where="int_score >= 2")


WRITTEN: list[tuple[str, Callable[[float | None], bool]]] = [
    ("a < 3", lambda a: a is not None and a < 3),
    ("a <= 3", lambda a: a is not None and a <= 3),
    ("a > 3", lambda a: a is not None and a > 3),
    ("a >= 3", lambda a: a is not None and a >= 3),
    ("a == 3", lambda a: a == 3),
    ("a != 3", lambda a: a != 3),
    ("a not in [3, 5]", lambda a: a not in (3, 5)),
    ("a in [1, 5]", lambda a: a in (1, 5)),
    ("a is null", lambda a: a is None),
    ('`is` in ["missing", "none"]', lambda a: a is None),
    ('not (`is` == "missing" or a > 3)', lambda a: a is not None and not a > 3),
    ("a is not null", lambda a: a is not None),
    ("not a < 3", lambda a: a is None or not a < 3),
    ("not (a < 2 or a > 4)", lambda a: a is None or not (a < 2 or a > 4)),
    ("a >= 2 and not a == 4", lambda a: a is not None and a >= 2 and a != 4),
]


@pytest.mark.parametrize("kind", ["whole", "with NaN"])
def test_a_condition_selects_what_it_says_from_row_groups_of_every_kind(tmp_path: Path, kind: str) -> None:
    whole: list[float | None] = [*range(7), *[k // 2 for k in range(12)], None, None, None, 4, None, 5, 5]
    values = whole if kind == "whole" else [*whole, math.nan, 3.0, 3.0, math.nan]
    numbers = range(len(values))
    columns = {"id": [f"d{k}" for k in numbers], "text": [f"Text {k}." for k in numbers], "a": values}
    columns["is"] = ["missing" if value is None else "there" for value in values]
    for path in write_all(tmp_path / "in", columns):
        lines = {each.id: each.line for each in read(path)}
        for where, holds in WRITTEN:
            wanted = [f"d{k}" for k, value in enumerate(values) if holds(value)]
            found = read(path, where=where)
            documents = [(each.id, each.line) for each in found if isinstance(each, Document)]
            assert documents == [(id, lines[id]) for id in wanted], where
            assert sum(each.count for each in found if isinstance(each, Unselected)) == len(values) - len(wanted)


VALUES = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([0.5, -1.5, float("nan")]))
CONDITIONS = st.recursive(
    st.builds("a {} {}".format, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), st.integers(-3, 3))
    | st.builds("a in [{}, {}]".format, st.integers(-3, 3), st.integers(-3, 3))
    | st.sampled_from(["a is null", "a is not null"]),
    lambda inner: st.builds("not ({})".format, inner) | st.builds("({}) and ({})".format, inner, inner)
    | st.builds("({}) or ({})".format, inner, inner),
    max_leaves=5,
)  # fmt: skip


@given(CONDITIONS, st.lists(VALUES, min_size=1, max_size=6))
def test_a_row_group_is_never_skipped_that_holds_a_selected_row(text: str, values: list[Any]) -> None:
    where = Where.parse(text)
    numbers = [value for value in values if value is not None and value == value]
    any_nan = any(value != value for value in values if value is not None)
    ranges = {}
    if numbers:
        nan = any_nan or any(isinstance(value, float) for value in numbers)
        ranges = {"a": Range(min(numbers), max(numbers), nulls=None in values, nan=nan)}
    if any(where.holds({"a": value}) for value in values):
        assert where.may_hold(ranges)
    if Where.parse(f"not ({text})").may_hold(ranges) is False:
        assert all(where.holds({"a": value}) for value in values)


OF_A_KIND = st.one_of(
    st.tuples(st.just(repr), st.lists(st.none() | st.floats(-3, 3) | st.just(math.nan) | st.just(-0.0), min_size=2)),
    st.tuples(st.just(repr), st.lists(st.none() | st.integers(-3, 3), min_size=2)),
    st.tuples(st.just('"{}"'.format), st.lists(st.none() | st.sampled_from(["", "de", "en", "\u00df", "z"]), min_size=2)),
    st.tuples(st.just(lambda value: str(value).lower()), st.lists(st.none() | st.booleans(), min_size=2)),
)  # fmt: skip


@given(OF_A_KIND, st.data())
def test_unequal_is_not_equal_for_every_kind_of_value(
    tmp_path_factory: pytest.TempPathFactory, kind: tuple[Any, list[Any]], data: st.DataObject
) -> None:
    write, values = kind
    known = [value for value in values if value is not None and value == value]
    assume(known)
    value = write(data.draw(st.sampled_from(known)))
    equal, *unequal = (
        Where.parse(text)
        for text in (
            f"a == {value}",
            f"a != {value}",
            f"not (a == {value})",
            f"a not in [{value}]",
            f"not a in [{value}]",
        )
    )
    records: list[dict[str, Any]] = [{"a": each} for each in values] + [{}]
    wanted = [not equal.holds(record) for record in records]
    assert wanted[-1]
    for where in unequal:
        assert [where.holds(record) for record in records] == wanted
    path = tmp_path_factory.mktemp("in") / "a.parquet"
    table = pa.table({"text": ["x"] * len(values), "id": [str(k) for k in range(len(values))], "a": values})
    pq.write_table(table, path, row_group_size=data.draw(st.integers(1, len(values))))
    for where in unequal:
        ids = [record.id for record in read(path, where=where.text) if isinstance(record, Document)]
        assert ids == [str(k) for k in range(len(values)) if wanted[k]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a >", "character 4: it ends before it is whole"),
        ("a >= 'x", "character 6: no part of a condition"),
        ("a > 3 b", "character 7: "),
        ("a > 1 and (a < 3", "character 11: "),
        ("3 < a", "character 1: a field belongs here"),
        ("true == 1", "character 1: a field belongs here"),
        ("(a > 1) == 1", "character 2: a field belongs here"),
        ("a is 3", "character 6: null belongs here"),
        ("a is not [1]", "character 10: null belongs here"),
        ("a in 3", r"character 6: a list of values in \[ \] belongs here"),
        ("a not in []", r"character 10: a list of values in \[ \] belongs here"),
        ("a == [1]", 'character 6: a number, "text", true or false belongs here'),
        ("a == null", 'character 6: a number, "text", true or false belongs here'),
        ("a", "character 1: a comparison belongs here; write it as in 'int_score >= 3 and lang == \"en\"'$"),
        ("1 < a < 3", "character 1: a comparison belongs here"),
        ("a > 1 and b < c", 'character 15: a number, "text", true or false'),
        ("", "it ends before it is whole"),
        ("not " * 9999 + "a > 1", "it is nested too deeply"),
        ("a == 'x' or a > 3", "field 'a' is asked for as float and as str"),
        ("__import__('os').system('true')", "character 17: no part of a condition"),
    ],
)
def test_what_is_no_condition_is_refused_by_its_character(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Where.parse(text)


def write_rules(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_rules_on_columns_drop_by_numbers_and_by_values(tmp_path: Path) -> None:
    sources = [path for path in write_all(tmp_path / "in") if path.suffix in (".csv", ".parquet")]
    rules = write_rules(
        tmp_path / "r.toml", '"column:int_score" = { min = 3 }\n"column:lang" = { in = ["en", "fr"] }\n'
    )
    for source in sources:
        manifest = make(source, tmp_path / f"out-{source.suffix}", rules=rules, keep_rejected=True)
        assert manifest.counts["dropped"] == {"column:int_score": 3, "column:lang": 1}
        lines = (tmp_path / f"out-{source.suffix}/rejected.jsonl").read_text().splitlines()
        reasons = {json.loads(line)["id"]: json.loads(line)["reason"] for line in lines}
        assert reasons == {
            "d0": "column:int_score 1 < 3",
            "d1": "column:int_score 2 < 3",
            "d3": "column:lang is none of en, fr",
            "d5": "column:int_score is not a number, min 3",
        }


@pytest.mark.parametrize("entry", ["{ in = [] }", '{ in = ["a", 1] }', '{ in = "en" }', "{ in = [1], min = 2 }"])
def test_a_rule_with_values_that_cannot_work_is_refused(tmp_path: Path, entry: str) -> None:
    with pytest.raises(ConfigError, match=r"in must be a list .*texts or .*numbers"):
        load_rules(write_rules(tmp_path / "r.toml", f'"column:lang" = {entry}\n'))


def test_two_types_of_one_field_are_refused_before_any_work(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"field 'lang' .*as float and as str"):
        make(inputs / "a.jsonl", tmp_path / "out", keep_fields=["lang:float"], where='lang == "en"')


def test_kept_fields_stand_in_the_tables_of_shards_and_inspect_shows_them(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.cli.main import run_command

    manifest = make(inputs / "a.parquet", tmp_path / "out", keep_fields="url:str,int_score:int", where="int_score > 2")
    held = table(tmp_path / "out")
    assert (held["column:url"], held["column:int_score"]) == (COLUMNS["url"][2:5], [3, 4, 5])
    assert (manifest.counts["read"], manifest.counts["dropped"]) == (6, {"where": 3})
    assert run_command("inspect", [str(tmp_path / "out"), "--document", "1"]) == 0
    assert "column:url: https://example.org/3" in capsys.readouterr().out


def test_a_transform_reads_the_fields_it_names_and_keeps_its_own(inputs: Path, tmp_path: Path) -> None:

    @pipeline.transform(version="1", fields=("url:str",), adds=("depth:int",))
    def depth(document: Document) -> Document:
        assert document.metadata.keys() == {"url"}
        document.metadata["depth"] = document.metadata["url"].count("/")
        return document

    for name in ("a.jsonl", "a.parquet"):
        make(inputs / name, tmp_path / name, transforms=[depth], keep_fields=["depth:int"], dedup_lines=True)
        assert table(tmp_path / name)["column:depth"] == [3] * 6


def test_a_value_that_a_transform_adds_must_fit_its_field(inputs: Path, tmp_path: Path) -> None:

    def wrong(document: Document) -> Document:
        document.metadata["depth"] = "deep"
        return document

    given = pipeline.transform(wrong, version="1", adds=("depth:int",))
    with pytest.raises(pipeline.BuildError, match=r"document 'd0': field 'depth' .*type str, not .*whole number"):
        make(inputs / "a.jsonl", tmp_path / "out", transforms=[given], keep_fields=["depth:int"])


def test_any_workers_and_limits_give_the_same_bytes_where_records_are_selected(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        columns = {"text": [f"Text {number} {k} " * 20 for k in range(300)], "n": [k // 10 for k in range(300)]}
        pq.write_table(pa.table(columns), tmp_path / f"in/{number}.parquet", row_group_size=50)
    small = pipeline.builder.limits.Limits(unit_bytes=40_000, smallest_unit_bytes=20_000, batch_records=40)
    settings = {"where": "n >= 12 and n != 20", "keep_fields": "n:int", "dedup": True, "limits": small}
    found = []
    for workers in (1, 2):
        manifest = make(tmp_path / "in", tmp_path / f"out{workers}", workers=workers, **settings)
        found.append(digests(tmp_path / f"out{workers}"))
    assert manifest.counts["dropped"] == {"where": 3 * 130}
    assert found[0] == found[1]


def test_a_limit_counts_the_records_that_are_selected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"Text {k}.", "n": k % 3}) + "\n" for k in range(90)))
    for limit, read_ in ((10, 10), (None, 30)):
        manifest = make(tmp_path / "a.jsonl", tmp_path / "out", where="n == 1", limit=limit, overwrite=True)
        assert manifest.counts["kept"] == read_


def texts_of(stream: Any) -> list[str]:
    return [bytes((row["input_ids"][:-1] - 3).astype("u1")).decode() for row in stream.documents().numpy()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_condition_of_a_stream_selects_and_filters_see_fields(inputs: Path, name: str) -> None:
    path, where = inputs / name, 'int_score > 2 and lang == "en"'
    wanted = [record.text for record in read(path, where=where) if isinstance(record, Document)]
    data = pipeline.TextDataset(path, tokenizer="bytes", epochs=1, where=where)
    assert texts_of(data) == wanted != []
    assert texts_of(data.filter(lambda record: record.metadata["lang"] == "en")) == wanted
    with pytest.raises(ConfigError, match="no document was kept"):
        texts_of(data.filter(lambda record: record.metadata["int_score"] > 99))
    whole = pipeline.TextDataset(path, tokenizer="bytes", epochs=1, fields="int_score:int,lang")
    kept = whole.filter(lambda record: record.metadata["lang"] == "en" and (record.metadata["int_score"] or 0) > 2)
    assert texts_of(kept) == wanted
    whole = pipeline.TextDataset(path, tokenizer="bytes", epochs=1)
    with pytest.raises(KeyError, match="lang"):
        texts_of(whole.filter(lambda record: record.metadata["lang"] == "en"))
    with pytest.raises(StateError):
        whole.documents().load_state_dict(data.documents().state_dict())


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
def test_a_stream_with_a_condition_resumes_exactly(tmp_path: Path, kind: str) -> None:
    records = [{"text": f"Text {k}. ", "n": k % 3 if k < 200 else 9} for k in range(300)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet", row_group_size=60)
    else:
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"a.{kind}").write_bytes(gzip.compress(lines.encode()))
    data = pipeline.TextDataset(tmp_path / f"a.{kind}", tokenizer="bytes", where="n == 1", epochs=1)
    stream = data.shuffle(seed=1, lanes=2, window=20).pack(16).batch(2)
    batches = iter(stream)
    first = [next(batches)["input_ids"].tolist() for _ in range(5)]
    state = json.loads(json.dumps(stream.state_dict()))
    rest = [batch["input_ids"].tolist() for batch in batches]
    assert len(rest) > 5
    stream.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in stream] == rest
    assert sorted(texts_of(data.shuffle(seed=1))) == sorted(each["text"] for each in records if each["n"] == 1)
    assert first != [batch["input_ids"].tolist() for _, batch in zip(range(5), data.pack(16).batch(2), strict=False)]


def test_a_stream_reads_no_row_group_that_its_condition_rules_out() -> None:
    table = pa.table({"text": [os.urandom(3_000).hex() for _ in range(400)], "n": list(range(400))})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=40, compression="none", use_dictionary=False)
    with running_inputs() as server:
        server.files["a.parquet"] = file.getvalue()
        data = pipeline.TextDataset(server.url("a.parquet"), tokenizer="bytes", epochs=1, where="n >= 380")
        assert len(texts_of(data)) == 20
        assert server.sent < 0.15 * len(server.files["a.parquet"])


def test_a_condition_that_no_record_meets_is_an_error_of_the_stream(inputs: Path) -> None:
    data = pipeline.TextDataset(inputs / "a.jsonl", tokenizer="bytes", where="int_score > 99")
    with pytest.raises(ConfigError, match=r"no document was kept .*loosen the filter or the condition"):
        next(iter(data.pack(8).batch(1)))
    with pytest.raises(ConfigError, match="ends before it is whole"):
        pipeline.TextDataset(inputs / "a.jsonl", tokenizer="bytes", where="int_score >")
