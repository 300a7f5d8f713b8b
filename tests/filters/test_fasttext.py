"""The compiled reading of lid.176.ftz against fastText itself, which is its definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.language.fasttext import FastText, readable
from filters.language.language import LanguageIdentifier, bundled_model
from pipeline.text.readers.reader import Document, read_documents
from pipeline.text.tokenizer.conformance import proof_texts

CLOSE = 1e-6  # the last bit of a probability differs once in a thousand texts, by another exp()


@pytest.fixture(scope="module")
def library() -> Callable[[str], tuple[str, float]]:
    import fasttext

    predict: Any = fasttext.load_model(str(bundled_model())).f.predict

    def best(text: str) -> tuple[str, float]:
        score, label = predict(text, 1, 0.0, "strict")[0]
        return label, score

    return best


@pytest.fixture(scope="module")
def model() -> FastText:
    return FastText(bundled_model())


def assert_equal(model: FastText, library: Callable[[str], tuple[str, float]], texts: list[str]) -> None:
    for text, (label, score) in zip(texts, model.predict(texts), strict=True):
        assert label == library(text)[0], text[:200]
        assert score == pytest.approx(library(text)[1], abs=CLOSE), text[:200]


def line(text: str) -> str:
    return text.replace("\n", " ").encode("utf-8", "replace").decode() + "\n"


def test_hostile_texts_are_read_alike(model: FastText, library: Callable[[str], tuple[str, float]]) -> None:
    odd = [
        "",
        "\0",
        " \t\v\f\r \0",
        "</s",
        "<",
        ">",
        "a\0b",
        "__label",
        "in de and la",
        "x" * 70_000,
        "é" * 9_999,
        "in",
    ]
    texts = [line(text) for text in [*odd, *proof_texts(), *(chr(code) * 3 for code in range(0, 0xD800, 97))]]
    assert_equal(model, library, [texts[place] for place in readable(texts)])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=8))
def test_any_texts_are_read_alike(
    model: FastText, library: Callable[[str], tuple[str, float]], texts: list[str]
) -> None:
    assert_equal(model, library, [line(texts[place]) for place in readable(texts)])


def test_texts_are_told_apart_whatever_stands_beside_them(model: FastText) -> None:
    texts = [line(text) for text in ("Guten Morgen, liebe Leute", "Good morning, dear people", "", "Bonjour à tous")]
    assert model.predict(texts) == [model.predict([text])[0] for text in texts]
    assert model.predict([]) == []


@pytest.mark.parametrize("text", ["no end", "two\nlines\n", "", "\n\n"])
def test_a_text_that_is_not_one_line_is_refused(model: FastText, text: str) -> None:
    with pytest.raises(ValueError, match="line feed"):
        model.predict(["one line\n", text])


def test_identifying_many_equals_identifying_each() -> None:
    identifier = LanguageIdentifier()
    german = "Am nächsten Morgen gingen die Kinder wieder in die Schule. "
    short = [
        "",
        "12",
        "SHOUTED ENGLISH WORDS",
        "a __label__de b",
        "x </s> y",
        "lone \ud800 surrogate",
        "two\nlines\r\n",
    ]
    texts = [*short, german * 40, "Home News Login " * 90 + german * 9, "0 ; x " * 400, *proof_texts()]
    for text, many in zip(texts, identifier.identify_all(texts), strict=True):
        alone = identifier.identify(text)
        assert (many.code, many.label) == (alone.code, alone.label), text[:200]
        assert many.score == pytest.approx(alone.score, abs=CLOSE), text[:200]


WORD_NGRAMS, LOSS, DIMENSIONS = 28, 32, 8  # where a model file has them


@pytest.mark.parametrize(("place", "value"), [(WORD_NGRAMS, 2), (LOSS, 3), (DIMENSIONS, 17)])
def test_models_of_other_kinds_are_left_to_the_library(tmp_path: Path, place: int, value: int) -> None:
    data = bytearray(bundled_model().read_bytes())
    data[place : place + 4] = value.to_bytes(4, "little")
    path = tmp_path / "other.ftz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="not a model of subwords"):
        FastText(path)
    if place == WORD_NGRAMS:
        texts = ["Ein Tag wie jeder andere.", "One day like any other."]
        identifier = LanguageIdentifier(path)
        assert identifier.identify_all(texts) == [identifier.identify(text) for text in texts]


def test_real_documents_are_read_alike(shared_data: Path, library: Callable[[str], tuple[str, float]]) -> None:
    records = read_documents(sorted((shared_data / "dev").glob("*.jsonl.zst"))[0])
    texts = [line(record.text[:2000]) for record in records if isinstance(record, Document)][::4]
    assert_equal(FastText(bundled_model()), library, [texts[place] for place in readable(texts)])
