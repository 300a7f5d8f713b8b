"""Small cases of each measure, computed by hand."""

from __future__ import annotations

import importlib.util
import inspect
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import filters
from filters import Page
from filters.language.language import bundled_model
from filters.measures.code import code_line_ratio, code_symbol_ratio
from filters.measures.length import characters, lines, longest_word, paragraphs, words
from filters.measures.lines import (
    bullet_line_ratio,
    ellipsis_line_ratio,
    newline_ratio,
    short_line_ratio,
    terminal_line_ratio,
)
from filters.measures.profanity import profanity_ratio
from filters.measures.repetition import (
    duplicate_5_gram_ratio,
    duplicate_line_char_ratio,
    duplicate_line_ratio,
    duplicate_ngram_ratio,
    duplicate_paragraph_char_ratio,
    duplicate_paragraph_ratio,
    top_2_gram_ratio,
    top_ngram_ratio,
)
from filters.measures.sentences import curly_brackets, lorem_ipsum, sentences
from filters.measures.words import alphabetic_ratio, ellipsis_ratio, hash_ratio, mean_word_length, stop_words
from filters.rules.ruleset import load_rules
from pipeline.errors import ConfigError

RECORD = {"metadata": {"stars": 3}}
PARAMETERS: dict[str, dict[str, Any]] = {  # of measures that have no meaning without
    "stop_words": {"words": ["the"]},
    "top_ngram_ratio": {"n": 2},
    "duplicate_ngram_ratio": {"n": 5},
    "column_value": {"column": "stars"},
    "column_in": {"column": "stars", "values": [3, 4]},
    "fasttext_score": {"model": bundled_model(), "label": "__label__en"},
}


@pytest.mark.parametrize("name", sorted(filters.measure_functions()))
@pytest.mark.parametrize("text", ["", " ", "\n\n", "\x00", "...", "\ud800"])
def test_no_measure_fails_on_a_text_without_words(name: str, text: str) -> None:
    value = filters.measure_functions()[name](Page(text, RECORD), **PARAMETERS.get(name, {}))
    assert isinstance(value, (int, float))


def test_lengths() -> None:
    page = Page("One two.\nThree\n\nfour")
    assert (characters(page), words(page), lines(page), paragraphs(page), longest_word(page)) == (20, 4, 3, 2, 5)


@pytest.mark.parametrize("name", sorted(filters.measure_functions()))
def test_every_measure_is_a_number_from_what_a_build_knows(name: str) -> None:
    known = {"language": "en", "language_score": 0.9, "language_label": "en", **RECORD}
    page = Page("One line.\nThe other.", known)
    assert math.isfinite(filters.measure_functions()[name](page, **PARAMETERS.get(name, {})))


def test_mean_word_length_counts_marks_with_their_word_and_by_pieces_not_at_all() -> None:
    assert mean_word_length(Page("ab, cdef!!!")) == 5
    assert mean_word_length(Page("ab, cdef!!!"), by="pieces") == 3


def test_denominators_of_wording_are_words_or_pieces() -> None:
    page = Page("# a b c... d…")
    assert page.words == ["#", "a", "b", "c...", "d…"]
    assert (hash_ratio(page), ellipsis_ratio(page), alphabetic_ratio(page)) == (1 / 5, 2 / 5, 4 / 5)
    assert page.pieces == ["#", "a", "b", "c", "...", "d", "…"]
    found = (hash_ratio(page, by="pieces"), ellipsis_ratio(page, by="pieces"), alphabetic_ratio(page, by="pieces"))
    assert found == (1 / 7, 2 / 7, 4 / 7)


@pytest.mark.parametrize(
    ("text", "found"),
    [("the the the", 1), ("The AND", 2), ("tHe", 0), ("there, another", 0), ("", 0), ("the-and.", 0)],
)
def test_stop_words_are_counted_once_each_in_their_usual_spellings(text: str, found: int) -> None:
    assert stop_words(Page(text), words=["the", "and", "of"]) == found


def test_blank_lines_do_not_dilute_line_ratios() -> None:
    page = Page("- one\n\n• two\n\n\nthree...\n\nfour…\nfive.")
    assert bullet_line_ratio(page) == 2 / 5
    assert ellipsis_line_ratio(page) == 2 / 5
    assert terminal_line_ratio(page) == 2 / 5  # the full stop of an ellipsis is one


def test_white_space_after_a_line_does_not_hide_its_end() -> None:
    assert terminal_line_ratio(Page("It rained. \t\nIt stopped.\r\n")) == 1


def test_lines_of_exactly_the_limit_are_short() -> None:
    assert short_line_ratio(Page("x" * 30 + "\n" + "x" * 31)) == 0.5
    assert short_line_ratio(Page("x" * 30 + "\n" + "x" * 31), longest=29) == 0


def test_newlines_are_counted_with_the_blank_ones() -> None:
    assert newline_ratio(Page("a\n\nb\n")) == 3 / 2


PROGRAM = """\
import sys

def main(argv):
    for name in argv[1:]:
        print(name.upper())
    return 0
"""
PROSE = """\
It was the best of times, it was the worst of times; it was the age of wisdom.
We had everything before us, we had nothing before us.
If you return it for a refund, import duties are not paid back.
"""


def test_programs_and_prose_lie_far_apart() -> None:
    assert code_line_ratio(Page(PROGRAM)) > 0.8
    assert code_line_ratio(Page(PROSE)) == 0
    assert code_symbol_ratio(Page(PROGRAM)) > 0.1 > code_symbol_ratio(Page(PROSE))


