"""Rule files -> rules: what is read, before anything is measured. How they are written: ruleset.py."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import filters
from filters.language.fasttext_model import check_label
from filters.language.language import is_label, language_code
from filters.language.scripts import script_of_label
from filters.rules.columns import column_entry
from filters.rules.named_files import NamedFile
from filters.rules.resolve import bind, find_function, named_files
from filters.rules.user_modules import UserModule, find_module
from pipeline.errors import ConfigError, did_you_mean

NO_RULES = "none"
_FINEWEB2_MINIMUM_STOP_WORDS = 2
_COUNT_WORDS = ("newline_ratio", "mean_word_length", "alphabetic_ratio")  # among the measures of FineWeb2's profiles


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a document is dropped: the rule, its value and the limit that it exceeds (`kind` is "min" or "max")."""

    rule_set: str
    measure: str
    value: float
    bound: float
    kind: str
    said: str = ""  # in place of a comparison

    @property
    def reason(self) -> str:
        """The comparison that failed, in as many digits as it takes to be seen to fail.

        >>> Violation("gopher", "mean_word_length", 1.7, 3.0, "min").reason
        'mean_word_length 1.7 < 3'
        >>> Violation("gopher", "top_2_gram_ratio", 0.2000004, 0.2, "max").reason
        'top_2_gram_ratio 0.2000004 > 0.2'
        """
        if self.said:
            return self.said
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

    `rule_set` is the set that named it last; `files` are the parameters that are files, and `module` is the user's
    module, as they were when the rule was read. A rule with a `language` holds for documents in that language only, and
    one with a `script` too for those written in it.
    """

    name: str
    measure: str
    rule_set: str
    min: float = -math.inf
    max: float = math.inf
    parameters: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, NamedFile] = field(default_factory=dict)
    module: UserModule | None = None
    language: str = ""
    script: str = ""

    def judge(self, value: float) -> Violation | None:
        """Return why `value` is outside the limits, None while it is inside."""
        if self.min <= value <= self.max:
            return None
        kind = "max" if value > self.max or self.min == -math.inf else "min"
        said = (
            f"{self.name} is none of {', '.join(map(str, self.parameters['values']))}"
            if self.measure == "column_in"
            else ""
        )
        return Violation(self.rule_set, self.name, value, self.min if kind == "min" else self.max, kind, said)

    @property
    def origin(self) -> str:
        """What named the rule, for errors: a rule set, or a flag of a command."""
        return self.rule_set if self.rule_set.startswith("--") else f"rule set {self.rule_set!r}"

    @property
    def function(self) -> Callable[..., float]:
        """The measure, its parameters not yet bound."""
        return find_function(self.measure, filters.measure_functions(), self.module, f"measure of {self.origin}")

    def bound(self) -> Callable[..., float]:
        """Return the measure as a function of a page alone."""
        return bind(self.function, self.name, self.parameters, self.files)


@dataclass(frozen=True, slots=True)
class Cleaner:
    """One line of a rule file's [cut]: a function from a text to what is left of it."""

    name: str
    rule_set: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, NamedFile] = field(default_factory=dict)
    module: UserModule | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The cleaner, its parameters not yet bound."""
        return find_function(
            self.name, filters.cleaner_functions(), self.module, f"cleaner of rule set {self.rule_set!r}"
        )

    def bound(self) -> Callable[[str], tuple[str, dict[str, int]]]:
        """Return the cleaner as a function of a text alone."""
        return bind(self.function, self.name, self.parameters, self.files)


def user_module(name: str, home: str, what: str) -> UserModule | None:
    """Return the module that ``module:function`` names, None for the name of a function of this package."""
    return find_module(name.partition(":")[0], home, what) if ":" in name else None


def read_rules(names: Iterable[str]) -> tuple[list[Rule], list[Cleaner]]:
    """Return the rules and cleaners of rule sets and files, the later over the earlier."""
    book = _Book()
    for name in names:
        book.read(name, seen=())
    return list(book.rules.values()), list(book.cleaners.values())


class _Book:
    """Rules as they are read, by name: the later replaces the earlier, limit by limit."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self.cleaners: dict[str, Cleaner] = {}

    def read(self, name: str, seen: tuple[Path, ...], home: str = "") -> None:
        path = _find(name, home)
        if path in seen:
            raise ConfigError(f"rule set {path} extends itself: {' -> '.join(map(str, (*seen, path)))}")
        if path.suffix in (".yml", ".yaml"):
            self.read("fineweb2", (*seen, path))
            self.add(path.stem, str(path.parent), _fineweb2_rules(path), path.stem if is_label(path.stem) else "")
            return
        table = _load_toml(path)
        extends = table.pop("extends", [])
        parents = [extends] if isinstance(extends, str) else extends
        if not (isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)):
            raise ConfigError(f"rule file {path}: extends must be a list of rule sets, not {extends!r}")
        for parent in parents:
            self.read(parent, (*seen, path), str(path.parent))
        cuts = table.pop("cut", {})
        language = table.pop("language", "")
        if not isinstance(language, str):
            raise ConfigError(f"rule file {path}: language must be a code such as de or deu_Latn, not {language!r}")
        own_name = name if name in filters.bundled_rule_sets() else path.stem
        self.add(own_name, str(path.parent), table, language)
        for cleaner_name, parameters in _tables(cuts, path).items():
            if parameters is None:
                self.cleaners.pop(cleaner_name, None)
            else:
                self.cleaners[cleaner_name] = _make_cleaner(cleaner_name, own_name, parameters, str(path.parent))

    def add(self, rule_set: str, home: str, table: Mapping[str, Any], language: str) -> None:
        for key, entry in _tables(table, Path(home, rule_set)).items():
            name = f"{rule_set}.{key}" if language else key  # beside the rules for all languages, not in their place
            if entry is None:
                self.rules.pop(name, None)
                continue
            entry = column_entry(key, entry)
            limits = {kind: _number(entry.pop(kind), name, kind) for kind in ("min", "max") if kind in entry}
            rule = self._make_rule(name, key, rule_set, home, entry)
            rule = replace(
                rule,
                min=limits.get("min", rule.min),
                max=limits.get("max", rule.max),
                language=language_code(language) if language else "",
                script=script_of_label(language),
            )
            rule.bound()
            if rule.measure == "fasttext_score":
                check_label(rule.files["model"].checked(), rule.parameters["label"])
            if not rule.min <= rule.max:
                raise ConfigError(f"rule {name!r} of {rule_set!r} keeps nothing: min {rule.min:g} > max {rule.max:g}")
            if rule.min == -math.inf and rule.max == math.inf and not limits:
                raise ConfigError(f"rule {name!r} of {rule_set!r} has no limit: give it `min` or `max`")
            self.rules[name] = rule

    def _make_rule(self, name: str, key: str, rule_set: str, home: str, entry: dict[str, Any]) -> Rule:
        """Return a rule with the parameters of ``entry``, and what an earlier rule set gave a rule of this name."""
        old = self.rules.get(name)
        if old is None or "measure" in entry:
            measure = entry.pop("measure", old.measure if old else key)
            if not isinstance(measure, str):
                raise ConfigError(f"rule {name!r}: measure must be text, not {measure!r}")
            module = user_module(measure, home, f"measure of rule set {rule_set!r}")
            old = replace(old or Rule(name, key, rule_set), measure=measure, module=module)
        rule = replace(old, rule_set=rule_set)
        files = named_files(rule.function, name, entry, home)
        parameters = {key: value for key, value in entry.items() if key not in files}
        return replace(rule, parameters={**old.parameters, **parameters}, files={**old.files, **files})


