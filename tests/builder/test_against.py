"""A build against earlier datasets drops what they hold, and refuses signatures of another scheme."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import BuildError, ConfigError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
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


OPTIONS: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "language": (), "val_fraction": 0}


def write(path: Path, numbers: range) -> Path:
    path.write_text("".join(json.dumps({"id": f"d{k}", "text": english(k)}) + "\n" for k in numbers))
    return path


def test_a_folder_of_signatures_that_an_earlier_build_left_is_refused_and_never_taken_for_ones_own(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    run(write(tmp_path / "first.jsonl", range(6)), out, **OPTIONS)
    for path in [path for path in out.iterdir() if path.is_file()]:
        path.unlink()  # as `rm out/*` does
    second = write(tmp_path / "second.jsonl", range(100, 106))
    with pytest.raises(BuildError, match="signatures is there, but neither a manifest nor an unfinished build"):
        run(second, out, **OPTIONS)
    run(second, out, **OPTIONS, overwrite=True)
    assert list(verify_dataset(out)) == []
    manifest = run(write(tmp_path / "more.jsonl", range(3, 103)), tmp_path / "later", **OPTIONS, against=[str(out)])
    assert manifest.counts["duplicates"]["exact"] == 3


def test_signatures_of_another_build_are_refused_and_found_by_verify(tmp_path: Path) -> None:
    for name, first in (("one", 0), ("other", 50)):
        run(write(tmp_path / f"{name}.jsonl", range(first, first + 6)), tmp_path / name, **OPTIONS)
    for path in (tmp_path / "one" / "signatures").iterdir():
        path.write_bytes((tmp_path / "other" / "signatures" / path.name).read_bytes())
    with pytest.raises(ConfigError, match=r"one/signatures/hashes\.npy: .* but the manifest says"):
        run(tmp_path / "one.jsonl", tmp_path / "later", **OPTIONS, against=[str(tmp_path / "one")])
    names = {Path(problem.shard).name for problem in verify_dataset(tmp_path / "one")}
    assert names == {"hashes.npy", "signatures.npy"}


def test_any_changed_byte_beside_the_shards_is_found(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {**OPTIONS, "tokenizer": "train:300", "keep_rejected": True}
    run([write(tmp_path / "in.jsonl", range(8)), write(tmp_path / "again.jsonl", range(1))], out, **options)
    beside = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".tar"]
    assert {path.name for path in beside} >= {
        "hashes.npy",
        "signatures.npy",
        "tokenizer.json",
        "report.html",
    }
    for path in beside:
        if path.name in ("manifest.json", "run.json"):
            continue
        whole = path.read_bytes()
        for at in {0, 80, len(whole) // 2, len(whole) - 1}:
            at = min(at, len(whole) - 1)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert [problem.shard for problem in verify_dataset(out)] == [str(path)], (path, at)
        path.write_bytes(whole)
    (out / "report.html").unlink()  # which nothing reads
    (out / "signatures" / "hashes.npy").unlink()
    (out / "signatures" / "notes.txt").write_text("of someone else")
    found = {Path(problem.shard).name: problem.message for problem in verify_dataset(out)}
    assert found == {
        "hashes.npy": "the manifest names this file, but it is not there; copy it again",
        "notes.txt": "the manifest does not name this file; remove it",
    }
