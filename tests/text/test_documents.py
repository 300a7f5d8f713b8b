"""Files of every format give the same documents, with their ids, lines and bad records."""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.text import formats, readers
from pipeline.text.fields import parse_fields
from pipeline.text.normalize import normalize
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, InputFile, find_inputs, made_id
from pipeline.text.readers.format_reader import FormatReader, load_reader
from tests.helpers.documentation import PAGES
from tests.helpers.format_samples import FORMATS, PAIRS, Pairs, as_zst, write_parquet

ELSEWHERE = {".txt", ".tsv"}  # which cannot hold several texts, or any text, and have tests of their own


def documents(path: Path | InputFile, **settings: Any) -> list[Document]:
    records = list(DocumentReader(path, **settings))
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
    wanted = {suffix for each in formats.FORMATS for suffix in each.suffixes} - ELSEWHERE
    assert {suffix for suffix in wanted if any(name.endswith(suffix) for name in FORMATS)} == wanted


def test_the_docs_list_every_suffix_and_compression() -> None:
    (listed,) = [block for block in PAGES["docs/build.md"].split("\n\n") if block.startswith("**Formats.** ")]
    named, compressed = (re.findall(r"`(\.\w+)`", part) for part in listed.split("All\nbut Parquet and Arrow "))
    forms = [[each for each in formats.FORMATS if each.compressible is kind] for kind in (True, False)]
    by_kind = [[suffix for each in some for suffix in each.suffixes] for some in forms]
    assert sorted(named) == sorted(by_kind[0] + by_kind[1])
    assert compressed == list(formats.COMPRESSIONS)
    assert by_kind[1] == [".parquet", ".arrow"]


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_a_text_file_is_one_document_to_the_byte_after_its_mark(tmp_path: Path, packed: str) -> None:
    text = "a mark,\r\nline ends\r and no last one"
    pack = {"": bytes, ".gz": gzip.compress, ".zst": as_zst}[packed]
    path = tmp_path / f"A b.v2.txt{packed}"
    path.write_bytes(pack(text.encode("utf-8-sig")))
    assert documents(path) == [Document(text, "A b.v2", str(path), 1)]


def test_documents_know_file_line_and_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1, "text": "x"}\n\n{"text": "y"}\n')
    (file,) = find_inputs(f"wiki={tmp_path}")
    assert list(DocumentReader(file)) == [
        Document("x", "1", "a.jsonl", 1, "wiki", byte=0),
        Document("y", "a.jsonl:3", "a.jsonl", 3, "wiki", byte=24),
    ]
    assert [d.id for d in documents(tmp_path / "a.jsonl")] == ["1", made_id(f"{tmp_path}/a.jsonl", 3)]


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
    assert [d.id for d in documents(tmp_path / "a.jsonl")] == [expected.replace("FILE", f"{tmp_path}/a.jsonl")]


def test_ids_of_a_parquet_column_may_have_any_plain_type(tmp_path: Path) -> None:
    for ids, expected in ([[1, 2], ["1", "2"]], [["a", None], ["a", "F:2"]], [[True, False], ["true", "false"]]):
        path = write_parquet(tmp_path / "a.parquet", {"id": ids, "text": ["x", "y"]})
        assert [d.id for d in documents(path)] == [id.replace("F:", f"{path}:") for id in expected]


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


def test_ids_by_byte_say_where_a_line_begins(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a"}\n\n{"text": "b", "x": 1.0}\n{"text": "c", "id": "own"}\n{"text": "d", "id": 1.5}'
    )
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": "b"}]')
    for keep in ((), parse_fields(["x"])):
        found = documents(InputFile(tmp_path / "a.jsonl", "a.jsonl"), by_byte=True, keep=keep)
        assert [(each.id, each.line) for each in found] == [
            ("a.jsonl:byte 0", 0),
            ("a.jsonl:byte 15", 0),
            ("own", 0),
            ("1.5", 0),
        ]
    assert [each.id for each in documents(InputFile(tmp_path / "a.json", "a.json"), by_byte=True)] == [
        made_id("a.json", line) for line in (1, 2)
    ]


