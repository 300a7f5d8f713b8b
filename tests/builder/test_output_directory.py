"""A build checks its settings, inputs and output directory before any work is done; a refused one needs no cleanup."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.limits import Limits
from pipeline.errors import BuildError, ConfigError, InputError, PlanChangedError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.corpus import english
from tests.interruptions import interrupt_after

SETTINGS: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "val_fraction": 0}


def run(inputs: Any, output: str | Path, **options: Any) -> Manifest:
    return build(inputs, output, **{"progress": Progress(quiet=True), "start_method": "fork", **SETTINGS, **options})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{k}", "content": english(k)}) + "\n" for k in range(20)))
    return path


def test_an_output_that_cannot_be_a_directory_here_is_refused_with_the_cure(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"s3://bucket/out: .* copy it to the url when it is complete"):
        run(source, "s3://bucket/out")
    with pytest.raises(ConfigError, match=r"in\.jsonl: a file, where --output names a directory"):
        run(source, source)
    with pytest.raises(BuildError, match=r"below: cannot be written: Not a directory; choose another --output"):
        run(source, source / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    run(source, f"file://{tmp_path}/out", text_key="content")
    assert (tmp_path / "out" / "manifest.json").exists()


def test_where_no_record_has_the_field_the_fields_there_are_told_and_the_right_one_is_taken_at_once(
    source: Path, tmp_path: Path
) -> None:
    message = r"none of the 20 records .* in\.jsonl, line 1: no field 'text': there are 'id', 'content'; text_key \(--text-key\)"
    with pytest.raises(InputError, match=message):
        run(source, tmp_path / "out")
    assert run(source, tmp_path / "out", text_key="content").counts["kept"] == 20


def test_an_empty_dataset_is_what_skip_asks_for(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "out", on_error="skip").counts["bad"] == {"no field 'text'": 20}


def test_a_refused_rebuild_leaves_a_sound_dataset_as_it_was(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out", text_key="content")
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    with pytest.raises(PlanChangedError, match="seed: was 0, now 1"):
        run(source, tmp_path / "out", text_key="content", seed=1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
    assert list(verify_dataset(tmp_path / "out")) == []


def test_a_build_that_was_killed_while_it_discarded_an_earlier_result_goes_on_with_that(
    source: Path, tmp_path: Path
) -> None:
    first = run(source, tmp_path / "out", text_key="content", seed=1)
    (tmp_path / "out" / "manifest.json").unlink()  # as a kill leaves it: the manifest goes first
    (tmp_path / "out" / ".build").mkdir()
    with pytest.raises(BuildError, match="neither a manifest nor an unfinished build"):
        run(source, tmp_path / "out", text_key="content")
    (tmp_path / "out" / ".build").mkdir()
    (tmp_path / "out" / ".build" / "clearing").touch()
    second = run(source, tmp_path / "out", text_key="content", tokens_per_shard=4_000)
    assert (first.split("train").documents, second.split("train").documents) == (20, 20)
    assert list(verify_dataset(tmp_path / "out")) == []
    assert not (tmp_path / "out" / ".build").exists()


def test_a_dataset_without_rules_is_found_complete_however_that_is_written(source: Path, tmp_path: Path) -> None:
    manifest = run(source, tmp_path / "out", text_key="content", rules=())
    assert run(source, tmp_path / "out", text_key="content", rules="none") == manifest


def test_a_build_that_stops_before_its_first_result_keeps_its_plan_and_no_lock(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of the 20 records"):
        run(source, tmp_path / "out")
    assert (tmp_path / "out" / ".build" / "plan.json").exists()
    assert not (tmp_path / "out" / ".build" / "lock").exists()


def test_a_build_into_the_folder_of_its_input_reads_no_shard_and_is_found_complete(
    source: Path, tmp_path: Path
) -> None:
    manifest = run(source.parent, tmp_path / "out", text_key="content")
    with pytest.warns(UserWarning, match=r"the output, .*/out, is never read"):
        assert run(source.parent, tmp_path / "out", text_key="content") == manifest
    with pytest.warns(UserWarning, match=r"1 dataset of shards left out: .*/out"):
        assert run(source.parent, tmp_path / "two", text_key="content").fingerprint == manifest.fingerprint
    with pytest.raises(InputError, match="belongs to a dataset of shards"):
        run(tmp_path / "out", tmp_path / "three", text_key="content")


def test_a_build_into_the_folder_of_its_input_goes_on_though_its_shards_are_there(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, tmp_path / "out", text_key="content", after_stage=interrupt_after("write"))
    assert list(tmp_path.glob("out/*.tar"))
    with pytest.warns(UserWarning, match=r"the output, .*/out, is never read"):
        assert run(tmp_path, tmp_path / "out", text_key="content").counts["read"] == 20


def test_a_vocabulary_that_cannot_be_trained_is_refused_before_any_work(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a vocabulary of 10 is too small"):
        run(source, tmp_path / "out", text_key="content", tokenizer="train:10")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stage", ["plan", "filter"])
def test_another_recipe_takes_over_only_where_nothing_was_done(source: Path, tmp_path: Path, stage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(source, tmp_path / "out", text_key="content", after_stage=interrupt_after(stage))
    if stage == "filter":
        with pytest.raises(PlanChangedError, match="seed: was 0, now 1"):
            run(source, tmp_path / "out", text_key="content", seed=1)
    else:
        manifest = run(source, tmp_path / "out", text_key="content", seed=1)
        assert manifest.fingerprint == run(source, tmp_path / "anew", text_key="content", seed=1).fingerprint


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "shard.tar"),
        OSError("1085914 requested and 188033 written"),
        OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"),
    ],
    ids=["python", "numpy", "pyarrow"],
)
def test_a_full_disk_is_named_with_the_cure_and_the_same_command_goes_on(
    source: Path, tmp_path: Path, error: OSError
) -> None:
    with pytest.raises(BuildError, match=r"out: the disk is full, .* MB are free now.* the same command: it continues"):
        run(source, tmp_path / "out", text_key="content", after_stage=interrupt_after("tokenize", error))
    assert run(source, tmp_path / "out", text_key="content").counts["kept"] == 20


def test_a_source_with_a_name_that_is_none_is_told_what_names_hold(source: Path) -> None:
    with pytest.raises(InputError, match="a source's name before = holds letters, digits, - and _ only"):
        run(f"my/web={source}", source.parent / "out")


def test_a_build_that_cannot_write_what_is_beside_the_shards_leaves_no_manifest_and_goes_on(
    source: Path, tmp_path: Path
) -> None:
    report = tmp_path / "out" / "report.html"

    def stand_in_its_way(stage: str) -> None:
        if stage == "write":
            report.mkdir()

    with pytest.raises(ConfigError, match=r"report\.html: a directory"):
        run(source, tmp_path / "out", text_key="content", after_stage=stand_in_its_way)
    assert len(list((tmp_path / "out").glob("train-*.tar"))) > 0
    assert not (tmp_path / "out" / "manifest.json").exists()
    report.rmdir()
    assert run(source, tmp_path / "out", text_key="content").counts["kept"] == 20
    assert list(verify_dataset(tmp_path / "out")) == []


def test_what_a_plan_counted_that_came_to_nothing_is_not_used_by_the_next(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name} {k}"}}\n' for k in range(6_000)))
    settings: dict[str, Any] = {"dedup": False}
    settings["limits"] = Limits(unit_bytes=200_000, smallest_unit_bytes=1_000, units_wanted=1)
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]

    class Stop(Progress):
        def bar(self, name: str, total: int, *, bytes: bool = False) -> Any:
            if name == "filter":  # records are counted by now
                raise KeyboardInterrupt
            return super().bar(name, total, bytes=bytes)

    with pytest.raises(KeyboardInterrupt):
        run(files, tmp_path / "out", limit=11_000, progress=Stop(quiet=True), **settings)
    assert run(files, tmp_path / "out", limit=10_500, **settings).counts["read"] == 10_500
