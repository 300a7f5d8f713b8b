"""Measures and limits -> verdicts: which documents stay, and the reason written by the machine.

A rule file is TOML. Each key is a rule: it names a measure of `filters`, or ``"module:function"`` of your own, and
limits it. A document stays while ``min <= value <= max`` holds for every rule; a NaN holds for none.

    extends = ["gopher"]                                   # begin with these rule sets
    words = { min = 20 }                                   # replaces gopher's minimum, keeps its maximum
    bullet_line_ratio = false                              # switches gopher's rule off
    stop_words = { min = 2, words = ["der", "die"] }       # other keys are parameters of the measure
    rude = { measure = "profanity_ratio", max = 0.001, word_list = "rude.txt" }
    "my_measures:exclamation_ratio" = { max = 0.05 }

    [cut]                                                  # cut before measuring, in this order
    duplicate_lines = {}

Of several rule sets the later one wins, limit by limit. Rules are judged in order and the first that fails speaks:

>>> rules = load_rules("gopher")
>>> values = rules.measure("A text of six words, #hash.")
>>> values["words"]
6.0
>>> rules.judge(values).reason
'words 6 < 50'
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import filters
from filters.language import is_label, language_code
from filters.lines import SHORT_LINE
from filters.page import DEFINITION, Page
from pipeline.errors import ConfigError, did_you_mean

NO_RULES = "none"
_FINEWEB2_MINIMUM_STOP_WORDS = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a document goes: the rule, its value and the limit it breaks (`kind` is "min" or "max")."""

    rule_set: str
    measure: str
    value: float
    bound: float
    kind: str

    @property
    def reason(self) -> str:
        """The comparison that failed, in as many digits as it takes to be seen to fail.

        >>> Verdict("gopher", "mean_word_length", 1.7, 3.0, "min").reason
        'mean_word_length 1.7 < 3'
        >>> Verdict("gopher", "top_2_gram_ratio", 0.2000004, 0.2, "max").reason
        'top_2_gram_ratio 0.2000004 > 0.2'
        """
        if math.isnan(self.value):
            return f"{self.measure} is not a number, {self.kind} {self.bound:.15g}"
        sign = "<" if self.kind == "min" else ">"
        return f"{self.measure} {_digits(self.value, self.bound)} {sign} {self.bound:.15g}"


def _digits(value: float, bound: float) -> str:
    """Return `value` in four digits, or the fewest more that leave it on its side of `bound`."""
    for digits in range(4, 18):
        text = f"{value:.{digits}g}"
        if (float(text) < bound) == (value < bound) and float(text) != bound:
            break
    return text


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a rule file: `measure` (a name or ``module:function``), its parameters and its limits.

    `home` is the folder of the rule file, where files and modules it names are looked for; `rule_set` is the set
    that spoke last; a rule with a `language` holds for documents in that language only.
    """

    name: str
    measure: str
    rule_set: str
    min: float = -math.inf
    max: float = math.inf
    parameters: Mapping[str, Any] = field(default_factory=dict)
    home: str = ""
    language: str = ""

    def judge(self, value: float) -> Verdict | None:
        """Return why `value` is outside the limits, None while it is inside."""
        if self.min <= value <= self.max:
            return None
        kind = "max" if value > self.max or self.min == -math.inf else "min"
        return Verdict(self.rule_set, self.name, value, self.min if kind == "min" else self.max, kind)


@dataclass(frozen=True, slots=True)
class Cutter:
    """One line of a rule file's [cut]: a function from a text to what is left of it."""

    name: str
    rule_set: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    home: str = ""


