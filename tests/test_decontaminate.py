from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.build.decontaminate import SHORTEST, Decontaminator

QUESTION = "which of these thirteen words in a row will be found again here"


def test_a_quoted_question_is_counted_and_named_whatever_its_case_and_punctuation() -> None:
    found = Decontaminator({"other": ["x " * 20], "quiz": [QUESTION]})
    page = "They asked: Which of these -- thirteen words, in a row, WILL be found again here? Nobody knew."
    assert found.overlaps([page, "Nobody asked."]) == [(1, "quiz"), (0, None)]


def test_twelve_words_of_a_longer_question_are_no_overlap() -> None:
    found = Decontaminator({"quiz": [QUESTION]})
    assert found.overlaps([QUESTION.rsplit(" ", 1)[0], QUESTION.split(" ", 1)[1]]) == [(0, None)] * 2


def test_an_n_gram_does_not_reach_over_two_texts() -> None:
    words = QUESTION.split()
    found = Decontaminator({"quiz": [QUESTION]})
    assert found.overlaps([" ".join(words[:6]), " ".join(words[6:])]) == [(0, None)] * 2


@pytest.mark.parametrize(("words", "overlap"), [(SHORTEST - 1, (0, None)), (SHORTEST, (1, "short"))])
def test_a_short_evaluation_text_counts_whole_unless_it_means_nothing(words: int, overlap: tuple[int, str]) -> None:
    short = " ".join(QUESTION.split()[:words])
    assert Decontaminator({"short": [short]}).overlaps([f"and so {short} it went"]) == [overlap]


def test_the_first_set_that_holds_an_n_gram_is_named() -> None:
    assert Decontaminator({"a": [QUESTION], "b": [QUESTION]}).overlaps([QUESTION]) == [(1, "a")]


def test_texts_without_words_overlap_with_nothing() -> None:
    assert Decontaminator({"empty": ["", "..."]}).overlaps(["", "...", QUESTION]) == [(0, None)] * 3
    assert Decontaminator({}).overlaps([QUESTION]) == [(0, None)]


def test_a_pickled_copy_finds_the_same() -> None:
    found = Decontaminator({"quiz": [QUESTION]})
    assert pickle.loads(pickle.dumps(found)).overlaps([QUESTION]) == found.overlaps([QUESTION])


@settings(max_examples=60, deadline=None)
@given(
    evaluation=st.lists(st.text("abΣ. ", max_size=30), max_size=5),
    text=st.text("abΣ. ", max_size=60),
    n=st.integers(1, 4),
)
def test_counts_equal_the_definition(evaluation: list[str], text: str, n: int) -> None:
    def grams(each: str) -> list[tuple[str, ...]]:
        words = re.findall(r"\w+", each.lower())
        return [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]

    held = {gram for each in evaluation for gram in grams(each)}
    expected = sum(gram in held for gram in grams(text))
    assert Decontaminator({"set": evaluation}, ngram=n).overlaps([text]) == [(expected, "set" if expected else None)]
