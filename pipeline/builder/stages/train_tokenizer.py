"""The stage that trains the tokenizer, where the recipe asks for a new one. Its folder holds the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...text.tokenizer.tokenizer import Tokenizer, train_tokenizer
from ..build_tokenizer import TRAINED
from ..counts.counts import PASSED
from ..counts.progress import Progress
from ..draws import draws, threshold
from ..partitions.partition import Partition, partitions
from ..recipe import Recipe
from ..work.atomic_directory import result_directory
from ..work.workspace import Workspace
from .stage import Run, Stage

TRAINING_CHARACTERS = 64 << 20  # of text that a tokenizer is trained on; more hardly changes its merges


class TrainTokenizerStage(Stage):
    """Trains a tokenizer on survivors; again in each round, if token quotas make the build read its input in rounds."""

    name = TRAINED

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.vocab_size is not None

    def run(self, run: Run) -> None:
        directory, size = run.workspace.folder(self.name), run.plan.recipe.vocab_size
        if directory.exists() or size is None:
            return
        trained = train_on_survivors(run.workspace, size, run.progress)
        if trained.vocab_size < size:
            run.progress.say(
                f"train tokenizer: {trained.vocab_size:,} ids, not {size:,}: the text has no more pairs of tokens that repeat"
            )
        with result_directory(directory) as path:
            trained.save(path)


def train_on_survivors(workspace: Workspace, vocab_size: int, progress: Progress) -> Tokenizer:
    """Train a tokenizer on survivors drawn by the hash of their content, so that neither order nor workers matter."""
    every, seed = partitions(workspace), workspace.plan.recipe.seed
    passed = (partition.counts.by("characters of filtered", 2) for partition in every)
    characters = sum(outcomes.get(PASSED, 0) for outcomes in passed)
    share = min(1.0, TRAINING_CHARACTERS / max(1, characters))
    progress.say(f"train tokenizer: {vocab_size:,} tokens, on {round(share * characters):,} characters")
    return train_tokenizer(_drawn(every, seed, share), vocab_size, show_progress=progress.on_terminal)


def _drawn(every: Sequence[Partition], seed: int, share: float) -> Iterator[str]:
    """Yield the texts of the survivors of which this share is drawn."""
    for partition in every:
        drawn = draws(partition.hashes, seed, "tokenizer") <= threshold(share)
        yield from partition.texts(np.flatnonzero(partition.survives & drawn).tolist())
