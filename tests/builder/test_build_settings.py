"""Every setting and argument of a build is checked by type, wherever it comes from; they are the settings of a recipe."""

from __future__ import annotations

import inspect
import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import pipeline
from filters.language.identifier import bundled_model
from pipeline.builder.plan import Plan
from pipeline.builder.recipe import Recipe, read_config, setting_types
from pipeline.builder.setting import Setting, flag_of, setting_of, types_of
from pipeline.cli.main import run_command
from pipeline.cli.texts_options import parser_of
from pipeline.errors import ConfigError, InputError
from pipeline.progress import Progress
from pipeline.text.document import Document
from scripts.type_settings import settings
from tests.helpers.builds import ROOT, Built, kept, run_plain
from tests.helpers.commands import Says
from tests.helpers.corpus import english
from tests.helpers.interruptions import interrupt_after
from tests.helpers.tokenizer_samples import train

RECIPE = get_type_hints(Recipe)


def test_checkers_see_every_setting_of_a_recipe_as_build_takes_it() -> None:
    assert (ROOT / "pipeline/builder/settings.pyi").read_text() == settings(), "run scripts/type_settings.py"
    assert "    language: Names\n    language_threshold: float\n" in settings()
    parameters = inspect.signature(pipeline.build).parameters
    assert not set(parameters) & set(RECIPE)
    assert parameters["settings"].annotation == "Unpack[Settings]"
    assert all("Any" not in parameter.annotation for parameter in parameters.values())


SAMPLES: dict[str, Any] = {
    "format": "jsonl",
    "where": "a >= 3",
    "keep_fields": ("url:str",),
    "license": ("web=MIT", "CC0-1.0"),
    "max_tokens": ("web=5e3", "700"),
    "tokenizer": "train:300",
    "eos": "never",
    "dedup_num_perm": 1100,
    "dedup_keep": "longest",
}
BY_TYPE: dict[type, Any] = {int: 33, float: 0.25, tuple: ("en", "de=0.7"), str: "name"}


def sample(name: str) -> Any:
    """Return a value of a setting that is not its default."""
    (item,) = (item for item in fields(Recipe) if item.name == name)
    types, choices = setting_types()[name], setting_of(item.metadata).choices
    if bool in types:
        return not item.default
    if choices:
        return next(choice for choice in choices if choice != item.default)
    return SAMPLES.get(name, next(value for kind, value in BY_TYPE.items() if kind in types))


def samples(folder: Path) -> dict[str, Any]:
    """Return a value of each setting that is not its default; write the files that these values name into ``folder``."""
    (folder / "own.toml").write_text("characters = { min = 1 }\n")
    (folder / "ids.txt").write_text("a\n")
    (folder / "sets.jsonl").write_text(json.dumps({"name": english(1)}))
    pq.write_table(pa.table({"key": [bytes(16)], "quality": [1.0]}), folder / "scores.parquet")
    train("llama", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    values = {item.name: sample(item.name) for item in fields(Recipe)}
    scheme = ("dedup_bands", "dedup_rows", "dedup_num_perm", "dedup_ngram", "normalize")
    earlier = Built.of(folder, [english(1)], "earlier", **{name: values[name] for name in scheme})
    return values | {
        "extract": "trafilatura",
        "scores": str(folder / "scores.parquet"),
        "transforms": ("tests.helpers.builds:halves",),
        "rules": (str(folder / "own.toml"),),
        "lid_model": str(bundled_model()),
        "drop_ids": str(folder / "ids.txt"),
        "against": (str(earlier),),
        "decontaminate": (str(folder / "sets.jsonl"),),
        "tokenizer": str(folder),
    }


# A tokenizer that is trained has no bos id; special tokens and ids in reserve are only for one that is trained.
@pytest.mark.parametrize("other", [{"tokenizer": "train:300", "bos": "never"}, {"special_tokens": (), "reserve": 0}])
def test_settings_are_the_same_as_flags_in_a_config_file_and_in_python(tmp_path: Path, other: dict[str, Any]) -> None:
    values = samples(tmp_path)
    assert not [item.name for item in fields(Recipe) if values[item.name] == item.default]
    values |= other
    flags = []
    for item in fields(Recipe):
        value = values[item.name]
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        flags += [flag_of(item)] if isinstance(value, bool) else [flag_of(item), text]
    (tmp_path / "in.jsonl").write_text("no JSON")  # ends each build after its plan: on_error is "stop"
    source, config = f"web={tmp_path / 'in.jsonl'}", tmp_path / "build.yml"
    config.write_text(yaml.safe_dump({"inputs": source, "output": str(tmp_path / "config"), "workers": 1, **values}))
    assert run_command("build", [source, "--output", str(tmp_path / "flags"), "--workers", "1", *flags]) == 1
    assert run_command("build", ["--config", str(config)]) == 1
    with pytest.raises(InputError, match="invalid JSON"):
        pipeline.build(source, tmp_path / "python", progress=Progress(quiet=True), **values)
    for output in ("flags", "config", "python"):
        assert Plan.read(tmp_path / output / ".build").recipe == Recipe(**values), output


def test_a_setting_that_is_added_enters_no_manifest_at_its_default() -> None:
    always = [item.name for item in fields(Recipe) if not setting_of(item.metadata).optional]
    assert list(Recipe().described()) == always
    assert len(always) == 35, "declare it optional=True, or each dataset built before is one of another recipe"
    for item in fields(Recipe):
        assert item.name in always or item.name in Recipe(**{item.name: sample(item.name)}).described()


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [(float | None, "0.5", 0.5), (int | None, "6e3", 6000), (int | float, "1%", 0.01), (Literal["a"] | None, "a", "a")]
)  # fmt: skip
def test_a_setting_that_may_be_none_is_read_by_its_type(hint: Any, text: str, value: object) -> None:
    types, declared = types_of(hint), Setting(default=None, group="reading", help="")
    assert declared.fit("x", parser_of(types)(text), types) == value
    assert type(None) not in types or declared.fit("x", None, types) is None
    for wrong in (["a"], float("nan"), True):
        with pytest.raises(ConfigError, match="x must be"):
            declared.fit("x", wrong, types)


