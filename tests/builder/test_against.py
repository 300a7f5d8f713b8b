"""A build against earlier datasets drops what they hold, and refuses signatures of another scheme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.atomic import write_json
from pipeline.errors import BuildError, ConfigError
from pipeline.finished.find import find
from pipeline.finished.redaction.redact import drop, redact
from pipeline.progress import Progress
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import rejected, run, run_plain, table, write_jsonl
from tests.helpers.corpus import english


def write(path: Path, numbers: range) -> Path:
    return write_jsonl(path, [english(k) for k in numbers])


def test_earlier_datasets_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.jsonl", range(number, number + 1)) for number in range(2)]
    earlier = [tmp_path / str(number) / "shards" for number in range(2)]
    prints = [run_plain(file, folder).fingerprint for file, folder in zip(files, earlier, strict=True)]
    manifest = run_plain(files, tmp_path / "out", against=list(map(str, earlier)), keep_rejected=True)
    assert manifest.recipe["definitions"]["against"] == {"shards": prints[0], "shards (2)": prints[1]}
    reasons = [line["reason"] for line in rejected(tmp_path / "out")]
    assert reasons == [f"exact duplicate of {name}:{0:012d}" for name in ("shards", "shards (2)")]


def test_a_second_build_against_the_first_adds_nothing(inputs: list[str], built: Path, tmp_path: Path) -> None:
    for seed in (0, 7):
        manifest = run(inputs, tmp_path / str(seed), against=[str(built)], seed=seed, keep_rejected=True)
        assert manifest.counts["kept"] == 0
        assert sum(manifest.counts["duplicates"].values()) == 241
        first = next(line for line in rejected(tmp_path / str(seed)) if line.get("id") == "doc-0")
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


def test_more_values_than_the_bands_use_stand_in_the_manifest(tmp_path: Path) -> None:
    manifest = run_plain(write(tmp_path / "in.jsonl", range(6)), tmp_path / "out", dedup_num_perm=160)
    assert manifest.recipe["settings"]["dedup_num_perm"] == 160
    assert np.load(tmp_path / "out" / "signatures" / "signatures.npy").shape[1] == 160


def test_signatures_that_an_earlier_build_left_are_never_taken_for_ones_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_plain(write(tmp_path / "first.jsonl", range(6)), out)
    for path in [path for path in out.iterdir() if path.is_file()]:
        path.unlink()  # as `rm out/*` does
    second = write(tmp_path / "second.jsonl", range(100, 106))
    with pytest.raises(BuildError, match=r"signatures: the output is not empty.*--overwrite"):
        run_plain(second, out)
    run_plain(second, out, overwrite=True)
    assert list(verify_dataset(out)) == []
    manifest = run_plain(write(tmp_path / "more.jsonl", range(3, 103)), tmp_path / "later", against=[str(out)])
    assert manifest.counts["duplicates"]["exact"] == 3


def test_signatures_of_another_build_are_refused_and_found_by_verify(tmp_path: Path) -> None:
    for name, first in (("one", 0), ("other", 50)):
        run_plain(write(tmp_path / f"{name}.jsonl", range(first, first + 6)), tmp_path / name)
    for path in (tmp_path / "one" / "signatures").iterdir():
        path.write_bytes((tmp_path / "other" / "signatures" / path.name).read_bytes())
    with pytest.raises(ConfigError, match=r"one/signatures/hashes\.npy: .* but the manifest says"):
        run_plain(tmp_path / "one.jsonl", tmp_path / "later", against=[str(tmp_path / "one")])
    names = {Path(problem.shard).name for problem in verify_dataset(tmp_path / "one")}
    assert names == {"hashes.npy", "signatures.npy"}
    (tmp_path / "one" / "signatures" / "hashes.npy").unlink()
    with pytest.raises(ConfigError, match=r"one/signatures/hashes\.npy: the manifest names this file"):
        run_plain(tmp_path / "one.jsonl", tmp_path / "later", against=[str(tmp_path / "one")])


def test_any_changed_byte_beside_the_shards_is_found(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": "train:300", "keep_rejected": True}
    run_plain([write(tmp_path / "in.jsonl", range(8)), write(tmp_path / "again.jsonl", range(1))], out, **options)
    beside = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".tar"]
    assert {path.name for path in beside} >= {"hashes.npy", "signatures.npy", "tokenizer.json", "report.html"}
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


@pytest.mark.parametrize("new", [None, "without"], ids=["redacted", "dropped"])
def test_redacted_texts_of_an_earlier_dataset_come_back_and_it_is_said(tmp_path: Path, new: str | None) -> None:
    source, earlier, ids = write(tmp_path / "in.jsonl", range(6)), tmp_path / "earlier", tmp_path / "ids.txt"
    run_plain(source, earlier)
    ids.write_text("d1\nd3\n")
    if new:
        drop(earlier, ["d1", "d3"], "asked", earlier := tmp_path / new)
    else:
        redact(earlier, ["d1", "d3"], "asked")
    options: dict[str, Any] = {"against": [str(earlier)], "keep_rejected": True}
    manifest = run_plain(source, tmp_path / "out", **options)
    assert table(tmp_path / "out")["id"] == ["d1", "d3"]
    [note] = manifest.counts["notes"]
    assert re.match(rf"{earlier.name}: 2 of its documents were redacted or dropped, .*--drop-ids", note)
    assert run_plain(source, tmp_path / "again", drop_ids=str(ids), **options).counts["kept"] == 0


def test_signatures_of_words_as_earlier_releases_split_them_are_refused(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", range(3)), tmp_path / "earlier"
    manifest = run_plain(source, out)
    del manifest.recipe["definitions"]["words"]
    write_json(out / "manifest.json", manifest.to_json())
    message = r"earlier: its signatures are of words as an earlier release.*Build that dataset again"
    with pytest.raises(ConfigError, match=message):
        run_plain(source, tmp_path / "out", against=[str(out)])
    with pytest.raises(ConfigError, match=message):
        find(out, english(1), progress=Progress(quiet=True))
