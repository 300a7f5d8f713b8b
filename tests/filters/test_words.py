"""A word is the same for near duplicates, passages, decontamination and find, in every script."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.compiled.text_arrays import fnv
from filters.words import words
from pipeline.builder.dedup.word_runs import find_words
from tests.helpers.documentation import PAGES
from tests.stream.order_oracle import mix64

SCRIPTS = {
    "Latin": ("Don't pay $3.99, naïve_one!", ["don", "t", "pay", "3", "99", "naïve_one"]),
    "Cyrillic": ("Он ушёл по-русски.", ["он", "ушёл", "по", "русски"]),
    "Arabic with harakat and a joiner": ("مُحَمَّدٌ می\u200cخواهم", ["مُحَمَّدٌ", "میخواهم"]),
    "Hebrew with points": ("שָׁלוֹם עֲלֵיכֶם", ["שָׁלוֹם", "עֲלֵיכֶם"]),
    "Devanagari": ("हिन्दी का कागज।", ["हिन्दी", "का", "कागज"]),
    "Tamil": ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
    "Hangul": ("한국어 문장.", ["한국어", "문장"]),
    "Han": ("我在2020年用Python。", ["我", "在", "2020", "年", "用", "python"]),
    "kana": ("これはコーヒーか゚", ["こ", "れ", "は", "コーヒー", "か゚"]),
    "Thai": ("เก็บน้ำไว้", ["เก็", "บ", "น้ำ", "ไว้"]),
    "Lao": ("ພາສາລາວ", ["ພາ", "ສາ", "ລາ", "ວ"]),
    "Khmer": ("ខ្មែរ", ["ខ្មែ", "រ"]),
    "Burmese": ("မြန်မာ", ["မြန်", "မာ"]),
    "Tibetan": ("བོད་སྐད", ["བོད", "སྐད"]),
    "Javanese": ("ꦧꦱꦗꦮ꧈ꦩꦁꦏꦸꦧꦸꦮꦤ", ["ꦧ", "ꦱ", "ꦗ", "ꦮ", "ꦩꦁ", "ꦏꦸ", "ꦧꦸ", "ꦮ", "ꦤ"]),
    "Javanese, stacked": ("ꦱꦤ꧀ꦢꦶ", ["ꦱ", "ꦤ꧀ꦢꦶ"]),
    "Balinese": ("ᬪᬵᬱᬩᬮᬶ", ["ᬪᬵ", "ᬱ", "ᬩ", "ᬮᬶ"]),
    "Yi, Bopomofo and Tangut": ("ꆈꌠ ㄅㄚˋ 𗼃𗖊", ["ꆈ", "ꌠ", "ㄅ", "ㄚ", "ˋ", "𗼃", "𗖊"]),
    "invisible characters": ("co\u00adope\u200brate \u200fa\u200e b\u2060c", ["coope", "rate", "a", "bc"]),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_of_a_script(script: str) -> None:
    text, expected = SCRIPTS[script]
    assert [word for word, *_ in words(text)] == expected


@given(st.text(st.sampled_from("aİ4_·.' ़ािเกำ็东コ្ខ်မ\u1039\u200d\u00ad\u200b") | st.characters(), max_size=40))
def test_compiled_words_are_those_of_the_definition(text: str) -> None:
    found, expected = find_words([text]), list(words(text))
    assert found.spans.tolist() == [[first, end] for _, first, end in expected]
    assert found.hashes.tolist() == [mix64(fnv(word)) for word, *_ in expected]


def test_no_word_ends_before_a_mark_of_its_last_letter() -> None:
    marks = [chr(code) for code in range(0, 0xE01F0, 5) if unicodedata.category(chr(code))[0] == "M"]
    for base in "aक東ก":
        assert all([end - begin for _, begin, end in words(base + mark)] == [2] for mark in marks)


def test_the_page_on_builds_shows_the_words_of_nine_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    section = PAGES["docs/build.md"].partition("### Words")[2]
    program, printed = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)[:2]
    exec(program, {})
    assert capsys.readouterr().out == printed