def test_transforms_may_be_functions_text_or_none_and_files_may_be_paths(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "A text."}\n{"id": "b", "text": "Another."}\n')
    (tmp_path / "ids.txt").write_text("a\n")
    (tmp_path / "own.toml").write_text("characters = { min = 1 }\n")

    @pipeline.transform(version="1")
    def double(document: Document) -> Document:
        document.text *= 2
        return document

    for name, given in (("functions", [double]), ("text", "normalize,rules"), ("none", None)):
        files: Any = {"rules": tmp_path / "own.toml", "drop_ids": tmp_path / "ids.txt"}
        run_plain(tmp_path / "in.jsonl", tmp_path / name, transforms=given, **files)
        assert kept(tmp_path / name) == ["Another." * (1 + (name == "functions"))]


LEAST = {
    **dict.fromkeys(("limit", "shortest_passage", "dedup_bands", "dedup_rows", "dedup_ngram", "tokens_per_shard"), 1),
    **dict.fromkeys(("max_errors", "words_left", "reserve", "tokens_per_sample"), 0),
    "dedup_passages": 10,
    "dedup_num_perm": 1,
}
SHARES = {"language_threshold": "<=", "repeated_share": "<=", "dedup_threshold": "<=", "val_fraction": "<"}


def test_numbers_are_refused_below_their_least_and_shares_beyond_one() -> None:
    for name, least in LEAST.items():
        with pytest.raises(ConfigError, match=f"{name} must be a whole number of at least {least}"):
            Recipe(**{name: least - 1})
        assert name == "dedup_num_perm" or getattr(Recipe(**{name: least}), name) == least
    for name, sign in SHARES.items():
        for wrong in (-0.01, 1.01, *([1] if sign == "<" else [])):
            with pytest.raises(ConfigError, match=f"{name} must be 0 <= value {sign} 1, got {wrong}"):
                Recipe(**{name: wrong})
        assert getattr(Recipe(**{name: 1 if sign == "<=" else 0}), name) in (0, 1)


DEFAULTS = """\
"format": "", "text_key": "text", "id_key": "id", "normalize": true, "keep_fields": [], "license": [], "extract": \
null, "scores": null, "where": null, "limit": null, "on_error": "records", "max_errors": 1000, "transforms": [], \
"rules": ["gopher"], "language": [], "language_threshold": 0.65, "lid_model": null, "keep_rejected": false, \
"keep_texts": null, "drop_ids": null, "dedup_lines": false, "dedup_paragraphs": false, "shortest_passage": 30, \
"words_left": 50, "dedup_passages": null, "repeated_passages": "cut", "repeated_share": 0.5, "dedup": true, \
"dedup_threshold": 0.8, "dedup_bands": 14, "dedup_rows": 8, "dedup_num_perm": null, "dedup_ngram": 5, \
"dedup_keep": "first", "keep_signatures": true, "against": [], "decontaminate": [], "decontaminate_key": null, \
"decontaminate_action": "drop", "decontaminate_share": 0.8, "decontaminate_common": 0.0005, \
"tokenizer": "train:32000", "special_tokens": [], "reserve": 0, "bos": "never", "eos": "always", "val_fraction": \
0.005, "tokens_per_shard": null, "tokens_per_sample": 0, "max_tokens": [], "seed": 0"""


