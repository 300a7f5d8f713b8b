"""Inputs on web servers are read by ranges, through failures, and held to what was listed."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import pipeline
from pipeline.errors import InputError, MissingObjectError
from pipeline.text.discovery import find_inputs
from pipeline.text.document import RecordKeys, Tally
from pipeline.text.readers.byte_stream import ByteStream
from pipeline.text.readers.document_reader import DocumentReader, split_file
from pipeline.text.readers.parquet import read_parquet
from pipeline.text.storage.open_input import open_input
from pipeline.text.storage.remote_file import RemoteFile
from tests.helpers.input_server import InputServer, running_inputs
from tests.helpers.remote_inputs import QUICK, TEXTS, build, columns_file, only, shards_of, texts_of
from tests.helpers.text_samples import KINDS, jsonl, make_texts, write_texts
from tests.helpers.text_streams import ids


@pytest.mark.parametrize("kind", [*KINDS, "json", "txt"])
def test_every_format_gives_the_documents_of_a_local_file(tmp_path: Path, server: InputServer, kind: str) -> None:
    if kind == "json":
        (tmp_path / "a.json").write_text(json.dumps([{"text": text} for text in TEXTS]))
    elif kind == "txt":
        (tmp_path / "a.txt").write_text(TEXTS[0])
    else:
        write_texts(tmp_path / f"a.{kind}", TEXTS)
    server.files[f"a.{kind}"] = (tmp_path / f"a.{kind}").read_bytes()
    here, there = only(str(tmp_path / f"a.{kind}")), only(server.url(f"a.{kind}"))
    assert list(DocumentReader(there)) == list(DocumentReader(here))
    assert there.stored is not None
    assert there.stored.size == len(server.files[f"a.{kind}"])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_spans_of_a_remote_file_hold_each_record_once(tmp_path: Path, server: InputServer, kind: str) -> None:
    path = write_texts(tmp_path / f"a.{kind}", TEXTS)
    if kind == "parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=20)
    server.files[path.name] = path.read_bytes()
    file = only(server.url(path.name))
    spans = split_file(file, path.stat().st_size // 7)
    assert len(spans) > 3
    assert [text for span in spans for text in texts_of(file, span)] == TEXTS


def test_of_remote_parquet_only_wanted_columns_are_asked_for(server: InputServer) -> None:
    data = server.files["a.parquet"] = columns_file(6000, 1000)
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    used = sum(group.column(n).total_compressed_size for group in groups for n in (0, 2)) + metadata.serialized_size
    file = only(server.url("a.parquet"))
    for span in split_file(file, len(data) // 3):
        texts_of(file, span)
    assert used < server.sent <= 1.02 * used
    assert used < len(data) / 2


def test_contiguous_bytes_are_asked_for_once_in_ranges_of_eight_mb(server: InputServer) -> None:
    line = json.dumps({"text": "to be or not to be " * 50}).encode() + b"\n"
    data = server.files["a.jsonl"] = line * (40_000_000 // len(line))
    file = only(server.url("a.jsonl"))
    count = sum(len(texts_of(file, span)) for span in split_file(file, 20_000_000))
    assert count == len(data) // len(line)
    sizes = [each.sent for each in server.asked if each.sent > 1]
    assert server.sent <= 1.02 * len(data)
    assert all(size >= 8_000_000 for size in sizes), sizes


def test_memory_holds_two_ranges_and_pieces_of_a_row_group(server: InputServer) -> None:
    ids, texts = [f"{n:0500}" for n in range(30_000)], [os.urandom(750).hex() for _ in range(30_000)]
    table = pa.table({"id": ids, "text": texts})
    written = io.BytesIO()
    pq.write_table(table, written, row_group_size=30_000, compression="none", use_dictionary=False)
    server.files["a.parquet"] = data = written.getvalue()
    held, rows = 0, 0
    with open_input(only(server.url("a.parquet"))) as opened:
        assert isinstance(opened, RemoteFile)
        while opened.read(1_000_000):
            assert opened.bytes_in_memory <= 20_000_000
    server.asked.clear()
    with open_input(only(server.url("a.parquet")), in_order=False) as opened:
        assert isinstance(opened, RemoteFile)
        for batch in read_parquet(ByteStream(opened), RecordKeys("text", "id", "a.parquet"), Tally()):
            held, rows = max(held, opened.bytes_in_memory), rows + len(batch)
    assert rows == 30_000
    assert held < 48_000_000 < 0.9 * len(data)
    assert server.sent <= 1.02 * len(data)


def test_an_object_that_changed_since_it_was_listed_is_refused(server: InputServer) -> None:
    server.files["a.jsonl"] = b'{"text": "x"}\n'
    file = only(server.url("a.jsonl"))
    server.files["a.jsonl"] = b'{"text": "y"}\n'
    with pytest.raises(InputError, match=r"a\.jsonl: it changed .*: 14 bytes of version"):
        texts_of(file)


def test_what_a_web_server_lacks_or_cannot_do_is_said(server: InputServer) -> None:
    with pytest.raises(MissingObjectError, match=r"no\.jsonl: 404"):
        find_inputs(server.url("no.jsonl"), requests=QUICK)
    for url in (server.url("*.jsonl"), server.url("folder/")):
        with pytest.raises(InputError, match="web servers cannot list"):
            find_inputs(url, requests=QUICK)
    url = server.url("{a,a}.jsonl")
    with pytest.raises(InputError, match=r"/a\.jsonl is named twice.*documents .*read twice"):
        find_inputs(url, requests=QUICK)
    server.files["a.exe"] = b"x"
    with pytest.raises(InputError, match=r"unknown ending \(.exe\)"):
        find_inputs(server.url("a.exe"), requests=QUICK)


def test_braces_name_many_objects_of_a_web_server(server: InputServer) -> None:
    server.files |= {f"part-{number:02}.jsonl": b'{"text": "x"}\n' for number in range(12)}
    files = find_inputs("web=" + server.url("part-{00..11}.jsonl"), requests=QUICK)
    assert [(file.source, file.name) for file in files] == [("web", f"part-{n:02}.jsonl") for n in range(12)]


def test_compressed_bytes_under_a_plain_name_are_refused(server: InputServer) -> None:
    server.files["a.jsonl"] = zstandard.compress(os.urandom(20_000))
    file = only(server.url("a.jsonl"))
    spans = split_file(file, 8_000)
    assert len(spans) > 1
    with pytest.raises(InputError, match=r"compressed data .*name without \.gz, \.zst"):
        texts_of(file, spans[0])


PACK = {".gz": gzip.compress, ".zst": zstandard.compress, "": bytes}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of several MB."""
    words = random.Random(1)
    return jsonl(tmp_path_factory.mktemp("lines") / "a.jsonl", [words.randbytes(1500).hex() for _ in range(2000)])


