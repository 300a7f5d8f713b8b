"""Cleaners: C4's lines, repeated lines, remnants of HTML; and the rule sets that cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from filters.cleaners.cleaners import c4_lines, duplicate_lines, duplicate_paragraphs, html_remnants
from filters.rules.ruleset import load_rules
from filters.unicode_classes import SPACES

C4 = load_rules("c4")
POLICIES = "our Privacy Policy,a cookie policy,terms of use,it uses cookies,use of cookies,we use cookies".split(",")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("This line has five words.", None),
        ("Is this line kept too?", None),
        ('He said it was "so."', None),
        ("He said it was 'so'", "no_terminal"),
        ("It has four words.[citation needed]", "few_words"),
        ("This line just trails off...", "no_terminal"),
        (f"This has a {'long' * 251} word.", "long_word"),
        (f"This has a {'x' * 1000} word.", None),
        ("Please enable JavaScript to read this page.", "javascript"),
        ("Please enable JavaScript for lorem ipsum dolor sit.", None),
        *((f"By reading on you accept {policy}.", "policy") for policy in POLICIES),
        ("The privacy policy of {this} page is short.", None),
        ("The privacy policy of lorem ipsum is short.", None),
    ],
)
def test_c4_cuts_the_lines_that_its_paper_names(line: str, reason: str | None) -> None:
    text, counts = c4_lines(line)
    assert (text, counts) == ((line, {}) if reason is None else ("", {reason: 1}))


def test_terminal_punctuation_can_be_waived() -> None:
    assert c4_lines("a line of five words", terminal_punctuation=False) == ("a line of five words", {})
    verdict = C4.judge(C4.measure("Two sentences are not enough here. This is the second one here."))
    assert (verdict and verdict.rule) == "sentences"


def test_repeated_lines_and_paragraphs_are_cut_and_blank_lines_stay() -> None:
    assert duplicate_lines("a\n\nb\n a \n\nc") == ("a\n\nb\n\nc", {"duplicate": 1})
    assert duplicate_lines("") == ("", {"duplicate": 0})
    assert duplicate_paragraphs("a\nb\n\nc\n\na\nb\n\nd") == ("a\nb\n\nc\n\nd", {"duplicate": 1})
    assert duplicate_paragraphs("a\n\n\n\nb") == ("a\n\n\n\nb", {"duplicate": 0})


def test_a_rule_set_cleans_before_its_rules_measure_and_counts_what_it_cut() -> None:
    rules = load_rules("repeated_lines")
    assert rules
    assert rules.cut("x\ny\nx") == ("x\ny", {"duplicate_lines.duplicate": 1})
    assert rules.judge(rules.measure("x")) is None
    text, counts = load_rules("gopher_quality,html_remnants").cut("I saw it &amp; I liked it.<br /><br />Twice.")
    assert text == "I saw it & I liked it.\n\nTwice."
    assert counts == {"html_remnants.tags": 2, "html_remnants.entities": 1}
    assert load_rules("gopher").cleaners == ()


def clean_page(text: str) -> str | None:
    """The loop over lines of C4's `clean_page`, with its constants; None for a page that it drops."""
    kept = []
    for line in text.splitlines():
        line = line.strip()
        if any(len(word) > 1000 for word in line.split()):
            continue
        line = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line)
        if not line.endswith((".", "?", "!", '"')) or line.endswith("..."):
            continue
        if len(line.split()) < 5:
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return None
        if "javascript" in lower:
            continue
        if "{" in line:
            return None
        if any(policy in lower for policy in ("terms of use", "privacy policy", "cookie policy", "use cookies")):
            continue
        kept.append(line)
    return "\n".join(kept).strip()


PARTS = [*"one two,It rained,lorem ipsum,JavaScript,{,Privacy policy,use cookies,[1],[edit]".split(","), "x" * 1001]


@given(st.lists(st.sampled_from([*PARTS, ".", "!", '"', "'", "...", "?", "\n", "\n"]), max_size=40).map(" ".join))
@settings(max_examples=500, deadline=None)
@example("[1] one two one two one two.")  # what is left of the first line begins with a space
def test_lines_are_cut_and_pages_dropped_as_by_the_code_of_c4(text: str) -> None:
    text = re.sub(r" (?=[.!?'\"\[])", "", text)
    left, _ = C4.cut(text)
    values = C4.measure(left)
    assert (None if values["lorem_ipsum"] or values["curly_brackets"] else left) == clean_page(text)


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


@pytest.mark.parametrize(
    "text", ["\n \n", " \n x\n\n\n", "<br>", "a<br>\n<br> \n \u200b\n b", "a\n<b></b>b", "<p>\n \t</p>x"]
)
def test_blanks_around_tags_become_one_empty_line_at_most(text: str) -> None:
    blanks = f"[{SPACES}]*"
    without = re.sub("</?b>", "", re.sub("</?(br|p)>", "\n", text))
    expected = re.sub(f"{blanks}\n{blanks}\n{blanks}", "\n\n", without).strip(SPACES) if "<" in text else text
    assert html_remnants(text)[0] == expected
