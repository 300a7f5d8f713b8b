from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.unicode_classes import SPACES
from pipeline.builder.dedup.segments import KINDS, LINES, PARAGRAPHS, is_blank, passage_lines, remove_passages, split
from tests.stream.order_oracle import mix64

M64 = (1 << 64) - 1
TEXTS = st.text("aA ßΣσς雨\n\n\r\t\u2028\u3000\ufeffİ.\x00\U0001f600", max_size=40)


class Passage(NamedTuple):
    """A passage as it is compared, and the lines of its text that it takes: from ``first`` up to ``last``."""

    text: str
    first: int
    last: int


def passages(text: str, kind: str, shortest: int) -> Iterator[Passage]:
    """Yield the lines or paragraphs of a text that have at least ``shortest`` characters, by the definition."""
    lines = text.split("\n")
    taken = [[number] for number in range(len(lines))]
    if kind == PARAGRAPHS:
        taken = [[]]
        for number, line in enumerate(lines):
            if is_blank(line):
                taken.append([])
            else:
                taken[-1].append(number)
    for numbers in taken:
        compared = re.sub(f"[{SPACES}]+", " ", "\n".join(lines[number] for number in numbers).strip(SPACES)).casefold()
        if len(compared) >= max(1, shortest):
            yield Passage(compared, numbers[0], numbers[-1] + 1)


def hashed(text: str) -> int:
    h = 0xCBF29CE484222325
    for character in text:
        h = (h ^ ord(character)) * 0x9E3779B97F4A7C15 & M64
        h ^= h >> 32
    return mix64(h)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXTS, max_size=5), kinds=st.sets(st.sampled_from(KINDS)), shortest=st.integers(1, 6))
def test_compiled_passages_are_those_of_the_definition(texts: list[str], kinds: set[str], shortest: int) -> None:
    found = split(texts, kinds, shortest)
    expected = [
        (hashed(passage.text) ^ (kind == PARAGRAPHS) * 0xD6E8FEB86659FD93, number, passage.first, passage.last)
        for kind in KINDS
        if kind in kinds
        for number, text in enumerate(texts)
        for passage in passages(text, kind, shortest)
    ]
    assert found.lines == (sum(len(list(passages(text, LINES, shortest))) for text in texts) if LINES in kinds else 0)
    assert [(h, *place) for h, place in zip(found.hashes.tolist(), found.locations.tolist(), strict=True)] == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Read more about it", "  read\tMORE  about it \r"),
        ("Straße", "STRASSE"),
        ("ΟΔΟΣ", "οδος"),
        ("これは\u3000雨です", "これは 雨です"),
        ("one\u2028two", "one two"),
    ],
)
def test_case_and_white_space_do_not_tell_lines_apart(a: str, b: str) -> None:
    assert split([a], [LINES], 1).hashes.tolist() == split([b], [LINES], 1).hashes.tolist() != []


@pytest.mark.parametrize(("a", "b"), [("Page 1", "Page 2"), ("a b", "ab"), ("résumé", "resume"), ("雨", "雪")])
def test_digits_marks_and_the_place_of_spaces_do(a: str, b: str) -> None:
    assert split([a], [LINES], 1).hashes.tolist() != split([b], [LINES], 1).hashes.tolist()


@pytest.mark.parametrize(
    ("text", "cut", "left"),
    [
        ("a\nb\nc", [(1, 2)], "a\nc"),
        ("a\n\nb\n\nc", [(2, 3)], "a\n\nc"),
        ("a\n\nb\nc\n\n\nd", [(2, 3)], "a\n\nc\n\n\nd"),
        ("a\n\nb\nc\n\n\nd", [(2, 4)], "a\n\nd"),
        ("menu\n\na\n\nfooter\n", [(0, 1), (4, 5)], "a"),
        ("\n a\nb\n", [(2, 3)], "\n a"),
        ("\r\na\r\nb\r\n", [(1, 2)], "\r\nb\r\n"),
        ("a\n\nb\n\n\n", [], "a\n\nb\n\n\n"),
        ("a", [(0, 1)], ""),
    ],
)
def test_what_is_cut_takes_its_blank_lines_along(text: str, cut: list[tuple[int, int]], left: str) -> None:
    assert remove_passages(text, cut) == left


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, kind=st.sampled_from(KINDS), chosen=st.sets(st.integers(0, 12)))
def test_what_is_not_cut_stays_in_order(text: str, kind: str, chosen: set[int]) -> None:
    found = list(passages(text, kind, 1))
    cut = [found[k][1:] for k in chosen if k < len(found)]
    gone = {number for first, last in cut for number in range(first, last)}
    stays = [line for n, line in enumerate(text.split("\n")) if n not in gone and not is_blank(line)]
    left = remove_passages(text, cut)
    assert [line for line in passage_lines(text, cut).split("\n") if cut] == [
        line for n, line in enumerate(text.split("\n")) if n in gone
    ]
    assert [line for line in left.split("\n") if not is_blank(line)] == stays
    assert left == text or cut
    assert left.count("\n") <= text.count("\n")