def stream(source: Any, **options: Any) -> pipeline.Stream:
    return pipeline.TextDataset(source, tokenizer="bytes", **options).shuffle(seed=3).pack(512).batch(32)


def test_the_next_file_is_asked_for_while_one_is_read(server: InputServer) -> None:
    for name in "ab":
        server.files[f"{name}.jsonl.gz"] = gzip.compress(b'{"text": "to be or not to be"}\n' * 100)
    data = pipeline.TextDataset([server.url("a.jsonl.gz"), server.url("b.jsonl.gz")], tokenizer="bytes")
    server.asked.clear()
    server.together = {f"{name}.jsonl.gz": threading.Event() for name in "ab"}  # no answer before both are asked for
    assert next(iter(data.documents(max_length=64)))
    assert {each.path[-10:] for each in server.asked} == {"a.jsonl.gz", "b.jsonl.gz"}


@pytest.mark.parametrize("ending", ["", pytest.param(".gz", marks=pytest.mark.nightly), ".zst"])
def test_a_file_is_read_by_few_requests_whatever_the_lanes_and_the_epochs(
    tmp_path: Path, server: InputServer, path: Path, ending: str
) -> None:
    local = tmp_path / f"a.jsonl{ending}"
    data = server.files[local.name] = PACK[ending](path.read_bytes())
    local.write_bytes(data)
    epochs = 1 if ending else 2  # a file that cannot be cut is fetched again
    assert ids(stream(server.url(local.name), epochs=epochs)) == ids(stream(local, epochs=epochs))
    assert len(server.asked) <= 10  # some for the number of records
    assert server.sent <= 1.5 * len(data)


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_a_server_without_ranges_is_asked_for_a_file_once(tmp_path: Path, server: InputServer, kind: str) -> None:
    path = write_texts(tmp_path / f"a.{kind}", make_texts(800, 1, longest=300))
    server.files[path.name] = path.read_bytes()
    server.ranges = False
    with pytest.warns(UserWarning, match=r"a\.jsonl|a\.parquet.*no requests for ranges.*downloads the file whole"):
        remote = stream(server.url(path.name), epochs=2)
    assert ids(remote) == ids(stream(path, epochs=2))
    assert len(server.asked) <= 3  # one for the size
    with running_inputs() as other:  # one that answers with ranges at first
        other.files[path.name] = server.files[path.name]
        file = only(other.url(path.name))
        other.ranges = False
        assert texts_of(file) == texts_of(only(str(path)))
    there, here = (build(each, tmp_path / str(n), workers=1) for n, each in enumerate((server.url(path.name), path)))
    assert shards_of(there) == shards_of(here)
    assert len([each for each in server.asked if each.range != "bytes=0-0"]) <= 2  # the others ask for the size


@pytest.mark.parametrize("on_error", ["stop", "records", "skip"])
def test_answers_of_another_version_while_records_are_counted_is_an_error(server: InputServer, on_error: Any) -> None:
    server.files["a.jsonl"] = b'{"text": "to be or not to be"}\n' * 1000
    data = stream(server.url("a.jsonl"), on_error=on_error)
    server.faults = ["changed"] * 2
    with pytest.raises(InputError, match=r"a\.jsonl: it changed since it was listed"):
        next(iter(data))


def test_one_wrong_footer_leaves_the_order_as_it_is(tmp_path: Path, server: InputServer) -> None:
    path = write_texts(tmp_path / "a.parquet", make_texts(2000, 1))
    pq.write_table(pq.read_table(path), path, row_group_size=100)
    server.files[path.name] = path.read_bytes()

    def make(source: Any) -> pipeline.Stream:
        return pipeline.TextDataset(source, "bytes", epochs=1).shuffle(seed=3, lanes=32).pack(64).batch(32)

    remote = make(server.url(path.name))
    server.faults = ["wrong"]
    assert ids(remote) == ids(make(path))
    assert server.faults == []
