"""A build against earlier datasets drops what they hold, and refuses signatures of another scheme."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.shards.manifest import Manifest
from tests.builds import run
from tests.corpus import english


def test_earlier_datasets_of_one_name_are_each_held_by_the_plan_and_named_in_reasons(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "language": (), "val_fraction": 0}
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"id": f"d{number}", "text": english(number)}) + "\n")
        run(tmp_path / f"{number}.jsonl", tmp_path / str(number) / "shards", **options)
    earlier = [str(tmp_path / str(number) / "shards") for number in range(2)]
    both = [tmp_path / f"{number}.jsonl" for number in range(2)]
    manifest = run(both, tmp_path / "out", **options, against=earlier, keep_rejected=True)
    prints = [Manifest.read(path).fingerprint for path in earlier]
    assert manifest.recipe["definitions"]["against"] == {"shards": prints[0], "shards (2)": prints[1]}
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert reasons == [f"exact duplicate of {name}:{0:012d}" for name in ("shards", "shards (2)")]


def test_a_second_build_against_the_first_adds_nothing(inputs: list[str], built: Path, tmp_path: Path) -> None:
    manifest = run(inputs, tmp_path / "out", against=[str(built)], keep_rejected=True)
    assert manifest.counts["kept"] == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line.get("id") == "doc-0")
    assert first["reason"] == f"exact duplicate of {built.name}:000000000000"


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"dedup_ngram": 6}, "ngram 5, this build has 6"), ({"dedup_num_perm": 128}, "num_perm 112")],
)
def test_signatures_of_another_scheme_are_refused(
    inputs: list[str], built: Path, tmp_path: Path, changed: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(inputs, tmp_path / "out", against=[str(built)], **changed)


def test_builds_of_other_seeds_compare_their_signatures(inputs: list[str], built: Path, tmp_path: Path) -> None:
    manifest = run(inputs, tmp_path / "out", against=[str(built)], seed=7)
    assert manifest.counts["kept"] == 0
    assert sum(manifest.counts["duplicates"].values()) == 241


def test_more_values_than_the_bands_use_stand_in_the_manifest(inputs: list[str], tmp_path: Path) -> None:
    manifest = run(inputs, tmp_path / "out", dedup_num_perm=160)
    assert manifest.recipe["settings"]["dedup_num_perm"] == 160
    assert np.load(tmp_path / "out" / "signatures" / "signatures.npy").shape[1] == 160
    assert run(inputs, tmp_path / "out", dedup_num_perm=160) == manifest
