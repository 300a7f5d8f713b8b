"""JSON Lines of web servers are read in large ranges, ahead of their use, and once where a server knows no ranges."""

from __future__ import annotations

import gzip
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

import pipeline
from pipeline.errors import InputError
from tests.input_server import InputServer, running_inputs
from tests.remote_inputs import build, columns_file, shards_of
from tests.text_samples import jsonl, make_texts, write_texts
from tests.text_streams import ids

PACK = {".gz": gzip.compress, ".zst": zstandard.compress, "": bytes}


@pytest.fixture
def server() -> Iterator[InputServer]:
    with running_inputs() as running:
        yield running


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of several MB."""
    words = random.Random(1)
    return jsonl(tmp_path_factory.mktemp("lines") / "a.jsonl", [words.randbytes(1500).hex() for _ in range(2000)])


def stream(source: Any, **options: Any) -> pipeline.Stream:
    return pipeline.TextDataset(source, tokenizer="bytes", **options).shuffle(seed=3).pack(512).batch(32)


@pytest.mark.parametrize("ending", PACK)
def test_a_file_is_read_by_few_requests_whatever_the_lanes(server: InputServer, path: Path, ending: str) -> None:
    data = server.files[f"a.jsonl{ending}"] = PACK[ending](path.read_bytes())
    assert len(data) > 2_000_000
    assert len(ids(stream(server.url(f"a.jsonl{ending}")).take(101))) == 101
    assert len(server.asked) <= 10  # some for the number of records
    assert server.sent <= 1.5 * len(data)


def test_a_later_epoch_asks_for_nothing(server: InputServer, path: Path) -> None:
    server.files["a.jsonl"] = path.read_bytes()
    found = ids(stream(server.url("a.jsonl"), epochs=2))
    assert found == ids(stream(path, epochs=2))
    assert server.sent <= 1.5 * len(server.files["a.jsonl"])


def test_the_next_file_is_asked_for_while_one_is_read(server: InputServer) -> None:
    for name in "ab":
        server.files[f"{name}.jsonl.gz"] = gzip.compress(b'{"text": "to be or not to be"}\n' * 100)
    data = pipeline.TextDataset([server.url("a.jsonl.gz"), server.url("b.jsonl.gz")], tokenizer="bytes")
    server.asked.clear()
    server.together = {f"{name}.jsonl.gz": threading.Event() for name in "ab"}  # no answer before both are asked for
    assert next(iter(data.documents(max_length=64)))
    assert {each.path[-10:] for each in server.asked} == {"a.jsonl.gz", "b.jsonl.gz"}


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_a_server_without_ranges_is_asked_for_a_file_once_with_a_warning(
    tmp_path: Path, server: InputServer, kind: str
) -> None:
    path = write_texts(tmp_path / f"a.{kind}", make_texts(8000, 1, longest=300))
    data = server.files[path.name] = path.read_bytes()
    assert kind != "jsonl" or len(data) > 1_000_000
    server.ranges = False
    with pytest.warns(UserWarning, match=r"a\.jsonl|a\.parquet.*no requests for ranges.*downloads the file whole"):
        remote = stream(server.url(path.name), epochs=2)
    assert ids(remote) == ids(stream(path, epochs=2))
    assert len(server.asked) <= 3  # one for the size


def test_a_build_asks_a_server_without_ranges_for_a_file_once(tmp_path: Path, server: InputServer) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(columns_file(1500, 250))
    server.files[path.name] = path.read_bytes()
    server.ranges = False
    with pytest.warns(UserWarning, match="no requests for ranges"):
        there = build(server.url(path.name), tmp_path / "there", workers=1)
    assert shards_of(there) == shards_of(build(path, tmp_path / "here", workers=1))
    whole = [each for each in server.asked if each.range != "bytes=0-0"]  # the others ask for the size
    assert len(whole) == 1


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
        data = pipeline.TextDataset(source, tokenizer="bytes", epochs=1)
        return data.shuffle(seed=3, lanes=32).pack(64).batch(32)

    remote = make(server.url(path.name))
    server.faults = ["wrong"]
    assert ids(remote) == ids(make(path))
    assert server.faults == []


def test_bytes_read_of_a_remote_parquet_file_are_counted(tmp_path: Path, server: InputServer) -> None:
    path = write_texts(tmp_path / "a.parquet", make_texts(4000, 1))
    size = path.stat().st_size
    server.files[path.name] = path.read_bytes()
    remote = pipeline.TextDataset(server.url(path.name), tokenizer="bytes", epochs=1).pack(64).batch(4)
    for _ in zip(range(40), remote, strict=False):
        pass
    assert 0 < remote.stats()["bytes_read"] < size
    assert ids(remote)
    assert remote.stats()["bytes_read"] == size
