"""Scores by any supervised fastText model, held to the library's own numbers; and rules on them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pytest

from filters.language.fasttext_score import FastTextScorer
from filters.language.language import bundled_model
from filters.rules.ruleset import load_rules
from pipeline.errors import ConfigError
from tests.builder.test_transforms import make, write_records
from tests.corpus import GERMAN, english
from tests.filters.fasttext_models import write_model

ODD = [
    "",
    " ",
    "x",
    "\n\n",
    "\u2028 two\nlines",
    "tab\tand\x0bother\x00nul",
    "__label__hq in it",
    "</s> in it",
    "ünïcödé 漢字 😀",
]


def train(tmp_path: Path, **options: Any) -> Path:
    """Train a model that tells English from German words."""
    generator = random.Random(1)
    lines = [("__label__hq", english(number, 3)) for number in range(60)]
    lines += [("__label__cc", " ".join(generator.choices(GERMAN.split(), k=30))) for _ in range(50)]
    lines += [("__label__other", f"{generator.random()} {generator.random()}") for _ in range(40)]
    (tmp_path / "train.txt").write_text("no model")
    return write_model(tmp_path / "model.bin", lines, **options)


def by_library(path: Path, label: str, texts: list[str]) -> list[float]:
    model = fasttext.load_model(str(path)).f
    found = []
    for text in texts:
        answers = model.predict(" ".join(text.splitlines()) + "\n", -1, 0.0, "strict")
        found.append(min(1.0, next((score for score, name in answers if name == label), 0.0)))
    return found


TEXTS = [*ODD, *[english(k, 2 + k % 40) for k in range(30)], GERMAN, GERMAN + english(5)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ngrams": 2},
        {"ngrams": 3, "minn": 2, "maxn": 4},
        {"minn": 3, "maxn": 6, "loss": "hs"},
        {"loss": "ns"},
        {"loss": "ova", "ngrams": 2},
        {"ngrams": 2, "minn": 2, "maxn": 3, "kept": 300},
        {"minn": 1, "maxn": 5, "kept": 200, "dim": 7, "loss": "hs"},
    ],
    ids=str,
)
def test_scores_of_every_kind_of_model_are_those_of_the_library(tmp_path: Path, options: dict[str, Any]) -> None:
    path = train(tmp_path, **options)
    for label in ("__label__hq", "__label__other"):
        np.testing.assert_allclose(FastTextScorer(path, label).score(TEXTS), by_library(path, label, TEXTS), atol=2e-5)


def test_scores_of_lid_176_are_those_of_the_library() -> None:
    for label in ("__label__en", "__label__de", "__label__ceb"):
        expected = by_library(bundled_model(), label, TEXTS)
        np.testing.assert_allclose(FastTextScorer(bundled_model(), label).score(TEXTS), expected, atol=2e-5)


def test_a_rule_on_a_score_drops_what_scores_less(tmp_path: Path) -> None:
    path = train(tmp_path, ngrams=2)
    texts = [english(1), GERMAN, english(2), GERMAN * 2]
    source = write_records(tmp_path / "in.jsonl", texts)
    (tmp_path / "rules.toml").write_text('fasttext_score = { model = "model.bin", label = "__label__hq", min = 0.5 }\n')
    manifest = make(source, tmp_path / "out", rules=str(tmp_path / "rules.toml"))
    kept = sum(score >= 0.5 for score in by_library(path, "__label__hq", texts))
    assert manifest.counts["dropped"] == {"fasttext_score": len(texts) - kept}
    assert 0 < kept < len(texts)
    rule = manifest.recipe["definitions"]["rules"]["rules"][0]
    assert rule["parameters"]["model"]["file"] == "model.bin"
    assert len(rule["parameters"]["model"]["sha256"]) == 64
    rules = load_rules(tmp_path / "rules.toml")
    assert rules.measure(texts[0])["fasttext_score"] == pytest.approx(
        by_library(path, "__label__hq", texts[:1])[0], abs=2e-5
    )


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            '{ model = "model.bin", label = "__label__hg", min = 0.5 }',
            "no label '__label__hg' .did you mean '__label__hq'",
        ),
        (
            '{ model = "train.txt", label = "__label__hq", min = 0.5 }',
            "train.txt is not a fastText model of format 12: copy it again$",
        ),
        ('{ model = "gone.bin", label = "__label__hq", min = 0.5 }', "gone.bin' does not exist"),
        ('{ model = "words.bin", label = "__label__hq", min = 0.5 }', "not a supervised fastText model"),
    ],
)
def test_a_model_that_cannot_score_is_refused_when_rules_are_read(tmp_path: Path, rule: str, said: str) -> None:
    train(tmp_path)
    write_model(tmp_path / "words.bin", [("__label__hq", "a b c")], kind=1)
    (tmp_path / "rules.toml").write_text(f"fasttext_score = {rule}\n")
    with pytest.raises(ConfigError, match=said):
        load_rules(tmp_path / "rules.toml")
