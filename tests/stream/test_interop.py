"""Streams beside webdataset: as a stage of its pipelines, of its pipelines as live sources, over one tar with other members."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds

import pipeline
from pipeline.errors import InputError
from tests.helpers.format_samples import tar_of


@pytest.mark.parametrize("batches_before", [0, 1, 5])
def test_the_state_of_a_stream_resumes_the_pipeline_it_begins(batches_before: int) -> None:
    def make() -> tuple[Any, Any]:
        data = pipeline.ShardDataset.from_tokens(range(400), lengths=[10] * 40)
        stream = data.shuffle(seed=1).pack(16).batch(2)
        return stream, wds.DataPipeline(stream, wds.map(lambda batch: batch["input_ids"].tolist()))

    whole = list(islice(make()[1], 9))
    stream, stages = make()
    assert list(islice(stages, batches_before)) == whole[:batches_before]
    state = json.loads(json.dumps(stream.state_dict()))
    stream, stages = make()
    stream.load_state_dict(state)
    assert list(islice(stages, 9 - batches_before)) == whole[batches_before:]


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    paths = []
    for tar in range(2):
        path = tmp_path / f"a-{tar}.tar"
        members = {
            f"{tar}/{n}.{field}": value
            for n in range(20)
            for field, value in (("txt", f"text {tar} {n}".encode()), ("json", b'{"score": %d}' % n), ("jpg", b"\xff"))
        }
        path.write_bytes(tar_of(members))
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pipeline_of_webdataset_is_a_live_source_that_resumes(texts: list[str], ranks: int) -> None:
    def records() -> Any:
        return iter(wds.WebDataset(texts, shardshuffle=False, nodesplitter=None).decode())

    def make(rank: int) -> Any:
        data = pipeline.TextDataset(records, "bytes", text_key="txt", id_key="__key__", fields=("json.score:int",))
        good = data.filter(lambda record: record.metadata["json.score"] >= 5, name="good")
        return good.shuffle(seed=2).documents().batch(2).take(7).shard(rank, ranks)

    read = []
    for rank in range(ranks):
        whole = [make(rank).decode(batch) for batch in make(rank)]
        read += [text for batch in whole for text in batch]
        first = make(rank)
        list(islice(first, 3))
        second = make(rank)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [second.decode(batch) for batch in second] == whole[3:]
    assert len(set(read)) == len(read) == 14 * ranks


def test_a_pipeline_that_does_not_decode_is_refused(texts: list[str]) -> None:
    data = pipeline.TextDataset(
        lambda: iter(wds.WebDataset(texts, shardshuffle=False)), "bytes", text_key="txt", epochs=1
    )
    with pytest.raises(InputError, match="'txt' is of type bytes, not text"):
        next(iter(data.pack(8)))


def test_tokens_and_other_members_of_one_tar_are_read_by_both(tmp_path: Path) -> None:
    path = tmp_path / "tokens.tar"
    with wds.TarWriter(str(path)) as writer:
        for n in range(9):
            tokens = np.arange(5, dtype=np.uint16) + 5 * n
            writer.write(
                {"__key__": f"d{n}", "npy": tokens, "json": {"url": f"u{n}"}, "cls": n, "score.txt": f"{n / 10}"}
            )
    rows = pipeline.ShardDataset(str(path), epochs=1).documents().batch(1)
    samples = list(wds.WebDataset(str(path), shardshuffle=False).decode())
    assert [batch["input_ids"][0].tolist() for batch in rows] == [sample["npy"].tolist() for sample in samples]
    assert [(sample["cls"], sample["json"]["url"], sample["score.txt"]) for sample in samples][3] == (3, "u3", "0.3")


def test_webdataset_reads_shards_of_a_build(tmp_path: Path) -> None:
    documents = ([n, n + 1, 0] for n in range(1, 50))
    pipeline.write_shards(documents, tmp_path / "out", eos_id=0)
    urls = [str(path) for path in sorted((tmp_path / "out").glob("*.tar"))]
    samples = [sample["npy"].tolist() for sample in wds.WebDataset(urls, shardshuffle=False).decode()]
    own = [row["input_ids"].tolist() for row in pipeline.ShardDataset(tmp_path / "out", epochs=1).documents()]
    assert samples == own
