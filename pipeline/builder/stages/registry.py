"""The stages of a build, in order."""

from __future__ import annotations

from collections.abc import Iterator

from ..report.stats import BuildStats, Change
from .dedup import DedupStage
from .filter import FilterStage
from .line_dedup import LineDedupStage
from .split import SplitStage
from .stage import Stage
from .tokenize import TokenizeStage
from .train_tokenizer import TrainTokenizerStage
from .write import WriteStage

STAGES: tuple[Stage, ...] = (
    FilterStage(),
    LineDedupStage(),
    DedupStage(),
    TrainTokenizerStage(),
    TokenizeStage(),
    SplitStage(),
    WriteStage(),
)


def changes(stats: BuildStats) -> Iterator[Change]:
    """Yield what each stage removed or added, in the order of the stages."""
    for stage in STAGES:
        yield from stage.changes(stats)
