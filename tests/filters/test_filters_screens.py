"""Measures of many documents at once give what their plain definitions give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import filters
from filters import Page
from filters.compiled import SCREENED, screens
from filters.language.language import bundled_model
from pipeline.text.readers.reader import Document, read_documents
from pipeline.text.tokenizer.conformance import proof_texts

CODE = st.lists(
    st.sampled_from(
        "import from async def class if for return public my use x é _a Über 12 ² = := += == != -> => :: && || "
        "< > </ ( ) f(x) f(x), [ ] { } ; : . , ! ? \\ $ $a @ @f #include #! // /* */ >>> \u200b \x1c \n".split(" ")
    ),
    max_size=30,
)
PROSE = st.lists(
    st.sampled_from(
        "It He U.S. J. Mr. Mrs. Prof. xMr. Dr Ds. Dst. PROF. end. end! end? ... .) .' ?! 。 ！ 雨。 ？x a. 7. é. _. A. "
        "“Oh!” …» \u2029 \ufeff \n \n\n \u3002\u3002 ".split(" ")
    ),
    max_size=20,
)
RUDE = st.lists(
    st.sampled_from(
        "shit SHIT sh1t shiiit $hit s*it f**k fuuuck €uro 455 ٤٥٥ ²²² éééé sheet son of a bitch a_b x1 x_shit | * ".split(
            " "
        )
    ),
    max_size=20,
)
PARAMETERS: dict[str, dict[str, Any]] = {"fasttext_score": {"model": bundled_model(), "label": "__label__en"}}
BORDERS = st.sampled_from(["", " "])


def assert_same(name: str, texts: list[str]) -> None:
    parameters = PARAMETERS.get(name, {})
    plain = [filters.measure_functions()[name](Page(text), **parameters) for text in texts]
    for text, expected, found in zip(texts, plain, getattr(screens, name)(texts, **parameters).tolist(), strict=True):
        assert found == pytest.approx(expected, abs=1e-12), (name, text[:500])


@pytest.mark.parametrize("name", SCREENED)
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(*(st.builds(str.join, BORDERS, words) for words in (CODE, PROSE, RUDE)), st.text()), max_size=4)
)
@example(["", "\n", "."])
@example(["x = 1\n" * 3, "\ud800 = \udfff.", "\U0010ffff.\U0010ffff"])
def test_screens_equal_the_plain_definitions(name: str, texts: list[str]) -> None:
    assert_same(name, texts)


@pytest.mark.parametrize("name", SCREENED)
def test_screens_equal_the_plain_definitions_on_hostile_text(name: str) -> None:
    assert_same(name, proof_texts())


@pytest.mark.parametrize("name", SCREENED)
def test_screens_equal_the_plain_definitions_on_real_text(name: str, shared_data: Path) -> None:
    records = read_documents(shared_data / "dev-formats" / "sample.jsonl.zst")
    assert_same(name, [record.text[:20_000] for record in records if isinstance(record, Document)])


@pytest.mark.parametrize("name", SCREENED)
def test_no_texts_have_no_values(name: str) -> None:
    assert getattr(screens, name)([], **PARAMETERS.get(name, {})).shape == (0,)


@pytest.mark.parametrize("name", SCREENED)
@pytest.mark.parametrize("unit", ["a", "a ", "f$ ", ". ", ".\n", "= x\n", "。"])
def test_screens_of_a_huge_text_are_linear(name: str, unit: str) -> None:
    assert getattr(screens, name)([unit * 400_000], **PARAMETERS.get(name, {})).shape == (1,)


def test_a_list_of_ones_own_is_screened_for(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("rutabaga\nbrussels sprouts\n", encoding="utf-8")
    texts = ["Rutabaga, brussels sprouts and shit", "r*tabaga", "none"]
    assert screens.profanity_ratio(texts, word_list=tmp_path / "own.txt").tolist() == [2 / 5, 1, 0]
