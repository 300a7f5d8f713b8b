from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.text.normalize import normalize

# Characters that can interact: line ends, controls, marks, parts of composed characters, Hangul letters.
TRICKY = st.text(
    st.sampled_from(
        "a \n\r\t\x00\x0b\x1b\x7f\x80\x85\x9f\ufeff\u0301\u0327e\u00e9\u2126\u1100\u1161\u11a8\u2028\U0001d15e"
    )
)
TEXTS = st.one_of(st.text(), TRICKY)


@given(TEXTS)
@example("\x00\ufeff\x00\ufeffx")
@example("\r\x00\n")
@example("e\x00\u0301")
@example("nul\x00 escape\x1b delete\x7f next\x85line\u2028 a lone \ud800 surrogate\x00")
def test_normalizing_twice_changes_nothing_more(text: str) -> None:
    once = normalize(text)
    assert normalize(once) == once


@given(TEXTS)
def test_it_is_the_plain_definition_step_by_step(text: str) -> None:
    kept = "".join(c for c in text if c in "\n\r\t" or unicodedata.category(c) != "Cc")
    expected = unicodedata.normalize("NFC", kept.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff"))
    assert normalize(text) == expected
