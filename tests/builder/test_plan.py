from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pipeline.builder.inputs import list_inputs
from pipeline.builder.limits import Limits
from pipeline.builder.plan import Plan, cut_units, make_plan
from pipeline.builder.plan_changes import check_unchanged
from pipeline.builder.recipe import Recipe, read_config
from pipeline.errors import ConfigError, InputError, PlanChangedError


def write(path: Path, lines: int = 1, width: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": "x" * width}) + "\n" for _ in range(lines)))
    return path


def test_a_plan_of_another_release_is_refused(tmp_path: Path) -> None:
    make_plan([str(write(tmp_path / "a.jsonl"))], Recipe()).write(tmp_path)
    value = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**value, "version": 0}))
    with pytest.raises(PlanChangedError, match="plan version 0"):
        Plan.read(tmp_path)


def test_inputs_are_named_relative_to_the_argument_that_gave_them(tmp_path: Path) -> None:
    write(tmp_path / "data" / "deep" / "b.jsonl")
    write(tmp_path / "data" / "a.jsonl")
    names = [(item.source, item.name) for item in list_inputs([str(tmp_path / "data")])]
    assert names == [("", "a.jsonl"), ("", "deep/b.jsonl")]
    assert [item.name for item in list_inputs([f"web={tmp_path}/data/*.jsonl"])] == ["web/a.jsonl"]


def test_names_that_clash_take_on_their_folders(tmp_path: Path) -> None:
    paths = [write(tmp_path / folder / "same.jsonl", width=k) for k, folder in enumerate("pq")]
    assert [item.name for item in list_inputs([str(path) for path in paths])] == ["p/same.jsonl", "q/same.jsonl"]


def test_a_file_that_two_arguments_reach_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    os.symlink(path, tmp_path / "b.jsonl")
    with pytest.raises(InputError, match="named twice"):
        list_inputs([str(path), str(tmp_path / "b.jsonl")])


def test_no_input_is_an_error() -> None:
    with pytest.raises(InputError, match="no inputs"):
        list_inputs([])


def test_large_files_are_cut_and_small_ones_joined(tmp_path: Path) -> None:
    limits = Limits(smallest_unit_bytes=1_000, units_wanted=4)
    write(tmp_path / "big.jsonl", lines=100, width=100)
    for number in range(8):
        write(tmp_path / f"small-{number}.jsonl", lines=2, width=50 + number)
    inputs = list_inputs([str(tmp_path)])
    units = cut_units(inputs, limits)
    spans = [span for unit in units for span in unit]
    assert len([span for span in spans if span.input == 0]) > 2
    assert next(span.start for span in spans if span.input == 0) == 0
    assert max(len(unit) for unit in units) > 2
    assert sorted({span.input for span in spans}) == list(range(9))
    assert cut_units(inputs, limits) == units


def test_what_changed_is_named_with_both_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    old = make_plan([str(path)], Recipe(), {"rules": {"words": {"min": 50}}})
    write(path, lines=2)
    new = make_plan([str(path)], Recipe(dedup_threshold=0.7), {"rules": {"words": {"min": 20}}})
    with pytest.raises(PlanChangedError) as caught:
        check_unchanged(old, new)
    message = str(caught.value)
    assert "recipe: dedup_threshold: was 0.8, now 0.7" in message
    assert "definitions: rules: words: min: was 50, now 20" in message
    assert f"a.jsonl: bytes: was {old.inputs[0].size}, now {new.inputs[0].size}" in message
    assert "--overwrite" in message


def test_a_change_of_content_that_keeps_size_and_time_is_noticed_at_the_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    old = make_plan([str(path)], Recipe())
    status = path.stat()
    path.write_text(path.read_text().replace("x", "y"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PlanChangedError, match="first and last MiB"):
        check_unchanged(old, make_plan([str(path)], Recipe()))


def test_another_order_of_inputs_is_another_build(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / name, width=k)) for k, name in enumerate(("a.jsonl", "b.jsonl"))]
    with pytest.raises(PlanChangedError, match="order of inputs"):
        check_unchanged(make_plan(paths, Recipe()), make_plan(paths[::-1], Recipe()))


def test_a_dataset_that_moved_is_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "here" / "a.jsonl")
    old = make_plan([str(path.parent)], Recipe())
    (tmp_path / "here").rename(tmp_path / "there")
    check_unchanged(old, make_plan([str(tmp_path / "there")], Recipe()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dedup_treshold": 0.5}, "did you mean 'dedup_threshold'"),
        ({"dedup_threshold": 1.5}, "got 1.5"),
        ({"val_fraction": float("nan")}, "got nan"),
        ({"dedup_bands": 0}, "at least 1, got 0"),
        ({"dedup_bands": True}, "got True"),
        ({"dedup_num_perm": 100}, "112 values, but a signature has num_perm=100; raise"),
        ({"on_error": "ignore"}, "stop, records, skip"),
        ({"dedup_keep": "frist"}, "did you mean 'first'"),
        ({"max_tokens": "web=many"}, "SOURCE=NUMBER"),
        ({"limit": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_value(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.from_json(settings)


def test_a_recipe_survives_json() -> None:
    recipe = Recipe(language="en, de=0.7", rules=["gopher"], max_tokens=5, seed=-1)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_files_are_described_by_their_names_alone(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text("words = { min = 3 }\n")
    assert Recipe(rules=[str(rules), "gopher"]).described()["rules"] == ["mine.toml", "gopher"]


def test_no_rules_are_one_recipe_however_they_are_written() -> None:
    assert Recipe(rules=()) == Recipe(rules="none") == Recipe(rules=["none"]) == Recipe(rules="")
    assert Recipe(rules="none,gopher") == Recipe(rules="gopher")
    assert Recipe(rules=()).described()["rules"] == []


def test_a_configuration_file_may_spell_settings_as_flags_do(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text("val-fraction: 0.1\nlanguage: [en, de]\n")
    assert Recipe.from_json(read_config(path)) == Recipe(val_fraction=0.1, language="en,de")
    path.write_text("- a list\n")
    with pytest.raises(ConfigError, match="list"):
        read_config(path)
