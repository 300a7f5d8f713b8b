"""What a url names: its query tells files apart, a version tells contents apart, and without one nothing is kept for later."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.objects.request_options import version_of
from tests.helpers.builds import run_plain
from tests.helpers.faulty_server import FaultyServer, running_server
from tests.helpers.input_server import InputServer, running_inputs
from tests.helpers.shard_samples import make_documents, write_dataset, write_documents
from tests.helpers.text_samples import make_texts, spelled
from tests.helpers.text_streams import ids


@pytest.fixture
def texts() -> Iterator[InputServer]:
    with running_inputs() as running:
        yield running


@pytest.fixture
def shards() -> Iterator[FaultyServer]:
    with running_server() as running:
        yield running


def lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def documents(stream: Any) -> list[str]:
    return sorted(spelled(row["input_ids"]) for row in stream.documents(max_length=1 << 20))


def two_queries(server: InputServer) -> list[str]:
    """Serve two files whose urls differ in their queries, and return all of their texts."""
    halves = [make_texts(60, 1), make_texts(120, 2)]
    for number, half in enumerate(halves, 1):
        server.files[f"get.jsonl?f={number}"] = lines(half)
    return sorted(halves[0] + halves[1])


@pytest.mark.parametrize("etags", [True, False])
def test_texts_whose_urls_differ_in_their_queries_are_all_read(texts: InputServer, etags: bool) -> None:
    wanted = two_queries(texts)
    texts.etags = etags
    both = [texts.url("get.jsonl?f=1"), texts.url("get.jsonl?f=2")]
    for urls, lanes in ((both, None), (texts.url("get.jsonl?f={1..2}"), 8)):
        data = pipeline.TextDataset(urls, tokenizer="bytes", epochs=1)
        assert documents(data.shuffle(seed=0, lanes=lanes)) == wanted


def test_a_build_reads_all_urls_that_differ_in_their_queries(tmp_path: Path, texts: InputServer) -> None:
    wanted = two_queries(texts)
    urls = [texts.url("get.jsonl?f=1"), texts.url("get.jsonl?f=2")]
    manifest = run_plain(urls, tmp_path / "out", dedup=False)
    assert sum(shard.documents for shard in manifest.shards) == len(wanted)
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"f=1" not in written
    assert b"f=2" not in written


def test_a_stream_of_signed_urls_resumes_when_they_are_signed_again(texts: InputServer) -> None:
    texts.files["a.jsonl"], texts.files["b.jsonl"] = lines(make_texts(300, 1)), lines(make_texts(300, 2))

    def signed(signature: str) -> Any:
        urls = [texts.url(f"{name}.jsonl?X-Amz-Signature={signature}") for name in "ab"]
        return pipeline.TextDataset(urls, tokenizer="bytes").shuffle(seed=1).pack(64).batch(4).take(12)

    whole, loader = ids(signed("first")), signed("first").loader()
    begun = iter(loader)
    head = [next(begun)["input_ids"].tolist() for _ in range(5)]
    state = loader.state_dict()
    assert "first" not in json.dumps(state)
    again = signed("second").loader()
    again.load_state_dict(state)
    assert head + ids(again) == whole


def foreign_tars(tmp_path: Path) -> list[tuple[list[Any], bytes]]:
    """Return two tars of equal size that no manifest describes: their documents, and their bytes."""
    webdataset = pytest.importorskip("webdataset")
    found = []
    for seed in range(2):
        tokens = [np.full(50, 100 * seed + number, "<u2") for number in range(20)]
        with webdataset.TarWriter(str(tmp_path / f"{seed}.tar"), mtime=0) as writer:
            for number, document in enumerate(tokens):
                writer.write({"__key__": f"{number:04d}", "npy": document})
        found.append(([document.tolist() for document in tokens], (tmp_path / f"{seed}.tar").read_bytes()))
    assert len(found[0][1]) == len(found[1][1])
    return found


def rows(source: Any, **options: Any) -> list[list[int]]:
    data = pipeline.ShardDataset(source, epochs=1, **options).documents(max_length=64)
    return [row["input_ids"].tolist() for row in data]


@pytest.mark.stacks
@pytest.mark.parametrize("etags", [True, False])
def test_tars_of_equal_size_are_told_apart_by_their_queries(tmp_path: Path, shards: FaultyServer, etags: bool) -> None:
    (first, one), (second, two) = foreign_tars(tmp_path)
    shards.files = {"get.tar?f=1": one, "get.tar?f=2": two}
    shards.etags = etags
    found = rows([shards.url("get.tar?f=1"), shards.url("get.tar?f=2")], cache_dir=str(tmp_path / "cache"))
    assert found == first + second


@pytest.mark.stacks
def test_a_stream_of_signed_tars_resumes_when_they_are_signed_again(tmp_path: Path, shards: FaultyServer) -> None:
    (_, data), _ = foreign_tars(tmp_path)

    def signed(signature: str) -> Any:
        shards.files[f"a.tar?X-Amz-Signature={signature}"] = data
        source = shards.url(f"a.tar?X-Amz-Signature={signature}")
        return pipeline.ShardDataset(source, cache_dir=str(tmp_path / "cache")).shuffle(seed=1).pack(64).batch(2)

    begun = signed("first")
    next(iter(begun))
    state = begun.state_dict()
    assert "first" not in json.dumps(state)
    signed("second").load_state_dict(state)


@pytest.mark.stacks
@pytest.mark.parametrize("kind", ["foreign", "ours"])
def test_without_a_version_a_replaced_tar_is_read_anew(tmp_path: Path, shards: FaultyServer, kind: str) -> None:
    pairs = foreign_tars(tmp_path)
    if kind == "ours":
        pairs = []
        for seed in range(2):
            tokens = [np.full(50, 100 * seed + number + 1, "<u2") for number in range(20)]
            write_documents(tmp_path / "ours.tar", tokens)
            pairs.append(([each.tolist() for each in tokens], (tmp_path / "ours.tar").read_bytes()))
    shards.etags = False
    cache = tmp_path / "cache"
    for wanted, data in pairs:
        shards.files["a.tar"] = data
        assert rows(shards.url("a.tar"), cache_dir=str(cache)) == wanted


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_hosts_that_are_addresses_of_ipv6_are_read(tmp_path: Path) -> None:
    texts = make_texts(50, 1)
    write_dataset(tmp_path / "data", [make_documents(50)])
    with running_inputs(host="::1") as server:
        server.files = {f"data/{path.name}": path.read_bytes() for path in (tmp_path / "data").iterdir()}
        server.files["a.jsonl"] = lines(texts)
        assert "//[::1]:" in server.url("a.jsonl")
        assert documents(pipeline.TextDataset(server.url("a.jsonl"), tokenizer="bytes", epochs=1)) == sorted(texts)
        assert rows(server.url("data"), cache_dir=None) == rows(tmp_path / "data")


@pytest.mark.parametrize("mark", ["blob_id", "generation", "etag"])  # of the hub, gcsfs, adlfs
def test_an_object_of_each_store_has_a_version(mark: str) -> None:
    assert version_of({"name": "a.tar", "size": 10240, "type": "file", mark: "9f31c0", "last_commit": None}) == "9f31c0"
