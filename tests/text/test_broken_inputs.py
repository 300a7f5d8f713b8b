"""Broken and odd inputs: a reader, a build and a stream lose nothing without a word that names file, place and reason."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import lzma
import os
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import pipeline
from pipeline.errors import InputError
from pipeline.text.document import BINARY
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, find_inputs
from tests.helpers.builds import run, run_plain
from tests.helpers.format_samples import tar_of

LINES = b"".join(b'{"id": "%d", "text": "document %d, with some text to it"}\n' % (n, n) for n in range(2_000))
GZIP = gzip.compress(LINES, mtime=0)
ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress(LINES)
UTF16 = "UTF-16 text; convert it to UTF-8 first"


class Broken(NamedTuple):
    """A file, and what is read of it: documents (their number, or texts; None: some first lines), bad records, the last error."""

    name: str
    data: bytes
    documents: int | list[str] | None = 0
    bad: list[tuple[int, str]] = []  # noqa: RUF012
    error: str = ""


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def changed(data: bytes, at: int, new: bytes) -> bytes:
    at %= len(data)
    return data[:at] + new + data[at + len(new) :]


def with_flipped_bit() -> bytes:
    texts = [f"a text of some length, number {n}" for n in range(500)]
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    data = parquet(pa.table({"text": texts}), **options)
    at = data.index(b"number 250")
    return changed(data, at, bytes([data[at] ^ 1]))


def with_two_columns_of_a_name() -> pa.Table:
    return pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])


def arrow(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def blocked_gzip() -> bytes:
    """Compress lines as bgzip does: an extra header field and at most 64 KiB a member."""
    blocks = b""
    for start in range(0, len(LINES), 60_000):
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(LINES[start : start + 60_000]) + packer.flush()
        extra = struct.pack("<BBHH", 66, 67, 2, len(body) + 25)
        size = struct.pack("<II", zlib.crc32(LINES[start : start + 60_000]), len(LINES[start : start + 60_000]))
        blocks += b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0" + extra + body + size
    return blocks


def long_distance_zstd() -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(LINES)


def many_streams(ending: str) -> bytes:
    """Compress lines as several streams, which part in the middle of lines, with padding or skippable frames."""
    third = len(LINES) // 3
    parts = [LINES[:third], b"", LINES[third : 2 * third], LINES[2 * third :]]
    if ending != ".zst":
        padding = bytes(0 if ending == ".bz2" else 512)
        packed = list(map({".gz": gzip, ".xz": lzma, ".bz2": bz2}[ending].compress, parts))
        return padding.join(packed[:3]) + packed[3] + 100 * padding  # more than is unpacked at a time
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"12345"
    frames = [zstandard.ZstdCompressor(write_content_size=False).compress(part) for part in parts]
    return skippable + frames[0] + skippable + b"".join(frames[1:]) + skippable


def with_dictionary() -> bytes:
    dictionary = zstandard.train_dictionary(4096, LINES.splitlines(keepends=True))
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(LINES)


WHOLE = parquet(pa.table({"text": [f"{n * 7919:x} is the text of {n}" for n in range(500)]}), row_group_size=100)
TAR = tar_of({"a.jsonl": b'{"text": "a"}\n', "b.txt": b"b" * 2000})
NOT_WHOLE = "not a whole parquet file"
JSON, UTF8, OBJECT = "invalid JSON", "invalid UTF-8", "not a JSON object"
BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"text": "cut', JSON),
    (b'{"text": "raw \0 byte"}', JSON),
    (b"[" * 100_000, JSON),
    (b'{"text": "\xe2\x82"}', UTF8),
    (b'{"text": "\xed\xa0\x80"}', UTF8),
    (b'["text"]', OBJECT),
    (b"null", OBJECT),
    (b'{"Text": "other name"}', "no field 'text'"),
    (b'{"text": null}', "'text' is null, not text"),
    (b'{"text": 1.5}', "'text' is a number, not text"),
    (b'{"text": true}', "'text' is a boolean, not text"),
    (b'{"text": ["a"]}', "'text' is a list, not text"),
    (b'{"text": {"a": 1}}', "'text' is an object, not text"),
    (b'{"text": "\\ud800"}', "lone surrogate"),
    (b'{"text": "x", "id": "\\udc00"}', "lone surrogate"),
    (b'{"text": "x", "id": ["a"]}', "'id' is a list, not a name or number"),
]

GLUED = [
    b'{"text": "a"}',
    b'{"text": "cut}',
    b'{"text": "b"}',
    b'{"text": "caf\xe9"}',
    b'{"text": "c"}',
    b'{"text": "d"}',
]
IS_NUMBER, IF_WHOLE = "'text' is a number, not text", "is read if it is whole"

FILES = [
    # Compressed streams.
    Broken("cut.jsonl.gz", GZIP[: len(GZIP) // 2], None, error=f"is cut off at byte {len(GZIP) // 2}"),
    Broken("cut.jsonl.zst", ZSTD[: len(ZSTD) // 2], None, error=f"is cut off at byte {len(ZSTD) // 2}"),
    Broken("last-byte.jsonl.gz", GZIP[:-1], 2000, error="cut off"),
    Broken("last-byte.jsonl.zst", ZSTD[:-1], 2000, error="cut off"),
    Broken("first-bytes.jsonl.gz", GZIP[:7], error="cut off at byte 7"),
    Broken("first-byte.txt.zst", ZSTD[:1], error="cut off at byte 1"),
    Broken("zeros.jsonl.gz", changed(GZIP, len(GZIP) // 3, bytes(16)), None, error="near byte"),
    Broken("zeros.jsonl.zst", changed(ZSTD, len(ZSTD) // 3, bytes(16)), None, error="corrupt zstd data near byte"),
    Broken("sum.jsonl.gz", changed(GZIP, -8, bytes([GZIP[-8] ^ 1])), error="corrupt gzip data"),
    Broken("size.jsonl.gz", changed(GZIP, -1, bytes([GZIP[-1] ^ 1])), error="corrupt gzip data"),
    Broken("sum.jsonl.zst", changed(ZSTD, -1, bytes([ZSTD[-1] ^ 1])), error="corrupt zstd data"),
    Broken("dictionary.jsonl.zst", with_dictionary(), error="data that need a zstd dictionary (unpack them first by"),
    Broken("stray.jsonl.gz", GZIP + b"\n", 2000, error="stray bytes"),
    Broken("stray.jsonl.zst", ZSTD + b"junk after the data" * 10, 2000, error="stray bytes"),
    Broken("empty.jsonl.gz", b"", error="0 bytes"),
    Broken("no-head.jsonl.gz", bytes(10) + GZIP[10:], error="neither gzip nor zstd, bzip2 or xz data"),
    Broken("nothing.jsonl.gz", gzip.compress(b"")),
    *(Broken(f"streams.jsonl{ending}", many_streams(ending), 2000) for ending in (".gz", ".zst", ".xz", ".bz2")),
    *(
        Broken(f"cut.jsonl{ending}", many_streams(ending).rstrip(b"\0")[:-28], None, error="cut off at byte")
        for ending in (".xz", ".bz2")
    ),
    Broken("blocked.jsonl.gz", blocked_gzip(), 2000),
    Broken("long.jsonl.zst", long_distance_zstd(), 2000),
    Broken("plain.jsonl.gz", LINES, 2000),
    Broken("zstd-named.jsonl.gz", ZSTD, 2000),
    Broken("packed.jsonl", GZIP, 2000),
    # Lines.
    *(
        Broken(f"line-{number}.jsonl", b'{"text": "before"}\n' + line + b'\n{"text": "after"}', 2, [(2, reason)])
        for number, (line, reason) in enumerate(BAD_LINES)
    ),
    # Lines of several objects.
    Broken("mac.jsonl", LINES.replace(b"\n", b"\r"), 2000),
    Broken("glued.jsonl", LINES.replace(b"\n", b""), 2000),
    Broken("glued.json", LINES.replace(b"\n", b""), 2000),
    Broken("commas.jsonl", LINES.replace(b"\n", b", "), 2000),
    Broken("separators.jsonl", LINES.replace(b"{", b"\x1e{"), 2000),
    Broken("unmarked.jsonl", LINES.replace(b"}\n", b"}\x1e"), 2000),
    *(
        Broken(f"mended-{number}.jsonl", end.join(GLUED), ["a", "b", "c", "d"], [(2, JSON), (4, UTF8)])
        for number, end in enumerate((b"\r", b"", b" ", b"\x1e", b"\r\r"))
    ),
    Broken("torn.jsonl", b'{"text": "a"}{"text": "b\n{"text": "c"}', ["a", "c"], [(2, JSON)]),
    Broken("tail.jsonl", b'{"text": "a"}}\n{"text": 1}{"text": "c"}', ["a", "c"], [(2, JSON), (3, IS_NUMBER)]),
    # Arrays of objects.
    Broken("arrays.jsonl", b"[" + LINES[:-1].replace(b"\n", b",") + b"]\n", 2000),
    Broken("array-each.jsonl", b"[" + LINES[:-1].replace(b"\n", b"],\r\n[") + b"]", 2000),
    Broken("array-nan.jsonl", b'[{"text": "a", "n": NaN}, {"text": "b]"}]\n[]', ["a", "b]"], [(3, OBJECT)]),
    Broken("array-cut.jsonl", b'[{"text": 1}, {"text": "b"}] \n[[{}]]', ["b"], [(1, IS_NUMBER), (3, OBJECT)]),
    Broken(
        "array-glued.jsonl", b'[{"text": "a"}, {"text": "b"},][{"text": "c"}]\r[{"text": "d"}', ["a", "b", "c", "d"]
    ),
    Broken(
        "array-torn.jsonl",
        b'[{"text": x}, {"text": "b"},{"text": "c}, {"text": "d"}]',
        ["b", "d"],
        [(1, JSON), (3, JSON)],
    ),
    Broken(
        "inner.jsonl",
        b'{"text": x, "parts": [{"text": "b"}, {"text": "c"}, {"te\n{"text": "d"}',
        ["d"],
        [(1, JSON)],
    ),
    # Objects of several lines.
    Broken("spread.json", json.dumps({"text": "a", "id": "x"}, indent=2).encode(), ["a"]),
    Broken("spread-mac.json", json.dumps({"text": "a"}, indent=2).replace("\n", "\r").encode(), ["a"]),
    Broken("spread-two.json", b'{"text":\n"a"}\n\n{"text"\n: "b"}{"text": 7}', ["a", "b"], [(3, IS_NUMBER)]),
    Broken("spread-cut.json", b'{\n"text": "a"\n}\n{\n"text": "b', error=IF_WHOLE),
    Broken("first-line.json", b'{"text": "a\n{"text": "b"}\n', ["b"], [(1, JSON)]),
    Broken("spread.jsonl", b'{\n"text": "a"\n}\n', error=IF_WHOLE + " and the file is named .json"),
    Broken("spread-list.jsonl", b'[\n{"text": "a"}\n]\n', error=IF_WHOLE + " and the file is named .json"),
    Broken("pair.jsonl", b'{"text": "good \\ud83d\\ude00", "title": "\\ud800"}', ["good \U0001f600"]),
    Broken("empty.jsonl", b""),
    Broken("empty.json", b""),
    Broken("empty.csv", b""),
    Broken("array.json", b'[{"text": "a"}, {"text": ', error="not a whole JSON array"),
    Broken(
        "elements.json",
        b'[{"text": "a"}, 7, {"text": "\\ud800"}, {"text": "b"}]',
        ["a", "b"],
        [(2, OBJECT), (3, "lone surrogate")],
    ),
    # Text.
    Broken("latin.txt", b"caf\xe9", bad=[(1, UTF8)]),
    Broken("zeros.txt", b"\0" * 9, bad=[(1, BINARY)]),
    Broken("zeros-between.txt", b"a \0 b" * 9, bad=[(1, BINARY)]),
    Broken("paper.txt", b"%PDF-1.7\n", bad=[(1, BINARY)]),
    Broken("zip.jsonl", b"PK\3\4", error="binary data, not text: it begins as a zip archive does"),
    *(
        Broken(f"{form}-{number}.txt", (text * 40).encode(form), bad=[(1, UTF8)])
        for form in ("utf-16", "utf-16-le", "utf-16-be")
        for number, text in enumerate(("Plain English words.\n", "Слова по-русски, и не одно.\n"))
    ),
    Broken("custard.txt", b"c" * 256 + b"custard", ["c" * 256 + "custard"]),
    Broken("custard.jsonl", b'{"text": "' + b"c" * 246 + b'custard"}', ["c" * 246 + "custard"]),
    Broken("utf-16.csv", "id,text\n1,Plain words.\n".encode("utf-16"), error=UTF16),
    Broken("utf-16.jsonl", '{"text": "Слова по-русски"}'.encode("utf-16-le"), error=UTF16),
    # Tables.
    Broken("width.csv", b"id,text\n1,a\n2,b,c\n3\n4,d\n", ["a", "d"], [(3, "invalid CSV"), (4, "invalid CSV")]),
    Broken("long.csv", b'id,text\n1,"' + b"x\n" * 500_000 + b'"\n', ["x\n" * 500_000]),
    Broken(
        "names.csv",
        b"id,texts\n1,a\n",
        error="no column 'text' (did you mean 'texts'?); there are 'id', 'texts'; text_key",
    ),
    Broken("header.csv", b'"id,text\n1,a\n', error="the header line cannot be read: unexpected end of data"),
    Broken("twice.csv", b"text,text\na,b\n", error="2 columns are named 'text', and only one can be read; rename the"),
    Broken("twice.parquet", parquet(with_two_columns_of_a_name()), error="2 columns are named 'text'"),
    Broken("twice.arrow", arrow(with_two_columns_of_a_name()), error="2 columns are named 'text'"),
    Broken("names.parquet", parquet(pa.table({"id": ["1"], "texts": ["a"]})), error="no column 'text' (did you mean"),
    Broken("numbers.parquet", parquet(pa.table({"text": [1, 2]})), error="column 'text' is int64, not text"),
    Broken("ids.parquet", parquet(pa.table({"text": ["a"], "id": [["x"]]})), error="column 'id' is list"),
    Broken(
        "bytes.parquet",
        parquet(pa.table({"text": pa.array([b"a", b"\xff", b"b"]).view(pa.string())})),
        ["a", "b"],
        [(2, UTF8)],
    ),
    Broken("null.parquet", parquet(pa.table({"text": ["a", None]})), ["a"], [(2, "'text' is null, not text")]),
    Broken("no-rows.parquet", parquet(pa.table({"text": pa.array([], pa.string())}))),
    Broken("0-bytes.parquet", b"", error=NOT_WHOLE),
    Broken("magic.parquet", b"PAR1", error=NOT_WHOLE),
    Broken("cut.parquet", WHOLE[: len(WHOLE) // 2], error=NOT_WHOLE),
    Broken("no-footer.parquet", WHOLE[:-100], error=NOT_WHOLE),
    Broken("flipped.parquet", with_flipped_bit(), error=NOT_WHOLE),
    Broken("cut.tar.gz", gzip.compress(TAR)[:-20], 1, error="the gzip stream is cut off at byte"),
    Broken("cut-inside.tgz", gzip.compress(TAR[:700]), error="the file ends inside the payload"),
    Broken("last-byte.tar.gz", gzip.compress(TAR)[:-1], 2, error="the gzip stream is cut off at byte"),
    Broken("unpacked.tar.gz", TAR, 2),
    Broken("text.warc", b"Plain words.\n", error="not a WARC file: a record begins with b'Plain words.\\n'"),
    Broken("packed.tar", gzip.compress(TAR), 2),
    Broken("nothing.tar.gz", b"", error="the file ends without the end-of-archive blocks"),
    Broken("cut.arrow", arrow(pa.table({"text": ["a" * 999]}))[:600], error="not a whole Arrow file"),
]


def read(path: Path) -> tuple[list[Document], list[BadRecord], str]:
    """Return documents, bad records, and the message of the error that ended the reading, or ''."""
    documents: list[Document] = []
    bad: list[BadRecord] = []
    try:
        for file in find_inputs(path):
            for record in DocumentReader(file):
                documents.append(record) if isinstance(record, Document) else bad.append(record)  # type: ignore[arg-type]
    except InputError as error:
        return documents, bad, str(error)
    return documents, bad, ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    for file in FILES:
        (folder / file.name).write_bytes(file.data)
    return folder


@functools.cache
def seen(folder: Path) -> dict[str, tuple[list[Document], list[BadRecord], str]]:
    return {file.name: read(folder / file.name) for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_reader_gives_the_documents_the_bad_records_and_the_error_of_a_file(folder: Path, file: Broken) -> None:
    documents, bad, error = seen(folder)[file.name]
    texts = [document.text for document in documents]
    if file.documents is None:
        assert texts == [json.loads(line)["text"] for line in LINES.splitlines()[: len(texts)]]
    else:
        assert (texts if isinstance(file.documents, list) else len(texts)) == file.documents
    assert [(record.line, record.reason) for record in bad] == file.bad
    assert all(record.file == file.name for record in bad)
    assert file.error in error
    assert bool(error) == bool(file.error)
    if error:
        assert error.startswith(f"{folder / file.name}: ")
        assert f"{len(documents):,} documents of it had been read" in error.replace("document of", "documents of")


def test_a_build_keeps_what_a_reader_gives_and_counts_the_rest(folder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tokenizer": "bytes", "language": (), "rules": (), "dedup": False, "val_fraction": 0}
    counts = run(folder, tmp_path / "out", on_error="skip", **settings).counts
    found = seen(folder)
    wanted = Counter(record.reason for _, bad, _ in found.values() for record in bad for _ in range(record.count))
    wanted["file that cannot be read further"] = sum(bool(error) for *_, error in found.values())
    assert counts["bad"] == wanted
    assert counts["read"] == sum(len(documents) for documents, *_ in found.values())
    damaged = {each["file"]: each["fault"] for each in counts["damaged"]}
    assert {file.name for file in FILES if file.error} == damaged.keys()
    assert all(file.error in damaged[file.name] for file in FILES if file.error)


def test_a_stream_gives_what_a_reader_gives_and_counts_the_rest(folder: Path) -> None:
    stream = pipeline.TextDataset(folder, "bytes", epochs=1, on_error="skip").documents().numpy()
    given = Counter(bytes((row["input_ids"][:-1] - 3).astype("u1")) for row in stream)
    found = seen(folder)
    assert given == Counter(document.text.encode() for documents, *_ in found.values() for document in documents)
    stats = stream.stats()
    assert stats["bad_records"] == sum(record.count for _, bad, _ in found.values() for record in bad)
    assert stats["damaged_files"] == sum(bool(error) for *_, error in found.values())


def test_a_stream_that_unpacks_a_thousandfold_is_read_in_small_pieces(tmp_path: Path) -> None:
    line = b'{"text": "' + b"x" * (20 << 20) + b'"}\n'
    for ending, pack in ((".gz", gzip.compress), (".zst", zstandard.compress)):
        path = tmp_path / f"a.jsonl{ending}"
        path.write_bytes(pack(line * 2))
        assert path.stat().st_size < 1 << 20
        assert [len(d.text) for d in read(path)[0]] == [20 << 20] * 2


# One value that cannot be kept costs its record, or ends the build by an error that names file, column, value and cure.


BIG = 90071992547409930001


def build(inputs: Any, output: Path, **settings: Any) -> dict[str, Any]:
    return dict(run_plain(inputs, output, dedup=False, **settings).counts)


def streamed(inputs: Any, **settings: Any) -> int:
    return len(list(pipeline.TextDataset(inputs, "bytes", epochs=1, on_error="records", **settings).documents()))


@pytest.mark.parametrize(
    ("kind", "value", "field", "reason"),
    [
        ("jsonl", "a\ud800", "x", "'x' holds a lone surrogate"),
        ("json", "a\ud800", "x:str", "'x' holds a lone surrogate"),
        ("json", BIG, "x", "'x' is a whole number beyond 64 bits; x:float keeps it rounded"),
        ("jsonl", -BIG, "x:int", "'x' is a whole number beyond 64 bits; x:float keeps it rounded"),
        ("jsonl", {"k": ["\ud800"]}, "x", "'x' holds what JSON cannot keep"),
    ],
)
def test_a_field_that_is_unfit_makes_a_bad_record(
    tmp_path: Path, kind: str, value: Any, field: str, reason: str
) -> None:
    rows = [{"text": "bad", "x": value}, {"text": "good", "x": None}]
    path = tmp_path / f"a.{kind}"
    path.write_text(json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows)))
    counts = build(path, tmp_path / "out", keep_fields=[field])
    assert (counts["kept"], counts["bad"]) == (1, {reason: 1})
    if not isinstance(value, dict):  # a stream writes no fields
        assert streamed(path, fields=[field]) == 1
    with pytest.raises(InputError, match=r"a\.jsonl?: line 1.*: 'x' .*mend it, or count and skip"):
        build(path, tmp_path / "stopped", keep_fields=[field], on_error="stop")


def test_a_large_number_is_kept_where_it_is_asked_for_as_a_float(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "x": {BIG}}}\n{{"text": "b", "x": NaN, "y": {BIG}}}\n')
    (tmp_path / "a.csv").write_text(f"text,x\na,{BIG}\n")
    assert build(tmp_path / "a.jsonl", tmp_path / "out", keep_fields=["x:float"])["kept"] == 2
    assert build(tmp_path / "a.csv", tmp_path / "csv", keep_fields=["x:float"])["kept"] == 1
    assert build(tmp_path / "a.csv", tmp_path / "int", keep_fields=["x:int"], on_error="skip")["kept"] == 0


@pytest.mark.parametrize(("depth", "id"), [(900, ""), (900, '"id": 1.5, '), (100_000, '"id": 1.5, ')])
def test_a_record_that_is_nested_too_deeply_costs_itself_or_its_array(tmp_path: Path, depth: int, id: str) -> None:
    deep = f'{{{id}"text": "deep", "x": {"[" * depth}{"]" * depth}}}'
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a"}}\n{deep}\n')
    for number, field in enumerate(("x", "x:str")):
        counts = build(tmp_path / "a.jsonl", tmp_path / f"lines{number}", keep_fields=[field])
        assert (counts["kept"], sum(counts["bad"].values())) == (1, 1)
    (tmp_path / "a.json").write_text(f'[{{"text": "a"}}, {deep}]')
    (tmp_path / "b.jsonl").write_text('{"text": "b"}')
    both = [tmp_path / "a.json", tmp_path / "b.jsonl"]
    if depth > 1000:
        with pytest.raises(InputError, match=r"a\.json: .*nested too deeply.*write it as JSON Lines"):
            build(both, tmp_path / "stopped")
        counts = build(both, tmp_path / "skipped", on_error="skip")
        assert (counts["kept"], counts["bad"]) == (1, {"file that cannot be read further": 1})
    else:
        assert build(both, tmp_path / "whole", keep_fields=["x"], on_error="skip")["kept"] == 2


def test_categories_of_polars_are_read_in_memory_and_from_its_files(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    columns = {"id": ["x", "y", "z"], "text": ["one", "two", "three"], "c": ["u", None, "u"]}
    plain = pl.DataFrame(columns)
    frame = pl.DataFrame(columns, schema_overrides={"text": pl.Categorical, "c": pl.Categorical})
    frame.write_ipc(tmp_path / "a.arrow")
    expected = build(plain, tmp_path / "plain", keep_fields=["c"])
    for number, given in enumerate((frame, frame.lazy(), tmp_path / "a.arrow")):
        counts = build(given, tmp_path / f"out{number}", keep_fields=["c"])
        assert (counts["kept"], counts["tokens"]) == (3, expected["tokens"])
        assert streamed(given, fields=["c"]) == 3


def test_a_column_of_mixed_types_is_named_with_the_cure(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", "b", "c"], "x": ["one", None, 2]})
    said = r"a DataFrame that Parquet cannot hold: .*column x with type object; .*of one type, as with \.astype\(str\)"
    with pytest.raises(InputError, match=said):
        build(frame, tmp_path / "out")
    with pytest.raises(InputError, match=said):
        pipeline.TextDataset(frame, "bytes")


def test_a_path_that_is_not_utf8_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/in/caf\xe9.txt")).write_text("A text.")
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    for read in (lambda: build(tmp_path / "in", tmp_path / "out"), lambda: streamed(tmp_path / "in")):
        with pytest.raises(InputError, match=r"in/caf\\xe9\.txt: this path is not UTF-8, .*; rename"):
            read()
    assert not (tmp_path / "out/manifest.json").exists()
