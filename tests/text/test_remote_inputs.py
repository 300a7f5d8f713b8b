"""Inputs on web servers are read by ranges, through failures, and held to what was listed."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.errors import InputError, MissingObjectError
from pipeline.objects.remote_object import describe
from pipeline.text.discovery import find_inputs
from pipeline.text.document import RecordKeys, Tally
from pipeline.text.readers.byte_stream import Source
from pipeline.text.readers.parquet import read_parquet
from pipeline.text.readers.reader import Reader, split_file
from pipeline.text.storage.input_file import InputFile, StoredObject
from pipeline.text.storage.opening import open_input
from pipeline.text.storage.remote_file import RemoteFile
from tests.input_server import InputServer, running_inputs
from tests.remote_inputs import QUICK, TEXTS, columns_file, only, texts_of
from tests.text_samples import KINDS, write_texts


@pytest.fixture
def server() -> Iterator[InputServer]:
    with running_inputs() as running:
        yield running


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
    assert list(Reader(there)) == list(Reader(here))
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


def test_of_a_remote_parquet_file_only_the_chunks_of_wanted_columns_are_asked_for(server: InputServer) -> None:
    data = server.files["a.parquet"] = columns_file(6000, 1000)
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    used = sum(group.column(n).total_compressed_size for group in groups for n in (0, 2)) + metadata.serialized_size
    file = only(server.url("a.parquet"))
    for span in split_file(file, len(data) // 3):
        texts_of(file, span)
    assert used < server.sent <= 1.02 * used
    assert used < len(data) / 2


def test_contiguous_bytes_are_asked_for_in_ranges_of_eight_megabytes_and_each_once(server: InputServer) -> None:
    line = json.dumps({"text": "to be or not to be " * 50}).encode() + b"\n"
    data = server.files["a.jsonl"] = line * (40_000_000 // len(line))
    file = only(server.url("a.jsonl"))
    count = sum(len(texts_of(file, span)) for span in split_file(file, 20_000_000))
    assert count == len(data) // len(line)
    sizes = [each.sent for each in server.asked if each.sent > 1]
    assert server.sent <= 1.02 * len(data)
    assert all(size >= 8_000_000 for size in sizes), sizes


def test_memory_holds_two_ranges_of_a_file_that_is_read_in_order(server: InputServer) -> None:
    server.files["a.bin"] = bytes(50_000_000)
    stored = StoredObject(server.url("a.bin"), *describe(server.url("a.bin"), QUICK))
    file = InputFile(stored.url, "a.bin", stored=stored)
    with open_input(file) as opened:
        for _ in range(30):
            opened.read(1_000_000)
            assert isinstance(opened, RemoteFile)
            assert opened.bytes_in_memory <= 20_000_000


def test_memory_holds_pieces_of_the_columns_of_a_long_row_group(server: InputServer) -> None:
    table = pa.table(
        {"id": [f"{n:0500}" for n in range(30_000)], "text": [os.urandom(750).hex() for _ in range(30_000)]}
    )
    written = io.BytesIO()
    pq.write_table(table, written, row_group_size=30_000, compression="none", use_dictionary=False)
    server.files["a.parquet"] = data = written.getvalue()
    held, rows = 0, 0
    with open_input(only(server.url("a.parquet")), in_order=False) as opened:
        assert isinstance(opened, RemoteFile)
        for batch in read_parquet(Source(opened), RecordKeys("text", "id", "a.parquet"), Tally()):
            held, rows = max(held, opened.bytes_in_memory), rows + len(batch)
    assert rows == 30_000
    assert held < 48_000_000 < 0.9 * len(data)
    assert server.sent <= 1.02 * len(data)


def test_connections_are_kept_from_one_request_to_the_next(server: InputServer) -> None:
    for number in range(20):
        server.files[f"part-{number:02}.jsonl"] = b'{"text": "x"}\n'
    files = find_inputs(server.url("part-{00..19}.jsonl"), access=QUICK)
    asked = server.connections
    assert [texts_of(file) for file in files] == [["x"]] * 20
    assert server.connections <= asked + 1
    assert server.connections <= 17  # sixteen were asked for at once


def test_an_object_that_changed_since_it_was_listed_is_refused(server: InputServer) -> None:
    server.files["a.jsonl"] = b'{"text": "x"}\n'
    file = only(server.url("a.jsonl"))
    server.files["a.jsonl"] = b'{"text": "y"}\n'
    with pytest.raises(InputError, match=r"a\.jsonl: it changed since it was listed: 14 bytes of version"):
        texts_of(file)


def test_what_a_web_server_lacks_or_cannot_do_is_said(server: InputServer) -> None:
    with pytest.raises(MissingObjectError, match=r"no\.jsonl: 404"):
        find_inputs(server.url("no.jsonl"), access=QUICK)
    for url in (server.url("*.jsonl"), server.url("folder/")):
        with pytest.raises(InputError, match="web servers cannot list"):
            find_inputs(url, access=QUICK)
    server.files["a.exe"] = b"x"
    with pytest.raises(InputError, match=r"unknown ending \(.exe\)"):
        find_inputs(server.url("a.exe"), access=QUICK)


def test_braces_name_many_objects_of_a_web_server(server: InputServer) -> None:
    for number in range(12):
        server.files[f"part-{number:02}.jsonl"] = b'{"text": "x"}\n'
    files = find_inputs("web=" + server.url("part-{00..11}.jsonl"), access=QUICK)
    assert [(file.source, file.name) for file in files] == [("web", f"part-{n:02}.jsonl") for n in range(12)]


def test_compressed_bytes_under_a_plain_name_are_refused_where_they_were_cut_by_the_name(server: InputServer) -> None:
    server.files["a.jsonl"] = zstandard.compress(os.urandom(20_000))
    file = only(server.url("a.jsonl"))
    spans = split_file(file, 8_000)
    assert len(spans) > 1
    with pytest.raises(InputError, match=r"compressed data under a name without \.gz, \.zst"):
        texts_of(file, spans[0])
