"""Filters are told apart by what they do, in states that are loaded by other processes."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
import tests as own_module
from pipeline.errors import ConfigError, StateError

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 3
PATTERN = re.compile("a+")
COUNTED = 0
LOCK = threading.Lock()


def source() -> Any:
    return pipeline.ShardDataset.from_tokens(np.arange(400), lengths=[4] * 100)


def name(function: Any) -> str:
    """Return the name by which a state knows a filter."""
    names: list[str] = json.loads(source().filter(function).pack(8).state_dict()["shape"])["filters"]
    return names[0]


def above(limit: int) -> Any:
    return lambda ids: len(ids) > limit


class Above:
    """A filter that is an object."""

    def __init__(self, limit: Any) -> None:
        self.limit = limit

    def __call__(self, ids: Any) -> bool:
        return len(ids) > self.limit


class AboveOrEqual(Above):
    def __call__(self, ids: Any) -> bool:
        return len(ids) >= self.limit


class Slotted:
    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, ids: Any) -> bool:
        return len(ids) > self.limit

    def keeps(self, ids: Any) -> bool:
        return len(ids) < self.limit


@dataclass
class Settings:
    """Has methods that read what cannot be compared, which its filter does not call."""

    limit: int
    rest: list[int] = field(default_factory=list)

    def keeps(self, ids: Any) -> bool:
        return self.long(ids)

    def long(self, ids: Any) -> bool:
        return len(ids) > self.limit

    def other(self) -> bool:
        return LOCK.locked()


class Strict(Settings):
    def long(self, ids: Any) -> bool:
        return len(ids) >= self.limit


def reads_a_global(ids: Any) -> bool:
    return len(ids) > LIMIT


def calls_another(ids: Any) -> bool:
    return reads_a_global(ids) and PATTERN.search("a") is not None


def counts(ids: Any) -> bool:
    global COUNTED
    COUNTED += 1
    return True


def recursive(ids: Any) -> bool:
    return len(ids) < 2 or recursive(ids[1:])


def with_settings(settings: Settings) -> Any:
    return lambda ids: settings.long(ids)


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "constants": (lambda ids: len(ids) > 3, lambda ids: len(ids) > 4),
    "code": (lambda ids: len(ids) > 3, lambda ids: len(ids) >= 3),
    "attributes read": (lambda ids: ids.min() > 3, lambda ids: ids.max() > 3),
    "closures": (above(1), above(2)),
    "kinds of one value": (above(1), above(1.0)),  # type: ignore[arg-type]
    "defaults": (lambda ids, n=1: len(ids) > n, lambda ids, n=2: len(ids) > n),
    "keyword defaults": (lambda ids, *, n=1: len(ids) > n, lambda ids, *, n=2: len(ids) > n),
    "objects": (Above(1), Above(2)),
    "classes": (Above(1), AboveOrEqual(1)),
    "slots": (Slotted(1), Slotted(2)),
    "methods": (Slotted(1).keeps, Slotted(2).keeps),
    "methods of a dataclass": (Settings(1).keeps, Settings(2).keeps),
    "methods that methods call": (Settings(1).keeps, Strict(1).keeps),
    "objects that are read": (with_settings(Settings(1)), with_settings(Strict(1))),
    "partials": (functools.partial(max, 1), functools.partial(max, 2)),
    "arrays": (Above(np.arange(3)), Above(np.arange(4))),
    "patterns": (re.compile("a").search, re.compile("b").search),
    "sets": (Above({1, 2}), Above({1, 3})),
    "builtins": ({1: 1}.get, {1: 2}.get),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_filters_that_differ_do_not_load_into_each_other(what: str) -> None:
    one, other = (source().filter(function).pack(8) for function in DIFFERENT[what])
    again = source().filter(DIFFERENT[what][0]).pack(8)
    again.load_state_dict(one.state_dict())
    with pytest.raises(StateError, match=r"filters was .* one name: \.filter\(\.\.\., name=\.\.\.\)"):
        other.load_state_dict(one.state_dict())


def test_equal_filters_made_apart_are_one() -> None:
    for make in (lambda: above(7), lambda: Above([1, {"a": 2}]), lambda: Slotted(3), lambda: lambda ids: True):
        assert name(make()) == name(make())
    assert name(Above({"b": 1, "a": {3, 1, 2}})) == name(Above({"a": {2, 1, 3}, "b": 1}))


def test_two_lambdas_of_one_line_are_told_apart() -> None:
    pair = (lambda ids: bool(len(ids)), lambda ids: not len(ids))
    assert len({name(each) for each in pair}) == 2
    nested = lambda ids: (lambda n: n > 3)(len(ids))  # noqa: E731
    assert name(nested).startswith("test_two_lambdas_of_one_line_are_told_apart.<locals>.<lambda>#")


MODULE = """
{comment}
from helper import is_long
LIMIT = {limit}
def keeps(ids: {hint}) -> bool:
    "{doc}"
    return is_long(ids,{space}LIMIT)  # {comment}
