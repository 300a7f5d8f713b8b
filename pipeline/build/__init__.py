"""Raw text -> shards. ``pipeline.build(...)`` runs a build; the modules below are its stages.

recipe.py       what is asked for: every setting that decides a byte of the result
plan.py         inputs + recipe -> units of work
filtering.py    the filter unit: read, normalise, measure, judge, hash
rules.py        measures + limits -> verdicts
minhash.py dedup.py decontaminate.py    signatures -> verified duplicates
tokenizing.py   the tokenize unit
writing.py      token counts -> layout -> shards
engine.py       runs units: here, in processes, on Ray
builder.py      the stages in order: the story of a build
report.py tally.py progress.py preview.py    what was counted, and how it is shown
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Lets the package be called: ``pipeline.build`` has to be both the room and the function of that name."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from .builder import build

        return build(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
