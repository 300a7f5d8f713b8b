"""Broken and odd inputs: nothing is lost without a word, and the word names file, place and reason."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.text.normalize import normalize
from pipeline.text.readers.reader import BadRecord, Document, Reader, find_inputs
from tests.cost import is_linear

LINES = b"".join(b'{"id": "%d", "text": "document %d, with some text to it"}\n' % (n, n) for n in range(20_000))


def read(path: Path) -> tuple[list[Document], list[BadRecord], str]:
    """Return documents, bad records, and the message of the error that ended the reading, or ''."""
    documents: list[Document] = []
    bad: list[BadRecord] = []
    try:
        for file in find_inputs(path):
            for record in Reader(file):
                documents.append(record) if isinstance(record, Document) else bad.append(record)
    except InputError as error:
        return documents, bad, str(error)
    return documents, bad, ""


def zstd(data: bytes, **settings: bool) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(**settings).compress(data)


# The kit: every entry as its list expects.


def test_every_entry_of_the_kit_meets_its_expectation(shared_data: Path) -> None:
    entries = json.loads((shared_data / "bad" / "expect.json").read_text())
    assert len(entries) >= 40
    for entry in entries:
        name = entry["file"]
        documents, bad, error = read(shared_data / "bad" / name)
        said = f"{name}: {len(documents)} documents, bad {bad}, error {error!r}"
        if name == "empty-text.jsonl":  # kept here, for a length rule to drop and count
            assert ([d.text == "" for d in documents], bad) == ([False, True, False], []), said
            continue
        if entry["good_docs"] is not None:
            assert len(documents) == entry["good_docs"], said
        if entry["bad_lines"]:
            assert [record.line for record in bad] == entry["bad_lines"], said
            assert all(record.reason for record in bad), said
        must_fail = entry["expect"].startswith("error naming") and " or " not in entry["expect"]
        assert bool(error) >= must_fail, said
        if error:
            assert error.startswith(str(shared_data / "bad" / name)), said
        if entry["expect"].startswith("accept") and " or " not in entry["expect"]:
            assert (bad, error) == ([], ""), said


def test_texts_of_the_kit_survive_the_next_stages(shared_data: Path) -> None:
    for name in sorted(os.listdir(shared_data / "bad")):
        if not name.endswith((".md", ".json", ".xyz")):
            for document in read(shared_data / "bad" / name)[0]:
                normalize(document.text).encode()
                (document.id + document.file).encode()


def test_no_carriage_return_of_the_kit_gets_into_a_text(shared_data: Path) -> None:
    documents, _, _ = read(shared_data / "bad" / "crlf.jsonl")
    assert documents
    assert not [d for d in documents if "\r" in d.text + d.id]


# Compressed streams.

PACKED = {".gz": gzip.compress(LINES), ".zst": zstd(LINES, write_checksum=True)}


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_a_cut_stream_is_an_error_that_says_how_far_it_was_read(tmp_path: Path, ending: str, share: float) -> None:
    data = PACKED[ending]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(data[: int(len(data) * share)])
    documents, bad, error = read(path)
    assert f"{path}: the " in error
    assert f"is cut off at byte {int(len(data) * share)}" in error
    assert f"{len(documents):,} documents of it had been read" in error
    assert [d.id for d in documents] == [str(n) for n in range(len(documents))]
    assert bad == []


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("lost", [1, 2, 4, 9])
def test_even_a_missing_last_byte_is_found(tmp_path: Path, ending: str, lost: int) -> None:
    (tmp_path / f"a.jsonl{ending}").write_bytes(PACKED[ending][:-lost])
    assert "cut off" in read(tmp_path / f"a.jsonl{ending}")[2]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("place", [0.3, 0.7])
def test_corrupt_bytes_are_an_error_and_never_fewer_documents(tmp_path: Path, ending: str, place: float) -> None:
    data = bytearray(PACKED[ending])
    at = int(len(data) * place)
    data[at : at + 16] = bytes(16)
    (tmp_path / f"a.jsonl{ending}").write_bytes(data)
    _, _, error = read(tmp_path / f"a.jsonl{ending}")
    assert "corrupt" in error
    assert "near byte" in error


def test_a_wrong_checksum_is_an_error(tmp_path: Path) -> None:
    for ending, place in ((".gz", -8), (".gz", -1), (".zst", -1)):
        data = bytearray(PACKED[ending])
        data[place] ^= 1
        (tmp_path / f"a.jsonl{ending}").write_bytes(data)
        assert "corrupt" in read(tmp_path / f"a.jsonl{ending}")[2]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("junk", [b"x", b"\n", b"junk behind the data" * 10])
def test_stray_bytes_after_a_stream_are_an_error_after_all_documents(tmp_path: Path, ending: str, junk: bytes) -> None:
    (tmp_path / f"a.jsonl{ending}").write_bytes(PACKED[ending] + junk)
    documents, _, error = read(tmp_path / f"a.jsonl{ending}")
    assert len(documents) == 20_000
    assert "stray bytes" in error


def test_streams_one_after_another_are_one_text(tmp_path: Path) -> None:
    third = len(LINES) // 3  # in the middle of a line
    parts = [LINES[:third], b"", LINES[third : 2 * third], LINES[2 * third :]]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(map(gzip.compress, parts)) + bytes(512))
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"12345"
    frames = [zstd(part, write_content_size=False) for part in parts]
    (tmp_path / "a.jsonl.zst").write_bytes(skippable + frames[0] + skippable + b"".join(frames[1:]) + skippable)
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        documents, bad, error = read(tmp_path / name)
        assert (len(documents), bad, error) == (20_000, [], "")


def test_blocked_gzip_and_long_distance_zstd_are_read(tmp_path: Path) -> None:
    import zlib

    import zstandard

    blocks = b""
    for start in range(0, len(LINES), 60_000):  # as bgzip writes them: an extra header field and at most 64 KiB
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(LINES[start : start + 60_000]) + packer.flush()
        extra = struct.pack("<BBHH", 66, 67, 2, len(body) + 25)
        size = struct.pack("<II", zlib.crc32(LINES[start : start + 60_000]), len(LINES[start : start + 60_000]))
        blocks += b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0" + extra + body + size
    (tmp_path / "a.jsonl.gz").write_bytes(blocks)
    long = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor(compression_params=long).compress(LINES))
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        assert len(read(tmp_path / name)[0]) == 20_000


def test_the_content_tells_whether_a_file_is_compressed(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl.gz").write_bytes(LINES)
    (tmp_path / "zstd-named.jsonl.gz").write_bytes(PACKED[".zst"])
    (tmp_path / "packed.jsonl").write_bytes(PACKED[".gz"])
    for name in ("plain.jsonl.gz", "zstd-named.jsonl.gz", "packed.jsonl"):
        assert len(read(tmp_path / name)[0]) == 20_000
    (tmp_path / "empty.jsonl.gz").write_bytes(b"")
    (tmp_path / "no-head.jsonl.gz").write_bytes(bytes(10) + PACKED[".gz"][10:])
    assert "0 bytes" in read(tmp_path / "empty.jsonl.gz")[2]
    assert "neither gzip nor zstd, bzip2 or xz data" in read(tmp_path / "no-head.jsonl.gz")[2]
    (tmp_path / "nothing.jsonl.gz").write_bytes(gzip.compress(b""))
    assert read(tmp_path / "nothing.jsonl.gz") == ([], [], "")


def test_a_stream_that_unpacks_a_thousandfold_is_read_in_small_pieces(tmp_path: Path) -> None:
    line = b'{"text": "' + b"x" * (20 << 20) + b'"}\n'
    for ending, pack in ((".gz", gzip.compress), (".zst", zstd)):
        path = tmp_path / f"a.jsonl{ending}"
        path.write_bytes(pack(line * 2))
        assert path.stat().st_size < 1 << 20
        assert [len(d.text) for d in read(path)[0]] == [20 << 20] * 2


# Lines that are no documents.


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "invalid JSON"),
        (b'{"text": "a"} {"text": "b"}', "invalid JSON"),
        (b'{"text": "raw \0 byte"}', "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b'{"text": "\xe2\x82"}', "invalid UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "invalid UTF-8"),
        (b'"text"', "not a JSON object"),
        (b'["text"]', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"Text": "other name"}', "no field 'text'"),
        (b'{"text": null}', "'text' is null, not text"),
        (b'{"text": 1.5}', "'text' is a number, not text"),
        (b'{"text": true}', "'text' is a boolean, not text"),
        (b'{"text": ["a"]}', "'text' is a list, not text"),
        (b'{"text": {"a": 1}}', "'text' is an object, not text"),
        (b'{"text": "\\ud800"}', "lone surrogate"),
        (b'{"text": "x", "id": "\\udc00"}', "lone surrogate"),
        (b'{"text": "x", "id": ["a"]}', "'id' is a list, not a name or number"),
    ],
)
def test_one_bad_line_is_named_and_its_neighbours_are_read(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}')
    documents, bad, error = read(tmp_path / "a.jsonl")
    assert [d.text for d in documents] == ["before", "after"]
    assert [(b.file, b.line, b.byte, b.reason) for b in bad] == [("a.jsonl", 2, 19, reason)]
    assert error == ""


def test_a_lone_surrogate_elsewhere_in_a_line_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good \\ud83d\\ude00 pair", "title": "\\ud800"}')
    assert [d.text for d in read(tmp_path / "a.jsonl")[0]] == ["good \U0001f600 pair"]


@pytest.mark.parametrize("ending", PACKED)
def test_a_file_that_is_cut_in_its_first_bytes_is_not_taken_for_plain_text(tmp_path: Path, ending: str) -> None:
    for kind in ("jsonl", "txt"):
        for size in range(1, 12):
            (tmp_path / f"a.{kind}{ending}").write_bytes(PACKED[ending][:size])
            documents, bad, error = read(tmp_path / f"a.{kind}{ending}")
            assert (documents, bad) == ([], [])
            assert f"cut off at byte {size}" in error


@pytest.mark.parametrize("form", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["Plain English words.\n", "Слова по-русски, и не одно.\n"])
def test_utf16_is_no_text_with_or_without_its_mark(tmp_path: Path, form: str, text: str) -> None:
    (tmp_path / "a.txt").write_bytes((text * 40).encode(form))
    documents, bad, _ = read(tmp_path / "a.txt")
    assert documents == []
    assert [(b.reason, b.detail) for b in bad] == [("invalid UTF-8", "UTF-16 text; convert it to UTF-8 first")]
    (tmp_path / "a.csv").write_bytes(f"id,text\n1,{text}".encode(form))
    (tmp_path / "a.jsonl").write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode(form))
    for name in ("a.csv", "a.jsonl"):
        assert "UTF-16 text; convert it to UTF-8 first" in read(tmp_path / name)[2]


def test_zeros_in_text_do_not_make_it_utf16(tmp_path: Path) -> None:
    for text in ("a\0b", "é\n\0", "\0" * 9, "a \0 b" * 9):
        (tmp_path / "a.txt").write_text(text)
        assert [document.text for document in read(tmp_path / "a.txt")[0]] == [text]


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_two_columns_of_the_wanted_name_are_an_error(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / f"a.{kind}"
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    if kind == "csv":
        path.write_text("text,text\na,b\n")
    elif kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    documents, _, error = read(path)
    assert documents == []
    assert f"a.{kind}: 2 columns are named 'text', and only one can be read; rename the others" in error


def test_utf16_is_named_as_such(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv"):
        (tmp_path / name).write_bytes('{"text": "x"}\n'.encode("utf-16"))
        assert "UTF-16" in read(tmp_path / name)[2]


def test_an_array_that_is_cut_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'[{"text": "a"}, {"text": ')
    assert "not a whole JSON array" in read(tmp_path / "a.json")[2]
    (tmp_path / "b.json").write_bytes(b'[{"text": "a"}, 7, {"text": "\\ud800"}, {"text": "b"}]')
    documents, bad, _ = read(tmp_path / "b.json")
    assert [(d.text, d.line) for d in documents] == [("a", 1), ("b", 4)]
    assert [(b.line, b.reason) for b in bad] == [(2, "not a JSON object"), (3, "lone surrogate")]


def test_a_text_file_that_is_not_utf8_is_a_bad_record(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert [(b.line, b.byte, b.reason) for b in read(tmp_path / "a.txt")[1]] == [(1, 3, "invalid UTF-8")]


# Tables.


def write_parquet(path: Path, **columns: object) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def test_a_table_without_the_column_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,texts\n1,a\n")
    write_parquet(tmp_path / "a.parquet", id=["1"], texts=["a"])
    for name in ("a.csv", "a.parquet"):
        message = "no column 'text' (did you mean 'texts'?); there are 'id', 'texts'; text_key (--text-key)"
        assert f"{tmp_path / name}: {message}" in read(tmp_path / name)[2]


def test_a_column_of_another_type_is_named_with_it(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", text=[1, 2])
    assert "a.parquet: column 'text' is int64, not text" in read(tmp_path / "a.parquet")[2]
    write_parquet(tmp_path / "b.parquet", text=["a"], id=[["x"]])
    assert "column 'id' is list" in read(tmp_path / "b.parquet")[2]


def test_parquet_that_is_cut_corrupt_or_empty_is_an_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", text=[f"{os.urandom(20).hex()}" for n in range(500)])
    data = path.read_bytes()
    for broken in (b"", b"PAR1", data[:-100], data[: len(data) // 2], b"\0" * len(data)):
        path.write_bytes(broken)
        assert "not a whole parquet file" in read(path)[2]
    damaged = bytearray(data)
    damaged[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    path.write_bytes(damaged)
    documents, _, error = read(path)
    assert len(documents) == 500 or f"{len(documents)} documents of it had been read" in error


def test_a_flipped_bit_in_a_page_of_parquet_with_checksums_is_an_error(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, texts = tmp_path / "a.parquet", [f"a text of some length, number {n}" for n in range(500)]
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[data.index(b"number 250")] ^= 1
    path.write_bytes(data)
    documents, _, error = read(path)
    assert documents == []
    assert "a.parquet: not a whole parquet file" in error
    assert "CRC" in error or "checksum" in error


def test_rows_of_parquet_without_a_text_are_bad_records(tmp_path: Path) -> None:
    import pyarrow as pa

    broken = pa.array([b"a", b"\xff", b"b"]).view(pa.string())
    write_parquet(tmp_path / "a.parquet", text=broken)
    write_parquet(tmp_path / "b.parquet", text=["a", None, "b"])
    for name, reason in (("a.parquet", "invalid UTF-8"), ("b.parquet", "'text' is null, not text")):
        documents, bad, error = read(tmp_path / name)
        assert [d.text for d in documents] == ["a", "b"]
        assert ([(b.line, b.reason) for b in bad], error) == ([(2, reason)], "")
    write_parquet(tmp_path / "c.parquet", text=pa.array([], pa.string()))
    assert read(tmp_path / "c.parquet") == ([], [], "")


def test_csv_rows_of_another_width_are_bad_records(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\n2,b,c\n3\n4,d\n")
    documents, bad, _ = read(tmp_path / "a.csv")
    assert [d.text for d in documents] == ["a", "d"]
    assert [(b.line, b.detail) for b in bad] == [
        (3, "3 fields, but the header names 2"),
        (4, "1 fields, but the header names 2"),
    ]


def test_csv_fields_may_be_longer_than_the_default_limit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"' + "x\n" * 500_000 + '"\n')
    assert [len(d.text) for d in read(tmp_path / "a.csv")[0]] == [1_000_000]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_an_empty_file_holds_no_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert read(tmp_path / name) == ([], [], "")


def test_a_file_that_vanishes_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl: cannot be read: No such file"):
        list(Reader(tmp_path / "gone.jsonl"))


def test_time_grows_with_a_line_and_not_with_its_square(tmp_path: Path) -> None:
    for size in (8 << 20, 64 << 20):
        (tmp_path / f"{size}.jsonl").write_bytes(b'{"text": "' + b"x" * size + b'"}\n')
    assert is_linear(lambda size: read(tmp_path / f"{size}.jsonl"), 8 << 20, 64 << 20)
