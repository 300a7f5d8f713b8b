"""`pipeline.write_shards`: documents of ids become a dataset that is whole, verified and streams, or nothing at all."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError, InputError
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import contents_of
from tests.helpers.shard_samples import Shard, scan_tar

QUIET = Progress(quiet=True)
EOS = 1  # of the tokenizer "bytes"


def write(documents: Any, output: Path, tokenizer: Any = "bytes", **options: Any) -> Manifest:
    return pipeline.write_shards(documents, output, tokenizer, progress=QUIET, **options)


def stored(output: Path) -> list[list[int]]:
    """Return the documents of all splits in the order in which they were written."""
    documents = {}
    for split in Manifest.read(output).splits.values():
        for info in split.shards:
            shard = Shard(output / info.name, info)
            documents |= {key: shard.document(k).tolist() for k, key in enumerate(shard.table()["key"])}
    return [documents[key] for key in sorted(documents)]


@settings(max_examples=25, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(2, 383), max_size=20), min_size=1, max_size=30),
    val_fraction=st.sampled_from([0.0, 0.3, 0.9]),
    tokens_per_shard=st.sampled_from([None, 7, 50]),
    tokens_per_sample=st.sampled_from([0, 16]),
)
def test_every_document_is_stored_once_closed_and_in_order(
    documents: list[list[int]],
    val_fraction: float,
    tokens_per_shard: int,
    tokens_per_sample: int,
    tmp_path_factory: Any,
) -> None:
    output = tmp_path_factory.mktemp("out") / "set"
    shards = {"tokens_per_shard": tokens_per_shard, "tokens_per_sample": tokens_per_sample}
    manifest = write(iter(documents), output, val_fraction=val_fraction, **shards)
    assert stored(output) == [[*ids, EOS] for ids in documents]
    assert manifest.counts["kept"] == len(documents)
    assert [name for name, split in manifest.splits.items() if not split.documents] in ([], ["train"])
    assert "train" in manifest.splits
    assert list(verify_dataset(output)) == []
    assert Manifest.read(output) == manifest


def test_an_empty_document_is_closed_and_counted(tmp_path: Path) -> None:
    manifest = write([[5], [], [EOS]], tmp_path / "set", val_fraction=0)
    assert stored(tmp_path / "set") == [[5, EOS], [EOS], [EOS]]
    assert manifest.counts["notes"] == [
        "2 documents lacked the end-of-text id 1 at their end: it was added",
        "2 documents are empty: they hold only the end-of-text id",
    ]


def test_no_document_is_an_error_that_counts_what_was_skipped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document was read; name sources"):
        write([], tmp_path / "set")
    with pytest.raises(InputError, match=r"no document .*\(2 skipped: not a list"):
        write([["a"], [1.5]], tmp_path / "set", on_error="records")
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_of_ids_streams_as_a_built_one(tmp_path: Path) -> None:
    documents = [np.arange(2, 2 + size) for size in range(1, 40)]
    write(documents, tmp_path / "set", val_fraction=0)
    stream = pipeline.ShardDataset(tmp_path / "set", epochs=1).documents()
    assert [item["input_ids"].tolist() for item in stream] == [[*ids.tolist(), EOS] for ids in documents]


def test_fields_of_documents_are_columns_of_the_tables_and_ids_are_found(tmp_path: Path) -> None:
    documents = [([2], {"url": "a", "id": 7}), [3], ([4], {"tags": ["x"], "id": "c"})]
    manifest = write(documents, tmp_path / "a" / "set", val_fraction=0, tokens_per_sample=4)
    path = tmp_path / "a" / "set" / "train-000000.tar"
    table = Shard(path).table()
    assert [*table] == ["key", "id", "column:url", "column:tags", "hash", "crc32"]
    ids = [np.array([document, EOS], "<u4").tobytes() for document in (2, 3, 4)]
    assert table["hash"] == [hashlib.blake2b(one, digest_size=16).hexdigest() for one in ids]
    assert [info.name for info in manifest.files] == ["tokenizer_config.json"]
    members = [member.name for member in scan_tar(path)]
    assert [name for name in members if name[0] != "_"] == ["000000000000.npy", "000000000002.npy"]
    assert table["id"] == ["7", None, "c"]
    assert (table["column:url"], table["column:tags"]) == (["a", None, None], [None, None, ["x"]])


def test_equal_documents_are_counted_and_lie_in_one_split(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).integers(2, 300, (300, 5)).tolist()
    documents = [*drawn, *drawn[::-1], *drawn[:10]]
    manifest = write(documents, tmp_path / "set", val_fraction=0.5)
    assert "310 documents are exact copies of others" in manifest.counts["notes"][0]
    val = {tuple(doc) for doc in stored_split(tmp_path / "set", "val")}
    assert 100 < len(val) < 200
    assert val.isdisjoint({tuple(doc) for doc in stored_split(tmp_path / "set", "train")})
    write([*documents, [9]], tmp_path / "more", val_fraction=0.5)
    assert val <= {tuple(doc) for doc in stored_split(tmp_path / "more", "val")}
    write(documents, tmp_path / "seed", val_fraction=0.5, seed=1)
    assert len(val & {tuple(doc) for doc in stored_split(tmp_path / "seed", "val")}) < len(val)


def stored_split(output: Path, split: str) -> list[list[int]]:
    shards = [Shard(output / info.name, info) for info in Manifest.read(output).split(split).shards]
    return [shard.document(k).tolist() for shard in shards for k in range(len(shard))]


def test_ids_of_an_unknown_tokenizer_need_an_end_of_text_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing says which id ends documents"):
        write([[1]], tmp_path / "none", None)
    for wrong in (-1, 2**32, True, "1"):
        with pytest.raises(ConfigError, match=f"eos_id must be a token id, got {wrong!r}"):
            write([[1]], tmp_path / "none", None, eos_id=wrong)
    with pytest.raises(ConfigError, match=r"eos_id 384 is outside .*bytes.* ends at 383"):
        write([[1]], tmp_path / "none", eos_id=384)
    assert write([[1]], tmp_path / "last", eos_id=383).tokenizer["eos_id"] == 383
    narrow = write([[1, 65_535]], tmp_path / "narrow", None, eos_id=0)
    assert narrow.dtype == "<u2"
    counts = {name: count for name, count in narrow.counts.items() if isinstance(count, int)}
    assert counts == {"read": 1, "characters": 0, "passed_filters": 1, "kept": 1, "kept_characters": 0, "tokens": 3}
    nothing = {"name": None, "sha256": None, "vocab_size": None, "bos_id": None, "special_ids": {}}
    assert narrow.tokenizer == {**nothing, "eos_id": 0}
    assert narrow.recipe == {"tokens": {"val_fraction": 0.005, "seed": 0, "eos_id": 0}}
    assert write([[1, 65_536], [1]], tmp_path / "wide", None, eos_id=0).dtype == "<u4"
    assert write([[1]], tmp_path / "end", None, eos_id=65_536).dtype == "<u4"
    batch = next(iter(pipeline.ShardDataset(tmp_path / "wide").pack(4).batch(1)))
    assert batch["input_ids"].tolist() == [[1, 65_536, 0, 1]]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([2, 384], "an id outside the vocabulary: id 384 at position 1, but the vocabulary of bytes ends at 383"),
        ([-1], "id -1 at position 0"),
        ([1.5], "not a list of token ids"),
        (["a"], "not a list of token ids"),
        ([[1], [2, 3]], "not a list of token ids"),
        ("text", "not a list of token ids"),
        (None, "not a list of token ids"),
        ([2**70], "not a list of token ids"),
        (([5], {"field": object()}), "fields that JSON cannot hold"),
    ],
)
def test_what_is_no_list_of_ids_is_named_or_skipped_and_counted(document: Any, said: str, tmp_path: Path) -> None:
    documents = [[2], document, [3]]
    with pytest.raises(InputError, match="document 1: ") as raised:
        write(documents, tmp_path / "set")
    assert said in str(raised.value)
    assert "on_error='records'" in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    manifest = write(documents, tmp_path / "set", on_error="records", val_fraction=0)
    assert stored(tmp_path / "set") == [[2, EOS], [3, EOS]]
    assert sum(manifest.counts["bad"].values()) == 1


WHERE = [({"id": 7}, "document 7"), ({"file": "a.jsonl", "line": 3}, "a.jsonl: line 3"), ({}, "document 0")]


@pytest.mark.parametrize(("fields", "where"), [*WHERE, ({"file": "a.jsonl", "id": "x"}, "document x")])
def test_a_bad_document_is_named_by_its_fields(fields: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^{where}: an id outside the vocabulary: id -1 at position 0"):
        write([([-1], fields)], tmp_path / "set")


def test_an_output_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write([[2]], tmp_path / "empty")
    before = contents_of(tmp_path / "empty")
    with pytest.raises(ConfigError, match="a dataset already; choose another"):
        write([[3]], tmp_path / "empty")
    assert contents_of(tmp_path / "empty") == before


def test_equal_documents_give_equal_bytes(tmp_path: Path) -> None:
    documents = [([k % 300, 2], {"url": str(k)}) for k in range(500)]
    for name in ("a", "b"):
        write(documents, tmp_path / name)
    assert contents_of(tmp_path / "a") == contents_of(tmp_path / "b")


KILLED = """
import sys, time
import pipeline

def documents():
    for number in range(5000):
        yield [number % 300, 2]
    print("read", flush=True)
    time.sleep(60)

pipeline.write_shards(documents(), sys.argv[1], "bytes")
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    script = [sys.executable, "-c", KILLED, str(tmp_path / "set")]
    process = subprocess.Popen(script, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "read\n"
    assert [path.name[:5] for path in tmp_path.iterdir()] == [".set."]
    write([[2]], tmp_path / "other")  # what another process works on stays
    with pytest.raises(ConfigError, match="already"):
        write([[2]], tmp_path / "other")
    running = next(path for path in tmp_path.iterdir() if path.name.startswith(".set."))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "set").exists()
    write([[2]], tmp_path / "set")
    assert not running.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "set"]


def test_what_a_process_that_runs_is_writing_is_not_taken_for_left(tmp_path: Path) -> None:
    def documents() -> Iterator[list[int]]:
        yield [2]
        write([[3]], tmp_path / "set")  # meanwhile
        yield [4]

    with pytest.raises(pipeline.BuildError, match="another process wrote there meanwhile"):
        write(documents(), tmp_path / "set")
    assert stored(tmp_path / "set") == [[3, EOS]]