"""


def name_of_keeps(folder: Path, *flags: str) -> str:
    """Return the name of ``user.keeps`` in a folder, as another process finds it."""
    code = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\nfrom user import keeps\nimport pipeline\n"
    code += "stream = pipeline.ShardDataset.from_tokens(range(9), lengths=[9]).filter(keeps).pack(4)\n"
    command = [sys.executable, *flags, "-c", f"{code}print(stream.state_dict()['shape'])"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout)["filters"]
    return names[0]


def write_module(folder: Path, helper: str, **options: str) -> Path:
    folder.mkdir()
    (folder / "helper.py").write_text(helper)
    (folder / "user.py").write_text(MODULE.format(**options))
    return folder


def test_comments_hints_and_docstrings_are_nothing_but_helpers_and_globals_are(tmp_path: Path) -> None:
    options = {"limit": "3", "hint": "int", "doc": "One.", "space": "", "comment": ""}
    helper = "def is_long(ids, limit):\n    return len(ids) > limit\n"
    same = {**options, "hint": "list", "doc": "Two.", "space": "   ", "comment": "# three"}
    first = name_of_keeps(write_module(tmp_path / "a", helper, **options))
    assert name_of_keeps(write_module(tmp_path / "b", helper, **same), "-O") == first
    assert name_of_keeps(write_module(tmp_path / "c", helper, **{**options, "limit": "4"})) != first
    assert name_of_keeps(write_module(tmp_path / "d", helper.replace(">", ">="), **options)) != first


CALLED = ", ".join(f"f{n}" for n in range(12))
READER = """
import settings, math
def inner(ids):
    return (lambda n: n > settings.sub.LIMIT)(len(ids))
def keeps(ids):
    return len(ids) > settings.LIMIT and settings.sized(ids) and inner(ids) and math.pi > 3
"""


def test_what_a_filter_names_of_the_users_modules_is_part_of_it(tmp_path: Path) -> None:
    def named(folder: str, limit: int = 3, inner: int = 1, sized: str = "len(ids)", more: str = "") -> str:
        package = tmp_path / folder / "settings"
        package.mkdir(parents=True)
        text = f"from . import sub\n{more}\nLIMIT = {limit}\ndef sized(ids):\n    return {sized}\n"
        (package / "__init__.py").write_text(text)
        (package / "sub.py").write_text(f"LIMIT = {inner}\n")
        (tmp_path / folder / "user.py").write_text(READER)
        return name_of_keeps(tmp_path / folder)

    first = named("a")
    assert named("b", more="import threading\nLOCK = threading.Lock()\nUNREAD = 5") == first
    others = [named("c", limit=4), named("d", inner=2), named("e", sized="len(ids) > 1")]
    assert len({first, *others}) == 4


def test_a_decorated_function_is_that_function() -> None:
    assert name(torch.no_grad()(reads_a_global)) != name(torch.no_grad()(recursive))
    assert name(functools.lru_cache(reads_a_global)) != name(functools.lru_cache(recursive))


def test_sets_of_functions_and_functions_that_call_each_other_have_one_name_in_all_processes(tmp_path: Path) -> None:
    calls = "".join(f"def f{n}(ids): return len(ids) > {n} or any(f(ids) for f in ({CALLED}))\n" for n in range(12))
    (tmp_path / "user.py").write_text(
        f"{calls}PARTS = {{{CALLED}}}\ndef keeps(ids): return all(f(ids) for f in PARTS)\n"
    )
    assert len({name_of_keeps(tmp_path) for _ in range(3)}) == 1


def test_a_filter_that_counts_stays_the_same() -> None:
    before = name(counts)
    counts(None)
    assert name(counts) == before


def test_functions_of_libraries_are_known_by_name() -> None:
    named = [name(function) for function in (len, bool, str.isupper, np.mean, np.isnan, torch.relu, torch.mean)]
    assert len(set(named)) == 7
    assert name(calls_another) != name(recursive)


def test_a_filter_that_reads_what_cannot_be_compared_needs_a_name() -> None:
    lock = threading.Lock()
    scope: dict[str, Any] = {}
    exec("unwritten = lambda ids: len(ids) > 3", scope)
    rng = np.random.default_rng(0)
    for function, message in (
        (lambda ids: lock.locked(), r"reads 'lock': an object of type _thread\.lock"),
        (lambda ids: rng.random() < 0.5, "reads 'rng'.*of type numpy"),
        (Above(lock), "object of type"),
        (scope["unwritten"], "reads code that has no source in '<string>'"),
        (lambda ids: own_module.LATER(ids), r"tests\.LATER, which is not defined yet"),
        (lambda ids: not_there(ids), "'not_there', which is not defined yet"),  # type: ignore[name-defined] # noqa: F821
    ):
        with pytest.raises(ConfigError, match=rf"{message}.*\.filter\(\.\.\., name='long-1'\)"):
            source().filter(function)
        named = source().filter(function, name="mine").pack(8)
        assert json.loads(named.state_dict()["shape"])["filters"] == ["mine"]
    with pytest.raises(StateError, match=r"filters was \['mine'\]"):
        source().filter(lambda ids: True, name="other").pack(8).load_state_dict(named.state_dict())
    for name in ("", 3):
        with pytest.raises(ConfigError, match=r"name given to \.filter\(\) must be a text"):
            source().filter(len, name=name)  # type: ignore[arg-type]
