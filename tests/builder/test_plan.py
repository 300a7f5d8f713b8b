"""The plan of a build: which inputs there are, how they are cut into units, and what makes it another build."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import re
from pathlib import Path

import pytest

import pipeline.builder.stages
from pipeline.atomic import write_json
from pipeline.builder.engines.local import progress_to
from pipeline.builder.inputs import Input
from pipeline.builder.limits import Limits
from pipeline.builder.output_directory import check_unchanged
from pipeline.builder.partitions.partition import PARTITIONS, partitions
from pipeline.builder.partitions.unit_records import UnitRecords
from pipeline.builder.plan import Plan, make_plan
from pipeline.builder.recipe import Recipe
from pipeline.builder.stages.registry import STAGES
from pipeline.builder.work.workspace import Workspace
from pipeline.errors import InputError, PlanChangedError


def write(path: Path, lines: int = 1, width: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": "x" * width}) + "\n" for _ in range(lines)))
    return path


def inputs_of(*specs: str | Path) -> tuple[Input, ...]:
    return make_plan(list(map(str, specs)), Recipe()).inputs


def test_a_plan_of_another_release_is_refused(tmp_path: Path) -> None:
    make_plan([str(write(tmp_path / "a.jsonl"))], Recipe()).write(tmp_path)
    value = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**value, "version": 0}))
    with pytest.raises(PlanChangedError, match="plan version 0"):
        Plan.read(tmp_path)


def test_inputs_are_named_relative_to_their_argument_and_once(tmp_path: Path) -> None:
    write(tmp_path / "data" / "deep" / "b.jsonl")
    path = write(tmp_path / "data" / "a.jsonl")
    names = [(item.source, item.name) for item in inputs_of(tmp_path / "data")]
    assert names == [("", "a.jsonl"), ("", "deep/b.jsonl")]
    assert [item.name for item in inputs_of(f"web={tmp_path}/data/*.jsonl")] == ["web/a.jsonl"]
    clashing = [write(tmp_path / folder / "same.jsonl", width=k) for k, folder in enumerate("pq")]
    assert [item.name for item in inputs_of(*clashing)] == ["p/same.jsonl", "q/same.jsonl"]
    os.symlink(path, tmp_path / "b.jsonl")
    with pytest.raises(InputError, match="named twice"):
        inputs_of(path, tmp_path / "b.jsonl")
    with pytest.raises(InputError, match="no inputs"):
        inputs_of()


def test_large_files_are_cut_and_small_ones_of_one_source_joined(tmp_path: Path) -> None:
    write(tmp_path / "big.jsonl", lines=100, width=100)
    for number in range(8):
        write(tmp_path / f"small-{number}.jsonl", lines=2, width=50 + number)
    specs = [f"a={tmp_path}/big.jsonl", f"b={tmp_path}/small-[0-3].jsonl", f"c={tmp_path}/small-[4-7].jsonl"]
    plan = make_plan(specs, Recipe(), limits=Limits(smallest_unit_bytes=1_000, units_wanted=4))
    spans = [span for unit in plan.units for span in unit]
    assert len([span for span in spans if span.input == 0]) > 2
    assert spans[0].start == 0
    assert max(len(unit) for unit in plan.units) > 2
    assert sorted({span.input for span in spans}) == list(range(9))
    assert all(len({plan.inputs[span.input].source for span in unit}) == 1 for unit in plan.units)


def test_content_and_order_make_another_build_and_a_place_does_not(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / "here" / name, width=k)) for k, name in enumerate(("a.jsonl", "b.jsonl"))]
    old = make_plan(paths, Recipe())
    with pytest.raises(PlanChangedError, match="order of inputs"):
        check_unchanged(old, make_plan(paths[::-1], Recipe()))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = [path.replace("/here/", "/there/") for path in paths]
    check_unchanged(old, make_plan(moved, Recipe()))
    status = os.stat(moved[1])
    Path(moved[1]).write_text(Path(moved[1]).read_text().replace("x", "y"))
    os.utime(moved[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PlanChangedError, match="first and last MiB"):
        check_unchanged(old, make_plan(moved, Recipe()))


def test_files_far_beyond_a_limit_or_quota_are_not_opened(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.jsonl", width=90_000)
    size = (tmp_path / "0.jsonl").stat().st_size
    for recipe, opened in (
        (Recipe(), 4),
        (Recipe(limit=1), 1),  # each record is counted as 64 KiB, each token as 32 bytes
        (Recipe(limit=2), 2),
        (Recipe(max_tokens=(f"{size // 32}",)), 1),
        (Recipe(max_tokens=(f"{size // 32 + 1}",)), 2),
    ):
        inputs = make_plan([str(tmp_path)], recipe).inputs
        assert sum(item.ends != "" for item in inputs) == opened, recipe


def test_units_report_the_bytes_of_all_their_files_and_lanes_share_those_of_one(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.jsonl", lines=number + 1) for number in range(3)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(write(tmp_path / "of" / "lines", lines=50).read_bytes()))
    for files, limits in (([*map(str, paths)], Limits()), ([f"{tmp_path}/a.jsonl.gz"], Limits(lane_bytes=20))):
        plan, reported = make_plan(files, Recipe(), limits=limits), list[int]()
        units = [UnitRecords(plan, number, (), None, plan.credentials, None) for number in range(len(plan.units))]
        with progress_to(reported.append):
            assert all([*map(list, units)])
        whole = sum(item.size for item in plan.inputs)
        assert whole - len(units) < sum(reported) <= whole
        assert len(units) > 1 or units[0].bytes_read == whole


# Stages are in the same order in their list, in the README and in the report.


def test_the_map_and_the_readme_have_the_stages_in_the_order_of_the_registry() -> None:
    modules = [inspect.getmodule(type(stage)) for stage in STAGES]
    files = [Path(str(module.__file__)).name for module in modules if module]
    stated = re.findall(r"^(\w+\.py) ", str(pipeline.builder.stages.__doc__), re.MULTILINE)
    assert [name for name in stated if name in files] == list(dict.fromkeys(files))
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    names = [stage.name.replace("_", " ") for stage in STAGES]
    assert f"\n    {' -> '.join(['plan', *names, 'manifest'])}\n" in readme


def test_a_file_of_a_partition_is_in_its_last_version_and_a_stage_reads_the_versions_before_its_own(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    workspace.round.mkdir(parents=True)
    Plan((), (), Recipe(), {}, {}, editing=("first", "second", "third")).write(workspace.root)
    write_json(workspace.round / PARTITIONS, {"partitions": [[5, 2]]})
    (partition,) = partitions(workspace)
    ingested, first, second, _ = partition.editions
    assert ingested == workspace.root / "ingest/000005/0002"
    for folder, names in (ingested, "abc"), (first, "bc"), (second, "c"):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    assert [partition.path(name).parent for name in "abc"] == [ingested, first, second]
    (before,) = partitions(workspace, before="second")
    assert [before.path(name).parent for name in "abc"] == [ingested, first, first]
    assert before.edition("second") == second