class RuleSet:
    """Rules in the order they are judged, and the cutters that come before them.

    Measuring is the costly half and judging the cheap one: keep the values, and other limits need no measuring.
    Pickles by what it was resolved to, so that worker processes need no rule files.
    """

    def __init__(self, rules: Iterable[Rule] = (), cutters: Iterable[Cutter] = ()) -> None:
        self.rules = tuple(rules)
        self.cutters = tuple(cutters)
        self._cutters = [(c.name, _bind(_cutter(c), c.name, c.parameters, c.home)) for c in self.cutters]
        for rule in self.rules:  # a mistake in any rule is said now, not when the first document meets it
            _bind(_measure(rule), rule.name, rule.parameters, rule.home)
        self._special = {rule.language for rule in self.rules if rule.language}
        self._plans: dict[str, _Plan] = {}

    def __reduce__(self) -> tuple[type[RuleSet], tuple[tuple[Rule, ...], tuple[Cutter, ...]]]:
        return RuleSet, (self.rules, self.cutters)

    def __bool__(self) -> bool:
        """True where there is anything to cut or to judge."""
        return bool(self.rules or self.cutters)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the values that `measure` returns, in the order they are judged."""
        return tuple(rule.name for rule in self.rules)

    def prepare(self) -> None:
        """Load compiled code now: call it once in the parent before worker processes are forked."""
        self.measure("")

    def cut(self, text: str) -> tuple[str, dict[str, int]]:
        """Return what the cutters leave of `text`, and how much each cut, as ``cutter.reason -> lines``."""
        counts: dict[str, int] = {}
        for name, function in self._cutters:
            text, cuts = function(text)
            counts |= {f"{name}.{reason}": count for reason, count in cuts.items() if count}
        return text, counts

    def measure(self, text: str, context: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the value of every rule's measure that holds for this document, in order.

        `context` is what is known beside the text: "language" and "language_score" of the identifier, "tokens",
        and whatever else the measures of a rule file ask for. Cut first: what is given here is what is measured.
        """
        known: Mapping[str, Any] = {} if context is None else context
        plan = self._plan(known.get("language"))
        scanned: Sequence[float] = ()
        if plan.scans:
            from filters.scan import scan  # numba: only where a document is measured

            scanned = scan(text, plan.stop_words)
        page = Page(text, known)
        return {
            name: scanned[place] if function is None else float(function(page)) for name, place, function in plan.steps
        }

    def _plan(self, language: object) -> _Plan:
        key = language if isinstance(language, str) and language in self._special else ""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _Plan.of(rule for rule in self.rules if rule.language in ("", key))
        return plan

    def judge(self, values: Mapping[str, float]) -> Verdict | None:
        """Return the verdict of the first rule that `values` break, None for a document that stays.

        A rule for one language is passed over where `measure` found it not to hold; any other missing value is a
        KeyError, never a pass.
        """
        for rule in self.rules:
            if rule.language and rule.name not in values:
                continue
            value = values[rule.name]
            if not rule.min <= value <= rule.max:
                return rule.judge(value)
        return None

    def with_limit(self, name: str, kind: str, value: float) -> RuleSet:
        """Return these rules with the "min" or "max" of one of them replaced: values measured before still hold."""
        if name not in self.measures:
            raise ConfigError(f"no rule named {name!r}{did_you_mean(name, self.measures)}")
        rules = list(self.rules)
        place = self.measures.index(name)
        rules[place] = replace(rules[place], min=value) if kind == "min" else replace(rules[place], max=value)
        return RuleSet(rules, self.cutters)

    def describe(self) -> dict[str, Any]:
        """Return the resolved rules as plain JSON: two sets that describe alike decide alike."""
        return {
            "definition": DEFINITION,
            "rules": [
                {
                    "name": rule.name,
                    "rule_set": rule.rule_set,
                    "measure": _full_name(function, rule.measure),
                    "min": None if rule.min == -math.inf else rule.min,
                    "max": None if rule.max == math.inf else rule.max,
                    "parameters": _describe_parameters(rule.parameters, function, rule.home),
                    **({"language": rule.language} if rule.language else {}),
                }
                for rule in self.rules
                for function in [_measure(rule)]
            ],
            "cut": [
                {
                    "name": cutter.name,
                    "rule_set": cutter.rule_set,
                    "cutter": _full_name(function, cutter.name),
                    "parameters": _describe_parameters(cutter.parameters, function, cutter.home),
                }
                for cutter in self.cutters
                for function in [_cutter(cutter)]
            ],
        }


# Reading rule files


def load_rules(specs: str | Path | Sequence[str | Path] | None) -> RuleSet:
    """Return the rules of `specs`: names of bundled rule sets and paths of rule files, joined by commas or listed.

    ``.toml`` is a rule file, ``.yml`` or ``.yaml`` a profile of FineWeb2 for one language; "none", "" and None are
    no rules at all. A later set replaces limits of an earlier one. Raises ConfigError, with the nearest known name,
    for a rule set, measure, limit or parameter that does not exist.

    >>> load_rules("gopher, fineweb").measures[-1]
    'newline_ratio'
    """
    if specs is None:
        return RuleSet()
    listed = [specs] if isinstance(specs, (str, Path)) else list(specs)
    names = [name.strip() for spec in listed for name in str(spec).split(",")]
    book = _Book()
    for name in names:
        if name and name != NO_RULES:
            book.read(name, seen=())
    return RuleSet(book.rules.values(), book.cutters.values())


