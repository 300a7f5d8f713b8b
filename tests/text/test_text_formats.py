"""Text files that hold many documents: lines, paragraphs, and what stands between separators."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zstandard

import pipeline
from pipeline.builder.limits import Limits
from pipeline.cli.main import run_command
from pipeline.errors import ConfigError, InputError, StateError
from pipeline.text.document import BINARY
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, InputFile
from tests.helpers.builds import run
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
    for _ in stream.filter(lambda record: seen.append((record.id, record.text)) is None, name="seen").documents():
        pass
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
    bad = [
        each
        for each in DocumentReader(InputFile(tmp_path / "x.txt", "x.txt", forced_format=format))
        if isinstance(each, BadRecord)
    ]
    assert [(each.reason, each.byte) for each in bad] == [
        (BINARY, data.index(b"t\0")),
        ("invalid UTF-8", data.index(b"caf")),
    ]
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
    for name in ("x.txt", "x.txt.gz"):
        run(
            tmp_path / name,
            tmp_path / name[2:],
            limits=Limits(unit_bytes=700, smallest_unit_bytes=700),
            transforms=[pipeline.transform(lambda document: pipeline.Drop("all"), version="1")],
            keep_rejected=True,
            **{"format": format, "rules": (), "language": (), "tokenizer": "bytes"},
        )
        rejected = [json.loads(line) for line in (tmp_path / name[2:] / "rejected.jsonl").read_text().splitlines()]
        found.append([(each["id"].rpartition(":")[2], each["line"], each["text"]) for each in rejected])
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
    whole = [batch["input_ids"].tolist() for batch in islice(packed(), 80)]
    for at in (1, 37):
        stream = packed()
        for _ in islice(stream, at):
            pass
        again = packed()
        again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert [batch["input_ids"].tolist() for batch in islice(again, 80 - at)] == whole[at:]


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
        run([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "o", tokenizer="bytes", max_tokens=0)
    assert len(said) == len(built) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline.TextDataset(tmp_path / "a.txt", "bytes", format="lines")


def test_texts_and_try_rules_take_the_same_formats(tmp_path: Path, says: Says) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "x.txt").write_text("one\ntwo\n\nthree\n")
    output = tmp_path / "o.parquet"
    assert run_command("texts", [str(tmp_path / "x.txt"), "--output", str(output), "--format", "paragraphs"]) == 0
    assert pq.read_table(output)["text"].to_pylist() == ["one\ntwo", "three"]
    assert "judged 3 of 3 documents read: 0 kept" in says(0, "try-rules", tmp_path / "x.txt", "--format", "lines").out
    assert "did you mean 'lines'" in says(2, "texts", tmp_path / "x.txt", "--output", output, "--format", "line").err


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
        options: dict[str, Any] = {"tokenizer": "bytes", "language": (), "rules": (), "dedup": False}
        small = Limits(unit_bytes=40_000, smallest_unit_bytes=40_000)
        manifest = run(url, tmp_path / "o", format=format, limits=small, **options)
        assert manifest.counts["kept"] == len(texts)
