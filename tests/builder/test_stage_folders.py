"""Any stage finds the files that the stages before it left, and what they said of documents."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipeline.builder.stages
from pipeline.builder.counts.stats import BuildStats
from pipeline.builder.outcome import EXACT, KEPT, NEAR, Outcome
from pipeline.builder.partitions.partition import Partition
from pipeline.builder.plan import make_plan
from pipeline.builder.recipe import Recipe
from pipeline.builder.stages.registry import STAGES, changes
from pipeline.builder.work.workspace import Workspace
from pipeline.errors import BuildError


def test_the_outcome_of_a_document_is_that_of_the_first_stage_that_drops_it(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a"}))
    plan = make_plan([str(tmp_path / "in.jsonl")], Recipe())
    dropping = {name: Outcome(name, name, f"found by {name}") for name in ("first", "second", "split")}
    plan = replace(plan, stages=("filter", "dedup", "first", "second", "split"), dropping_stages=dropping)
    work = tmp_path / "out" / ".build"
    for name in ("dedup", "first", "second"):
        (work / name).mkdir(parents=True)
    plan.write(work)
    np.save(work / "dedup/starts.npy", [0, 2, 7])
    np.save(work / "dedup/kind.npy", np.array([NEAR, NEAR, EXACT, KEPT, KEPT, KEPT, KEPT], np.uint8))
    partition = Partition(Workspace(tmp_path / "out"), 1)
    partition.drop("first", np.array([True, True, False, False, True]))
    partition.drop("second", np.array([True, True, True, False, False]))
    with pytest.raises(
        BuildError, match=r"second says of \(1,\) documents whether it drops them, but partition 1 holds 5"
    ):
        partition.drop("second", np.array([True]))
    first, second = plan.number_of_drops("first"), plan.number_of_drops("second")
    assert [plan.outcomes[number].key for number in (first, second)] == ["first", "second"]
    assert partition.outcomes_before("first").tolist() == [EXACT, KEPT, KEPT, KEPT, KEPT]
    assert partition.outcomes_before("second").tolist() == [EXACT, first, KEPT, KEPT, first]
    assert partition.outcomes.tolist() == [EXACT, first, second, KEPT, first]
    assert partition.survives.tolist() == [False, False, False, True, False]
    assert Workspace(tmp_path / "out").plan.outcomes == plan.outcomes


def test_the_stages_stand_where_what_they_do_can_work() -> None:
    names = [stage.name for stage in STAGES]
    keys = [stage.drops.key for stage in STAGES if stage.drops]
    assert (len(set(names)), len(set(keys))) == (len(names), len(keys))
    assert names.index("tokenize") < names.index("split")
    for stage in STAGES:
        at = names.index(stage.name)
        assert not stage.edits or at < names.index("dedup"), f"{stage.name} edits texts that dedup has compared"
        if stage.drops and not stage.edits and stage.name != "split":
            assert names.index("dedup") < at < names.index("train_tokenizer"), f"{stage.name} reads or drops too late"


def test_the_map_and_the_readme_have_the_stages_in_the_order_of_the_registry() -> None:
    modules = [inspect.getmodule(type(stage)) for stage in STAGES]
    files = [Path(str(module.__file__)).name for module in modules if module]
    stated = re.findall(r"^(\w+\.py) ", str(pipeline.builder.stages.__doc__), re.MULTILINE)
    assert [name for name in stated if name in files] == files
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    names = [stage.name.replace("_", " ") for stage in STAGES]
    assert f"\n    {' -> '.join(['plan', *names, 'manifest'])}\n" in readme


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
