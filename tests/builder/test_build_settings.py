"""The keyword arguments of `pipeline.build` are typed, and they are the settings of a recipe."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml

import pipeline
from pipeline.builder.counts.progress import Progress
from pipeline.builder.recipe import Names, Recipe, Settings
from pipeline.cli.main import run_command
from pipeline.errors import ConfigError, InputError
from pipeline.text.document import Document

RECIPE, SETTINGS = get_type_hints(Recipe), get_type_hints(Settings)


def kinds(hint: Any) -> set[Any]:
    """Return the types of a union, or the one type; of lists only that they are some."""
    members = get_args(hint) if isinstance(hint, UnionType) else [hint]
    return {Sequence if get_origin(member) in (Sequence, tuple) else member for member in members}


def test_build_takes_every_setting_of_a_recipe_and_no_other() -> None:
    assert list(SETTINGS) == [field.name for field in fields(Recipe)]
    assert not Settings.__required_keys__
    parameters = inspect.signature(pipeline.build).parameters
    assert not set(parameters) & set(SETTINGS)
    assert parameters["settings"].annotation == "Unpack[Settings]"
    assert all("Any" not in parameter.annotation for parameter in parameters.values())


@pytest.mark.parametrize("name", RECIPE)
def test_build_takes_what_a_recipe_holds_and_lists_also_as_text(name: str) -> None:
    held, taken = kinds(RECIPE[name]), kinds(SETTINGS[name])
    assert held <= taken
    assert taken - held <= (kinds(Names) | {int, type(None)} if Sequence in held else set())


def test_transforms_may_be_functions_text_or_none(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "A text."}\n')

    @pipeline.transform(version="1")
    def double(document: Document) -> Document:
        document.text *= 2
        return document

    def characters(name: str, **settings: Any) -> int:
        manifest = pipeline.build(
            tmp_path / "in.jsonl", tmp_path / name, tokenizer="bytes", rules=(), val_fraction=0, **settings
        )
        return int(manifest.counts["kept_characters"])

    assert characters("functions", transforms=[double]) == 2 * len("A text.")
    assert characters("text", transforms="normalize,language") == characters("none", transforms=None) == len("A text.")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dedup": "false"}, "dedup must be true or false, got 'false'"),
    ({"normalize": 0}, "normalize must be true or false, got 0"),
    ({"keep_signatures": None}, "keep_signatures must be true or false, got None"),
    ({"tokenizer": 32000}, "tokenizer must be text, as in bytes, train:32000 or the name of one, got 32000"),
    ({"tokenizer": ""}, "tokenizer must be text, as in bytes"),
    ({"language": {"en": 0.99}}, "language must be a list, or text that joins its entries by commas, as in en,de=0.7"),
    (
        {"language": [False]},
        "language must be .* got False among them; YAML reads some words as other values: quote them",
    ),
    (
        {"rules": None},
        "rules must be a list, or text that joins its entries by commas, as in gopher,own.toml, got None",
    ),
    ({"rules": [3]}, "rules must be a list of texts, as in gopher,own.toml, got 3 among them"),
    ({"max_tokens": True}, "max_tokens must be a list"),
    ({"max_tokens": "inf"}, "max_tokens 'inf': write SOURCE=NUMBER"),
    ({"keep_fields": {"url": "str"}}, "keep_fields must be a list, or text .* as in url:str"),
    ({"transforms": len}, "transforms must be a list, or text .* as in my_module:function, got <built-in"),
    ({"text_key": ""}, "text_key must be text that names a field, got ''"),
    ({"where": 3}, "where must be text, as in 'int_score >= 3', got 3"),
    ({"scores": 3}, "scores must be text, got 3"),
    ({"eos": None}, "eos must be text: never, always or a token of the vocabulary, got None"),
    ({"bos": True}, "bos must be one of never, always, got True"),
    ({"format": 3}, "format must be text, got 3"),
    ({"seed": "0"}, "seed must be a whole number, got '0'"),
    ({"limit": True}, "limit must be a whole number of at least 1, got True"),
    ({"words_left": None}, "words_left must be a whole number of at least 0, got None"),
    ({"dedup_rows": None}, "dedup_rows must be a whole number of at least 1, got None"),
    ({"val_fraction": "0"}, "val_fraction must be 0 <= value < 1, got '0'"),
    ({"workers": True}, "workers must be a whole number of at least 1, got True"),
    ({"workers": "2"}, "workers must be a whole number of at least 1, got '2'"),
    ({"engine": "lcal"}, r"no engine 'lcal' \(did you mean 'local'\?\)"),
    ({"ray_address": 3}, "ray_address must be text, as in 10.0.0.1:6379, got 3"),
]
CALLS: list[tuple[dict[str, Any], str]] = [
    ({"start_method": "x"}, "start_method must be one of fork, spawn, forkserver, got 'x'"),
    ({"overwrite": "no"}, "overwrite must be True or False, got 'no'"),
    ({"progress": True}, r"progress must be a Progress, as in Progress\(quiet=True\), got True"),
    ({"limits": None}, "limits must be Limits, got None"),
    ({"storage_options": 3}, "storage_options must be a dict of arguments of fsspec, got 3"),
    ({"after_stage": None}, "after_stage must be a function of the name of a stage, got None"),
    ({"recipe": {"dedup": False}}, "recipe must be a Recipe; give settings by their names"),
    ({"output": ["oc"]}, r"output must be the name of a directory, got \['oc'\]"),
    ({"output": ""}, "output must be the name of a directory, got ''"),
    ({"output": None}, "output must be the name of a directory, got None"),
]


@pytest.mark.parametrize(("given", "message"), WRONG + CALLS)
def test_every_argument_of_build_is_checked_by_type(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "A text."}\n')
    arguments: dict[str, Any] = {"output": tmp_path / "out", "rules": (), "tokenizer": "bytes", **given}
    with pytest.raises(ConfigError, match=message):
        pipeline.build(source, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dedup": "false"}, "dedup must be true or false, got 'false'"),
        ({"language": [False]}, "language must be .* YAML reads some words as other values: quote them"),
        ({"val_fraction": "0"}, "val_fraction must be 0 <= value < 1, got '0'"),
        ({"workers": True}, "workers must be a whole number of at least 1, got True"),
        ({"engine": "lcal"}, r"no engine 'lcal' \(did you mean 'local'\?\)"),
        ({"output": ["oc"]}, r"output must be the name of a directory, got \['oc'\]"),
        ({"inputs": {"web": "in.jsonl"}}, "inputs must be text or a list of texts, got {'web': 'in.jsonl'}"),
        ({"inputs": ["in.jsonl", 3]}, r"inputs must be text or a list of texts, got \['in.jsonl', 3\]"),
    ],
)
def test_every_value_of_a_config_file_is_checked_by_type_and_the_file_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"text": "A text."}\n')
    settings = {"inputs": "in.jsonl", "output": "out", "rules": "none", "tokenizer": "bytes", "workers": 1, **given}
    Path("build.yml").write_text(yaml.safe_dump(settings))
    assert run_command("build", ["--config", "build.yml"]) == 2
    said = capsys.readouterr()
    assert re.search(f"^error: build.yml: {message}", said.err)
    assert said.err.count("\n") == 1
    assert sorted(os.listdir()) == ["build.yml", "in.jsonl"]


@pytest.mark.parametrize("text", ["[1", "a: 2020-13-45", "\t- x: {", "- a", "a: \x00", "&a [*a, *b]"])
def test_a_config_file_that_is_no_yaml_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "build.yml"
    path.write_text(text)
    assert run_command("build", ["in.jsonl", "--output", str(tmp_path / "out"), "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}: ")
    assert said.count("\n") == 1


def test_a_wrong_flag_is_not_laid_to_the_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "build.yml").write_text("seed: 3\n")
    flags = ["in.jsonl", "--output", str(tmp_path / "out"), "--config", str(tmp_path / "build.yml")]
    assert run_command("build", [*flags, "--val-fraction", "2"]) == 2
    assert capsys.readouterr().err == "error: val_fraction must be 0 <= value < 1, got 2.0\n"


def test_settings_that_name_files_may_be_paths(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "A text."}\n{"id": "b", "text": "Another."}\n')
    (tmp_path / "ids.txt").write_text("a\n")
    (tmp_path / "own.toml").write_text("characters = { min = 1 }\n")
    files: Any = {"rules": tmp_path / "own.toml", "drop_ids": tmp_path / "ids.txt"}
    manifest = pipeline.build(
        tmp_path / "in.jsonl", tmp_path / "out", tokenizer="bytes", progress=Progress(quiet=True), **files
    )
    assert manifest.counts["kept"] == 1


@pytest.mark.parametrize("inputs", [3, None, [None], object(), True, b"in.jsonl", [], ""])
def test_inputs_of_another_type_are_refused(tmp_path: Path, inputs: Any) -> None:
    with pytest.raises(InputError):
        pipeline.build(inputs, tmp_path / "out", tokenizer="bytes", progress=Progress(quiet=True))
