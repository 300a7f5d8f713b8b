from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import importlib
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import InputError
from pipeline.text import formats, readers
from pipeline.text.readers.format_reader import FormatReader, load_reader
from pipeline.text.readers.reader import (
    BadRecord,
    Document,
    FileSpan,
    Reader,
    find_inputs,
    fingerprint,
    made_id,
    read_documents,
    split_file,
)

Pairs = list[tuple[str, str]]
PAIRS: Pairs = [
    ("a", "plain text"),
    ("b/ü", "two\nlines, and a \"quote\"\r\nand\ttabs"),
    ("c", "separators \u2028 \u2029 \x85 \x1c inside"),
    ("d", "emoji \U0001f600, e\u0301, \ufeff mark, NUL \x00"),
    ("e", " spaces at both ends "),
    ("f", "x" * 200_000),
]  # fmt: skip


def as_jsonl(pairs: Pairs) -> bytes:
    return "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in pairs).encode()


def as_csv(pairs: Pairs, delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([("id", "text"), *pairs])
    return file.getvalue().encode()


def as_zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def write_parquet(path: Path, columns: dict[str, Any], rows_per_group: int = 2) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def as_parquet(pairs: Pairs) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table({"id": [i for i, _ in pairs], "text": [t for _, t in pairs]}), file, row_group_size=2)
    return file.getvalue()


def as_arrow(pairs: Pairs) -> bytes:
    import pyarrow as pa

    table, file = pa.table({"id": [i for i, _ in pairs], "text": [t for _, t in pairs]}), io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return file.getvalue()


def as_tar(pairs: Pairs) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, (id, text) in enumerate(pairs):
            payload = json.dumps({"id": id, "text": text}).encode()
            member = tarfile.TarInfo(f"{number}.json")
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return file.getvalue()


# A file of each format, by its name: a format without one fails a test below.
FORMATS: dict[str, Callable[[Pairs], bytes]] = {
    "x.jsonl": as_jsonl,
    "x.ndjson": as_jsonl,
    "x.JSONL.GZ": lambda pairs: gzip.compress(as_jsonl(pairs)),
    "x.jsonl.zst": lambda pairs: as_zst(as_jsonl(pairs)),
    "x.json": lambda pairs: json.dumps([{"id": id, "text": text} for id, text in pairs], indent=1).encode(),
    "x.json.gz": lambda pairs: gzip.compress(as_jsonl(pairs)),
    "x.csv": as_csv,
    "x.csv.gz": lambda pairs: gzip.compress(as_csv(pairs)),
    "x.csv.zst": lambda pairs: as_zst(as_csv(pairs)),
    "x.tsv": functools.partial(as_csv, delimiter="\t"),
    "x.parquet": as_parquet,
    "x.arrow": as_arrow,
    "x.tar": as_tar,
}
ONE_DOCUMENT = "plain"  # the format whose files are one document each, which has tests of its own


def documents(path: Path, **settings: Any) -> list[Document]:
    records = list(Reader(path, **settings))
    assert [record for record in records if isinstance(record, BadRecord)] == []
    return records  # type: ignore[return-value]


def pairs_of(path: Path, **settings: Any) -> Pairs:
    return [(document.id, document.text) for document in documents(path, **settings)]


# One document, many formats.


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_documents_come_out_of_every_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMATS[name](PAIRS))
    assert pairs_of(tmp_path / name) == PAIRS


def test_every_format_has_a_file_above_for_each_of_its_suffixes() -> None:
    wanted = {suffix for each in formats.FORMATS if each.module != ONE_DOCUMENT for suffix in each.suffixes}
    assert {suffix for suffix in wanted if any(name.endswith(suffix) for name in FORMATS)} == wanted