def test_a_default_changes_with_the_text_above_alone() -> None:
    assert json.dumps(Recipe().to_json()) == f"{{{DEFAULTS}}}"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dedup": "false"}, "dedup must be true or false, got 'false'"),
    ({"tokenizer": 32000}, "tokenizer must be text, got 32000 .Hugging Face name, .*bytes, or train:N.$"),
    ({"language": {"en": 0.99}}, "language must be a list, or text .*, got .*as in en,de=0.7"),
    ({"rules": None}, "rules must be a list, or text .*, got None .rule sets, rule files and limits"),
    ({"max_tokens": "inf"}, "max_tokens 'inf': write SOURCE=NUMBER"),
    ({"transforms": len}, "transforms must be a list, or text .* got <built-in .*as in my_module:drop_blocked"),
    ({"eos": None}, "eos must be text, got None .*always .default., never, or TOKEN"),
    ({"dedup_keep": "frist"}, "must be first, longest or score:FIELD, got 'frist' .did you mean 'first'"),
    ({"dedup_keep": "score:"}, "must be first, longest or score:FIELD, got 'score:'"),
    ({"dedup_keep": "score:q", "keep_fields": "q:str"}, "keep_fields must have q as numbers: add q:float"),
    ({"dedup_passages": 3}, "dedup_passages.*10.*got 3"),
    ({"repeated_passages": "keep"}, "cut, count, drop, got 'keep'"),
    ({"decontaminate_action": "mark", "keep_fields": "contaminated:int"}, "keep it as contaminated:str"),
    ({"keep_texts": "csv"}, r"keep_texts must be .*parquet, jsonl\.zst, got 'csv'"),
    ({"tokenizer": "train:10"}, "a vocabulary of 10 is too small"),
    ({"tokenizer": "train:400", "eos": "<end>"}, "leave --eos out"),
    ({"license": "web="}, "license .*: write SOURCE=SPDX.* SPDX for every source"),
    ({"license": "CC BY 4.0"}, "license .*: write SOURCE=SPDX.* SPDX for every source"),
    ({"license": "web=CC BY"}, "license .*: write SOURCE=SPDX.* SPDX for every source"),
    ({"license": "web=-MIT"}, "license .*: write SOURCE=SPDX.* SPDX for every source"),
    ({"license": "wbe=MIT"}, r"license: no source 'wbe'.*did you mean 'web'"),
    ({"seed": "0"}, "seed must be a whole number, got '0'"),
    ({"limit": True}, "limit must be a whole number of at least 1, got True"),
    ({"dedup_rows": None}, "dedup_rows must be a whole number of at least 1, got None"),
    ({"dedup_num_perm": 100}, "112 values, but a signature has num_perm=100; raise"),
    ({"val_fraction": float("nan")}, "val_fraction must be 0 <= value < 1, got nan"),
    ({"dedup_treshold": 0.5}, "did you mean 'dedup_threshold'"),
    ({"workers": True}, "workers must be a whole number of at least 1, got True"),
    ({"engine": "lcal"}, r"no engine 'lcal' \(did you mean 'local'\?\)"),
    ({"ray_skip_bad_nodes": 1}, "ray_skip_bad_nodes must be True or False, got 1"),
    ({"ray_address": 3}, "ray_address must be text, as in 10.0.0.1:6379, got 3"),
    ({"start_method": "x"}, "start_method must be one of fork, spawn, forkserver, got 'x'"),
    ({"overwrite": "no"}, "overwrite must be True or False, got 'no'"),
    ({"progress": True}, r"progress must be a Progress, as in pipeline.Progress\(quiet=True\), got True"),
    ({"limits": None}, "limits must be pipeline.Limits, got None"),
    ({"storage_options": 3}, "storage_options must be a dict of arguments of fsspec, got 3"),
    ({"after_stage": None}, "after_stage must be a function of the name of a stage, got None"),
    ({"recipe": {"dedup": False}}, "recipe must be a pipeline.Recipe; give settings by their names"),
    ({"output": ["oc"]}, r"output must be the name of a directory, got \['oc'\]"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_every_argument_of_build_is_checked_by_type(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "A text."}\n')
    arguments: dict[str, Any] = {"output": tmp_path / "out", "rules": (), "tokenizer": "bytes", **given}
    with pytest.raises(ConfigError, match=message):
        pipeline.build(f"web={tmp_path / 'in.jsonl'}", **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"language": [False]}, "language must be .* YAML reads some words as other values: quote them"),
        ({"val_fraction": "0"}, "val_fraction must be 0 <= value < 1, got '0'"),
        ({"output": ["oc"]}, r"output must be the name of a directory, got \['oc'\]"),
        ({"inputs": {"web": "in.jsonl"}}, "inputs must be text or a list of texts, got {'web': 'in.jsonl'}"),
        ({"inputs": ["in.jsonl", 3]}, r"inputs must be text or a list of texts, got \['in.jsonl', 3\]"),
        ("- a", "must map setting names to values, got list"),
        ("a: 2020-13-45", "not YAML"),
    ],
)
def test_a_wrong_value_of_a_config_file_is_one_line_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says, given: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"text": "A text."}\n')
    settings = {"inputs": "in.jsonl", "output": "out", "rules": "none", "tokenizer": "bytes", "workers": 1}
    Path("build.yml").write_text(given if isinstance(given, str) else yaml.safe_dump({**settings, **given}))
    said = says(2, "build", "--config", "build.yml").err
    assert re.search(f"^error: build.yml: {message}", said)
    assert said.count("\n") == 1
    assert sorted(os.listdir()) == ["build.yml", "in.jsonl"]


