"""CSV and TSV: which characters stand between and around fields, how lines end, and rows that are not closed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.errors import BuildError, ConfigError, InputError
from pipeline.text.document import Unselected
from pipeline.text.fields import parse_fields
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, InputFile
from tests.helpers.builds import run
from tests.helpers.commands import Says
from tests.helpers.text_samples import spelled

PLAIN: dict[str, Any] = {"tokenizer": "bytes", "language": (), "rules": (), "dedup": False, "val_fraction": 0}


def read(path: Path, data: str | bytes, format: str = "") -> list[str | BadRecord]:
    """Write a file and return the text of each document, and the bad records."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    records = list(DocumentReader(InputFile(path, path.name, forced_format=format)))
    return [record.text if isinstance(record, Document) else record for record in records]  # type: ignore[misc]


def test_quotes_in_tsv_are_text(tmp_path: Path) -> None:
    rows = [f"{n}\ttext {n}, and more" for n in range(30)]
    rows[4], rows[20] = '4\t"begins', '20\tends"'
    found = read(tmp_path / "x.tsv", "\n".join(["id\ttext", *rows]))
    assert found == [row.partition("\t")[2] for row in rows]


@pytest.mark.parametrize(
    ("row", "as_text"),
    [('1\t"said ""no"" twice"', True), ('1\t"a\tb"', False), ('1\t"two\nlines"', False), ('"1"\t"a\tb"', False)],
)
def test_a_row_of_tsv_that_seems_quoted_is_bad_and_names_the_setting(tmp_path: Path, row: str, as_text: bool) -> None:
    *_, bad = read(tmp_path / "x.tsv", f"id\ttext\n0\ta\n{row}\n")
    assert isinstance(bad, BadRecord)
    assert (bad.line, "--format 'tsv,quote=\"'" in bad.reason) == (3 + row.count("\n"), True)
    quoted = read(tmp_path / "x.tsv", f"id\ttext\n{row}\n", 'tsv,quote="')
    assert quoted == [next(csv.reader(io.StringIO(row, newline=""), delimiter="\t"))[1]]
    *_, unquoted = read(tmp_path / "x.tsv", f"id\ttext\n{row}\n", "tsv,quote=none")
    assert unquoted == row.partition("\t")[2] if as_text else isinstance(unquoted, BadRecord)


@pytest.mark.parametrize(
    ("format", "row", "text"),
    [
        ("csv,delimiter=;", '1;"a;b"', "a;b"),
        ("csv,delimiter=,,quote='", "1,'a,''b'", "a,'b"),
        ("csv,quote=none,delimiter=|", '1|"a', '"a'),
        ("csv,escape=\\", '1,"a \\"b\\", c"', 'a "b", c'),
        ("csv,escape=\\,quote=none", '1,a\\, "b', 'a, "b'),
        ('csv,escape="', '1,"a ""b"""', 'a "b"'),
        ("csv,delimiter=\\t", '1\t"a\tb"', "a\tb"),
        ("csv,delimiter=¦", "1¦a", "a"),
        ("tsv", "1\ta", "a"),
    ],
)
def test_a_format_names_delimiter_quote_and_escape(tmp_path: Path, format: str, row: str, text: str) -> None:
    header = row[: row.index("1")] + "id" + row[row.index("1") + 1] + "text"
    assert read(tmp_path / "x.data", f"{header}\n{row}\n", format) == [text]


def test_builds_and_streams_read_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id;text\n1;a,b\n2;'c;d'\n")
    format = "csv,delimiter=;,quote='"
    stream = pipeline.TextDataset(tmp_path / "x.csv", "bytes", epochs=1, format=format).documents()
    assert [spelled(item["input_ids"]) for item in stream] == ["a,b", "c;d"]
    built = run(tmp_path / "x.csv", tmp_path / "o", format=format, **PLAIN)
    assert (built.counts["kept"], built.recipe["settings"]["format"]) == (2, format)


@pytest.mark.parametrize(
    ("format", "value"),
    [
        ("csv,delim=;", "one character"),
        ("csv,delimiter=||", "one character"),
        ("csv,delimiter=", "one character"),
        ("csv,delimiter=none", "one character"),
        ("csv,quote=,", "different characters"),
        ("tsv,escape=\\t", "different characters"),
        ("csv,delimiter=\n", "other than line ends"),
        ("csv;delimiter=;", "format must be one of"),
    ],
)
def test_a_setting_of_csv_that_is_none_is_refused(format: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value):
        pipeline.text.formats.format_named(format)


@pytest.mark.parametrize(
    ("name", "header", "cure"),
    [
        ("x.csv", "id;text", "'csv,delimiter=;'"),
        ("x.csv", "id\ttext", "tsv"),
        ("x.csv", "'id'|'text'", "'csv,delimiter=|,quote='\"'\"''"),
        ("x.tsv", '"id"\t"text"', "'tsv,quote=\"'"),
        ("x.tsv", 'id,"text"', "csv,delimiter=,"),
    ],
)
def test_a_header_with_other_characters_names_the_format(tmp_path: Path, name: str, header: str, cure: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path / name, f"{header}\n1,a\n")
    assert f"--format {cure} reads it" in str(error.value)


