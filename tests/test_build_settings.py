"""The keyword arguments of `pipeline.build` are typed, and they are the settings of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import pipeline
from pipeline.builder.recipe import Names, Recipe, Settings
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