def test_only_line_feeds_end_lines_and_every_line_is_counted(tmp_path: Path) -> None:
    data = "\ufeff" + '{"text": "a\u2028b\x85"}\r\n\r\n \t\n{"text": "c"}'
    (tmp_path / "a.jsonl").write_bytes(data.encode())
    assert [(d.text, d.line) for d in documents(tmp_path / "a.jsonl")] == [("a\u2028b\x85", 1), ("c", 4)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.txt"])
def test_a_mark_amid_joined_files_is_no_text(tmp_path: Path, name: str) -> None:
    part = "\ufeffone\n\ufeff\ntwo" if name == "a.txt" else '\ufeff{"text": "one"}\n\ufeff\n{"text": "two"}'
    data = f"{part}\n{part}".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    file = InputFile(tmp_path / name, name, forced_format="lines" if name == "a.txt" else "")
    found = [(record.text, record.line) for record in DocumentReader(file) if isinstance(record, Document)]
    assert found == [("one", 1), ("two", 3), ("one", 4), ("two", 6)]


def test_a_bad_line_is_named_with_its_place_and_costs_only_itself(tmp_path: Path) -> None:
    lines = [b'{"text": "a"}', b"", b'{"text": ', b'{"text": "\xff"}', b'{"text": "b"}', b"[]"]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))
    records = list(DocumentReader(tmp_path / "a.jsonl"))
    assert [r.text if isinstance(r, Document) else (r.line, r.byte, r.reason) for r in records] == [
        "a",
        (3, 3 + 15 + 2, "invalid JSON"),
        (4, 3 + 15 + 2 + 11, "invalid UTF-8"),
        "b",
        (6, 3 + 15 + 2 + 11 + 15 + 15, "not a JSON object"),
    ]


def test_csv_lines_are_those_of_the_file_where_a_row_begins(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\r\n1,"two\nlines"\r\n\r\n2,b\r\n3\r\n4,"c"x\n5,"\xff"\n6,d')
    records = list(DocumentReader(tmp_path / "a.csv"))
    assert [(r.line, r.text if isinstance(r, Document) else r.reason) for r in records] == [
        (2, "two\nlines"),
        (5, "b"),
        (6, "invalid CSV"),
        (7, "invalid CSV"),
        (8, "invalid UTF-8"),
        (9, "d"),
    ]


def test_an_open_quote_in_csv_does_not_pass_for_a_long_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,a\n2,"never closed\n3,c\n4,d\n')
    first, second = DocumentReader(tmp_path / "a.csv")
    assert isinstance(first, Document)
    assert isinstance(second, BadRecord)
    assert (second.line, second.reason) == (3, "invalid CSV")
    assert "lines 3 to 5" in second.detail


def test_importing_the_readers_is_light() -> None:
    heavy = ("isal", "pyarrow", "torch", "transformers", "zstandard")
    code = f"import sys, pipeline.text.readers.document_reader; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_formats_and_readers_are_those_of_the_table() -> None:
    for each in formats.FORMAT_NAMES.values():
        assert isinstance(load_reader(each), FormatReader)
    for each in formats.FORMATS:
        assert all(formats.format_of(f"x{suffix.upper()}") is each for suffix in each.suffixes)
    modules = {
        found.name: importlib.import_module(f"{readers.__name__}.{found.name}")
        for found in pkgutil.iter_modules(readers.__path__)
    }
    defining = {name for name, module in modules.items() if hasattr(module, "READER") or hasattr(module, "reader_of")}
    assert defining == {each.module for each in formats.FORMAT_NAMES.values()}
    assert sum(
        len(each.suffixes) * (each.compressible * len(formats.COMPRESSIONS) + 1) for each in formats.FORMATS
    ) == len(formats.ENDINGS)


# Characters that can interact: line ends, controls, marks, parts of composed characters, Hangul letters.
TRICKY = st.text(
    st.sampled_from(
        "a \n\r\t\x00\x0b\x1b\x7f\x80\x85\x9f\ufeff\u0301\u0327e\u00e9\u2126\u1100\u1161\u11a8\u2028\U0001d15e"
    )
)
TEXTS = st.one_of(st.text(), TRICKY)


@given(TEXTS)
@example("\x00\ufeff\x00\ufeffx")
@example("\r\x00\n")
@example("e\x00\u0301")
@example("nul\x00 escape\x1b delete\x7f next\x85line\u2028 a lone \ud800 surrogate\x00")
def test_normalizing_twice_changes_nothing_more(text: str) -> None:
    once = normalize(text)
    assert normalize(once) == once


@given(TEXTS)
def test_it_is_the_plain_definition_step_by_step(text: str) -> None:
    kept = "".join(c for c in text if c in "\n\r\t" or unicodedata.category(c) != "Cc")
    expected = unicodedata.normalize("NFC", kept.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff"))
    assert normalize(text) == expected
