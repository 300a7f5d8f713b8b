"""What models say of a document: the identifier of languages, and classifiers of the user."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from filters.language.fasttext_model import FastTextModel
from filters.text_view import Page


def language_score(page: Page) -> float:
    """Return the identifier's score for the document (`context["language_score"]`), NaN where no language was identified."""
    return float(page.context.get("language_score", math.nan))


def fasttext_score(page: Page, *, model: Path, label: str) -> float:
    """Return the probability of a label by a supervised fastText model, as its library gives it for the whole text.

    Lines are joined by spaces, as for the classifiers of DCLM (https://github.com/mlfoundations/dclm).
    """
    return _model(model).probability(" ".join(page.text.splitlines()), label)


@functools.lru_cache(maxsize=16)
def _model(path: Path) -> FastTextModel:
    return FastTextModel(path)
