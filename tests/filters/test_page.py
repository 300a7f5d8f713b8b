"""What words, marks, lines and paragraphs are."""

from __future__ import annotations

import importlib.metadata
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filters import Page
from filters.measures.repetition import top_ngram_ratio
from filters.measures.words import alphabetic_ratio, ellipsis_ratio, hash_ratio, stop_words
from filters.rules.ruleset import load_rules
from filters.spacy_tokens import is_symbol, split_tokens
from filters.unicode_classes import KINDS, SPACES, TERMINAL_BIT, TERMINALS, kind, kind_table
from pipeline.errors import ConfigError


@given(st.text("a.é, \t\n\u00a0\u200b\ufeff\u3000アイ"))
def test_words_are_those_of_split_where_spaces_without_width_part_them_too(text: str) -> None:
    assert Page(text).words == text.replace("\u200b", " ").replace("\ufeff", " ").split()


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        (" \n\t\u200b", []),
        ("Hello, world!", ["Hello", ",", "world", "!"]),
        ("wait... no!!! --", ["wait", "...", "no", "!!!", "--"]),
        ("well-known", ["well", "-", "known"]),
        ("it's John’s", ["it", "'s", "John", "’s"]),
        ("'quoted'", ["'", "quoted", "'"]),
        ("''a''b", ["''", "a", "''", "b"]),
        ("U.S. firms, e.g. J.R.R. Tolkien", ["U.S.", "firms", ",", "e.g.", "J.R.R.", "Tolkien"]),
        ("example.org/a_b __init__", ["example.org", "/", "a_b", "__", "init", "__"]),
        ("the end. Next", ["the", "end", ".", "Next"]),
        ("U.S...", ["U.S", "..."]),
        ("1,000 at 10:30, 3.14%", ["1,000", "at", "10:30", ",", "3.14", "%"]),
        ("naïve cafe\u0301s", ["naïve", "cafe\u0301s"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("\u0301\u0301a", ["\u0301\u0301", "a"]),
    ],
)
def test_pieces_are_words_and_marks(text: str, pieces: list[str]) -> None:
    assert Page(text).pieces == pieces


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("我是学生。", ["我", "是", "学", "生"]),
        ("ひらがなとカタカナ", ["ひ", "ら", "が", "な", "と", "カタカナ"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("ภาษาไทย", ["ภา", "ษา", "ไท", "ย"]),
        ("ພາສາລາວ", ["ພາ", "ສາ", "ລາ", "ວ"]),
        ("ភាសាខ្មែរ", ["ភា", "សា", "ខ្មែ", "រ"]),
        ("မြန်မာ", ["မြန်", "မာ"]),
    ],
)
def test_scripts_without_spaces_are_segmented(text: str, words: list[str]) -> None:
    assert Page(text).words == words


def test_words_are_separated_by_white_space_or_script() -> None:
    page = Page("No. 5, b2b &\u200b 10:30!")
    assert page.words == page.parts("spaces").pieces == ["No.", "5,", "b2b", "&", "10:30!"]
    assert page.parts("spaces").alphabetic == ["No.", "b2b"]
    assert page.parts("pieces").words == ["No", "5", "b2b", "10:30"]
    assert page.parts("pieces").alphabetic == ["No", "b2b"]
    page = Page("(GPT-4) 我用GPT-4。 it's")
    assert page.parts("spaces").pieces == page.words == ["(GPT-4)", "我", "用", "GPT", "4", "it's"]


def test_marks_beside_words_of_scripts_without_spaces_are_no_words() -> None:
    page = Page("嗯，好。“走吧！”他说。#…")
    assert alphabetic_ratio(page) == 1
    assert hash_ratio(page) == ellipsis_ratio(page) == 1 / 6
    assert top_ngram_ratio(Page("你好，你；好。"), n=2) == 6 / 7
    values = load_rules("gopher").measure(page.text)  # from one compiled pass
    assert (values["alphabetic_ratio"], values["hash_ratio"], values["ellipsis_ratio"]) == (1, 1 / 6, 1 / 6)


def test_blank_lines_are_no_lines_and_part_paragraphs() -> None:
    page = Page(" one \r\ntwo\n \t\n\n three\n")
    assert page.lines == ["one", "two", "three"]
    assert page.paragraphs == ["one\ntwo", "three"]
    page = Page("\n \n")
    assert (page.pieces, page.words, page.lines, page.paragraphs) == ([], [], [], [])


@given(st.text())
def test_pieces_lose_no_visible_character(text: str) -> None:
    visible = "".join(character for character in text if kind(character) != " ")
    assert "".join(Page(text).pieces) == visible


def test_characters_that_are_words_by_themselves_are_of_scripts_without_spaces() -> None:
    letters = (each for each in map(chr, range(0x110000)) if kind(each) == "h" and each.isalpha())
    named = {unicodedata.name(each, "TANGUT").split()[0].partition("-")[0] for each in letters}  # Tangut has no names
    han_and_kana = {"CJK", "IDEOGRAPHIC", "HIRAGANA", "HENTAIGANA", "KATAKANA"}
    assert named == {*han_and_kana, "BOPOMOFO", "YI", "TANGUT", "KHITAN", "NUSHU"}
    assert [kind(chr(point)) for point in (0x1B000, 0x1B167, 0x30A1, 0xA4D0)] == ["h", "h", "a", "a"]


def test_the_table_of_kinds_agrees_with_kind_for_every_code_point() -> None:
    table = kind_table()
    differing = [code for code in range(len(table)) if KINDS[int(table[code]) & ~TERMINAL_BIT] != kind(chr(code))]
    assert differing == []
    beyond = range(len(table), 0x110000, 997)
    assert {kind(chr(code)) for code in beyond} == {"-"}
    assert [chr(code) for code in range(0x10000) if kind(chr(code)) == " "] == list(SPACES)
    assert {chr(code) for code in range(len(table)) if table[code] & TERMINAL_BIT} == TERMINALS
    assert {".", "!", "?", "。", "؟", "।", "။"} <= TERMINALS
    assert not {",", "…", '"', ";"} & TERMINALS


# Rules that count spaCy's tokens, as datatrove does.


@given(st.text(st.sampled_from("aB1.,:-'’<>/()…%+$€ \n👍🏽_=m@s"), max_size=40))
@example("x" * 2500 + " y")
def test_tokens_lose_no_visible_character(text: str) -> None:
    assert "".join(split_tokens(text)) == "".join(text.split())


@pytest.mark.parametrize("unit", ["!", "a.", "("])
def test_a_long_line_without_a_space_is_split_within_the_time_limit(unit: str) -> None:
    assert split_tokens((unit * (1 << 18))[: 1 << 18])


def test_rules_that_count_tokens_say_what_to_install_where_spacy_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = load_rules("gopher_datatrove")
    version = importlib.metadata.version("spacy")
    assert rules.describe()["tokens"] == f"spacy {version}"  # another version, another recipe
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
