"""Named inputs keep their names from the command line to the mixture: each shard holds one source's documents."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import ConfigError
from pipeline.shards.manifest import MANIFEST_NAME, Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import run_plain, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.shard_samples import Shard

SETTINGS: dict[str, Any] = {"val_fraction": 0.1, "tokens_per_shard": 6_000}
FIRST = {"wiki": 0, "web": 1_000, "code": 2_000}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {
        name: write_jsonl(folder / f"{name}.jsonl", [f"{name} {english(first + k, 10)}" for k in range(70)])
        for name, first in FIRST.items()
    }


@pytest.fixture(scope="module")
def dataset(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "out"
    run_plain(inputs, output, **SETTINGS)
    return output


def test_each_shard_holds_one_source_and_says_which(dataset: Path) -> None:
    manifest = Manifest.read(dataset)
    for split in manifest.splits.values():
        assert {info.source for info in split.shards} == set(FIRST)
        for info in split.shards:
            assert set(Shard(dataset / info.name).table()["source"]) == {info.source}
    by_source = Counter[str]()
    for info in itertools.chain.from_iterable(split.shards for split in manifest.splits.values()):
        by_source[info.source] += info.tokens
    assert by_source == {name: held["tokens"] for name, held in manifest.counts["by_source"].items()}
    for name in FIRST:
        sizes = [info.tokens for info in manifest.split("train").shards if info.source == name]
        assert len(sizes) > 2
        assert max(sizes) - min(sizes) < 0.25 * SETTINGS["tokens_per_shard"]
    assert list(verify_dataset(dataset)) == []


def test_the_sources_of_one_build_are_mixed_by_their_names(tmp_path: Path) -> None:
    letters = {"wiki": "w", "web": "b", "code": "c"}
    files = {
        name: write_jsonl(tmp_path / f"{name}.jsonl", [letter * (300 + k) for k in range(40)])
        for name, letter in letters.items()
    }
    run_plain(files, tmp_path / "out", tokens_per_shard=6_000)
    sources = pipeline.ShardDataset(tmp_path / "out").sources()
    assert list(sources) == list(letters)
    weights = {"wiki": 0.5, "web": 0.25, "code": 0.25}
    stream = pipeline.mix(sources, weights=weights).shuffle(seed=0, lanes=1).pack(32).batch(16).numpy()
    seen = Counter(int(row.max()) - 3 for batch in itertools.islice(iter(stream), 256) for row in batch["input_ids"])
    assert {name: seen[ord(letter)] / seen.total() for name, letter in letters.items()} == weights


def test_a_source_streams_its_own_documents_and_has_a_fingerprint_of_its_own(dataset: Path) -> None:
    whole = pipeline.ShardDataset(dataset, split="val")
    sources = whole.sources()
    counts = Manifest.read(dataset)
    for name, source in sources.items():
        wanted = sum(info.documents for info in counts.split("val").shards if info.source == name)
        assert sum(source._data.documents) == wanted
    prints = {source._data.fingerprint for source in [whole, *sources.values()]}
    assert len(prints) == len(FIRST) + 1


def test_inputs_that_take_turns_give_a_shard_each_time(inputs: dict[str, Path], tmp_path: Path) -> None:
    order = ["wiki", "web", "wiki"]
    (tmp_path / "more.jsonl").write_text(inputs["code"].read_text())
    specs = [f"wiki={inputs['wiki']}", f"web={inputs['web']}", f"wiki={tmp_path}/more.jsonl"]
    manifest = run_plain(specs, tmp_path / "out", tokens_per_shard=10**6)
    assert [info.source for info in manifest.split("train").shards] == order
    assert pipeline.ShardDataset(tmp_path / "out").sources()["wiki"]._data.documents == [70, 70]
    assert list(verify_dataset(tmp_path / "out")) == []


def test_inputs_without_names_have_no_sources_to_mix(inputs: dict[str, Path], dataset: Path, tmp_path: Path) -> None:
    run_plain(list(inputs.values()), tmp_path / "out")
    assert "source" not in json.loads((tmp_path / "out" / MANIFEST_NAME).read_text())["splits"]["train"]["shards"][0]
    with pytest.raises(ConfigError, match=r"name inputs when you build.* wiki=wiki/"):
        pipeline.ShardDataset(tmp_path / "out").sources()
    with pytest.raises(ConfigError, match="leave epochs out"):
        pipeline.ShardDataset(dataset, epochs=1).sources()
