"""How to measure documents in one language and script: which rules hold for them, and how each is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from filters.compiled import SCANNED
from filters.language.scripts import is_written_in
from filters.measures.lines import SHORT_LINE
from filters.rules.rule import Rule
from filters.text_view import By, Page


class LanguageAndScript(NamedTuple):
    """What a document is written in: the language, the script that the identifier's label names, else that of its letters."""

    language: str = ""
    label_script: str = ""
    text_script: str = ""


class MeasurePlan:
    """How to measure documents in one language and script: which rules hold, and how each is measured.

    Where none is given, every rule holds.
    """

    def __init__(self, rules: Sequence[Rule], writing: LanguageAndScript | None) -> None:
        self.columns = [column for column, rule in enumerate(rules) if writing is None or _holds(rule, writing)]
        self.functions: dict[int, Callable[[Page], float]] = {}
        self._scans: dict[By, dict[int, str]] = {}
        stop_words: tuple[str, ...] | None = None
        for column in self.columns:
            rule, parameters = rules[column], dict(rules[column].parameters)
            if rule.measure == "stop_words" and stop_words in (None, tuple(parameters["words"])):
                stop_words = tuple(parameters.pop("words"))
            if rule.measure == "short_line_ratio" and parameters.get("longest") == SHORT_LINE:
                del parameters["longest"]
            by: By = parameters.pop("by", "spaces")
            if rule.measure in SCANNED and not parameters and by != "tokens":
                self._scans.setdefault(by, {})[column] = rule.measure
            else:
                self.functions[column] = rule.bound()
        self._stop_words = stop_words or ()

    def scanned(self, texts: Sequence[str]) -> Iterator[tuple[list[int], NDArray[np.float64]]]:
        """Yield what the compiled scan measures: the columns of rules, and their values, float64 ``[texts, columns]``."""
        for by, measures in self._scans.items():
            from filters.compiled.scan import scan  # numba: only where documents are measured

            scanned = scan(texts, self._stop_words, by, set(measures.values()))
            yield list(measures), scanned[:, [SCANNED.index(measure) for measure in measures.values()]]


def _holds(rule: Rule, writing: LanguageAndScript) -> bool:
    """Whether a rule holds for documents in a language and script; a label that names a script is believed."""
    if rule.language not in ("", writing.language):
        return False
    if not rule.script or writing.label_script:
        return rule.script in ("", writing.label_script)
    return is_written_in(rule.script, writing.text_script)
