"""Fields of the record as measures, for rules on columns. A rule file spells them ``"column:NAME"``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from filters.text_view import Page


def column_value(page: Page, *, column: str) -> float:
    """Return the number in a field of the document's record.

    The field is `column` of ``context["metadata"]``. The result is NaN if the field is missing.
    """
    value = page.context.get("metadata", {}).get(column)
    return math.nan if value is None else float(value)


def column_in(page: Page, *, column: str, values: Sequence[str | float]) -> float:
    """Return 1 if a field of the document's record has one of the listed values, else 0."""
    return float(page.context.get("metadata", {}).get(column) in values)