def test_the_readme_lists_every_suffix_and_compression() -> None:
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    (listed,) = [block for block in readme.split("\n\n") if block.startswith("Formats: ")]
    compressible, others = listed.split("each also ")
    stated = [re.findall(r"`(\.\w+)`", part) for part in (compressible, *others.split(";", 1))]
    by_kind = [
        [s for each in formats.FORMATS if each.compressible is kind for s in each.suffixes] for kind in (True, False)
    ]
    assert [sorted(stated[0]), stated[1], sorted(stated[2])] == [
        sorted(by_kind[0]),
        list(formats.COMPRESSIONS),
        sorted(by_kind[1]),
    ]


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_a_text_file_is_one_document_to_the_byte(tmp_path: Path, packed: str) -> None:
    text = "\ufeffa mark,\r\nline ends\r and no last one"
    pack = {"": bytes, ".gz": gzip.compress, ".zst": as_zst}[packed]
    path = tmp_path / f"A b.v2.txt{packed}"
    path.write_bytes(pack(text.encode()))
    assert documents(path) == [Document(text, "A b.v2", str(path), 1)]


def test_the_shared_documents_are_equal_in_five_formats(shared_data: Path) -> None:
    folder = shared_data / "dev-formats"
    expected = dict(pairs_of(folder / "sample.jsonl.gz"))
    assert len(expected) == 1493
    for name in ("sample.jsonl.zst", "sample.parquet", "sample.csv"):
        assert list(dict(pairs_of(folder / name)).items()) == list(expected.items())
    assert dict(pair for file in find_inputs(folder / "txt") for pair in pairs_of(file.path)) == expected


def test_documents_know_file_line_and_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1, "text": "x"}\n\n{"text": "y"}\n')
    (file,) = find_inputs(f"wiki={tmp_path}")
    assert list(Reader(file)) == [
        Document("x", "1", "a.jsonl", 1, "wiki"),
        Document("y", "a.jsonl:3", "a.jsonl", 3, "wiki"),
    ]
    assert [d.id for d in documents(tmp_path / "a.jsonl", file="named")] == ["1", made_id("named", 3)]


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("7", "7"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("1.50", "1.50"),
        ("true", "true"),
        ('"a/b.c\\n"', "a/b.c\n"),
        ("null", "FILE:1"),
        ('""', "FILE:1"),
    ],
)
def test_an_id_is_any_scalar_as_it_is_spelled(tmp_path: Path, id: str, expected: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"id": {id}, "text": "x"}}')
    assert [d.id for d in documents(tmp_path / "a.jsonl", file="FILE")] == [expected]


def test_ids_of_a_parquet_column_may_have_any_plain_type(tmp_path: Path) -> None:
    for ids, expected in ([[1, 2], ["1", "2"]], [["a", None], ["a", "F:2"]], [[True, False], ["true", "false"]]):
        path = write_parquet(tmp_path / "a.parquet", {"id": ids, "text": ["x", "y"]})
        assert [d.id for d in documents(path, file="F")] == expected


