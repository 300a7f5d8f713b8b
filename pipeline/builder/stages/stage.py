"""What a stage is: a name that is also its folder, units that run on an engine, counts, and its rows of the report."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ...progress import Progress
from ..counts.build_stats import BuildStats, Change
from ..engine.engine import Engine
from ..plan import Plan
from ..recipe import Recipe
from ..work.workspace import Workspace

Unit = TypeVar("Unit")
Result = TypeVar("Result")


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

    def map(
        self,
        name: str,
        function: Callable[[Unit], Result],
        units: Sequence[Unit],
        prepare: Callable[[], object] | None = None,
        size: Callable[[Unit], int] | None = None,
        label: Callable[[Unit], str] = str,
    ) -> Iterator[tuple[int, Result]]:
        """Run a unit function over units on the engine, with a progress bar; yield ``(index, result)`` as they finish.

        ``prepare`` loads what the units share, before workers are forked. ``size`` tells the bytes of a unit, where units
        differ much; a unit function then tells by `report_progress` how many it has read. ``label`` names a unit in errors.
        """
        if not units:
            return
        weight = size or (lambda unit: 1)
        weights = list(map(weight, units))
        reported = [0] * len(units)
        started = time.perf_counter()
        with self.open_workers(prepare=prepare) as engine:
            self.seconds["start"] = self.seconds.get("start", 0.0) + time.perf_counter() - started
            with self.progress.bar(name, sum(weights), "bytes" if size else "units") as bar:

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
                for index, result in engine.map(function, units):
                    yield index, result
                    advance(index, weights[index])

    def do(
        self,
        name: str,
        function: Callable[[Unit], object],
        units: Sequence[Unit],
        prepare: Callable[[], object] | None = None,
        size: Callable[[Unit], int] | None = None,
    ) -> None:
        """Run a unit function over units as `map` does, and ignore what it returns: its results are files."""
        for _ in self.map(name, function, units, prepare, size):
            pass


class Stage(ABC):
    """A stage of a build. It has no state: its results are files in ``workspace.folder(name)``.

    A new stage is a module with a subclass, a line in `registry` and, unless every build wants it, a setting in `Recipe`
    that its `wanted` looks at. Its flag on the command line is made of it. Where the stage stands decides what it can do:

    - Before dedup, it may edit documents: it writes partitions again, counts of outcomes included, as `line_dedup` does.
    - After dedup, texts stay as they are, and it reads ``partition.folder``. `Partition.outcomes` tells which documents are
      survivors so far. To drop some it has an entry in `outcome.OUTCOMES`, whose key is its name, and calls `Partition.drop`
      for each partition, as `drop_ids` does: it is counted, sampled and reported then. It precedes the tokenizer's training.

    What else a stage counts is a field of `counts.build_stats.BuildStats`, set by `count` and shown by `changes`.
    """

    name: ClassVar[str]
    drops: ClassVar[str] = ""  # under which name the documents that it drops are counted, duplicates aside

    def wanted(self, recipe: Recipe) -> bool:
        """Whether a recipe asks for this stage."""
        return True

    @abstractmethod
    def run(self, run: Run) -> None:
        """Do every unit whose result is not there yet."""

    def count(self, workspace: Workspace, stats: BuildStats) -> None:
        """Add what this stage counted, beside what is in the counts of partitions and of the split stage."""
        return

    def changes(self, stats: BuildStats) -> Sequence[Change]:
        """Return what this stage did as rows of the report; `registry.changes` adds the documents that it drops."""
        return ()
