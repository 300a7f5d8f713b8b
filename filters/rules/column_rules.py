"""Rules on fields of the record: ``"column:int_score" = { min = 3 }``, ``"column:language" = { in = ["en", "de"] }``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError

PREFIX = "column:"
URL_BLOCKED = "url_blocked"  # the measure that reads the field of the url


def column_entry(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a rule on a column as one on a measure of it; other entries as they are.

    Raises ConfigError for an ``in`` that is no list of texts or of numbers.

    >>> column_entry("column:language", {"in": ["en"]})
    {'measure': 'column_in', 'column': 'language', 'values': ['en'], 'min': 1}
    """
    measure = str(entry.get("measure", name))
    rest = dict(entry)
    if measure == URL_BLOCKED:
        return {"column": "url"} | rest | ({} if {"min", "max"} & rest.keys() else {"max": 0})
    if not measure.startswith(PREFIX):
        return rest
    rest["measure"], rest["column"] = "column_value", measure.removeprefix(PREFIX)
    if not rest["column"]:
        raise ConfigError(f"rule {name!r}: name a field after {PREFIX}, as in column:score")
    if "in" not in rest:
        return rest
    values = rest.pop("in")
    kinds = {str if isinstance(value, str) else float if _is_number(value) else None for value in _listed(values)}
    if len(kinds) != 1 or None in kinds or {"min", "max"} & rest.keys():
        raise ConfigError(
            f"rule {name!r}: in must be a list of texts or of numbers, without min and max beside it, not {values!r}"
        )
    return rest | {"measure": "column_in", "values": list(values), "min": 1}


def column_field(measure: str, parameters: Mapping[str, Any]) -> str:
    """Return the field that a rule with these parameters reads, as ``name:type``.

    >>> column_field("column_in", {"column": "language", "values": ["en"]}), column_field("column_value", {"column": "score"})
    ('language:str', 'score:float')
    """
    is_text = measure == URL_BLOCKED or isinstance(parameters.get("values", [0])[0], str)
    kind = "str" if is_text else "float"
    return f"{parameters['column']}:{kind}"


def _listed(values: object) -> list[Any]:
    return values if isinstance(values, list) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
