"""Any stage finds the files that the stages before it left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.builder.partitions.partition import Partition
from pipeline.builder.plan import make_plan
from pipeline.builder.recipe import Recipe
from pipeline.builder.workspace.workspace import Workspace


@pytest.mark.parametrize(
    ("stage", "folder"),
    [
        ("counting", "filter/000000/0000"),
        ("line_dedup", "filter/000000/0000"),
        ("dedup", "line_dedup/partitions/000000"),
        (None, "line_dedup/partitions/000000"),
    ],
)
def test_a_stage_that_edits_nothing_reads_what_the_stages_before_it_left(
    tmp_path: Path, stage: str | None, folder: str
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a"}))
    plan = make_plan([str(tmp_path / "in.jsonl")], Recipe(dedup_lines=True))
    stages = ("filter", "counting", "line_dedup", "dedup")
    work = tmp_path / "out" / ".build"
    work.mkdir(parents=True)
    replace(plan, stages=stages, editing_stages=("line_dedup",)).write(work)
    (work / "partitions.json").write_text(json.dumps({"partitions": [[0, 0, 0]]}))
    assert Partition(Workspace(tmp_path / "out"), 0).before(stage) == work / folder
