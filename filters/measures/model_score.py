"""What a classifier of the user says of a document."""

from __future__ import annotations

from pathlib import Path

from filters.text_view import Page


def fasttext_score(page: Page, *, model: Path, label: str) -> float:
    """Return the probability of a label by a supervised fastText model, as its library gives it for the whole text.

    Lines are joined by spaces, as for the classifiers of DCLM (https://github.com/mlfoundations/dclm).
    """
    from filters.language.fasttext_score import load_scorer  # numba: only where documents are scored

    return float(load_scorer(model, label).score([page.text])[0])
