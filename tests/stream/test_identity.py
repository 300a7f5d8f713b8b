"""Filters are told apart by what they do, in states that are loaded by other processes."""

from __future__ import annotations

import functools
import json
import re
import runpy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
import tests as own_module
from pipeline.errors import ConfigError, StateError
from tests.helpers import interpreters

LIMIT = 3
PATTERN = re.compile("a+")
COUNTED = 0


def source() -> Any:
    return pipeline.ShardDataset.from_tokens(np.arange(400), lengths=[4] * 100)


def name(function: Any) -> str:
    """Return the name by which a state knows a filter."""
    names: list[str] = json.loads(source().filter(function).pack(8).state_dict()["shape"])["filters"]
    return names[0]


def above(limit: Any) -> Any:
    return lambda ids: len(ids) > limit


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


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "constants": (lambda ids: len(ids) > 3, lambda ids: len(ids) > 4),
    "code": (lambda ids: len(ids) > 3, lambda ids: len(ids) >= 3),
    "attributes": (lambda ids: ids.min() > 3, lambda ids: ids.max() > 3),
    "closures": (above(1), above(2)),
    "kinds of one value": (above(1), above(1.0)),
    "defaults": (lambda ids, n=1: len(ids) > n, lambda ids, n=2: len(ids) > n),
    "keyword defaults": (lambda ids, *, n=1: len(ids) > n, lambda ids, *, n=2: len(ids) > n),
    "partials": (functools.partial(max, 1), functools.partial(max, 2)),
    "arrays": (above(np.arange(3)), above(np.arange(4))),
    "patterns": (above(re.compile("a")), above(re.compile("b"))),
    "sets": (above({1, 2}), above({1, 3})),
    "decorated": (torch.no_grad()(reads_a_global), torch.no_grad()(recursive)),
    "cached": (functools.lru_cache(reads_a_global), functools.lru_cache(recursive)),
    "called functions": (calls_another, recursive),
    "functions of libraries": (np.mean, torch.mean),
    "lambdas of one line": (lambda ids: bool(len(ids)), lambda ids: not len(ids)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_filters_that_differ_do_not_load_into_each_other(what: str) -> None:
    one, other = (source().filter(function).pack(8) for function in DIFFERENT[what])
    again = source().filter(DIFFERENT[what][0]).pack(8)
    again.load_state_dict(one.state_dict())
    with pytest.raises(StateError, match=r"filters was .* one name: \.filter\(\.\.\., name=\.\.\.\)"):
        other.load_state_dict(one.state_dict())


def test_equal_filters_made_apart_are_one() -> None:
    for make in (lambda: above(7), lambda: above([1, {"a": 2}]), lambda: lambda ids: True):
        assert name(make()) == name(make())
    assert name(above({"b": 1, "a": {3, 1, 2}})) == name(above({"a": {2, 1, 3}, "b": 1}))
    nested = lambda ids: (lambda n: n > 3)(len(ids))  # noqa: E731
    assert "<locals>.<lambda>#" in name(nested)
    before = name(counts)
    counts(None)
    assert name(counts) == before


USER = """
{comment}
import math
import settings
from helper import is_long
LIMIT = {limit}
def f(ids): return len(ids) > 1 or g(ids)
def g(ids): return f(ids[1:])
def inner(ids):
    return (lambda n: n > settings.sub.LIMIT)(len(ids))
def keeps(ids):
    return is_long(ids,{space}LIMIT) and settings.sized(ids) and inner(ids) and f(ids) > math.pi and 3 in {{3, 4}}  # {comment}
"""
NAMES = """
import sys, pipeline
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    from user import keeps
    stream = pipeline.ShardDataset.from_tokens(range(9), lengths=[9]).filter(keeps).pack(4)
    print(stream.state_dict()["shape"])
    for name in ("user", "helper", "settings.sub", "settings"):
        del sys.modules[name]
    sys.path.remove(folder)
"""


def test_helpers_globals_and_constants_count_and_comments_do_not(tmp_path: Path) -> None:
    options = {"limit": "3", "space": "", "comment": ""}

    def write(
        folder: str, helper: str = ">", sub: int = 1, sized: str = "len(ids)", unread: str = "", **changes: str
    ) -> str:
        package = tmp_path / folder / "settings"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"from . import sub\n{unread}\ndef sized(ids):\n    return {sized}\n")
        (package / "sub.py").write_text(f"LIMIT = {sub}\n")
        (tmp_path / folder / "helper.py").write_text(f"def is_long(ids, limit):\n    return len(ids) {helper} limit\n")
        (tmp_path / folder / "user.py").write_text(USER.format(**options | changes))
        return str(package.parent)

    equal = [
        write("first"),
        write("same", space="   ", comment="# three"),
        write("unread", unread="import threading\nLOCK = threading.Lock()"),
    ]
    others = [
        write("limit", limit="4"),
        write("helper", helper=">="),
        write("sub", sub=2),
        write("sized", sized="len(ids) > 1"),
    ]
    done = interpreters.run("-c", NAMES, *equal, *others)
    found = [json.loads(line)["filters"][0] for line in done.stdout.splitlines()]
    assert len(set(found[: len(equal)])) == 1
    assert len(set(found)) == 1 + len(others)