class _Book:
    """Rules as they are read, by name: the later replaces the earlier, limit by limit."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self.cutters: dict[str, Cutter] = {}

    def read(self, name: str, seen: tuple[Path, ...], home: str = "") -> None:
        path = _find(name, home)
        if path in seen:
            raise ConfigError(f"rule set {path} extends itself: {' -> '.join(map(str, (*seen, path)))}")
        if path.suffix in (".yml", ".yaml"):
            self.read("fineweb2", (*seen, path))
            language = language_code(path.stem) if is_label(path.stem) else ""
            self.add(path.stem, str(path.parent), _fineweb2_rules(path), language)
            return
        table = _load_toml(path)
        extends = table.pop("extends", [])
        for parent in [extends] if isinstance(extends, str) else extends:
            self.read(parent, (*seen, path), str(path.parent))
        cuts = table.pop("cut", {})
        language = table.pop("language", "")
        own_name = name if name in filters.bundled_rule_sets() else path.stem
        self.add(own_name, str(path.parent), table, language)
        for cutter_name, parameters in _tables(cuts, path).items():
            if parameters is None:
                self.cutters.pop(cutter_name, None)
            else:
                self.cutters[cutter_name] = Cutter(cutter_name, own_name, parameters, str(path.parent))

    def add(self, rule_set: str, home: str, table: Mapping[str, Any], language: str) -> None:
        for key, entry in _tables(table, Path(home, rule_set)).items():
            name = f"{rule_set}.{key}" if language else key  # beside the rules for all languages, not in their place
            if entry is None:
                self.rules.pop(name, None)
                continue
            limits = {kind: _number(entry.pop(kind), name, kind) for kind in ("min", "max") if kind in entry}
            old = self.rules.get(name) or Rule(name, key, rule_set)
            rule = Rule(
                name,
                entry.pop("measure", old.measure),
                rule_set,
                min=limits.get("min", old.min),
                max=limits.get("max", old.max),
                parameters={**old.parameters, **entry},
                home=home,
                language=language,
            )
            _bind(_measure(rule), name, rule.parameters, home)
            if not rule.min <= rule.max:
                raise ConfigError(f"rule {name!r} of {rule_set!r} keeps nothing: min {rule.min:g} > max {rule.max:g}")
            if rule.min == -math.inf and rule.max == math.inf and not limits:
                raise ConfigError(f"rule {name!r} of {rule_set!r} has no limit: give it `min` or `max`")
            self.rules[name] = rule


def _find(name: str, home: str) -> Path:
    """Return the file of a rule set: a bundled name, or a path from here or from the folder `home`."""
    if Path(name).suffix not in (".toml", ".yml", ".yaml"):
        bundled = filters.bundled_rule_sets()
        if name not in bundled:
            hint = did_you_mean(name, bundled)
            raise ConfigError(f"no rule set named {name!r}{hint}; a rule file of your own ends in .toml or .yml")
        return bundled[name]
    for path in (Path(home, name), Path(name)):
        if path.is_file():
            return path.resolve()
    raise ConfigError(f"rule file {name!r} does not exist; bundled rule sets: {', '.join(filters.bundled_rule_sets())}")


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"rule file {path} is not TOML: {error}") from error


def _tables(table: object, path: Path) -> dict[str, dict[str, Any] | None]:
    """Return a copy of a table of tables, None where `false` switches one off."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"rule file {path}: [cut] must be a table of cutters, not {table!r}")
    entries: dict[str, dict[str, Any] | None] = {}
    for name, entry in table.items():
        if entry is not False and not isinstance(entry, Mapping):
            raise ConfigError(f"rule file {path}: {name} must be a table like {{ min = 3 }}, or false, not {entry!r}")
        entries[name] = dict(entry) if isinstance(entry, Mapping) else None
    return entries


