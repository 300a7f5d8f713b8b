"""Scores that models give a document: the identifier of languages, and classifiers of the user."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from filters.language.fasttext_model import FastTextModel
from filters.text_view import Page


def language_score(page: Page) -> float:
    """Return how sure the language model is of the document's language, from 0 to 1.

    This is ``context["language_score"]``. The result is NaN if no language was identified.
    """
    return float(page.context.get("language_score", math.nan))


def fasttext_score(page: Page, *, model: Path, label: str) -> float:
    """Return the probability that a fastText model gives to a label.

    Lines are joined by spaces, as for the classifiers of DCLM (https://github.com/mlfoundations/dclm).
    """
    return _model(model).probability(" ".join(page.text.splitlines()), label)


@functools.lru_cache(maxsize=16)
def _model(path: Path) -> FastTextModel:
    return FastTextModel(path)
