"""Reads rule files into rules. `filters.rules.ruleset` describes how they are written."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import filters
from filters.language.fasttext_model import check_label
from filters.language.identifier import is_label, language_code
from filters.language.scripts import script_of_label
from filters.measures.url_lists import read_url_list
from filters.rules.fineweb2 import profile_rules
from filters.rules.resolve import named_files
from filters.rules.rule import Cleaner, Rule
from filters.rules.user_modules import UserModule, find_module
from pipeline.errors import ConfigError, did_you_mean

NO_RULES = "none"
COLUMN = "column:"  # the beginning of the name of a rule on a field of the record
URL_BLOCKED = "url_blocked"  # the measure that reads the field of the url


def user_module(name: str, home: str, what: str) -> UserModule | None:
    """Return the module of a measure or cleaner; None for the name of a function of this package."""
    return find_module(name, home, what) if ":" in name else None


def read_rules(names: Iterable[str]) -> tuple[list[Rule], list[Cleaner]]:
    """Return the rules and cleaners of rule sets and files; later ones replace earlier ones."""
    table = RuleTable()
    for name in names:
        table.read(name, seen=())
    return list(table.rules.values()), list(table.cleaners.values())


_LARGEST = 2**53


class RuleTable:
    """Rules by name, while they are read: a later rule replaces an earlier one, limit by limit."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self.cleaners: dict[str, Cleaner] = {}

    def read(self, name: str, seen: tuple[Path, ...], home: str = "") -> None:
        path = _find(name, home)
        if path in seen:
            raise ConfigError(f"rule set {path} extends itself: {' -> '.join(map(str, (*seen, path)))}")
        if path.suffix in (".yml", ".yaml"):
            self.read("fineweb2", (*seen, path))
            self.add(path.stem, path, profile_rules(path), path.stem if is_label(path.stem) else "")
            return
        table = _load_toml(path)
        extends = table.pop("extends", [])
        parents = [extends] if isinstance(extends, str) else extends
        if not (isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)):
            raise ConfigError(f"rule file {path}: extends must be a list of rule sets, not {extends!r}")
        for parent in parents:
            self.read(parent, (*seen, path), str(path.parent))
        cuts = table.pop("cut", {})
        table.pop("made_for", None)
        language = table.pop("language", "")
        if not isinstance(language, str):
            raise ConfigError(f"rule file {path}: language must be a code such as de or deu_Latn, not {language!r}")
        rule_set = name if name in filters.bundled_rule_sets() else path.stem
        self.add(rule_set, path, table, language)
        for cleaner_name, parameters in _tables(cuts, path).items():
            if parameters is None:
                self.cleaners.pop(cleaner_name, None)
            else:
                self.cleaners[cleaner_name] = _make_cleaner(cleaner_name, rule_set, parameters, str(path.parent))

    def add(self, rule_set: str, path: Path, table: Mapping[str, Any], language: str) -> None:
        for key, entry in _tables(table, path).items():
            name = f"{rule_set}.{key}" if language else key  # it does not replace the rule for all languages
            if entry is None:
                self.rules.pop(name, None)
                continue
            entry = column_entry(key, entry)
            limits = {
                kind: _limit(entry.pop(kind), f"{path}: rule {name!r}: {kind}")
                for kind in ("min", "max")
                if kind in entry
            }
            rule = self._make_rule(name, key, rule_set, str(path.parent), entry)
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
            if rule.measure == URL_BLOCKED and not rule.files:
                raise ConfigError(f"rule {name!r} needs a list: domains = FILE, words = FILE or both")
            if rule.measure == URL_BLOCKED:
                read_url_list.cache_clear()  # the file may have changed
                for kind, file in rule.files.items():
                    read_url_list(file.checked(), kind)  # warns of lines that match nothing
            if not rule.min <= rule.max:
                raise ConfigError(f"rule {name!r} of {rule_set!r} keeps nothing: min {rule.min:g} > max {rule.max:g}")
            if rule.min == -math.inf and rule.max == math.inf and not limits:
                raise ConfigError(f"rule {name!r} of {rule_set!r} has no limit: give it `min` or `max`")
            self.rules[name] = rule

    def _make_rule(self, name: str, key: str, rule_set: str, home: str, entry: dict[str, Any]) -> Rule:
        """Return a rule with the parameters of ``entry``, and other parameters of an earlier rule of this name."""
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
    """Return the file of a rule set by a bundled name, or a path relative to `home` or the working directory."""
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


def made_for(rule_set: str) -> str:
    """Return the code of the language that a bundled rule set, or one that it extends, was made for; "" if it is for all.

    >>> made_for("gopher"), made_for("code")
    ('en', '')
    """
    if rule_set not in (bundled := filters.bundled_rule_sets()):
        return ""
    table = _load_toml(bundled[rule_set])
    return next(filter(None, [table.get("made_for", ""), *map(made_for, table.get("extends", []))]), "")


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"rule file {path} is not TOML: {error}") from error


def _tables(table: object, path: Path) -> dict[str, dict[str, Any] | None]:
    """Return a copy of a table of tables; `false`, which switches an entry off, becomes None."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"rule file {path}: [cut] must be a table of cleaners, not {table!r}")
    entries: dict[str, dict[str, Any] | None] = {}
    for name, entry in table.items():
        if entry is not False and not isinstance(entry, Mapping):
            raise ConfigError(f"rule file {path}: {name} must be a table like {{ min = 3 }}, or false, not {entry!r}")
        entries[name] = dict(entry) if isinstance(entry, Mapping) else None
    return entries


def _limit(value: object, what: str) -> float:
    """Return a limit; raises ``ConfigError`` if it is no number that a float, and JSON, can hold exactly."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST:
        return float(value)
    raise ConfigError(
        f"rule file {what} must be a number from -2**53 to 2**53, got {value!r}; to set no limit, leave it out"
    )


def column_entry(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a rule on a column as an entry for a measure; other entries are returned unchanged.

    Raises ConfigError if ``in`` is no list of texts or of numbers.

    >>> column_entry("column:language", {"in": ["en"]})
    {'measure': 'column_in', 'column': 'language', 'values': ['en'], 'min': 1}
    """
    measure = str(entry.get("measure", name))
    rest = dict(entry)
    if measure == URL_BLOCKED:
        return {"column": "url"} | rest | ({} if {"min", "max"} & rest.keys() else {"max": 0})
    if not measure.startswith(COLUMN):
        return rest
    rest["measure"], rest["column"] = "column_value", measure.removeprefix(COLUMN)
    if not rest["column"]:
        raise ConfigError(f"rule {name!r}: name a field after {COLUMN}, as in column:score")
    if "in" not in rest:
        return rest
    values = rest.pop("in")
    kinds = {
        str if isinstance(value, str) else float if _is_number(value) else None
        for value in (values if isinstance(values, list) else ())
    }
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
