"""The stage that trains the tokenizer, where the recipe asks for a new one. Its folder holds the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...text.tokenizer.tokenizer import Tokenizer, train_tokenizer
from ..build_tokenizer import TRAINED
from ..draws import draws, threshold
from ..partitions.partition import partitions
from ..recipe import Recipe
from ..report.console import Progress
from ..report.stats import PASSED, OutcomeCounts
from ..workspace.atomic_directory import result_directory
from ..workspace.workspace import Workspace
from .stage import Run, Stage

TRAINING_CHARACTERS = 64 << 20  # of text that a tokenizer is trained on; more hardly changes its merges


class TrainTokenizerStage(Stage):
    """Trains a tokenizer on documents that survived dedup."""

    name = TRAINED

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.tokenizer.startswith("train:")

    def run(self, run: Run) -> None:
        directory = run.workspace.folder(self.name)
        if directory.exists():
            return
        trained = train_on_survivors(run.workspace, int(run.plan.recipe.tokenizer[6:]), run.progress)
        with result_directory(directory) as path:
            trained.save(path)


def train_on_survivors(workspace: Workspace, vocab_size: int, progress: Progress) -> Tokenizer:
    """Train a tokenizer on survivors drawn by the hash of their content, so that neither order nor workers matter."""
    every, seed = partitions(workspace), workspace.plan.recipe.seed
    passed = (OutcomeCounts(partition.counts["outcomes"]).by("outcome") for partition in every)
    characters = sum(outcomes.get(PASSED, [0, 0])[1] for outcomes in passed)
    share = min(1.0, TRAINING_CHARACTERS / max(1, characters))

    def texts(advance: Callable[[int], None]) -> Iterator[str]:
        for partition in every:
            drawn = draws(partition.hashes, seed, "tokenizer") <= threshold(share)
            rows = np.flatnonzero(partition.survives & drawn)
            place = 0
            for batch in partition.batches("text"):
                column = batch.column(0)
                for row in rows[(rows >= place) & (rows < place + len(column))].tolist():
                    text = column[row - place].as_py()
                    advance(len(text))
                    yield text
                place += len(column)
        progress.say(f"train tokenizer: all text is read; computing {vocab_size:,} tokens")

    with progress.bar("train tokenizer", round(share * characters), bytes=True) as advance:
        return train_tokenizer(texts(advance), vocab_size)
