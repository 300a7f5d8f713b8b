"""Raw text -> shards. ``pipeline.build(...)`` runs a build; the modules below are its stages.

recipe.py       what is asked for: every setting that decides a byte of the result
definitions.py  what the names in it stand for, resolved once; every process loads it from the work directory
plan.py         inputs + recipe -> units of work
filtering.py    the filter unit: read, normalise, measure, judge, hash
parts.py        what it leaves on disk, part by part
rules.py rule_files.py measures.py      measures + limits -> verdicts
user_modules.py named_files.py          modules and files that rules name, as they were when they were read
passages.py repeats.py     lines and paragraphs that stood before -> cut
minhash.py bands.py dedup.py exactly.py clusters.py    signatures -> keys -> verified edges -> clusters
deduping.py earlier.py rows.py    the stage that runs these on files; decontaminate.py, n-grams of evaluation sets
tokenizing.py   the tokenize unit
settling.py draws.py    training, validation, quotas
writing.py      token counts -> layout -> shards
work.py locking.py    the work directory: results that appear whole, one build at a time
engine.py ray_engine.py    run units: here, in processes, on Ray
builder.py finishing.py    the stages in order: the story of a build
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
