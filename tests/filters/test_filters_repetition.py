"""The repetition measures, by hand and against their compiled counterparts."""

from __future__ import annotations

import pytest

from filters import Page
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
