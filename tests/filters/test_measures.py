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
from filters.rules.ruleset import load_rules
from pipeline.errors import ConfigError

MEASURES = filters.measure_functions()
KNOWN = {"language": "en", "language_score": 0.9, "language_label": "en", "metadata": {"stars": 3}}
PARAMETERS: dict[str, dict[str, Any]] = {  # of measures that have no meaning without
    "stop_words": {"words": ["the", "and", "of"]},
    "top_ngram_ratio": {"n": 2},
    "duplicate_ngram_ratio": {"n": 5},
    "column_value": {"column": "stars"},
    "column_in": {"column": "stars", "values": [3, 4]},
    "fasttext_score": {"model": bundled_model(), "label": "__label__en"},
}
LINES = "- one\n\n• two\n\n\nthree...\n\nfour…\nfive."
PARAGRAPHS = "cat\ndog\n\ncat\ndog\n \n\nbird"
MARKS = "# a b c... d…"
PROGRAM = "import sys\n\ndef main(argv):\n    for name in argv[1:]:\n        print(name.upper())\n    return 0\n"
PROSE = """\
It was the best of times, it was the worst of times; it was the age of wisdom.
We had everything before us, we had nothing before us.
If you return it for a refund, import duties are not paid back.
"""


def measured(name: str, text: str, **parameters: Any) -> float:
    return MEASURES[name](Page(text, KNOWN), **{**PARAMETERS.get(name, {}), **parameters})


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_is_a_number_of_any_text_and_says_what_it_returns(name: str) -> None:
    assert math.isfinite(measured(name, "One line.\nThe other."))
    for text in ("", " ", "\n\n", "\x00", "...", "\ud800"):
        assert isinstance(measured(name, text), (int, float))
    assert (inspect.getdoc(MEASURES[name]) or "").startswith("Return ")


CASES: list[tuple[str, str, dict[str, Any], float]] = [
    *((name, "One two.\nThree\n\nfour", {}, value) for name, value in
      {"characters": 20, "words": 4, "lines": 3, "paragraphs": 2, "longest_word": 5}.items()),
    # Marks belong to words between spaces, and are pieces of their own.
    ("mean_word_length", "ab, cdef!!!", {}, 5),
    ("mean_word_length", "ab, cdef!!!", {"by": "pieces"}, 3),
    ("hash_ratio", MARKS, {}, 1 / 5),
    ("ellipsis_ratio", MARKS, {}, 2 / 5),
    ("alphabetic_ratio", MARKS, {}, 4 / 5),
    ("hash_ratio", MARKS, {"by": "pieces"}, 1 / 7),
    ("ellipsis_ratio", MARKS, {"by": "pieces"}, 2 / 7),
    ("alphabetic_ratio", MARKS, {"by": "pieces"}, 4 / 7),
    # Each stop word is counted once, in its usual spellings.
    ("stop_words", "the the the", {}, 1),
    ("stop_words", "The AND", {}, 2),
    ("stop_words", "tHe there, another the-and.", {}, 0),
    # Blank lines do not dilute the ratios of lines; the full stop of an ellipsis ends a line.
    ("bullet_line_ratio", LINES, {}, 2 / 5),
    ("ellipsis_line_ratio", LINES, {}, 2 / 5),
    ("terminal_line_ratio", LINES, {}, 2 / 5),
    ("terminal_line_ratio", "It rained. \t\nIt stopped.\r\n", {}, 1),
    ("short_line_ratio", "x" * 30 + "\n" + "x" * 31, {}, 1 / 2),
    ("short_line_ratio", "x" * 30 + "\n" + "x" * 31, {"longest": 29}, 0),
    ("newline_ratio", "a\n\nb\n", {}, 3 / 2),
    ("code_line_ratio", PROSE, {}, 0),
    *(("code_line_ratio", line, {}, 1) for line in
      ("#include <stdio.h>", "x = 3", "}", "<div class='a'>", "return x;", "const a = () => 1;", "my $x = shift;",
       "if (a && b) {", "$ ls -l | wc", "public static void main(String[] args)")),
    *(("sentences", text, {}, count) for text, count in
      {"One. Two! Three?": 3, "No end": 1, "One.\nNo end\n\nTwo.": 3, "It cost 3.14 euros, e.g. on Monday.": 1,
       "雨が降った。止んだ。": 2, '"Go!" he said. "Why?"': 2}.items()),
    ("lorem_ipsum", "Lorem Ipsum dolor. lorem ipsum", {}, 2),
    ("curly_brackets", "{ a { b }", {}, 2),
    # Second and later occurrences are the duplicates; blank lines are none of each other.
    ("duplicate_line_ratio", "a\n\n\n\nb\n \nc", {}, 0),
    ("duplicate_line_ratio", "cat\ncat\ndog\ncat", {}, 2 / 4),
    ("duplicate_line_char_ratio", "cat\ncat\ndog\ncat", {}, 6 / 15),
    ("duplicate_paragraph_ratio", "\n\na\n\n\n\nb\n\n", {}, 0),
    ("duplicate_paragraph_ratio", PARAGRAPHS, {}, 1 / 3),
    ("duplicate_paragraph_char_ratio", PARAGRAPHS, {}, 7 / len(PARAGRAPHS)),
    # Blank lines count where they are asked for, as datatrove counts them.
    ("duplicate_line_ratio", "a\n \n \n\nb", {"blank": True}, 1 / 4),
    ("duplicate_line_char_ratio", "a\n \n \nb", {"blank": True}, 1 / 7),
    ("duplicate_paragraph_ratio", "\n\na\n\n \n\n \n\nb", {"blank": True}, 1 / 4),
    ("duplicate_paragraph_char_ratio", "a\n\n \n\n \n\nb", {"blank": True}, 1 / 10),
    ("bullet_line_ratio", "- a\n\n  • b\n\n", {"blank": True}, 2 / 4),
    ("ellipsis_line_ratio", "a...\n\nb… ", {"blank": True}, 2 / 3),
    *(("top_2_gram_ratio", text, {}, 0) for text in
      ("Hello.", "a b", "Three short words", "method execution failed [_prw] acpica 2004")),
    ("top_ngram_ratio", "one", {}, 0),
    # Its characters are counted with single spaces; the first of equally frequent ones is the top one.
    ("top_ngram_ratio", "new   york new\nyork", {}, 16 / 19),
    ("top_ngram_ratio", "new york, new york", {}, 0),
    ("top_ngram_ratio", "new york, new york", {"by": "pieces"}, 16 / 18),
    ("top_ngram_ratio", "aa bb x aa bb y cccc dddd z cccc dddd", {}, 10 / 37),
    # The first five pieces, then one more, are new or overlap; each of the next repeats is stepped over whole.
    ("duplicate_ngram_ratio", "a " * 20, {}, 15 / 40),
    ("duplicate_5_gram_ratio", "a " * 20, {}, 15 / 40),
    ("duplicate_ngram_ratio", "one two three", {}, 0),
    ("duplicate_ngram_ratio", "ab c x a bc", {"n": 2}, 0),
    # Listed words are found in thin disguises and across white space, and innocent ones left alone.
    *(("profanity_ratio", f"one two {word} four", {}, 1 / 4) for word in
      ("shit", "SHIT", "sh1t", "$hit", "sh!t", "s*it", "shiiiit", "fuuuck", "f**k", "a$$hole!")),
    *(("profanity_ratio", f"one {word} three", {}, 0) for word in
      ("Scunthorpe", "cocktail", "classic", "shitake", "455", "5417", "q*zx", "***", "$", "Essex", "!!")),
    ("profanity_ratio", "You son of\na bitch", {}, 1 / 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "parameters", "value"), CASES)
