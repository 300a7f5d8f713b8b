"""Files are hashed as they are read, and the spans that they are cut into hold each record once."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.text.document import Document
from pipeline.text.readers.byte_stream import is_compressed
from pipeline.text.readers.document_reader import DocumentReader, FileSpan, InputFile, fingerprint, made_id, split_file
from tests.helpers.format_samples import FORMATS, PAIRS, as_jsonl, write_parquet

# Hashes and progress.


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_file_is_counted_and_hashed_as_it_is_read(tmp_path: Path, name: str) -> None:
    data = FORMATS[name](PAIRS)
    (tmp_path / name).write_bytes(data)
    reader = DocumentReader(tmp_path / name)
    seen = [reader.bytes_read for _ in reader]
    assert seen == sorted(seen)
    assert (reader.bytes_read, reader.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert reader.documents == len(PAIRS)


def test_the_name_of_an_empty_file_says_whether_it_is_compressed(tmp_path: Path) -> None:
    for name, packed in (("A.JSONL.GZ", True), ("b.tgz", True), ("c.jsonl", False)):
        (tmp_path / name).touch()
        assert is_compressed(tmp_path / name) == packed


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
    """Return what all spans hold, lines made absolute, having checked that their bytes and hashes cover the file."""
    spans = split_file(path, unit)
    found: list[tuple[Any, ...]] = []
    lines = covered = 0
    raw = path.read_bytes()
    for span in spans:
        reader = DocumentReader(InputFile(path, "F"), span)
        for record in reader:
            line = record.line + lines
            if isinstance(record, Document):
                found.append((line, record.text, record.id or made_id("F", line)))
            else:
                found.append((line, record.reason, record.byte))
        lines += reader.lines
        if path.suffix != ".parquet":
            assert reader.sha256 == hashlib.sha256(raw[covered : covered + reader.bytes_read]).hexdigest()
        covered += reader.bytes_read
    assert covered == len(raw)
    return found, spans


def check_spans(path: Path, unit: int) -> list[FileSpan]:
    whole = DocumentReader(InputFile(path, "F"))
    expected = [(r.line, r.text, r.id) if isinstance(r, Document) else (r.line, r.reason, r.byte) for r in whole]  # type: ignore[attr-defined]
    found, spans = read_by_spans(path, unit)
    assert found == expected
    return spans


LINES = [
    b"",
    b"  ",
    b"\r",
    b'{"text":"a"}',
    b'{"text":"\xc3\xa9","id":1}',
    b'{"text":"bcd"}\r',
    b"bad",
    b'{"text":"\xff"}',
]
PARTS = [b"a", b"bc\r", b" ", b"\n", b"\n\n", b"<|x|>", b"<|", b"|>", b"\xc3\xa9", b"\xff", b"d" * 30]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(LINES)), st.booleans(), st.booleans(), st.integers(1, 60))
def test_spans_of_json_lines_hold_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], mark: bool, closed: bool, unit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "spans.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * mark + b"\n".join(lines) + b"\n" * closed)
    spans = check_spans(path, unit)
    assert len(spans) == max(1, -(-path.stat().st_size // max(unit, 8)))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(PARTS)),
    st.sampled_from(["lines", "paragraphs", "separator=<|x|>", "separator=\n|>", "separator=aa"]),
    st.booleans(),
    st.integers(8, 60),
)
@example(parts=[b"d" * 7, b"aa", b"e" * 20], format="separator=aa", mark=False, unit=8)  # a span begins within "aa"
def test_spans_of_separated_text_hold_each_document_once(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], format: str, mark: bool, unit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "spans.txt"
    path.write_bytes(b"\xef\xbb\xbf" * mark + b"".join(parts))
    file = InputFile(path, "F", forced_format=format)

    def texts(*span: FileSpan) -> list[Any]:
        reader = DocumentReader(file, *span)
        records = list(reader)
        assert reader.documents == sum(isinstance(each, Document) for each in records)
        return [each.text if isinstance(each, Document) else (each.detail, each.byte) for each in records]  # type: ignore[union-attr]

    assert [text for span in split_file(file, unit) for text in texts(span)] == texts()


def test_spans_of_parquet_are_row_groups(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"text": [f"{n} " * 50 for n in range(20)]}, rows_per_group=3)
    assert len(check_spans(path, 1)) == 7
    assert 1 < len(check_spans(path, 800)) < 7
    assert check_spans(path, 1 << 30) == [FileSpan(0, None)]


def test_a_row_group_is_read_page_by_page(tmp_path: Path) -> None:
    texts = [os.urandom(700).hex() for _ in range(20_000)]
    path = write_parquet(tmp_path / "a.parquet", {"text": texts}, rows_per_group=len(texts))
    before, allocated = pa.total_allocated_bytes(), 0
    for record in DocumentReader(path):
        allocated = max(allocated, pa.total_allocated_bytes() - before)
        assert isinstance(record, Document)
        assert record.text == texts[record.line - 1]
    assert 4 * allocated < path.stat().st_size


def test_what_cannot_be_cut_is_one_span(tmp_path: Path) -> None:
    names = ["x.JSONL.GZ", "x.jsonl.zst", "x.json", "x.csv", "x.csv.gz"]
    for name in names:
        (tmp_path / name).write_bytes(FORMATS[name](PAIRS))
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    (tmp_path / "packed-by-content.jsonl").write_bytes(gzip.compress(as_jsonl(PAIRS)))
    for name in (*names, "a.txt", "packed-by-content.jsonl"):
        assert split_file(tmp_path / name, 10) == [FileSpan(0, None)]