def _make_cleaner(name: str, rule_set: str, parameters: Mapping[str, Any], home: str) -> Cleaner:
    cleaner = Cleaner(name, rule_set, module=user_module(name, home, f"cleaner of rule set {rule_set!r}"))
    files = named_files(cleaner.function, name, parameters, home)
    plain = {key: value for key, value in parameters.items() if key not in files}
    return replace(cleaner, parameters=plain, files=files)


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
        raise ConfigError(f"rule file {path}: [cut] must be a table of cleaners, not {table!r}")
    entries: dict[str, dict[str, Any] | None] = {}
    for name, entry in table.items():
        if entry is not False and not isinstance(entry, Mapping):
            raise ConfigError(f"rule file {path}: {name} must be a table like {{ min = 3 }}, or false, not {entry!r}")
        entries[name] = dict(entry) if isinstance(entry, Mapping) else None
    return entries


def _number(value: object, name: str, key: str) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(number := float(value)):
            return number
    except OverflowError:
        pass
    raise ConfigError(f"rule {name!r}: {key} must be a number, not {value!r}")


def _fineweb2_rules(path: Path) -> dict[str, dict[str, Any]]:
    """Return a profile of FineWeb2 as rules; its keys are those of its repository, `max_non_alpha...` a minimum."""
    import yaml

    try:
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"profile {path} is not YAML: {' '.join(str(error).split())}") from error
    limits = {
        "language_score": ("language_score", "min"),
        "dup_line_frac": ("duplicate_line_ratio", "max"),
        "line_punct_thr": ("terminal_line_ratio", "min"),
        "new_line_ratio": ("newline_ratio", "max"),
        "min_avg_word_length": ("mean_word_length", "min"),
        "max_avg_word_length": ("mean_word_length", "max"),
        "max_non_alpha_words_ratio": ("alphabetic_ratio", "min"),
    }
    pieces = {"by": "pieces"}  # nearest to the tokenizers by which the profiles were made
    ngrams = {"top_n_grams": "top_{}_gram_ratio", "dup_n_grams": "duplicate_{}_gram_ratio"}
    if not isinstance(profile, dict):
        raise ConfigError(f"profile {path} holds no keys; FineWeb2's hold {', '.join(limits)} and more")
    rules: dict[str, dict[str, Any]] = {}
    for key, value in profile.items():
        if key in limits:
            measure, kind = limits[key]
            rules.setdefault(measure, dict(pieces) if measure in _COUNT_WORDS else {})[kind] = value
        elif key in ngrams:
            if not (isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)):
                raise ConfigError(f"profile {path}: {key} must be a list of pairs like [2, 0.2], not {value!r}")
            rules |= {ngrams[key].format(n): {"max": limit, **pieces} for n, limit in value}
        elif key == "stopwords":
            if not isinstance(value, list):
                raise ConfigError(f"profile {path}: stopwords must be a list of words, not {value!r}")
            # YAML reads some words as other things (`no` is false): they are words here.
            rules["stop_words"] = {
                "min": _FINEWEB2_MINIMUM_STOP_WORDS,
                "words": [_yaml_word(word) for word in value],
                **pieces,
            }
        else:
            hint = did_you_mean(str(key), [*limits, *ngrams, "stopwords"])
            raise ConfigError(f"profile {path}: unknown key {key!r}{hint}")
    return rules


def _yaml_word(word: object) -> str:
    return {True: "yes", False: "no", None: "null"}[word] if isinstance(word, bool | None) else str(word)
