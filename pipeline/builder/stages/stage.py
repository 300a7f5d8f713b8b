"""The base class of stages, and the one runner of stages, which skips results that exist already."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ...progress import Progress
from ..counts.build_stats import BuildStats
from ..counts.sums import Counts
from ..engines.local import Engine
from ..outcome import Outcome
from ..plan import Plan
from ..recipe import Recipe
from ..work.workspace import Workspace
from .section import Section

Unit = TypeVar("Unit")


@dataclass(frozen=True, kw_only=True)
class Step(Generic[Unit]):
    """Units of work, and the path that each of them makes. A path that exists is complete: its unit is skipped."""

    units: Sequence[Unit]
    function: Callable[[Unit], object]
    makes: Callable[[Unit], Path]
    name: str = ""  # beside the progress bar; by default the name of the stage
    prepare: Callable[[], object] | None = None  # loads what the units share, before workers are forked
    size: Callable[[Unit], int] | None = None  # the bytes of a unit, for the progress bar, if units differ much
    label: Callable[[Unit], str] = str  # names a unit in errors
    done: Callable[[Unit], object] = lambda unit: None  # called in the parent for each unit whose path exists
    in_parent: bool = False  # runs in the process that starts the workers, and may start them itself


def once(makes: Path, function: Callable[..., object], *arguments: object) -> Step[Path]:
    """Return a step of one unit, which calls a function in the process that starts the workers. A kill loses all of the step."""
    return Step(units=(makes,), function=lambda _: function(*arguments), makes=lambda path: path, in_parent=True)


@dataclass
class Run:
    """One run of the stages over a workspace, in the process that starts the workers."""

    workspace: Workspace
    plan: Plan
    progress: Progress
    open_workers: Callable[..., Engine]
    seconds: dict[str, float] = field(default_factory=dict)  # by stage; "start" is the time to start workers
    retries: list[dict[str, str]] = field(default_factory=list)  # of units whose workers died, with reasons
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)  # units and seconds by node of a cluster
    was_started: bool = False  # whether workers ran a step of this run
    step: Step[Any] | None = None  # the latest one, and its name
    name: str = ""

    def complete(self, stage: Stage) -> None:
        """Do the steps of a stage, one after the other, except for the units whose paths exist."""
        for step in stage.steps(self):
            self.make(step, stage.name)

    def kept(self) -> str:
        """Return how many units of the latest step are finished and kept."""
        counted = ""
        if self.step is not None:
            kept = sum(self.step.makes(unit).exists() for unit in self.step.units)
            counted = f"{self.name}: {kept:,} of {len(self.step.units):,} units are finished and kept; "
        return f"{counted}run the same command again to continue"

    def make(self, step: Step[Any], name: str = "") -> None:
        """Do the units of a step whose paths do not exist yet; ``name`` is for a step without one."""
        self.step, self.name = step, step.name or name
        todo = []
        for unit in step.units:
            if step.makes(unit).exists():
                step.done(unit)
            else:
                todo.append(unit)
        if todo and (kept := len(step.units) - len(todo)):
            self.progress.say(f"{self.name}: {kept:,} of {len(step.units):,} units are kept from before")
        for folder in {step.makes(unit).parent for unit in todo}:
            folder.mkdir(parents=True, exist_ok=True)
        if not step.in_parent:
            self._run(step, todo)
        for unit in todo if step.in_parent else ():
            step.function(unit)
            step.done(unit)

    def _run(self, step: Step[Any], units: Sequence[Any]) -> None:
        """Run units on the engine, with a progress bar. A step with a size has units that call `report_progress`."""
        if not units:
            return
        name, label, weights = self.name, step.label, [step.size(unit) if step.size else 1 for unit in units]
        reported = [0] * len(units)
        with (
            self._started(step.prepare) as engine,
            self.progress.bar(name, sum(weights), "bytes" if step.size else "units") as bar,
        ):

            def advance(index: int, amount: int) -> None:
                amount = min(amount, weights[index] - reported[index])
                reported[index] += amount
                bar(amount)

            def note_retry(index: int, reason: str) -> None:
                self.retries.append({"stage": name, "unit": label(units[index]), "reason": reason})

            def note_node(index: int, node: str, seconds: float) -> None:
                done = self.nodes.setdefault(node, {"units": 0, "seconds": 0.0, "slowest": {"seconds": 0.0}})
                done["units"] += 1
                done["seconds"] = round(done["seconds"] + seconds, 3)
                if seconds > done["slowest"]["seconds"]:
                    done["slowest"] = {"stage": name, "unit": label(units[index]), "seconds": round(seconds, 3)}

            engine.on_progress, engine.on_retry, engine.on_node = advance, note_retry, note_node
            engine.name_of = lambda unit: f"{name}: {label(unit)}"
            for index, _ in engine.map(step.function, units):
                step.done(units[index])
                advance(index, weights[index])

    def _started(self, prepare: Callable[[], object] | None) -> Engine:
        """Return the engine of a step. The first start loads models and compiled loops, so it has a progress bar."""
        started, first = time.perf_counter(), not self.was_started
        with self.progress.bar("start workers", 1, "steps") if first else nullcontext(lambda amount: None) as advance:
            engine = self.open_workers(prepare=prepare)
            advance(1)
        self.was_started = True
        self.seconds["start"] = self.seconds.get("start", 0.0) + time.perf_counter() - started
        return engine


class Stage(ABC):
    """A stage of a build. It has no state: its results are files in ``workspace.folder(name)``.

    A new stage is a module with a subclass, and a line in `registry`. Unless every build wants it, `wanted` reads a setting of
    `Recipe`, which is also its flag. The place of the stage in the order decides what it can do:

    - Before the tokenizer is trained, it may edit texts. It then sets ``edits``, reads ``partitions(workspace, before=name)``,
      and writes the files of each that change to ``partition.edition(name)``. All later stages read this edition.
    - Before dedup, an edition has all files, counts of outcomes included, as that of `line_dedup`. So it may drop documents.
    - After dedup, an edition keeps every document and its hash: it has new ``documents.arrow``, as that of `passage_dedup`.
      `survivors.survives` returns which documents are left. To drop some, the stage declares the outcome ``drops``, whose
      key is its name, and calls `survivors.drop` for each partition, as `drop_ids` does. The build then counts, samples and
      reports its drops.

    All other counts of a stage are what `count` returns. They are in the manifest, and `section` shows them. If its records or
    counts quote documents that they do not name, ``quotes`` lists them: a redaction removes them all.
    """

    name: ClassVar[str]
    drops: ClassVar[Outcome | None] = None  # of the documents that it drops, duplicates aside
    edits: ClassVar[bool] = False  # whether it writes editions of partitions
    quotes: ClassVar[tuple[str, ...]] = ()  # kinds of records, and names of counts

    def wanted(self, recipe: Recipe) -> bool:
        return True

    @abstractmethod
    def steps(self, run: Run) -> Iterable[Step[Any]]:
        """Return what the stage makes. A generator may read the results of one step before it yields the next."""

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        """Return the counts of this stage by their names in the manifest, which leaves out empty ones.

        ``counts`` are the sums of what partitions and the split stage counted. Sentences for the report go to ``stats.notes``.
        """
        return {}

    def section(self, counts: Mapping[str, Any]) -> Section:
        """Return what this stage shows of the counts of a manifest; `registry.sections` adds the documents that it drops."""
        return Section()
