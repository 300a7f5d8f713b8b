"""Text files that hold many documents: lines, paragraphs, and what stands between separators."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.builder.limits import Limits
from pipeline.errors import BuildError, ConfigError, InputError, StateError
from pipeline.text.document import BINARY, Unselected
from pipeline.text.fields import parse_fields
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, InputFile
from tests.helpers.builds import rejected, run_plain
from tests.helpers.commands import Says
from tests.helpers.format_samples import tar_of, warc_record
from tests.helpers.input_server import running_inputs
from tests.helpers.text_samples import spelled

SEPARATED = "separator=<|endoftext|>"
Builder = Callable[[list[str]], str]
JOIN: dict[str, Builder] = {
    "lines": "\n".join,
    "paragraphs": "\n\n".join,
    SEPARATED: "<|endoftext|>".join,
    "separator=\\n---\\n": "\n---\n".join,
}


def streamed(file: Path, format: str, **options: Any) -> list[tuple[str, str]]:
    """Return id and text of each document of an epoch, in order."""
    seen: list[tuple[str, str]] = []
    stream = pipeline.TextDataset(file, "bytes", epochs=1, format=format, **options)
    list(stream.filter(lambda record: seen.append((record.id, record.text)) is None, name="seen").documents())
    return seen


@pytest.mark.parametrize(
    ("format", "data", "documents"),
    [
        ("lines", "one\r\n\r\n  \n\ntwo \nthree", [(1, "one"), (5, "two "), (6, "three")]),
        ("lines", "\ufeffone\n\u3000\n a\u2028b\n", [(1, "one"), (3, " a\u2028b")]),
        ("paragraphs", "\n\n a\nb\n\n\n \t\nc\n", [(3, " a\nb"), (8, "c")]),
        ("paragraphs", "a\r\nb\r\n\r\nc\r\n", [(1, "a\r\nb"), (4, "c")]),
        (SEPARATED, "a\n<|endoftext|>\nb\n\nc\n<|endoftext|>\n<|endoftext|>\n", [(1, "a"), (3, "b\n\nc")]),
        (SEPARATED, "a<|endoftext|> b<|endoftext|>\r\nc<|end", [(1, "a"), (1, " b"), (2, "c<|end")]),
        ("separator=\\n---\\n", "a\n---\n---\nb", [(1, "a"), (3, "---\nb")]),
    ],
)
def test_documents_are_lines_paragraphs_or_what_stands_between_separators(
    tmp_path: Path, format: str, data: str, documents: list[tuple[int, str]]
) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(data.encode())
    assert streamed(file, format) == [(f"x.txt:{line}", text) for line, text in documents]
    for ending, compress in ((".gz", gzip), (".bz2", bz2), (".xz", lzma), (".zst", zstandard)):
        packed = tmp_path / f"x.txt{ending}"
        packed.write_bytes(compress.compress(data.encode()))
        assert streamed(packed, format) == [(f"{packed.name}:{line}", text) for line, text in documents]


@pytest.mark.parametrize("format", JOIN)
def test_binary_data_are_no_text(tmp_path: Path, format: str) -> None:
    data = JOIN[format](["one", "t\0wo", "three", "caf\xe9"]).encode("latin-1")
    (tmp_path / "x.txt").write_bytes(data)
    file = InputFile(tmp_path / "x.txt", "x.txt", forced_format=format)
    bad = [each for each in DocumentReader(file) if isinstance(each, BadRecord)]
    wanted = [(BINARY, data.index(b"t\0")), ("invalid UTF-8", data.index(b"caf"))]
    assert [(each.reason, each.byte) for each in bad] == wanted
    assert (bad[0].detail, bad[1].detail[:22]) == ("a NUL at byte 1", "byte 3 of the document")
    assert [text for _, text in streamed(tmp_path / "x.txt", format, on_error="records")] == ["one", "three"]
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(tar_of({"x.txt": data})))
    with pytest.raises(InputError, match=r"begins as a tar .*; read it under the name"):
        streamed(tmp_path / "x.tar.gz", format)


@pytest.mark.parametrize(
    ("name", "format", "data"),
    [
        ("x.txt", "", b"a"),
        ("x.txt", "lines", b"a"),
        ("x.txt", "paragraphs", b"a"),
        ("x.txt", SEPARATED, b"a"),
        ("x.jsonl", "", b'{"text": "a"}'),
        ("x.json", "", b'[{"text": "a"}]'),
        ("x.json", "", b'{"text":\n"a"}'),
        ("x.csv", "", b"text\na"),
        ("x.tsv", "", b"text\na"),
    ],
)
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str, format: str, data: bytes) -> None:
    data = b"\xef\xbb\xbf" + data
    (tmp_path / name).write_bytes(data)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    (tmp_path / "x.tar").write_bytes(tar_of({name: data}))
    for path in (tmp_path / name, tmp_path / f"{name}.gz", *([tmp_path / "x.tar"] if not format else [])):
        found = list(DocumentReader(InputFile(path, path.name, forced_format=format)))
        assert [each.text for each in found if isinstance(each, Document)] == ["a"]


def test_a_byte_order_mark_of_a_member_or_a_record_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of({"a.txt": b"\xef\xbb\xbfa", "b.json": b'\xef\xbb\xbf{"text": "a"}'}))
    (tmp_path / "x.wet").write_bytes(warc_record("conversion", b"\xef\xbb\xbfa"))
    for name, format, texts in (("x.tar", "webdataset", ["a", "a"]), ("x.wet", "", ["a"])):
        found = list(DocumentReader(InputFile(tmp_path / name, name, forced_format=format)))
        assert [each.text for each in found if isinstance(each, Document)] == texts


@pytest.mark.parametrize("shift", [-1, 0, 6, 12, 13])
def test_a_separator_that_two_blocks_of_the_file_share_is_found(tmp_path: Path, shift: int) -> None:
    texts = ["é" * (1 << 19) + "a" * (shift + 1), "b", "c" * 3_000_000, "d"]
    file = tmp_path / "x.txt"
    file.write_text("<|endoftext|>".join(texts))
    assert [text for _, text in streamed(file, SEPARATED)] == texts


@pytest.mark.parametrize("format", JOIN)
def test_a_file_that_is_cut_gives_each_document_once_with_its_line(tmp_path: Path, format: str) -> None:
    generator = random.Random(7)
    texts = [f"{n} " + "to be é " * generator.randrange(40) + "or\r\nnot." for n in range(100)]
    texts = [text.replace("\r\n", " ") for text in texts] if format == "lines" else texts
    data = JOIN[format](texts)
    (tmp_path / "x.txt").write_bytes(data.encode())
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(data.encode()))
    found = []
    limits = Limits(unit_bytes=700, smallest_unit_bytes=700)
    drop = pipeline.transform(lambda document: pipeline.Drop("all"), version="1")
    for name in ("x.txt", "x.txt.gz"):
        out = tmp_path / name[2:]
        run_plain(tmp_path / name, out, limits=limits, transforms=[drop], keep_rejected=True, format=format)
        found.append([(each["id"].rpartition(":")[2], each["line"], each["text"]) for each in rejected(out)])
    lines = [(str(data[: data.index(text)].count("\n") + 1), text.replace("\r\n", "\n")) for text in texts]
    assert [(id, text) for id, _, text in found[0]] == lines
    assert found[0] == found[1]


@pytest.mark.parametrize(("format", "ending"), [("paragraphs", ".gz"), (SEPARATED, ""), ("separator=\\n---\\n", "")])
def test_lanes_share_a_file_and_resume_exactly(tmp_path: Path, format: str, ending: str) -> None:
    texts = [f"{n}: " + "word " * (n % 13) + "end" for n in range(500)]
    data = JOIN[format](texts).encode()
    file = tmp_path / f"x.txt{ending}"
    file.write_bytes(gzip.compress(data) if ending else data)

    def documents(**options: Any) -> pipeline.Stream:
        stream = pipeline.TextDataset(file, "bytes", format=format, epochs=1)
        return stream.shuffle(seed=5, lanes=12, **options).documents()

    found = [spelled(item["input_ids"]) for item in documents()]
    assert Counter(found) == Counter(texts)
    assert found != texts

    def packed() -> pipeline.Stream:
        return pipeline.TextDataset(file, "bytes", format=format).shuffle(seed=5, lanes=12).pack(32).batch(4)

    with pytest.raises(StateError, match="data"):
        pipeline.TextDataset(file, "bytes", format="lines").pack(32).batch(4).load_state_dict(packed().state_dict())
    pipeline.assert_resumes(packed, items=2)


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("linse", "did you mean 'lines'"),
        ("separator=", "separator is missing"),
        ("separator=\udc80", "cannot be written as UTF-8; give text"),
        (7, "got 7"),
        (None, "got None"),
    ],
)
def test_a_format_that_is_none_is_refused(tmp_path: Path, format: Any, message: str) -> None:
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(ConfigError, match=message):
        pipeline.TextDataset(tmp_path / "x.txt", "bytes", format=format)
    with pytest.raises(ConfigError, match=message):
        pipeline.build(tmp_path / "x.txt", tmp_path / "o", format=format)


def test_one_long_document_is_said_once_and_names_the_formats(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("to be or not to be\n" * 600_000)
    with pytest.warns(UserWarning, match=r"a\.txt: one document of about 11 MB, .* 1 more .*--format lines") as said:
        pipeline.TextDataset(tmp_path, "bytes")
    with pytest.warns(UserWarning, match="--format paragraphs") as built:
        run_plain([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "o", max_tokens=0)
    assert len(said) == len(built) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline.TextDataset(tmp_path / "a.txt", "bytes", format="lines")


def test_texts_and_try_rules_take_the_same_formats(tmp_path: Path, says: Says) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "x.txt").write_text("one\ntwo\n\nthree\n")
    output = tmp_path / "o.parquet"
    says(0, "texts", tmp_path / "x.txt", "--output", output, "--format", "paragraphs")
    assert pq.read_table(output)["text"].to_pylist() == ["one\ntwo", "three"]
    says(0, "try-rules", tmp_path / "x.txt", "--format", "lines", shows="judged 3 of 3 documents read: 0 kept")
    says(2, "texts", tmp_path / "x.txt", "--output", output, "--format", "line", shows="did you mean 'lines'")


def test_a_build_that_keeps_nothing_says_what_dropped_it(tmp_path: Path, says: Says) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "short"}\n' * 3 + '{"text": 1}\n')
    arguments = [str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "o"), "--tokenizer", "bytes", "--quiet"]
    error = says(1, "build", *arguments, "--on-error", "skip", "--workers", "1").err
    assert error.startswith("error: no document was kept")
    assert "of 3 that were read from 1 input file: dropped by words: 3" in error
    assert "unreadable ('text' is a number, not text): 1" in error


def test_remote_files_are_cut_and_give_each_document_once(tmp_path: Path) -> None:
    format = "paragraphs"
    texts = [f"{n}: " + "word " * (n % 97) + "end" for n in range(1_000)]
    with running_inputs() as server:
        server.files["x.txt"] = JOIN[format](texts).encode()
        url = server.url("x.txt")
        stream = pipeline.TextDataset(url, "bytes", format=format, epochs=1).shuffle(seed=1, lanes=8)
        assert Counter(spelled(item["input_ids"]) for item in stream.documents()) == Counter(texts)
        small = Limits(unit_bytes=40_000, smallest_unit_bytes=40_000)
        manifest = run_plain(url, tmp_path / "o", format=format, limits=small, dedup=False)
        assert manifest.counts["kept"] == len(texts)


# CSV and TSV: which characters stand between and around fields, how lines end, and rows that are not closed.


build = partial(run_plain, dedup=False)


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
    built = build(tmp_path / "x.csv", tmp_path / "o", format=format)
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
        build(tmp_path / "x.csv", tmp_path / "a", max_errors=94)
    assert build(tmp_path / "x.csv", tmp_path / "b", max_errors=0.95).counts["bad"] == {"invalid CSV": 95}
    stream = pipeline.TextDataset(tmp_path / "x.csv", "bytes", epochs=1, on_error="records").documents()
    assert len(list(stream)) == 5
    assert stream.stats()["bad_records"] == 95


def test_a_command_counts_the_lines_of_a_bad_row(tmp_path: Path, says: Says) -> None:
    (tmp_path / "x.csv").write_text('text\na\n"b\nc\n')
    shown = "2 bad records; the first, x.csv, line 3: invalid CSV"
    says(0, "texts", tmp_path / "x.csv", "--output", tmp_path / "o.parquet", shows=shown)


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
    assert build(tmp_path / "x.csv", tmp_path / "out").counts["dropped"] == {"row equal to the header": 1}
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
