"""Bound methods that do not keep their objects.

An object that keeps what keeps one of its methods would else be freed, with the files and the memory that it holds, only when
Python looks for cycles.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

R = TypeVar("R")


def weakly(method: Callable[..., R]) -> Callable[..., R]:
    """Return a function that calls a bound method, as long as somebody else keeps its object."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> R:
        bound = weak()
        assert bound is not None  # who calls keeps the object
        return bound(*arguments)

    return call


def weak_lru_cache(method: Callable[..., Any], most: int | None) -> Any:
    """Return `functools.lru_cache` of a bound method, for its object to keep."""
    return lru_cache(maxsize=most)(weakly(method))
