from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.counts.samples import SAMPLES, Samples, sample_keys
from pipeline.builder.limits import Limits
from pipeline.shards.manifest import Manifest
from tests.corpus import english

SETTINGS: dict[str, Any] = {"tokenizer": "bytes", "rules": "gopher_quality", "val_fraction": 0.1}


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    return build(inputs, output, progress=Progress(quiet=True), **{**SETTINGS, **options})


@given(st.lists(st.tuples(st.sampled_from(["kept", "words"]), st.integers(0, 30)), max_size=60), st.integers(0, 60))
def test_the_smallest_keys_are_kept_however_the_work_is_cut(added: list[tuple[str, int]], cut: int) -> None:
    samples, parts = Samples(), [Samples(), Samples()]
    for number, (outcome, key) in enumerate(added):
        samples.add(outcome, key, {"id": "", "text": str(key)})
        parts[number >= cut].add(outcome, key, {"id": "", "text": str(key)})
    joined = Samples()
    for part in reversed(parts):
        joined.update(json.loads(json.dumps(part.to_json())))
    wanted = {outcome: sorted({key for name, key in added if name == outcome})[:SAMPLES] for outcome, _ in added}
    assert {name: [int(each["text"]) for each in shown] for name, shown in samples.shown().items()} == wanted
    assert joined.shown() == samples.shown()


def test_long_texts_and_ids_are_cut() -> None:
    samples = Samples()
    samples.add("kept", 0, {"id": "i" * 1_000_000, "text": "t" * 1_000_000})
    assert len(json.dumps(samples.to_json())) < 1_000


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """400 documents: a fifth too short, as many exact copies, and near ones."""
    found = []
    for k in range(400):
        first = english(k - k % 5, 30)
        text = [first, f"{english(k, 1)} Too short.", first, first + " And one more.", english(k, 30)][k % 5]
        found.append(json.dumps({"id": f"d{k}", "text": text}) + "\n")
    return found


def test_samples_of_every_outcome_come_from_all_over_the_corpus(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "in.jsonl").write_text("".join(lines))
    samples = run(tmp_path / "in.jsonl", tmp_path / "out").counts["samples"]
    assert set(samples) == {"kept", "words", "exact duplicates", "near duplicates"}
    for name, shown in samples.items():
        assert len(shown) == SAMPLES, name
        assert max(sample["line"] for sample in shown) > 100, name  # all of the first few would be below 40
        for sample in shown:
            record = json.loads(lines[sample["line"] - 1])
            assert (sample["id"], sample["text"]) == (record["id"], record["text"][:600])
    assert all(sample["reason"] is None for sample in samples["kept"])
    for sample in samples["exact duplicates"]:
        first = sample["line"] - 2
        assert sample["reason"] == f"exact duplicate of d{first - 1} (in.jsonl, line {first})"
    assert {int(sample["id"][1:]) % 5 for sample in samples["near duplicates"]} == {3}


def test_neither_order_nor_files_nor_units_decide_what_is_shown(tmp_path: Path, lines: list[str]) -> None:
    singles = [line for k, line in enumerate(lines) if k % 5 in (1, 4)]
    for name, order in (("one", singles), ("two", random.Random(0).sample(singles, len(singles)))):
        (tmp_path / name).mkdir()
        halves = [order] if name == "one" else [order[::2], order[1::2]]
        for number, some in enumerate(halves):
            (tmp_path / name / f"{number}.jsonl").write_text("".join(some))
    cut = Limits(smallest_unit_bytes=20_000, units_wanted=4)
    wanted = texts(run(tmp_path / "one", tmp_path / "wanted"))
    assert texts(run(tmp_path / "two", tmp_path / "out", limits=cut)) == wanted


def texts(manifest: Manifest) -> dict[str, list[str]]:
    return {name: [sample["text"] for sample in shown] for name, shown in manifest.counts["samples"].items()}


def test_documents_without_an_id_are_shown_by_file_and_line(tmp_path: Path) -> None:
    limits = Limits(smallest_unit_bytes=2_000)
    found = [json.dumps({"text": f"{english(k, 3)} Short." if k % 2 else english(k, 30)}) + "\n" for k in range(60)]
    (tmp_path / "in.jsonl").write_text("".join(found))
    manifest = run(tmp_path / "in.jsonl", tmp_path / "out", keep_rejected=True, limits=limits)
    shown = [sample for held in manifest.counts["samples"].values() for sample in held]
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert len(rejected) == 30
    for each in [*shown, *rejected]:
        assert each["id"] == f"in.jsonl:{each['line']}"
        assert json.loads(found[each["line"] - 1])["text"].startswith(each["text"][:600])


def test_equal_texts_have_equal_keys_and_others_do_not() -> None:
    first, second, third, lone = sample_keys(["a", "a", "b", "lone \ud800 surrogate"], 0)
    assert first == second != third
    assert sample_keys(["a"], 1) != [first]
    assert 0 <= lone < 2**64