@pytest.mark.parametrize(
    "line",
    ["#include <stdio.h>", "x = 3", "}", "<div class='a'>", "return x;", "const a = () => 1;", "my $x = shift;",
     "if (a && b) {", "$ ls -l | wc", "public static void main(String[] args)"],
)  # fmt: skip
def test_lines_of_many_languages_look_like_code(line: str) -> None:
    assert code_line_ratio(Page(line)) == 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One. Two! Three?", 3),
        ("No end", 1),
        ("One.\nNo end\n\nTwo.", 3),
        ("It cost 3.14 euros, e.g. on Monday.", 1),
        ("雨が降った。止んだ。", 2),
        ('"Go!" he said. "Why?"', 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert sentences(Page(text)) == count


def test_lorem_ipsum_and_curly_brackets_are_counted() -> None:
    assert lorem_ipsum(Page("Lorem Ipsum dolor. lorem ipsum")) == 2
    assert curly_brackets(Page("{ a { b }")) == 2


def test_blank_lines_are_not_duplicates_of_each_other() -> None:
    assert duplicate_line_ratio(Page("a\n\n\n\nb\n \nc")) == 0
    assert duplicate_paragraph_ratio(Page("\n\na\n\n\n\nb\n\n")) == 0


def test_second_and_later_occurrences_are_the_duplicates() -> None:
    page = Page("cat\ncat\ndog\ncat")
    assert duplicate_line_ratio(page) == 2 / 4
    assert duplicate_line_char_ratio(page) == 6 / len(page.text)


def test_paragraphs_are_duplicates_whatever_parts_them() -> None:
    page = Page("cat\ndog\n\ncat\ndog\n \n\nbird")
    assert duplicate_paragraph_ratio(page) == 1 / 3
    assert duplicate_paragraph_char_ratio(page) == 7 / len(page.text)


@pytest.mark.parametrize("text", ["Three short words", "Hello.", "a b", "method execution failed [_prw] acpica 2004"])
def test_short_text_without_repetition_has_no_top_ngram(text: str) -> None:
    assert top_2_gram_ratio(Page(text)) == 0


def test_top_ngram_counts_its_characters_with_single_spaces() -> None:
    page = Page("new   york new\nyork")
    assert top_ngram_ratio(page, n=2) == 2 * len("new york") / len(page.text)


def test_marks_belong_to_words_between_spaces_and_are_pieces_of_their_own() -> None:
    page = Page("new york, new york")
    assert top_ngram_ratio(page, n=2) == 0
    assert top_ngram_ratio(page, n=2, by="pieces") == 2 * len("new york") / len(page.text)


def test_the_first_of_equally_frequent_ngrams_is_the_top_one() -> None:
    page = Page("aa bb x aa bb y cccc dddd z cccc dddd")
    assert top_ngram_ratio(page, n=2) == 2 * len("aa bb") / len(page.text)


def test_no_character_is_counted_twice_in_duplicate_ngrams() -> None:
    page = Page("a " * 20)
    # The first five pieces, then one more, are new or overlap; each of the next repeats is stepped over whole.
    assert duplicate_ngram_ratio(page, n=5) == 15 / 40
    assert duplicate_5_gram_ratio(page) == 15 / 40
    assert duplicate_ngram_ratio(Page("word " * 500), n=3) <= 1


def test_fewer_words_than_n_have_no_ngrams() -> None:
    assert duplicate_ngram_ratio(Page("one two three"), n=5) == 0
    assert top_ngram_ratio(Page("one"), n=2) == 0


def test_ngrams_of_other_words_with_the_same_letters_are_others() -> None:
    assert duplicate_ngram_ratio(Page("ab c x a bc"), n=2) == 0


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


def module(folder: Path, name: str, source: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


GOOD = """\
def marks(page, *, of="!"):
    return page.text.count(of)


def is_mark(text: str) -> bool:
    return text == "!"


def _count(text: str) -> int:
    return len(text)
"""


def test_a_function_of_a_page_and_keywords_is_a_measure(tmp_path: Path) -> None:
    (name,) = found = filters.find_measures([module(tmp_path, "own", GOOD)])
    assert (name, found[name](Page("a!?!"), of="?")) == ("marks", 1)


@pytest.mark.parametrize(
    "source",
    [
        "def marks(text):\n    return 0.0\n",
        "def marks(text: str) -> float:\n    return 0.0\n",
        "def marks(page, of='!'):\n    return 0.0\n",
        "def marks():\n    return 0.0\n",
    ],
)
def test_a_function_that_almost_is_a_measure_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^own\.py, line 1: marks\(.*\).* is no measure: its first parameter must be"
    ):
        filters.find_measures([module(tmp_path, "own", source)])


def test_two_measures_of_one_name_are_refused(tmp_path: Path) -> None:
    modules = [module(tmp_path, "own", GOOD), module(tmp_path, "other", "\n" + GOOD)]
    with pytest.raises(ConfigError, match=r"^other\.py, line 2: own\.py, line 1 has a measure 'marks' too"):
        filters.find_measures(modules)


def test_the_docstrings_of_measures_say_what_they_return() -> None:
    said = {name: inspect.getdoc(function) or "" for name, function in filters.measure_functions().items()}
    assert {name for name, text in said.items() if not text.startswith("Return ")} == set()