@pytest.mark.parametrize("ending", ["\r", "\r\n", "\n"])
def test_lines_end_as_the_first_one_does(tmp_path: Path, ending: str) -> None:
    rows = ["id,text", *(f"{n},text {n}" for n in range(9)), '9,"a\nb"']
    wanted = [*(f"text {n}" for n in range(9)), "a\nb"]
    assert read(tmp_path / "x.csv", ending.join(rows)) == wanted
    assert read(tmp_path / "x.csv", ending.join(rows) + ending) == wanted
    small = list(DocumentReader(tmp_path / "x.csv", block=9))
    assert [record.text for record in small if isinstance(record, Document)] == wanted


def test_a_quote_that_is_not_closed_counts_as_all_its_lines(tmp_path: Path) -> None:
    data = "id,text\n" + "".join(f"{n},{chr(34) * (n == 5)}text\n" for n in range(100))
    *texts, bad = read(tmp_path / "x.csv", data)
    assert texts == ["text"] * 5
    assert isinstance(bad, BadRecord)
    assert (bad.line, bad.count) == (7, 95)
    assert "lines 7 to 101" in bad.detail
    with pytest.raises(BuildError, match=r"more than 94 bad records.* x\.csv: line 7: .*lines 7 to 101"):
        run(tmp_path / "x.csv", tmp_path / "a", max_errors=94, **PLAIN)
    assert run(tmp_path / "x.csv", tmp_path / "b", max_errors=0.95, **PLAIN).counts["bad"] == {"invalid CSV": 95}
    stream = pipeline.TextDataset(tmp_path / "x.csv", "bytes", epochs=1, on_error="records").documents()
    assert len(list(stream)) == 5
    assert stream.stats()["bad_records"] == 95


def test_a_command_counts_the_lines_of_a_bad_row(tmp_path: Path, says: Says) -> None:
    (tmp_path / "x.csv").write_text('text\na\n"b\nc\n')
    assert (
        "2 bad records; the first, x.csv, line 3: invalid CSV"
        in says(0, "texts", tmp_path / "x.csv", "--output", tmp_path / "o.parquet").err
    )


def test_fields_of_csv_are_of_the_types_asked_for(tmp_path: Path) -> None:
    rows = "TRUE,1 false,0 1,2.5 yes,3 ,4 true,5\xe9 x,6".split()
    (tmp_path / "x.csv").write_bytes(b"text,is,n\n" + "".join(f"a,{row}\n" for row in rows).encode("latin-1"))
    found = list(DocumentReader(tmp_path / "x.csv", keep=parse_fields(["is:bool", "n:int"])))
    assert [each.metadata if isinstance(each, Document) else each.reason for each in found] == [
        {"is": True, "n": 1},
        {"is": False, "n": 0},
        "'n' is of type str, not a whole number",
        "'is' is of type str, not true or false",
        {"is": None, "n": 4},
        "invalid UTF-8",
        "'is' is of type str, not true or false",
    ]
    with pytest.raises(ConfigError, match=r"field 'n:itn': no type 'itn'.*did you mean 'int'.*as in score:float"):
        parse_fields(["n:itn"])


def test_numbers_of_csv_are_what_other_programs_write_as_numbers(tmp_path: Path) -> None:
    good = "12 -3 +4 007 2.5 .5 1. 1e3 -1E-3 inf -inf nan".split()
    bad = ["1_000", "0x10", "\uff11\uff12", "\u0663", "1,0", "1_0.5", "0b1", "1e1_0", "\u221e", "--1"]
    (tmp_path / "x.tsv").write_text("text\tn\n" + "".join(f"a\t{each}\n" for each in good + bad))
    for kind, whole in (("int", 4), ("float", len(good))):
        found = list(DocumentReader(tmp_path / "x.tsv", keep=parse_fields([f"n:{kind}"])))
        values = [each.metadata["n"] for each in found if isinstance(each, Document)]
        assert list(map(repr, values)) == [repr({"int": int, "float": float}[kind](each)) for each in good[:whole]]
        assert len(found) == len(good + bad)


def test_a_header_and_a_mark_amid_joined_files_are_no_text(tmp_path: Path) -> None:
    part = '\ufeffid,text\n1,a\n2,"b\n\ufeffc"\n'
    header = Unselected("x.csv", 5, 1, "", "row equal to the header")
    assert read(tmp_path / "x.csv", part * 2) == ["a", "b\nc", header, "a", "b\nc"]
    assert run(tmp_path / "x.csv", tmp_path / "out", **PLAIN).counts["dropped"] == {"row equal to the header": 1}
    assert read(tmp_path / "y.csv", "text\na\n\ufeffb\n") == ["a", "b"]


@given(st.lists(st.text('a"é ,;\\\u2028\x85\ufeff'), max_size=8))
def test_the_same_rows_as_json_csv_and_tsv_give_the_same_documents(texts: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = []
        for name, format in (("x.jsonl", ""), ("x.csv", ""), ("x.tsv", "tsv,quote=none"), ("q.tsv", 'tsv,quote="')):
            rows = [(str(number), text) for number, text in enumerate(texts)]
            if name == "x.jsonl":
                data = "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in rows)
            elif name == "x.tsv":
                data = "".join(f"{id}\t{text}\n" for id, text in [("id", "text"), *rows])
            else:
                file = io.StringIO(newline="")
                csv.writer(file, delimiter="\t" if format else ",").writerows([("id", "text"), *rows])
                data = file.getvalue()
            found.append(read(Path(folder) / name, data, format))
        assert found == [texts] * 4
