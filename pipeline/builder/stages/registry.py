"""The stages of a build, in order: where a new one stands decides what it can do (`Stage`).

`build` runs those before the split stage again where token quotas ask for more of the input.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..counts.build_stats import BuildStats, Change
from ..counts.counts import descending
from ..recipe import Recipe
from .dedup import DedupStage
from .drop_ids import DropIdsStage
from .ingest import IngestStage
from .line_dedup import LineDedupStage
from .split import SplitStage
from .stage import Stage
from .tokenize import TokenizeStage, TrainTokenizerStage
from .write import WriteStage

STAGES: tuple[Stage, ...] = (
    IngestStage(),
    LineDedupStage(),
    DedupStage(),
    DropIdsStage(),
    TrainTokenizerStage(),
    TokenizeStage(),
    SplitStage(),
    WriteStage(),
)


def wanted_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that a recipe asks for, in order."""
    return [stage for stage in STAGES if stage.wanted(recipe)]


def changes(stats: BuildStats) -> Iterator[Change]:
    """Yield what each stage removed or added, in the order of the stages.

    Documents that were dropped under a name that no stage declares were dropped by a rule or transform of the filters.
    """
    declared = {stage.drops for stage in STAGES}
    by_filters = [name for name, _ in descending(stats.dropped) if name not in declared]
    for stage in STAGES:
        yield from stage.changes(stats)
        for name in by_filters if isinstance(stage, IngestStage) else [stage.drops]:
            if name in stats.dropped:
                yield Change(f"dropped by {name}", stats.dropped[name], stats.dropped_characters.get(name, 0))
