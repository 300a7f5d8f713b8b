"""Rule sets: they say which documents are kept, and why any other document is dropped.

A rule file is TOML. Each key is a rule: it names a measure of `filters`, or ``"module:function"`` of your own, and
limits it. A document is kept if ``min <= value <= max`` for every rule; NaN is never within limits.

    extends = ["gopher"]                                   # begin with these rule sets
    words = { min = 20 }                                   # replaces gopher's minimum, keeps its maximum
    bullet_line_ratio = false                              # switches gopher's rule off
    stop_words = { min = 2, words = ["der", "die"] }       # other keys are parameters of the measure
    rude = { measure = "profanity_ratio", max = 0.001, word_list = "rude.txt" }
    "my_measures:exclamation_ratio" = { max = 0.05 }
    "column:int_score" = { min = 3 }                       # a field of the record; a missing one fails
    "column:language" = { in = ["en", "de"] }

    [cut]                                                  # cut before measuring, in this order
    duplicate_lines = {}

Your own measure must return a number for every text: None, text or an exception ends the build with an error that names the
document. Its module is searched beside the rule file, in the working directory and among the installed modules. It is read
once, with every module that it imports from its folder: all are part of the recipe, and an edit during a build changes
nothing. A file that it reads must be a parameter annotated ``Path``: the file is hashed, too, and refused if it changes during
a build.

If several rule sets set a limit, the last one wins. Rules are judged in order; the first that fails is the reason:

>>> rules = load_rules("gopher")
>>> values = rules.measure("A text of six words, #hash.")
>>> values["words"]
6.0
>>> rules.judge(values).reason
'words 6 < 50'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from filters.compiled import SCANNED
from filters.language.identifier import sample_of
from filters.language.scripts import is_written_in, script_of_label, script_of_text
from filters.measures.lines import SHORT_LINE
from filters.rules.rule import Cleaner, Rule, Violation
from filters.rules.rule_files import NO_RULES, column_field, read_rules
from filters.spacy_tokens import tokens_version
from filters.text_view import DEFINITION, By, Page
from pipeline.errors import BuildError, ConfigError, did_you_mean, value_text

__all__ = ["Cleaner", "Measured", "Rule", "RuleSet", "Violation", "load_rules"]


def load_rules(specs: str | Path | Sequence[str | Path] | None) -> RuleSet:
    """Return the rules of `specs`: names of bundled rule sets, paths of rule files and limits, joined by commas or listed.

    ``.toml`` is a rule file, ``.yml`` or ``.yaml`` a profile of FineWeb2 for one language; "none", "" and None are
    no rules at all. A later set replaces limits of an earlier one; a limit such as ``words.min=20`` replaces that of all sets.
    Raises ConfigError, with the nearest known name, if a rule set, measure, limit or parameter does not exist.

    >>> load_rules("gopher, fineweb").measures[-1]
    'newline_ratio'
    >>> load_rules("gopher_quality,words.min=20").rules[0].min
    20.0
    """
    if specs is None:
        return RuleSet()
    listed = [specs] if isinstance(specs, (str, Path)) else list(specs)
    names = [name.strip() for spec in listed for name in str(spec).split(",")]
    limits = [name for name in names if _is_limit(name)]
    rules = RuleSet(*read_rules(name for name in names if name and name != NO_RULES and name not in limits))
    for limit in limits:
        rule, kind, value = _parse_limit(limit)
        rules = rules.with_limit(rule, kind, value)
    for each in rules.rules if limits else ():
        if each.min > each.max:
            raise ConfigError(f"rule {each.name!r} keeps nothing: min {each.min:g} > max {each.max:g}")
    return rules


def _is_limit(spec: str) -> bool:
    return not spec.endswith((".toml", ".yml", ".yaml")) and ("=" in spec or spec.endswith((".min", ".max")))


def _parse_limit(spec: str) -> tuple[str, str, float]:
    """Return rule, "min" or "max", and value of a limit such as ``words.min=20``."""
    limit, _, number = spec.partition("=")
    name, _, kind = limit.rpartition(".")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if kind not in ("min", "max") or math.isnan(value):
        raise ConfigError(f"limit {spec!r}: write RULE.min=NUMBER or RULE.max=NUMBER, as in words.min=20")
    return name, kind, value


class RuleSet:
    """Rules in the order in which they are judged, and the cleaners that run before them.

    Measuring is slow and judging is fast: keep the values to try other limits without measuring again. A rule set
    pickles, and converts to plain JSON, with everything resolved: worker processes need no rule file and no module.

    >>> import pipeline
    >>> [rule.name for rule in pipeline.load_rules("html_remnants").rules]
    []
    """

    def __init__(self, rules: Iterable[Rule] = (), cleaners: Iterable[Cleaner] = ()) -> None:
        self.rules = tuple(rules)
        self.cleaners = tuple(cleaners)
        self._cleaners = [(cleaner.name, cleaner.bound()) for cleaner in self.cleaners]
        for rule in self.rules:  # a mistake in a rule is an error now, not at the first document to which it applies
            rule.bound()
        self._languages = {rule.language for rule in self.rules if rule.language}
        self._with_script = {rule.language for rule in self.rules if rule.script}
        self._plans: dict[LanguageAndScript, MeasurePlan] = {}

    def __bool__(self) -> bool:
        """True if there is a rule or a cleaner."""
        return bool(self.rules or self.cleaners)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the values that `measure` returns, in the order in which they are judged."""
        return tuple(rule.name for rule in self.rules)

    @property
    def reads_language(self) -> bool:
        """Whether a rule applies to one language only, or limits the score of the identification."""
        return bool(self._languages) or any(rule.measure == "language_score" for rule in self.rules)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of records that rules read from `context["metadata"]`, as ``name:type``."""
        return tuple(column_field(rule.measure, rule.parameters) for rule in self.rules if "column" in rule.parameters)

    def prepare(self) -> None:
        """Load compiled code and models now. Call this once in the parent, before worker processes are forked.

        The user's measures are not called.
        """
        plan = MeasurePlan(self.rules, None)
        for _ in plan.scanned([""]):
            pass
        for column, function in plan.functions.items():
            if self.rules[column].module is None:
                function(Page(""))

    def cut(self, text: str, location: Callable[[], str] = lambda: "a text") -> tuple[str, dict[str, int]]:
        """Return the text that the cleaners leave, and the number of lines that each cut, as ``cleaner.reason -> lines``.

        Raises BuildError if a cleaner raises or returns anything else; `location` returns the document's name for the error.
        """
        counts: dict[str, int] = {}
        for name, function in self._cleaners:
            try:
                returned = function(text)
            except (Exception, SystemExit, GeneratorExit) as error:
                raise BuildError(f"{location()}: cleaner {name!r} raised {type(error).__name__}: {error}") from error
            if not (
                isinstance(returned, tuple)
                and len(returned) == 2
                and isinstance(returned[0], str)
                and isinstance(returned[1], Mapping)
            ):
                raise BuildError(
                    f"{location()}: cleaner {name!r} returned {value_text(returned)}; it must return the text that is left and a "
                    "dict of what was cut"
                )
            text, cuts = returned
            counts |= {f"{name}.{reason}": count for reason, count in cuts.items() if count}
        return text, counts

    def measure(self, text: str, context: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the value of every rule that applies to this document, in order.

        `context` holds "language", "language_score" and "language_label" from the language identifier. Call `cut` first: this
        method measures the text as it is.
        """
        return self.named(self.measure_all([text], [{} if context is None else context]))[0]

    def measure_all(
        self,
        texts: Sequence[str],
        contexts: Sequence[Mapping[str, Any]] | None = None,
        location: Sequence[Callable[[], str]] = (),
    ) -> Measured:
        """Return the values of every rule for many documents, as `measure` does for one.

        Raises BuildError if a measure raises or returns no number; `location` returns the documents' names for the error.
        """
        known = [{}] * len(texts) if contexts is None else contexts
        values = np.zeros((len(texts), len(self.rules)), np.float64)
        holds = np.zeros(values.shape, bool)
        groups: dict[LanguageAndScript, list[int]] = {}
        for row, context in enumerate(known):
            groups.setdefault(self._language_and_script(texts[row], context), []).append(row)
        for writing, rows in groups.items():
            plan = self._plan(writing)
            holds[np.ix_(rows, plan.columns)] = True
            for columns, scanned in plan.scanned([texts[row] for row in rows]):
                values[np.ix_(rows, columns)] = scanned
            for row in rows if plan.functions else ():
                page = Page(texts[row], known[row])
                for column, function in plan.functions.items():
                    try:
                        value = function(page)
                        if hasattr(value, "__float__"):
                            values[row, column] = value
                            continue
                    except (Exception, SystemExit, GeneratorExit) as error:
                        fault = f"raised {type(error).__name__}: {error}"
                        raise self._fault(column, fault, location[row] if location else None) from error
                    raise self._fault(column, f"returned {value_text(value)}", location[row] if location else None)
        return Measured(values, holds)

    def _fault(self, column: int, fault: str, location: Callable[[], str] | None) -> BuildError:
        """Return the error for a measure that returned no number."""
        rule = self.rules[column]
        alias = "" if rule.name == rule.measure else f" (rule {rule.name!r})"
        return BuildError(
            f"{location() + ': ' if location else ''}measure {rule.measure!r}{alias} of {rule.named_in} {fault}; it "
            "must return a number for every text"
        )

    def named(self, measured: Measured) -> list[dict[str, float]]:
        """Return the values of each document by the names of the rules that apply to it."""
        names = self.measures
        rows = zip(measured.values.tolist(), measured.holds.tolist(), strict=True)
        return [{name: value for name, value, holds in zip(names, *row, strict=True) if holds} for row in rows]

    def _language_and_script(self, text: str, context: Mapping[str, Any]) -> LanguageAndScript:
        """Return the language and, if rules ask for it, the script that decide which rules apply to a document."""
        language = context.get("language")
        if language not in self._languages:
            return LanguageAndScript()
        if language not in self._with_script:
            return LanguageAndScript(language)
        script = script_of_label(context.get("language_label", ""))
        return LanguageAndScript(language, script, "" if script else script_of_text(sample_of(text)))

    def _plan(self, language: LanguageAndScript) -> MeasurePlan:
        plan = self._plans.get(language)
        if plan is None:
            plan = self._plans[language] = MeasurePlan(self.rules, language)
        return plan

    def judge(self, values: Mapping[str, float]) -> Violation | None:
        """Return the violation of the first rule that `values` break, None if the document is kept.

        A rule for one language is skipped if `measure` returned no value for it. Any other missing value is a KeyError.
        """
        for rule in self.rules:
            if rule.language and rule.name not in values:
                continue
            if (violation := rule.judge(values[rule.name])) is not None:
                return violation
        return None

    def judge_all(self, measured: Measured) -> list[Violation | None]:
        """Return the first violation of each document, as `judge` does for one."""
        values, holds = measured
        low, high = (np.array([getattr(rule, kind) for rule in self.rules]) for kind in ("min", "max"))
        broken = holds & ~((low <= values) & (values <= high))
        violations: list[Violation | None] = [None] * len(values)
        for row in np.flatnonzero(broken.any(axis=1)).tolist():
            column = int(broken[row].argmax())
            violations[row] = self.rules[column].judge(values[row, column].item())
        return violations

    def with_limit(self, name: str, kind: str, value: float) -> RuleSet:
        """Return these rules with the "min" or "max" of one of them replaced. Values measured before stay valid."""
        if name not in self.measures:
            near = (
                did_you_mean(name, self.measures)
                if self.rules
                else "; name its rule set too, as in gopher,words.min=20"
            )
            raise ConfigError(f"no rule named {name!r}{near}")
        rules = list(self.rules)
        column = self.measures.index(name)
        rules[column] = replace(rules[column], min=value) if kind == "min" else replace(rules[column], max=value)
        return RuleSet(rules, self.cleaners)

    def to_json(self) -> dict[str, Any]:
        """Return the resolved rules as plain JSON, from which `from_json` restores them in any process or directory."""
        return {
            "rules": [rule.to_json() for rule in self.rules],
            "cleaners": [cleaner.to_json() for cleaner in self.cleaners],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RuleSet:
        """Return the rules that `to_json` described. Raises BuildError if a file has changed since."""
        return cls(map(Rule.from_json, value["rules"]), map(Cleaner.from_json, value["cleaners"]))

    def describe(self) -> dict[str, Any]:
        """Return the resolved rules as plain JSON: two sets with equal descriptions make equal decisions."""
        counts_tokens = any(rule.parameters.get("by") == "tokens" and rule.module is None for rule in self.rules)
        return {
            "definition": DEFINITION,
            **({"tokens": f"spacy {tokens_version()}"} if counts_tokens else {}),
            "rules": [rule.describe() for rule in self.rules],
            "cut": [cleaner.describe() for cleaner in self.cleaners],
        }


class Measured(NamedTuple):
    """Values of documents, float64 ``[documents, rules]``; they count only if the rule ``holds`` for the document."""

    values: NDArray[np.float64]
    holds: NDArray[np.bool_]


class LanguageAndScript(NamedTuple):
    """The language of a document, and its script: the script of the identifier's label, else that of the letters."""

    language: str = ""
    label_script: str = ""
    text_script: str = ""


class MeasurePlan:
    """The measures for documents in one language and script: which rules apply, and how each is measured.

    If the language is None, every rule applies.
    """

    def __init__(self, rules: Sequence[Rule], language: LanguageAndScript | None) -> None:
        self.columns = [column for column, rule in enumerate(rules) if language is None or _holds(rule, language)]
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
        """Yield results of the compiled scan: the columns of rules, and their values, float64 ``[texts, columns]``."""
        for by, measures in self._scans.items():
            from filters.compiled.scan import scan  # numba: loaded only to measure documents

            scanned = scan(texts, self._stop_words, by, set(measures.values()))
            yield list(measures), scanned[:, [SCANNED.index(measure) for measure in measures.values()]]


def _holds(rule: Rule, written: LanguageAndScript) -> bool:
    """Whether a rule applies to documents in a language and script. If the label names a script, letters do not count."""
    if rule.language not in ("", written.language):
        return False
    if not rule.script or written.label_script:
        return rule.script in ("", written.label_script)
    return is_written_in(rule.script, written.text_script)
