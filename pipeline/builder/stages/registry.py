"""The stages of a build, in order. The place of a stage decides what it can do (`Stage`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..counts.sums import descending
from ..outcome import OF_DEDUP
from ..recipe import Recipe
from .decontaminate import DecontaminateStage
from .dedup import DedupStage
from .drop_ids import DropIdsStage
from .ingest import IngestStage
from .leaks import LeaksStage
from .line_dedup import LineDedupStage
from .passage_dedup import PassageDedupStage
from .quotas import leave_out_more, read_more
from .section import Change, Section
from .split import SplitStage
from .stage import Run, Stage
from .tokenize import TokenizeStage, TrainTokenizerStage
from .write import WriteStage

# A round, which is repeated with more input until the token quotas are filled.
ROUND: tuple[Stage, ...] = (
    IngestStage(),
    DecontaminateStage(),
    LineDedupStage(),
    DedupStage(),
    DropIdsStage(),
    PassageDedupStage(),
    TrainTokenizerStage(),
    TokenizeStage(),
)
AFTER_ROUNDS: tuple[Stage, ...] = (SplitStage(), LeaksStage(), WriteStage())
STAGES = (*ROUND, *AFTER_ROUNDS)
QUOTES = frozenset(name for stage in STAGES for name in stage.quotes)
OUTCOMES = {each.key: each for each in (*OF_DEDUP, *(stage.drops for stage in STAGES)) if each}


def wanted_stages(recipe: Recipe, stages: Sequence[Stage] = STAGES) -> list[Stage]:
    """Return the stages that a recipe asks for, in order."""
    return [stage for stage in stages if stage.wanted(recipe)]


def editing_stages(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the stages of a build that edit texts, in order."""
    return tuple(stage.name for stage in wanted_stages(recipe) if stage.edits)


def stages_to_run(run: Run) -> Iterator[Stage]:
    """Yield the stages that a build wants, in order. The stages of the round are repeated each time that more has to
    be read, or that passages were cut for the sake of documents beyond a quota.

    Once the split stage has its folder, the rounds have ended: a continued build reads no more.
    """
    yield from wanted_stages(run.plan.recipe, ROUND)
    while not run.workspace.folder(SplitStage.name).exists() and any(
        changed(run.workspace, run.progress) for changed in (read_more, leave_out_more)
    ):
        yield from wanted_stages(run.plan.recipe, ROUND)
    yield from wanted_stages(run.plan.recipe, AFTER_ROUNDS)


def sections(counts: Mapping[str, Any]) -> list[Section]:
    """Return what each stage shows of the counts of a manifest, with the documents that it drops.

    If no stage declares an outcome, a rule or transform of the filters dropped its documents.
    """
    dropped, characters = counts.get("dropped", {}), counts.get("dropped_characters", {})
    declared = {stage.drops.key for stage in STAGES if stage.drops}
    by_filters = [name for name, _ in descending(dropped) if name not in declared]
    found = []
    for stage in STAGES:
        section = stage.section(counts)
        names = by_filters if isinstance(stage, IngestStage) else [stage.drops.key] if stage.drops else []
        drops = [
            Change(f"dropped by {name}", dropped[name], characters.get(name, 0)) for name in names if name in dropped
        ]
        found.append(replace(section, changes=[*section.changes, *drops]))
    return found
