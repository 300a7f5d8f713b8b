"""Tokens are spaCy's: what its English tokenizer, version 3.8, gives stands beside each text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import Page
from filters.rules.ruleset import load_rules
from filters.spacy_tokens import is_symbol, split_tokens
from pipeline.errors import ConfigError

SPLIT_BY_SPACY = [
    ("Hello, world!", ["Hello", ",", "world", "!"]),
    ("wait... no!!! --", ["wait", "...", "no", "!", "!", "!", "--"]),
    ("film.<br /><br />The end", ["film.<br", "/><br", "/>The", "end"]),
    ("<b>so</b> <p>", ["<", "b", ">", "so</b", ">", "<", "p", ">"]),
    ("http://www.example.com/a/b-c?d=e&f=g,", ["http://www.example.com/a/b-c?d=e&f=g", ","]),
    ("me@mail.example.net www.x.org a/b", ["me@mail.example.net", "www.x.org", "a", "/", "b"]),
    ("👍🏽👍🏽 wow🔥 (☺)", ["👍", "🏽", "👍", "🏽", "wow", "🔥", "(", "☺", ")"]),
    ("no...but well… I", ["no", "...", "but", "well", "…", "I"]),
    ("x[i] += 1; f(self, x=3)", ["x[i", "]", "+", "=", "1", ";", "f(self", ",", "x=3", ")"]),
    ("if (a != b) { a->b }", ["if", "(", "a", "!", "=", "b", ")", "{", "a->b", "}"]),
    (
        "don't I'm you’ll cannot let's 10am",
        ["do", "n't", "I", "'m", "you", "’ll", "can", "not", "let", "'s", "10", "am"],
    ),
    ("Mr. Smith's U.S. firms, e.g. J.R.R.", ["Mr.", "Smith", "'s", "U.S.", "firms", ",", "e.g.", "J.R.R."]),
    (
        "end.Next 3-4 3km $5.50 US$3 50%",
        ["end", ".", "Next", "3", "-", "4", "3", "km", "$", "5.50", "US$", "3", "50", "%"],
    ),
    ("well-known and/or (see):", ["well", "-", "known", "and/or", "(", "see", "):"]),
]


@pytest.mark.parametrize(("text", "tokens"), SPLIT_BY_SPACY)
def test_tokens_are_those_of_spacy(text: str, tokens: list[str]) -> None:
    assert split_tokens(text) == tokens


@given(st.text(st.sampled_from("aB1.,:-'’<>/()…%+$€ \n👍🏽_=m@s"), max_size=40))
def test_tokens_lose_no_visible_character(text: str) -> None:
    assert "".join(split_tokens(text)) == "".join(text.split())


def test_words_among_tokens_are_not_of_punctuation_alone() -> None:
    parts = Page("So -- 5 😀 ... a.").parts("tokens")
    assert parts.pieces == ["So", "--", "5", "😀", "...", "a."]
    assert parts.words == ["So", "5", "😀", "a."]
    assert parts.alphabetic == ["So", "a."]
    assert is_symbol("。")


def test_gopher_datatrove_counts_tokens_where_gopher_counts_words() -> None:
    review = "It was the best of films, and I have seen it with my sons.<br /><br />" * 8
    noisy = "😀 😀 ! ! - It was the best film of all that I have seen, and I go again . . .\n"
    gopher, datatrove = load_rules("gopher_quality"), load_rules("gopher_datatrove")
    assert gopher.judge(gopher.measure(review)) is None
    values = datatrove.measure(noisy * 5)
    assert values["words"] == 5 * (2 + 15)  # emoji are words, marks are not
    assert values["alphabetic_ratio"] == 15 / 24
    assert datatrove.measure(review)["alphabetic_ratio"] < 0.95 < gopher.measure(review)["alphabetic_ratio"]
    assert {rule.name: (rule.min, rule.max) for rule in datatrove.rules} == {
        rule.name: (rule.min, rule.max) for rule in load_rules("gopher").rules
    }


def test_an_unknown_way_of_counting_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('words = { min = 5, by = "token" }')
    with pytest.raises(
        ConfigError, match=r"rule 'words': by must be one of .*, not 'token' \(did you mean 'tokens'\?\)"
    ):
        load_rules(tmp_path / "own.toml")
