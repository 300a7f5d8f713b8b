"""Misspelt keywords of public functions and methods: Python's ``TypeError``, with the nearest keyword."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .errors import did_you_mean

_PACKAGES = ("pipeline", "filters")


def suggesting(value: Any) -> Any:
    """Return a public function or class whose errors of an unknown keyword name the nearest one. A class is changed in place.

    >>> suggesting(lambda seq_len: None)(sequence_length=8)
    Traceback (most recent call last):
        ...
    TypeError: <lambda>() got an unexpected keyword argument 'sequence_length' (did you mean 'seq_len'?)
    """
    if inspect.isfunction(value):
        return _function(value)
    for owner in value.__mro__ if inspect.isclass(value) else ():
        if owner.__module__.partition(".")[0] in _PACKAGES:
            for name, member in list(vars(owner).items()):
                method = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
                    setattr(owner, name, _function(method) if method is member else type(member)(_function(method)))
    return value


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
    if not known or hasattr(function, "__wrapped__") or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            unknown = next((name for name in keywords if name not in known), None)
            if unknown is not None and f"argument {unknown!r}" in str(error):
                error.args = (f"{str(error).partition('. ')[0]}{did_you_mean(unknown, known)}",)
            raise

    return call
