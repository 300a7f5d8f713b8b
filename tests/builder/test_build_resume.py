"""A build that runs again is found done, goes on where it was stopped, is refused for another plan, or starts over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.limits import Limits
from pipeline.errors import BuildError, PlanChangedError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from pipeline.text.tokenizer.tokenizer import train_tokenizer
from tests.builds import digests, run
from tests.corpus import documents, english
from tests.interruptions import Units, interrupt_after


def test_the_same_command_again_finds_it_done(inputs: list[str], built: Path) -> None:
    before = digests(built)
    assert run(inputs, built).fingerprint == Manifest.read(built).fingerprint
    assert digests(built) == before


CHANGES: list[dict[str, Any]] = [
    {"val_fraction": 0.2},
    {"language": "de"},
    {"rules": "gopher"},
    {"seed": 1},
    {"tokenizer": "bytes"},
]


@pytest.mark.parametrize("change", CHANGES)
def test_another_recipe_is_refused_with_the_difference(inputs: list[str], built: Path, change: dict[str, Any]) -> None:
    with pytest.raises(PlanChangedError, match=next(iter(change))):
        run(inputs, built, **change)


def test_files_that_settings_name_are_held_to_what_they_held(tmp_path: Path, built: Path) -> None:
    rules, tokenizer, questions = tmp_path / "mine.toml", tmp_path / "tokenizer.json", tmp_path / "questions.txt"
    rules.write_text("words = { min = 5 }\n")
    tokenizer.write_bytes((built / "tokenizer.json").read_bytes())
    questions.write_text(english(900))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in documents(30)))

    def again(**options: Any) -> Manifest:
        settings = {"rules": str(rules), "tokenizer": str(tokenizer), "decontaminate": str(questions), "language": ()}
        return run(tmp_path / "in.jsonl", tmp_path / "out", **settings, **options)

    with pytest.raises(KeyboardInterrupt):
        again(after_stage=interrupt_after("tokenize"))
    (tmp_path / "out" / ".signatures.0123456789abcdef.tmp").mkdir()  # as a kill in that moment leaves it
    for path, text, said in (
        (rules, rules.read_text().replace("5", "6"), "words"),
        (tokenizer, train_tokenizer([english(1)], 300).definition, "tokenizer"),
        (questions, english(901), r"decontaminate: questions\.txt"),
    ):
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(PlanChangedError, match=said):
            again()
        path.write_text(before)
    assert again().counts["kept"] > 0
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_changed_input_is_refused_and_overwrite_begins_anew(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in documents(30)))
    first = run(source, tmp_path / "out", tokenizer="bytes")
    source.write_text("".join(json.dumps(record) + "\n" for record in documents(40)))
    with pytest.raises(PlanChangedError, match=r"in\.jsonl"):
        run(source, tmp_path / "out", tokenizer="bytes")
    second = run(source, tmp_path / "out", tokenizer="bytes", overwrite=True)
    assert second.counts["read"] == 40 > first.counts["read"]
    assert list(verify_dataset(tmp_path / "out")) == []


def test_shards_of_nobody_are_not_mixed_with_ones_own(inputs: list[str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train-000007.tar").write_bytes(b"")
    (tmp_path / "out" / "notes.json").write_text("{}")
    with pytest.raises(BuildError, match=r"train-000007\.tar"):
        run(inputs, tmp_path / "out")
    run(inputs, tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "train-000007.tar").exists()
    assert (tmp_path / "out" / "notes.json").read_text() == "{}"


def test_dedup_goes_on_where_it_was_killed_even_elsewhere(inputs: list[str], built: Path, tmp_path: Path) -> None:
    def fail(name: str, count: int) -> None:
        if name == "near duplicates" and count == 5:
            raise KeyboardInterrupt

    first, second = Units(fail), Units()
    with pytest.raises(KeyboardInterrupt):
        run(inputs, tmp_path / "out", progress=first)
    assert len(list((tmp_path / "out/.build/deduping/edges").iterdir())) == 6
    (tmp_path / "out").rename(tmp_path / "moved")
    run(inputs, tmp_path / "moved", progress=second)
    assert (first.counts["exact duplicates"], second.counts.get("exact duplicates")) == (1, None)
    assert first.counts["near duplicates"] + second.counts["near duplicates"] == 14
    assert digests(tmp_path / "moved") == digests(built)


def test_a_stopped_stage_goes_on_with_the_units_that_are_left(tmp_path: Path) -> None:
    for number in range(8):
        lines = "".join(json.dumps({"text": english(number * 10 + k)}) + "\n" for k in range(10))
        (tmp_path / f"{number}.jsonl").write_text(lines)
    names = [str(tmp_path / f"{number}.jsonl") for number in range(8)]
    options: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "language": (), "tokens_per_shard": 4_000}
    options["limits"] = Limits(smallest_unit_bytes=1, units_wanted=12)

    def build_until_half_of(stage: str) -> Units:
        def stop(name: str, count: int) -> None:
            if name == stage and units.amounts[name] > units.totals[name] / 2:
                raise KeyboardInterrupt

        units = Units(stop)
        with pytest.raises(KeyboardInterrupt):
            run(names, tmp_path / "out", progress=units, **options)
        return units

    stages = ("filter", "tokenize", "write")
    runs = [*map(build_until_half_of, stages), Units()]
    run(names, tmp_path / "out", progress=runs[-1], **options)
    for stage, stopped, continued in zip(stages, runs, runs[1:], strict=False):
        assert 0 < continued.totals[stage] < 0.6 * stopped.totals[stage]
        assert next(name for name in stages if name in continued.totals) == stage
    run(names, tmp_path / "whole", **options)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


COUNTING = """\
from pathlib import Path

FOLDER = Path({folder!r})


def count(page):
    with open(FOLDER / "log", "a") as file:
        file.write(".")
    if (FOLDER / "stop").exists() and (FOLDER / "log").stat().st_size == 200:
        raise ValueError("stop here")
    return 0
"""


def test_a_unit_of_many_parts_gives_the_same_shards_and_goes_on_after_the_parts_that_are_done(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING.format(folder=str(tmp_path)))
    (tmp_path / "own.toml").write_text('"counting:count" = { max = 0 }\n')
    monkeypatch.syspath_prepend(tmp_path)
    options = {"rules": str(tmp_path / "own.toml"), "language": ()}
    run(inputs, tmp_path / "whole", **options)
    judged = (tmp_path / "log").stat().st_size
    (tmp_path / "log").write_text("")
    (tmp_path / "stop").touch()
    limits = Limits(partition_characters=30_000, batch_records=7)
    with pytest.raises(BuildError, match="stop here"):
        run(inputs, tmp_path / "out", **options, limits=limits)
    assert len(list((tmp_path / "out/.build/filter/000000").glob("0*"))) > 3
    assert list(tmp_path.glob("out/*.tar")) == []
    (tmp_path / "stop").unlink()
    run(inputs, tmp_path / "out", **options)  # the plan keeps the limits of the first run
    assert 200 <= (tmp_path / "log").stat().st_size < judged + 60
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
