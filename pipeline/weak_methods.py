"""Bound methods that do not keep their objects alive.

A bound method refers to its object. If the object stores the method, itself or through another object, the two form a
reference cycle: the object's files and memory are freed only when Python's garbage collector runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

R = TypeVar("R")


def weakly(method: Callable[..., R]) -> Callable[..., R]:
    """Return a function that calls a bound method, but refers only weakly to the method's object."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> R:
        bound = weak()
        assert bound is not None  # callers hold a reference to the object
        return bound(*arguments)

    return call


def weak_lru_cache(method: Callable[..., Any], most: int | None) -> Any:
    """Return a `functools.lru_cache` of a bound method that the method's object can store."""
    return lru_cache(maxsize=most)(weakly(method))