def test_a_config_file_spells_settings_as_flags_do(tmp_path: Path, says: Says) -> None:
    config = tmp_path / "build.yml"
    config.write_text("val-fraction: 0.1\nlanguage: [en, de]\n")
    assert Recipe.from_json(read_config(config)) == Recipe(val_fraction=0.1, language="en,de")
    flags = ["in.jsonl", "--output", str(tmp_path / "out"), "--config", str(config)]
    (tmp_path / "empty.yml").write_text("# nothing\n")
    assert read_config(tmp_path / "empty.yml") == {}
    wrong = says(2, "build", *flags, "--val-fraction", "2").err
    assert wrong == "error: val_fraction must be 0 <= value < 1, got 2.0\n"


@pytest.mark.parametrize("inputs", [3, None, [None], object(), b"in.jsonl", [], ""])
def test_inputs_of_another_type_are_refused(tmp_path: Path, inputs: Any) -> None:
    with pytest.raises(InputError):
        run_plain(inputs, tmp_path / "out")


def test_a_recipe_survives_json_and_describes_files_by_their_names_alone(tmp_path: Path) -> None:
    recipe = Recipe(language="en, de=0.7", rules=["gopher"], max_tokens=5, seed=-1)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    (tmp_path / "mine.toml").write_text("words = { min = 3 }\n")
    assert Recipe(rules=[str(tmp_path / "mine.toml"), "gopher"]).described()["rules"] == ["mine.toml", "gopher"]
    assert Recipe(rules=()) == Recipe(rules="none") == Recipe(rules=["none"]) == Recipe(rules="")
    assert Recipe(rules="none,gopher") == Recipe(rules="gopher")
    assert Recipe(rules=()).described()["rules"] == []
    assert Recipe(against="https://a.example/sets/wiki/").described()["against"] == ["wiki"]


def test_a_build_goes_on_with_another_timeout_and_other_tries(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "A text."}\n')
    with pytest.raises(KeyboardInterrupt):
        run_plain(tmp_path / "in.jsonl", tmp_path / "out", tries=2, timeout=5, after_stage=interrupt_after("plan"))
    assert run_plain(tmp_path / "in.jsonl", tmp_path / "out", tries=3, timeout=6.5).counts["kept"] == 1
    assert json.loads((tmp_path / "out" / "run.json").read_text())["resumed"]
    with pytest.raises(ConfigError, match=r"timeout must be .*seconds above 0, got '5'"):
        run_plain(tmp_path / "in.jsonl", tmp_path / "out", timeout="5")


def test_the_seconds_of_a_build_are_those_of_its_plan_its_start_and_each_stage(tmp_path: Path) -> None:
    out = Built.of(tmp_path, [english(k) for k in range(9)])
    seconds = json.loads((out / "run.json").read_text())["seconds"]
    assert {"plan", "start", "tokenize", "write", "finish"} < set(seconds)
    total = seconds.pop("total")
    assert seconds["plan"] > 0
    assert abs(sum(seconds.values()) - total) < 0.02  # each is rounded
