"""The list of words, plain and disguised."""

from __future__ import annotations

from pathlib import Path

import pytest

from filters import Page
from filters.measures.profanity import profanity_ratio
from filters.rules.ruleset import load_rules
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    "word", ["shit", "SHIT", "sh1t", "$hit", "sh!t", "s*it", "shiiiit", "fuuuck", "f**k", "a$$hole!"]
)
def test_listed_words_are_found_in_thin_disguises(word: str) -> None:
    assert profanity_ratio(Page(f"one two {word} four")) == 0.25


@pytest.mark.parametrize(
    "word", ["Scunthorpe", "cocktail", "classic", "shitake", "455", "5417", "***", "$", "Essex", "!!"]
)
def test_innocent_words_are_left_alone(word: str) -> None:
    assert profanity_ratio(Page(f"one {word} three")) == 0


def test_phrases_are_found_across_white_space() -> None:
    assert profanity_ratio(Page("You son of\na bitch")) == 1 / 5


def test_a_list_of_ones_own_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("# comment\nrutabaga\nbrussels sprouts  # a phrase\n", encoding="utf-8")
    assert profanity_ratio(Page("Rutabaga, brussels sprouts and shit"), word_list=tmp_path / "own.txt") == 2 / 5
    (tmp_path / "own.toml").write_text('profanity_ratio = { max = 0.1, word_list = "own.txt" }', encoding="utf-8")
    rules = load_rules(str(tmp_path / "own.toml"))
    verdict = rules.judge(rules.measure("a rutabaga"))
    assert verdict is not None
    assert verdict.reason == "profanity_ratio 0.5 > 0.1"


def test_a_list_that_is_changed_changes_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('profanity_ratio = { max = 0, word_list = "own.txt" }', encoding="utf-8")
    (tmp_path / "own.txt").write_text("one", encoding="utf-8")
    before = load_rules(str(tmp_path / "own.toml")).describe()
    (tmp_path / "own.txt").write_text("two", encoding="utf-8")
    assert load_rules(str(tmp_path / "own.toml")).describe() != before


def test_the_default_list_stands_in_the_recipe_by_its_hash() -> None:
    (rule,) = load_rules("profanity").describe()["rules"]
    assert rule["parameters"]["word_list"]["file"] == "profanity.txt"
    assert len(rule["parameters"]["word_list"]["sha256"]) == 64


def test_a_list_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('profanity_ratio = { max = 0, word_list = "none.txt" }', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"none\.txt"):
        load_rules(str(tmp_path / "own.toml"))
