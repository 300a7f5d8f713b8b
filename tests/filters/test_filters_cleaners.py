"""Remnants of HTML become the text that a browser would show; everything else stays as it is."""

from __future__ import annotations

import re

import pytest

from filters.cleaners.cleaners import html_remnants
from filters.rules.ruleset import load_rules
from filters.unicode_classes import SPACES


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Good.<br /><br />Bad.<BR>Ugly.", "Good.\n\nBad.\nUgly."),
        ("<p>One.</p>\n\n<p>Two &amp; three.</p>", "One.\n\nTwo & three."),
        ("See <a href=\"x.html?a>b\" title='t'>this</a> <!-- not\nthis -->page.", "See this page."),
        ("Tom&#39;s caf&eacute;&nbsp;&#x2014; open", "Tom's café — open"),
        ("&amp;lt; once", "&lt; once"),
        ("<h1>Title</h1>Text <b>bold</b>er", "Title\nText bolder"),
    ],
)
def test_tags_comments_and_entities_are_replaced(text: str, left: str) -> None:
    assert html_remnants(text)[0] == left


@pytest.mark.parametrize(
    "text",
    [
        "#include <stdio.h>", "a < b and b > c", "x &y; AT&T", "std::vector<int> v;", "List<String>", "\n indented\n", "",
        "I <3 you", "<angle brackets>", "<brand new>", "a<br", "&unknownname; &;",
    ],
)  # fmt: skip
def test_text_without_remnants_stays_to_the_byte(text: str) -> None:
    assert html_remnants(text)[0] == text


@pytest.mark.parametrize("part", ["<a ", "<!--", '<a b="', "&a", "<!-- <"])
def test_a_long_text_of_open_brackets_is_cleaned_in_linear_time(part: str) -> None:
    text = part.strip() * 100_000
    assert html_remnants(text) == (text, {"tags": 0, "entities": 0})


def test_the_preset_cleans_before_rules_measure_and_counts_what_it_replaced() -> None:
    rules = load_rules("gopher_quality,html_remnants")
    text, counts = rules.cut("I saw it &amp; I liked it.<br /><br />Twice.")
    assert text == "I saw it & I liked it.\n\nTwice."
    assert counts == {"html_remnants.tags": 2, "html_remnants.entities": 1}
    assert load_rules("gopher").cleaners == ()


@pytest.mark.parametrize(
    "text", ["\n \n", " \n x\n\n\n", "<br>", "a<br>\n<br> \n \u200b\n b", "a\n<b></b>b", "<p>\n \t</p>x"]
)
def test_blanks_around_tags_become_one_empty_line_at_most(text: str) -> None:
    blanks = f"[{SPACES}]*"
    without = re.sub("</?b>", "", re.sub("</?(br|p)>", "\n", text))
    expected = re.sub(f"{blanks}\n{blanks}\n{blanks}", "\n\n", without).strip(SPACES) if "<" in text else text
    assert html_remnants(text)[0] == expected
