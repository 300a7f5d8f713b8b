"""Rules and cleaners (the lines of rule files) with the functions that they name, and the reason why a rule drops a document."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import filters
from filters.rules.named_files import NamedFile
from filters.rules.resolve import check_parameters, default_files, find_function
from filters.rules.user_modules import UserModule


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a document is dropped: the rule, its value and the limit that the value exceeds (`kind` is "min" or "max")."""

    rule_set: str
    rule: str
    value: float
    bound: float
    kind: str
    text: str = ""  # replaces the comparison in `reason`

    @property
    def reason(self) -> str:
        """The comparison that failed, with enough digits to show that it fails.

        >>> Violation("gopher", "mean_word_length", 1.7, 3.0, "min").reason
        'mean_word_length 1.7 < 3'
        >>> Violation("gopher", "top_2_gram_ratio", 0.2000004, 0.2, "max").reason
        'top_2_gram_ratio 0.2000004 > 0.2'
        """
        if self.text:
            return self.text
        if math.isnan(self.value):
            return f"{self.rule} is not a number, {self.kind} {self.bound:.15g}"
        sign = "<" if self.kind == "min" else ">"
        return f"{self.rule} {_digits(self.value, self.bound)} {sign} {self.bound:.15g}"


def _digits(value: float, bound: float) -> str:
    """Return `value` with four digits, or with more if rounding would move it to `bound` or beyond."""
    for digits in range(4, 18):
        text = f"{value:.{digits}g}"
        if (float(text) < bound) == (value < bound) and float(text) != bound:
            break
    return text


def limits_text(low: float | None, high: float | None) -> str:
    """Return the values between two limits as text; None and infinite values are no limits.

    >>> limits_text(50, None), limits_text(50, 100_000), limits_text(-math.inf, 0.3)
    ('at least 50', '50 to 100,000', 'at most 0.3')
    """
    if low is None or low == -math.inf:
        return "any" if high is None or high == math.inf else f"at most {high:,.15g}"
    return f"at least {low:,.15g}" if high is None or high == math.inf else f"{low:,.15g} to {high:,.15g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The common part of rules and cleaners: the parameters of a function.

    `files` are the parameters that are files; `module` is the user's module that holds the function. Both are kept as they
    were when the line was read.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, NamedFile] = field(default_factory=dict)
    module: UserModule | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, without missing limits."""
        return {key: value for key, value in asdict(self).items() if value not in (None, -math.inf, math.inf)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        files = {key: NamedFile(**file) for key, file in value["files"].items()}
        module = {"module": UserModule(**value["module"])} if "module" in value else {}
        return cls(**{**value, "files": files, **module})

    def _bound(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with these parameters and files bound; raises an error if a file has changed."""
        check_parameters(function, name, self.parameters, self.files)
        values = {**self.parameters, **{key: file.checked() for key, file in self.files.items()}}
        return functools.partial(function, **values) if values else function

    def _full_name(self, name: str, function: Callable[..., Any]) -> str:
        """Return the function's full name. A hash of a user's module is a part of it, so that an edit changes the recipe."""
        if self.module is None:
            return f"{function.__module__}.{function.__name__}"
        return f"{name}@{self.module.sha256[:16]}" if self.module.sha256 else name

    def _described(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return the parameters as plain JSON: files, including those read by default, by name and hash."""
        files = {**default_files(function), **self.files}
        described = {key: {"file": file.name, "sha256": file.sha256} for key, file in files.items()}
        return dict(sorted({**described, **self.parameters}.items()))


@dataclass(frozen=True, slots=True)
class Rule(_Line):
    """Limits on `measure` (a name or ``module:function``).

    `rule_set` is the last set that named it. A rule with a `language` applies only to documents in that language; with a
    `script`, only to those also written in it.
    """

    name: str
    measure: str
    rule_set: str
    min: float = -math.inf
    max: float = math.inf
    language: str = ""
    script: str = ""

    def judge(self, value: float) -> Violation | None:
        """Return the violation if `value` is outside the limits, else None."""
        if self.min <= value <= self.max:
            return None
        kind = "max" if value > self.max or self.min == -math.inf else "min"
        values = ", ".join(map(str, self.parameters["values"])) if self.measure == "column_in" else ""
        text = f"{self.name} is none of {values}" if self.measure == "column_in" else ""
        return Violation(self.rule_set, self.name, value, self.min if kind == "min" else self.max, kind, text)

    @property
    def named_in(self) -> str:
        """The source of the rule, for errors: a rule set, or a flag of a command."""
        return self.rule_set if self.rule_set.startswith("--") else f"rule set {self.rule_set!r}"

    @property
    def function(self) -> Callable[..., float]:
        """The measure, without its parameters bound."""
        return find_function(self.measure, filters.measure_functions(), self.module, f"measure of {self.named_in}")

    def bound(self) -> Callable[..., float]:
        """Return the measure as a function of a page alone."""
        return self._bound(self.name, self.function)

    def describe(self) -> dict[str, Any]:
        """Return plain JSON that changes if a decision of the rule may change."""
        return {
            "name": self.name,
            "rule_set": self.rule_set,
            "measure": self._full_name(self.measure, self.function),
            "min": None if self.min == -math.inf else self.min,
            "max": None if self.max == math.inf else self.max,
            "parameters": self._described(self.function),
            **({"language": self.language} if self.language else {}),
            **({"script": self.script} if self.script else {}),
        }


@dataclass(frozen=True, slots=True)
class Cleaner(_Line):
    """A line of [cut] in a rule file: a function that cuts parts of a text; `name` is its own or ``module:function``."""

    name: str
    rule_set: str

    @property
    def function(self) -> Callable[..., Any]:
        """The cleaner, without its parameters bound."""
        known, what = filters.cleaner_functions(), f"cleaner of rule set {self.rule_set!r}"
        return find_function(self.name, known, self.module, what)

    def bound(self) -> Callable[[str], tuple[str, dict[str, int]]]:
        """Return the cleaner as a function of a text alone."""
        return self._bound(self.name, self.function)

    def describe(self) -> dict[str, Any]:
        """Return plain JSON that changes if a cut of the cleaner may change."""
        return {
            "name": self.name,
            "rule_set": self.rule_set,
            "cleaner": self._full_name(self.name, self.function),
            "parameters": self._described(self.function),
        }