def test_the_decorator_of_a_filter_is_no_value_that_it_reads() -> None:
    def noted(function: Any) -> Any:
        return function

    @noted
    def keep(ids: Any) -> bool:
        return len(ids) > 3

    assert source().filter(keep)._settings.filters[0].name.startswith("test_the_decorator_of")


class Above:
    """A filter that is an object."""

    def __call__(self, ids: Any) -> bool:
        return len(ids) > 3


def test_a_filter_that_reads_what_cannot_be_compared_needs_a_name(tmp_path: Path) -> None:
    lock = threading.Lock()
    (tmp_path / "edited.py").write_text("def keep(ids):\n    return True\n")
    edited = runpy.run_path(str(tmp_path / "edited.py"))["keep"]
    (tmp_path / "edited.py").write_text("def other(ids):\n    return True\n")
    scope: dict[str, Any] = {}
    exec("unwritten = lambda ids: len(ids) > 3", scope)
    rng, keeps = np.random.default_rng(0), Above()
    for function, message in (
        (lambda ids: lock.locked(), r"reads 'lock': an object of type _thread\.lock"),
        (lambda ids: rng.random() < 0.5, "reads 'rng'.*of type numpy"),
        (keeps, r"object of type .*\.Above"),
        (keeps.__call__, "object of type builtins.method"),
        ({1: 1}.get, r"the values that dict\.get is bound to"),
        (lambda ids: keeps(ids), r"'keeps': an object of type .*\.Above"),
        (above({reads_a_global, recursive}), "'limit': an object of type builtins.set"),
        (scope["unwritten"], "reads code that has no source in '<string>'"),
        (lambda ids: own_module.LATER(ids), r"tests\.LATER, which is not defined yet"),
        (edited, r"keep, because it reads code that '.*/edited\.py' does not hold any more"),
        (lambda ids: not_there(ids), "'not_there', which is not defined yet"),  # type: ignore[name-defined] # noqa: F821
    ):
        with pytest.raises(ConfigError, match=rf"{message}.*\.filter\(\.\.\., name='long-1'\)"):
            source().filter(function)
        named = source().filter(function, name="mine").pack(8)
        assert json.loads(named.state_dict()["shape"])["filters"] == ["mine"]
    with pytest.raises(StateError, match=r"filters was \['mine'\]"):
        source().filter(lambda ids: True, name="other").pack(8).load_state_dict(named.state_dict())
    for name in ("", 3):
        with pytest.raises(ConfigError, match=r"name .*\.filter\(\) must be a text"):
            source().filter(len, name=name)  # type: ignore[arg-type]