def _number(value: object, name: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigError(f"rule {name!r}: {key} must be a number, not {value!r}")
    return float(value)


def _fineweb2_rules(path: Path) -> dict[str, dict[str, Any]]:
    """Return a profile of FineWeb2 as rules; its keys are those of its repository, `max_non_alpha...` a minimum."""
    import yaml

    try:
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {path} is not YAML: {error}") from error
    limits = {
        "language_score": ("language_score", "min"),
        "dup_line_frac": ("duplicate_line_ratio", "max"),
        "line_punct_thr": ("terminal_line_ratio", "min"),
        "new_line_ratio": ("newline_ratio", "max"),
        "min_avg_word_length": ("mean_word_length", "min"),
        "max_avg_word_length": ("mean_word_length", "max"),
        "max_non_alpha_words_ratio": ("alphabetic_ratio", "min"),
    }
    ngrams = {"top_n_grams": "top_{}_gram_ratio", "dup_n_grams": "duplicate_{}_gram_ratio"}
    if not isinstance(profile, dict):
        raise ConfigError(f"profile {path} holds no keys; FineWeb2's hold {', '.join(limits)} and more")
    rules: dict[str, dict[str, Any]] = {}
    for key, value in profile.items():
        if key in limits:
            measure, kind = limits[key]
            rules.setdefault(measure, {})[kind] = value
        elif key in ngrams:
            rules |= {ngrams[key].format(n): {"max": limit} for n, limit in value}
        elif key == "stopwords":
            # YAML reads some words as other things (`no` is false): they are words here.
            rules["stop_words"] = {"min": _FINEWEB2_MINIMUM_STOP_WORDS, "words": [_yaml_word(word) for word in value]}
        else:
            hint = did_you_mean(str(key), [*limits, *ngrams, "stopwords"])
            raise ConfigError(f"profile {path}: unknown key {key!r}{hint}")
    return rules


def _yaml_word(word: object) -> str:
    return {True: "yes", False: "no", None: "null"}[word] if isinstance(word, bool | None) else str(word)


# Names -> functions


def _measure(rule: Rule) -> Callable[..., float]:
    return _function(rule.measure, filters.measures(), rule.home, f"measure of rule set {rule.rule_set!r}")


def _cutter(cutter: Cutter) -> Callable[..., Any]:
    return _function(cutter.name, filters.cutters(), cutter.home, f"cutter of rule set {cutter.rule_set!r}")


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to measure documents in one language: for each rule its place in the scan, or its function."""

    steps: tuple[tuple[str, int, Callable[[Page], float] | None], ...]
    stop_words: tuple[str, ...]
    scans: bool

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> _Plan:
        steps: list[tuple[str, int, Callable[[Page], float] | None]] = []
        stop_words: tuple[str, ...] | None = None
        for rule in rules:
            parameters = dict(rule.parameters)
            if rule.measure == "stop_words" and stop_words in (None, tuple(parameters["words"])):
                stop_words = tuple(parameters.pop("words"))
            if rule.measure == "short_line_ratio" and parameters.get("longest") == SHORT_LINE:
                del parameters["longest"]
            if rule.measure in filters.SCANNED and not parameters:
                steps.append((rule.name, filters.SCANNED.index(rule.measure), None))
            else:
                steps.append((rule.name, -1, _bind(_measure(rule), rule.name, rule.parameters, rule.home)))
        return cls(tuple(steps), stop_words or (), any(place >= 0 for _, place, _ in steps))


def _function(name: str, known: Mapping[str, Callable[..., Any]], home: str, what: str) -> Callable[..., Any]:
    if ":" not in name:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"unknown {what}: {name!r}{hint}; name one of your own as module:function")
        return known[name]
    module_name, _, function_name = name.partition(":")
    module = _module(module_name, home, what)
    function = getattr(module, function_name, None)
    if not callable(function):
        hint = did_you_mean(function_name, [n for n, _ in inspect.getmembers(module, inspect.isfunction)] or ["none"])
        raise ConfigError(f"{what}: module {module_name!r} has no function {function_name!r}{hint}")
    return function


def _module(name: str, home: str, what: str) -> Any:
    """Import a user's module, looked for beside the rule file and in the working directory too."""
    for folder in (home, str(Path.cwd())):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise
        raise ConfigError(
            f"{what}: no module {name!r} beside the rule file ({home}), in {Path.cwd()} or installed"
        ) from error


def _bind(function: Callable[..., Any], name: str, parameters: Mapping[str, Any], home: str) -> Callable[..., Any]:
    """Return `function` with its parameters filled in; a parameter annotated Path is a file seen from `home`."""
    _, *accepted = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in accepted]
    for key in parameters:
        if key not in names:
            raise ConfigError(
                f"rule {name!r}: unknown key {key!r}{did_you_mean(key, [*names, 'min', 'max', 'measure'])}"
            )
    missing = [p.name for p in accepted if p.default is p.empty and p.name not in parameters]
    if missing:
        raise ConfigError(f"rule {name!r} needs {', '.join(missing)}")
    paths = _path_parameters(function)
    values = {key: Path(home, value) if key in paths else value for key, value in parameters.items()}
    for key in paths & values.keys():
        if not values[key].is_file():
            raise ConfigError(f"rule {name!r}: {key} {str(values[key])!r} does not exist")
    return functools.partial(function, **values) if values else function


def _path_parameters(function: Callable[..., Any]) -> set[str]:
    hints = typing.get_type_hints(function)
    return {name for name, hint in hints.items() if hint is Path or Path in typing.get_args(hint)} - {"return"}


def _full_name(function: Callable[..., Any], name: str) -> str:
    """Return where a function is defined; of a user's module also a hash, so that editing it changes the recipe."""
    if ":" not in name:
        return f"{function.__module__}.{function.__name__}"
    source = inspect.getsourcefile(function)
    return f"{name}@{_sha256(Path(source))[:16]}" if source else name


def _describe_parameters(parameters: Mapping[str, Any], function: Callable[..., Any], home: str) -> dict[str, Any]:
    """Return parameters as JSON: files by name and hash, those that the function reads by default too."""
    paths = _path_parameters(function)
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values() if p.name in paths}
    given = {**{name: path for name, path in defaults.items() if isinstance(path, Path)}, **parameters}
    return {
        key: {"file": Path(value).name, "sha256": _sha256(Path(home, value))} if key in paths else value
        for key, value in sorted(given.items())
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