def test_a_measure_has_the_value_by_hand(name: str, text: str, parameters: dict[str, Any], value: float) -> None:
    assert measured(name, text, **parameters) == pytest.approx(value, abs=1e-12)


def test_programs_and_prose_lie_far_apart() -> None:
    assert measured("code_line_ratio", PROGRAM) > 0.8
    assert measured("code_symbol_ratio", PROGRAM) > 0.1 > measured("code_symbol_ratio", PROSE)
    assert measured("duplicate_ngram_ratio", "word " * 500, n=3) <= 1


def test_an_own_word_list_takes_the_place_of_the_default(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('profanity_ratio = { max = 0.1, word_list = "own.txt" }')
    with pytest.raises(ConfigError, match=r"own\.txt' does not exist"):
        load_rules(tmp_path / "own.toml")
    (tmp_path / "own.txt").write_text("# comment\nrutabaga\nbrussels sprouts  # a phrase\n")
    rules = load_rules(tmp_path / "own.toml")
    values = rules.measure("Rutabaga, brussels sprouts and shit")
    assert values == {"profanity_ratio": 2 / 5}
    verdict = rules.judge(values)
    assert verdict is not None
    assert verdict.reason == "profanity_ratio 0.4 > 0.1"
    (tmp_path / "own.txt").write_text("another")
    assert load_rules(tmp_path / "own.toml").describe() != rules.describe()
    (rule,) = load_rules("profanity").describe()["rules"]
    assert rule["parameters"]["word_list"]["file"] == "profanity.txt"
    assert len(rule["parameters"]["word_list"]["sha256"]) == 64


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
    own = module(tmp_path, "own", GOOD)
    (name,) = found = filters.find_measures([own])
    assert (name, found[name](Page("a!?!"), of="?")) == ("marks", 1)
    with pytest.raises(ConfigError, match=r"^other\.py, line 2: own\.py, line 1 has a measure 'marks' too"):
        filters.find_measures([own, module(tmp_path, "other", "\n" + GOOD)])
    for wrong in ("text", "text: str", "page, of='!'", ""):
        with pytest.raises(ConfigError, match=r"^wrong\.py, line 1: marks\(.*\).* no measure: its first parameter"):
            filters.find_measures([module(tmp_path, "wrong", f"def marks({wrong}) -> float:\n    return 0.0\n")])
