"""Stages are in the same order in their list, in the README and in the report; the runner skips what exists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np

import pipeline.builder.stages
from pipeline.atomic import write_json
from pipeline.builder.counts.build_stats import BuildStats
from pipeline.builder.engine.engines import EngineOptions
from pipeline.builder.outcome import EXACT, KEPT, NEAR
from pipeline.builder.partitions.partition import PARTITIONS, Partition, partitions
from pipeline.builder.plan import Plan
from pipeline.builder.recipe import Recipe
from pipeline.builder.stages.registry import STAGES, changes
from pipeline.builder.stages.stage import Run, Step, once
from pipeline.builder.stages.survivors import drop, drops_path, outcomes, survives
from pipeline.builder.work.workspace import Workspace
from pipeline.progress import Progress


def test_the_stages_stand_where_what_they_do_can_work() -> None:
    names = [stage.name for stage in STAGES]
    keys = [stage.drops.key for stage in STAGES if stage.drops]
    assert (len(set(names)), len(set(keys))) == (len(names), len(keys))
    assert names.index("line_dedup") < names.index("dedup") < names.index("drop_ids") < names.index("train_tokenizer")
    assert max(names.index(stage.name) for stage in STAGES if stage.edits) < names.index("train_tokenizer")


def test_the_map_and_the_readme_have_the_stages_in_the_order_of_the_registry() -> None:
    modules = [inspect.getmodule(type(stage)) for stage in STAGES]
    files = [Path(str(module.__file__)).name for module in modules if module]
    stated = re.findall(r"^(\w+\.py) ", str(pipeline.builder.stages.__doc__), re.MULTILINE)
    assert [name for name in stated if name in files] == list(dict.fromkeys(files))
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    names = [stage.name.replace("_", " ") for stage in STAGES]
    assert f"\n    {' -> '.join(['plan', *names, 'manifest'])}\n" in readme


def test_the_first_stage_that_drops_a_document_counts(tmp_path: Path) -> None:
    partition, dedup = Partition(Workspace(tmp_path), 1), tmp_path / ".build/round/dedup"
    dedup.mkdir(parents=True)
    np.save(dedup / "starts.npy", [0, 2, 7])
    np.save(dedup / "kind.npy", np.array([EXACT, EXACT, KEPT, NEAR, KEPT, KEPT, KEPT], np.uint8))
    assert survives(partition).tolist() == [True, False, True, True, True]
    for _ in range(2):  # a unit whose worker dies is tried again
        for stage, drops in (("later", [1, 1, 0, 0, 0]), ("earlier", [1, 0, 1, 0, 0])):
            drops_path(partition, stage).parent.mkdir(parents=True, exist_ok=True)
            drop(partition, stage, np.array(drops, bool))
    assert survives(partition).tolist() == [False, False, False, True, True]
    assert outcomes(partition, ["earlier", "later"]).tolist() == [4, NEAR, 3, KEPT, KEPT]


def test_a_file_of_a_partition_is_in_its_last_version_and_a_stage_reads_the_versions_before_its_own(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    workspace.round.mkdir(parents=True)
    Plan((), (), Recipe(), {}, {}, editing=("first", "second", "third")).write(workspace.root)
    write_json(workspace.round / PARTITIONS, {"partitions": [[5, 2]]})
    (partition,) = partitions(workspace)
    ingested, first, second, _ = partition.versions
    assert ingested == workspace.root / "ingest/000005/0002"
    for folder, names in (ingested, "abc"), (first, "bc"), (second, "c"):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    assert [partition.path(name).parent for name in "abc"] == [ingested, first, second]
    (before,) = partitions(workspace, before="second")
    assert [before.path(name).parent for name in "abc"] == [ingested, first, first]
    assert before.version("second") == second


def test_a_unit_is_run_only_if_its_path_does_not_exist(tmp_path: Path) -> None:
    run = Run(Workspace(tmp_path), Plan((), (), Recipe(), {}, {}), Progress(quiet=True), EngineOptions().open)
    there, done = tmp_path / "there", list[Path]()
    there.write_text("as it was")
    for in_parent, name in ((True, "a/b/new"), (False, "c/newer")):
        units = [there, tmp_path / name]
        run.make(Step(units=units, function=touch, makes=Path, done=done.append, in_parent=in_parent))
        assert done == units, "those that exist count as done too"
        done.clear()
    assert there.read_text() == "as it was"
    run.make(once(there, touch, there))
    assert there.read_text() == "as it was"


def touch(path: Path) -> None:
    path.write_text("made")


def test_the_rows_of_the_report_stand_in_the_order_of_the_stages() -> None:
    stats = BuildStats(
        dropped={"words": 1, "max_tokens": 9, "words_left": 3, "own:rule": 2},
        duplicates={"exact": 4, "near": 5},
        duplicate_characters={"exact": 40, "near": 50},
        added={"own:halves": 6},
    )
    assert [(change.what, change.documents) for change in changes(stats)] == [
        ("added by own:halves", -6),
        ("dropped by own:rule", 2),
        ("dropped by words", 1),
        ("dropped by words_left", 3),
        ("exact duplicates", 4),
        ("near duplicates", 5),
        ("dropped by max_tokens", 9),
    ]