def test_dots_lead_into_nested_fields_unless_a_field_is_named_so(tmp_path: Path) -> None:
    rows = [{"meta": {"id": "n", "body": {"text": "inner"}}}, {"meta": {"id": "m"}, "meta.body.text": "outer"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    keys = {"text_key": "meta.body.text", "id_key": "meta.id"}
    assert pairs_of(tmp_path / "a.jsonl", **keys) == [("n", "inner"), ("m", "outer")]
    path = write_parquet(tmp_path / "a.parquet", {"meta": [{"id": "n", "body": {"text": "inner"}}]})
    assert pairs_of(path, **keys) == [("n", "inner")]


def test_parquet_text_may_be_large_binary_or_dictionary(tmp_path: Path) -> None:
    import pyarrow as pa

    plain = pa.array(["one", "two", "one"])
    for column in (plain.cast(pa.large_string()), plain.cast(pa.binary()), plain.dictionary_encode()):
        path = write_parquet(tmp_path / "a.parquet", {"text": column})
        assert [text for _, text in pairs_of(path)] == ["one", "two", "one"]


def test_python_writes_nan_and_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "score": NaN, "other": -Infinity}')
    assert [d.text for d in documents(tmp_path / "a.jsonl")] == ["x"]


# Lines.


def test_only_line_feeds_end_lines_and_every_line_is_counted(tmp_path: Path) -> None:
    data = "\ufeff" + '{"text": "a\u2028b\x85"}\r\n\r\n \t\n{"text": "c"}'
    (tmp_path / "a.jsonl").write_bytes(data.encode())
    assert [(d.text, d.line) for d in documents(tmp_path / "a.jsonl")] == [("a\u2028b\x85", 1), ("c", 4)]


def test_a_bad_line_is_named_with_its_place_and_costs_only_itself(tmp_path: Path) -> None:
    lines = [b'{"text": "a"}', b"", b'{"text": ', b'{"text": "\xff"}', b'{"text": "b"}', b"[]"]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))
    records = list(read_documents(tmp_path / "a.jsonl"))
    assert [r.text if isinstance(r, Document) else (r.line, r.byte, r.reason) for r in records] == [
        "a",
        (3, 3 + 15 + 2, "invalid JSON"),
        (4, 3 + 15 + 2 + 11, "invalid UTF-8"),
        "b",
        (6, 3 + 15 + 2 + 11 + 15 + 15, "not a JSON object"),
    ]


def test_places_of_bad_lines_hold_far_into_a_file(tmp_path: Path) -> None:
    good = b'{"text": "' + b"x" * 1000 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(good * 3000 + b"bad\n" + good * 10)
    bad = [record for record in Reader(tmp_path / "a.jsonl") if isinstance(record, BadRecord)]
    assert [(record.line, record.byte) for record in bad] == [(3001, 3000 * len(good))]


