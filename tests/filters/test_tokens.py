"""Rules that count spaCy's tokens, as datatrove does."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filters import Page
from filters.measures.words import stop_words
from filters.rules.ruleset import load_rules
from filters.spacy_tokens import is_symbol, split_tokens
from pipeline.errors import ConfigError


@given(st.text(st.sampled_from("aB1.,:-'’<>/()…%+$€ \n👍🏽_=m@s"), max_size=40))
@example("x" * 2500 + " y")
def test_tokens_lose_no_visible_character(text: str) -> None:
    assert "".join(split_tokens(text)) == "".join(text.split())


@pytest.mark.parametrize("unit", ["!", "a.", "("])
def test_a_long_line_without_a_space_is_split_within_the_time_limit(unit: str) -> None:
    assert split_tokens((unit * (1 << 18))[: 1 << 18])


def test_rules_that_count_tokens_say_what_to_install_where_spacy_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = load_rules("gopher_datatrove")
    assert (
        rules.describe()["tokens"] == f"spacy {importlib.metadata.version('spacy')}"
    )  # another version, another recipe
    assert "tokens" not in load_rules("gopher").describe()

    monkeypatch.setitem(sys.modules, "spacy", None)  # as where it is not installed
    with pytest.raises(ConfigError, match=r"needs spacy, .*: pip install spacy$"):
        rules.describe()


def test_stop_words_are_found_among_tokens_as_written_only_where_asked() -> None:
    page, wanted = Page("The-and. THE"), ["the", "and", "of"]
    assert stop_words(page, words=wanted, by="tokens") == 2
    assert stop_words(page, words=wanted, by="tokens", any_case=False) == 1


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