def test_csv_lines_are_those_of_the_file_where_a_row_begins(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\r\n1,"two\nlines"\r\n\r\n2,b\r\n3\r\n4,"c"x\n5,"\xff"\n6,d')
    records = list(Reader(tmp_path / "a.csv"))
    assert [(r.line, r.text if isinstance(r, Document) else r.reason) for r in records] == [
        (2, "two\nlines"),
        (5, "b"),
        (6, "invalid CSV"),
        (7, "invalid CSV"),
        (8, "invalid UTF-8"),
        (9, "d"),
    ]
    assert [r.byte for r in records if isinstance(r, BadRecord)] == [31, 34, 41]


def test_an_open_quote_in_csv_does_not_pass_for_a_long_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,a\n2,"never closed\n3,c\n4,d\n')
    first, second = Reader(tmp_path / "a.csv")
    assert isinstance(first, Document)
    assert isinstance(second, BadRecord)
    assert (second.line, second.reason) == (3, "invalid CSV")
    assert "lines 3 to 5" in second.detail


# Hashes and progress.


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_file_is_counted_and_hashed_as_it_is_read(tmp_path: Path, name: str) -> None:
    data = FORMATS[name](PAIRS)
    (tmp_path / name).write_bytes(data)
    reader = Reader(tmp_path / name)
    seen = [reader.bytes_read for _ in reader]
    assert seen == sorted(seen)
    assert (reader.bytes_read, reader.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert reader.documents == len(PAIRS)


def test_a_fingerprint_sees_name_size_and_both_ends(tmp_path: Path) -> None:
    data = bytearray(os.urandom(3 << 20))
    path = tmp_path / "a.jsonl"
    seen = set()
    for place in (None, 0, (1 << 20) - 1, (2 << 20) + 1, len(data) - 1):
        if place is not None:
            data[place] ^= 1
        path.write_bytes(data)
        seen.add(fingerprint(path))
    path.write_bytes(data + b"x")
    seen.add(fingerprint(path))
    assert len(seen) == 6
    assert fingerprint(path) in seen
    assert fingerprint(path.rename(tmp_path / "b.jsonl")) not in seen
    (tmp_path / "empty").write_bytes(b"")
    assert len(fingerprint(tmp_path / "empty")) == 64


# Spans.


def read_by_spans(path: Path, unit: int) -> tuple[list[tuple[Any, ...]], list[FileSpan]]:
    """Return what all spans hold, lines made absolute, having checked that their hashes and bytes cover the file."""
    spans = split_file(path, unit)
    found: list[tuple[Any, ...]] = []
    lines = covered = 0
    raw = path.read_bytes()
    for span in spans:
        reader = Reader(path, span, file="F")
        for record in reader:
            line = record.line + lines
            if isinstance(record, Document):
                found.append((line, record.text, record.id or made_id("F", line)))
            else:
                found.append((line, record.reason, record.byte))
        lines += reader.lines
        assert reader.sha256 == hashlib.sha256(raw[covered : covered + reader.bytes_read]).hexdigest()
        covered += reader.bytes_read
    assert covered == len(raw)
    return found, spans


def check_spans(path: Path, unit: int) -> list[FileSpan]:
    whole = Reader(path, file="F")
    expected = [
        (r.line, r.text, r.id) if isinstance(r, Document) else (r.line, r.reason, r.byte) for r in whole
    ]  # fmt: skip
    found, spans = read_by_spans(path, unit)
    assert found == expected
    return spans


JSON_LINES = st.lists(
    st.sampled_from(
        [
            b"",
            b"  ",
            b"\r",
            b'{"text":"a"}',
            b'{"text":"\xc3\xa9","id":1}',
            b'{"text":"bcd"}\r',
            b"bad",
            b'{"text":"\xff"}',
        ]
    )
)


@settings(deadline=None, max_examples=150)
@given(JSON_LINES, st.booleans(), st.booleans(), st.integers(1, 60))
def test_spans_of_json_lines_hold_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], mark: bool, closed: bool, unit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "spans.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * mark + b"\n".join(lines) + b"\n" * closed)
    spans = check_spans(path, unit)
    assert len(spans) == max(1, -(-path.stat().st_size // max(unit, 8)))


CSV_CELLS = st.text(st.sampled_from('a"\n\r, \u00e9'), max_size=8)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(CSV_CELLS, CSV_CELLS), max_size=12), st.integers(1, 60), st.booleans())
@example([("a", '"'), ("b", "\n"), ("c", '"\n"')], 1, True)
def test_spans_of_csv_hold_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, rows: Pairs, unit: int, quote_all: bool
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL).writerows([("id", "text"), *rows])
    path = tmp_path_factory.getbasetemp() / "spans.csv"
    path.write_bytes(file.getvalue().encode())
    check_spans(path, unit)


@settings(deadline=None, max_examples=400)
@given(st.text(st.sampled_from('a"\n\r,'), max_size=60), st.integers(1, 12))
@example('5" pipe,b\n"x\ny",c\n', 4)
@example('a\r"b\n",c\n', 3)
@example('\r,"\n"\na', 1)
def test_csv_is_never_cut_inside_a_row_however_it_is_quoted(
    tmp_path_factory: pytest.TempPathFactory, text: str, unit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "odd.csv"
    path.write_text("id,text\n" + text, newline="")
    check_spans(path, unit)


def test_csv_cuts_hold_over_blocks_and_stop_where_quotes_are_loose(tmp_path: Path) -> None:
    row = b'1,"' + b'say ""x"",\n' * 50_000 + b'"\n'
    (tmp_path / "a.csv").write_bytes(b"id,text\n" + row * 8)
    assert len(check_spans(tmp_path / "a.csv", 600_000)) == 4
    (tmp_path / "b.csv").write_bytes(b"id,text\n" + row * 4 + b'2,5" pipe\n' + row * 4)
    spans = check_spans(tmp_path / "b.csv", 600_000)
    assert 1 <= len(spans) <= 3


def test_spans_of_parquet_are_row_groups(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"text": [f"{n} " * 50 for n in range(20)]}, rows_per_group=3)
    assert len(check_spans(path, 1)) == 7
    assert 1 < len(check_spans(path, 800)) < 7
    assert check_spans(path, 1 << 30) == [FileSpan(0, None)]


def test_what_cannot_be_cut_is_one_span(tmp_path: Path) -> None:
    for name in ("x.JSONL.GZ", "x.jsonl.zst", "x.json", "x.csv.gz"):
        (tmp_path / name).write_bytes(FORMATS[name](PAIRS))
        assert split_file(tmp_path / name, 10) == [FileSpan(0, None)]
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    (tmp_path / "packed-by-content.jsonl").write_bytes(gzip.compress(as_jsonl(PAIRS)))
    assert (
        split_file(tmp_path / "a.txt", 10)
        == split_file(tmp_path / "packed-by-content.jsonl", 10)
        == [FileSpan(0, None)]
    )


# What the user names.


def names(specs: Any) -> list[str]:
    return [file.name for file in find_inputs(specs)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("part-10.jsonl", "part-2.jsonl", "b/x.txt", "a/y.CSV", "a/z.parquet"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


def test_a_directory_is_read_with_all_below_it_in_natural_order(tree: Path) -> None:
    assert names(tree) == ["a/y.CSV", "a/z.parquet", "b/x.txt", "part-2.jsonl", "part-10.jsonl"]


def test_files_globs_braces_and_lists_keep_the_given_order(tree: Path) -> None:
    assert names([str(tree / "part-10.jsonl"), tree / "a"]) == ["part-10.jsonl", "y.CSV", "z.parquet"]
    assert names(f"{tree}/part-*.jsonl") == ["part-2.jsonl", "part-10.jsonl"]
    assert names(f"{tree}/part-{{10,2}}.jsonl") == ["part-10.jsonl", "part-2.jsonl"]
    assert names(f"{tree}/part-{{2..2}}.jsonl") == ["part-2.jsonl"]
    assert names(f"{tree}/**/*.[Ctp]*") == ["a/y.CSV", "a/z.parquet", "b/x.txt"]
    assert names(f"{tree}/?") == ["a/y.CSV", "a/z.parquet", "b/x.txt"]


def test_a_name_before_the_path_is_its_source_unless_a_file_is_called_so(tree: Path, monkeypatch: Any) -> None:
    assert {file.source for file in find_inputs([f"web-1={tree}/part-*.jsonl"])} == {"web-1"}
    monkeypatch.chdir(tree)
    Path("a=b.txt").write_bytes(b"")
    assert [(file.source, file.name) for file in find_inputs("a=b.txt")] == [("", "a=b.txt")]


@pytest.fixture
def partitions(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder partitioned as Hive does it, with others beside."""
    for name in ("date=2024-01/x.jsonl", "date=2024-02/x.jsonl", "other/x.jsonl", "2024-01/x.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("spec", ["date=*/x.jsonl", "date=2024-*", "date={2024-01,2024-02}/x.jsonl", "{root}/date=*"])
def test_the_folders_of_a_partition_are_no_source(partitions: Path, spec: str) -> None:
    found = find_inputs(spec.replace("{root}", str(partitions)))
    paths = sorted(os.path.relpath(file.path, partitions) for file in found)
    assert paths == ["date=2024-01/x.jsonl", "date=2024-02/x.jsonl"]
    assert {file.source for file in found} == {""}


def test_partitions_take_a_source_of_their_own_and_keep_their_names(partitions: Path) -> None:
    for spec in ("web=date=*/x.jsonl", f"web={partitions}/date=*/x.jsonl"):
        found = [(file.source, file.name) for file in find_inputs(spec)]
        assert found == [("web", "date=2024-01/x.jsonl"), ("web", "date=2024-02/x.jsonl")]
    assert [file.name for file in find_inputs("date=2024-02/x.jsonl")] == ["x.jsonl"]
    found = [(file.source, file.name) for file in find_inputs("day=*/x.jsonl")]
    assert found == [("day", f"{folder}/x.jsonl") for folder in ("2024-01", "date=2024-01", "date=2024-02", "other")]


def test_a_path_that_reads_as_a_source_and_a_path_too_is_refused_with_both_spellings(partitions: Path) -> None:
    message = r"date=2024-01: a path, and 2024-01 is one too; write \./date=2024-01 .* or date=\./2024-01 "
    with pytest.raises(InputError, match=message):
        find_inputs("date=2024-01")
    assert [file.source for file in find_inputs(["./date=2024-01", "date=./2024-01"])] == ["", "date"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("date=2025/x.jsonl", r"2025/x\.jsonl: no such file or directory.*, nor is there date=2025/x\.jsonl"),
        ("date=2025*", r"2025\*: no file matches, nor does any match date=2025\*"),
    ],
)
def test_an_argument_that_is_neither_a_path_nor_a_source_is_refused_as_both(
    partitions: Path, spec: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        find_inputs(spec)


@pytest.fixture
def folder_with_datasets(tree: Path) -> Path:
    """A folder of text that holds a complete dataset, one begun, and what is neither."""
    for name in ("old/shards", "begun/.build", "plain"):
        (tree / name).mkdir(parents=True)
    (tree / "old/shards/manifest.json").write_text('{"counts": {}, "format": "shardwright"}')
    (tree / "begun/.build/plan.json").write_text("{}")
    (tree / "plain/manifest.json").write_text('{"format": "another"}')
    for name in ("old/shards/train-000000.tar", "old/shards/rejected.jsonl", "begun/val-000000.tar", "plain/a.tar"):
        (tree / name).write_bytes(b"")
    return tree


TEXTS = ["a/y.CSV", "a/z.parquet", "b/x.txt", "part-2.jsonl", "part-10.jsonl"]


@pytest.mark.parametrize("pattern", ["", "/*", "/**"])
def test_datasets_below_an_input_folder_are_left_out_and_counted(folder_with_datasets: Path, pattern: str) -> None:
    with pytest.warns(UserWarning, match="2 datasets of shards left out: ") as caught:
        found = find_inputs(f"{folder_with_datasets}{pattern}")
    paths = {os.path.relpath(file.path, folder_with_datasets) for file in found}
    assert paths == {*TEXTS, "plain/a.tar", "plain/manifest.json"}
    said = " ".join(str(warning.message) for warning in caught)
    assert "old/shards" in said
    assert "begun" in said


@pytest.mark.parametrize("spec", ["old/shards", "begun", "old/shards/train-000000.tar"])
def test_a_dataset_named_itself_is_refused_with_the_cure(folder_with_datasets: Path, spec: str) -> None:
    with pytest.raises(InputError, match=r"belongs to a dataset of shards.* name the text that it was made from, or"):
        find_inputs(folder_with_datasets / spec)
    [file] = find_inputs(folder_with_datasets / "old/shards/rejected.jsonl")
    assert file.name == "rejected.jsonl"


def test_a_pattern_of_which_only_datasets_match_is_refused(folder_with_datasets: Path) -> None:
    with pytest.raises(InputError, match=r"nothing to read, no file \(1 dataset of shards left out: .*old/shards\)"):
        find_inputs(f"{folder_with_datasets}/old/shards/*.tar")


def test_the_output_is_never_read(tree: Path) -> None:
    with pytest.warns(UserWarning, match=r"the output, .*/a, is never read"):
        assert [file.name for file in find_inputs(tree, output=tree / "a")] == ["b/x.txt", *TEXTS[3:]]
    for spec in (tree, tree / "part-2.jsonl", tree / "a"):
        with pytest.raises(InputError, match=r"lies in the output, .*; choose another --output, or move"):
            find_inputs(spec, output=tree)
    (tree / "link").symlink_to(tree / "a")
    with pytest.raises(InputError, match="lies in the output"):
        find_inputs(tree / "a" / "y.CSV", output=tree / "link")
    assert len(find_inputs(tree / "b", output=tree / "bb")) == 1


def test_special_characters_in_a_name_that_exists_are_just_characters(tree: Path) -> None:
    (tree / "odd{1}[2].txt").write_bytes(b"")
    assert names(tree / "odd{1}[2].txt") == ["odd{1}[2].txt"]


def test_files_left_out_of_a_directory_are_named(tree: Path) -> None:
    for name in ("README.md", ".hidden.jsonl", "a/_SUCCESS"):
        (tree / name).write_bytes(b"")
    with pytest.warns(UserWarning, match="3 of 8 files left out") as caught:
        assert len(find_inputs(tree)) == 5
    for name in ("README.md", ".hidden.jsonl", "a/_SUCCESS"):
        assert name in str(caught[0].message)


def test_a_warning_names_the_line_of_the_user_whatever_was_called(tree: Path) -> None:
    (tree / "notes.bin").write_bytes(b"")
    for call in (find_inputs, lambda folder: pipeline.TextDataset(folder, tokenizer="bytes")):
        with pytest.warns(UserWarning, match="1 of 6 files left out") as caught:
            call(tree)
        assert caught[0].filename == __file__


def test_links_are_followed_once(tree: Path) -> None:
    (tree / "a" / "loop").symlink_to(tree)
    (tree / "linked.txt").symlink_to(tree / "b" / "x.txt")
    assert names(tree).count("linked.txt") == 1
    assert len(names(tree)) == 6


def test_a_directory_named_like_a_file_is_read_as_a_directory(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").mkdir()
    (tmp_path / "d.jsonl" / "x.txt").write_bytes(b"")
    assert names(tmp_path / "d.jsonl") == ["x.txt"]


def missing_inputs(tree: Path) -> Iterator[tuple[str, str]]:
    (tree / "empty").mkdir()
    (tree / "unknown.xyz").write_bytes(b"")
    (tree / "dangling.jsonl").symlink_to("nowhere")
    os.mkfifo(tree / "fifo.jsonl")
    yield "part-3.jsonl", r"no such file .*did you mean 'part-2.jsonl'"
    yield "none-*.jsonl", "no file matches"
    yield "part-{2,3}.jsonl", "part-3.jsonl: no such file"
    yield "part-{2", "braces"
    yield "empty", "nothing to read"
    yield "unknown.xyz", r"unknown ending \(.xyz\); readable are .jsonl .*\.parquet"
    yield "unkn*", r"only unknown.xyz; readable are"
    yield "dangling.jsonl", "a link to nowhere, which is not there"
    yield "fifo.jsonl", "a FIFO"


def test_what_cannot_be_read_is_refused_with_its_name(tree: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tree)
    for spec, message in missing_inputs(tree):
        with pytest.raises(InputError, match=message) as caught:
            find_inputs(spec)
        assert spec.split("{")[0].split("*")[0] in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(InputError, match="no permission"):
        find_inputs(tmp_path / "a.txt")


def test_importing_the_readers_is_light() -> None:
    heavy = ("isal", "pyarrow", "torch", "transformers", "zstandard")
    code = f"import sys, pipeline.text.readers.reader; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_format_of_the_table_has_a_reader_and_every_reader_is_in_the_table() -> None:
    listed = {each.module for each in formats.FORMATS}
    for each in formats.FORMATS:
        assert isinstance(load_reader(each), FormatReader)
        assert all(formats.format_of(f"x{suffix.upper()}") is each for suffix in each.suffixes)
    modules = [found.name for found in pkgutil.iter_modules(readers.__path__)]
    defining = {name for name in modules if hasattr(importlib.import_module(f"{readers.__name__}.{name}"), "READER")}
    assert defining == listed
    assert sum(
        len(each.suffixes) * (each.compressible * len(formats.COMPRESSIONS) + 1) for each in formats.FORMATS
    ) == len(formats.ENDINGS)
