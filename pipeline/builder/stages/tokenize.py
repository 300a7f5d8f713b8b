"""The stages that make tokens: one trains the tokenizer if the recipe asks for a new one, the other encodes the survivors.

train_tokenizer/                the tokenizer that was trained
tokenize/000034/tokens.bin      ids in the stored dtype, documents joined
tokenize/000034/lost.json       if the vocabulary lacks characters: how much text has no ids, and how much text there is
tokenize/000034/lengths.npy     int64, tokens of each document, 0 if it does not survive: shards are laid out by these counts
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...atomic import read_json, write_json
from ...atomic_directory import result_directory
from ...draws import drawn
from ...progress import Progress
from ...text.tokens.tokenizer import train_tokenizer
from ..build_tokenizer import TRAINED, bos_and_eos, load_build_tokenizer
from ..counts.build_stats import BuildStats
from ..counts.sums import PASSED, Counts
from ..partitions.partition import Partition, partitions
from ..recipe import Recipe
from ..work.workspace import Workspace
from .stage import Run, Stage, Step, once
from .survivors import survives, surviving_texts

_LOST = "lost.json"
TRAINING_CHARACTERS = 64 << 20  # of text that a tokenizer is trained on; more hardly changes its merges


class TrainTokenizerStage(Stage):
    """Trains a tokenizer on survivors, and again in each round of a build with token quotas.

    It is one unit: after a kill, training begins again, on at most `TRAINING_CHARACTERS`.
    """

    name = TRAINED

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.vocab_size is not None

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        directory = run.workspace.folder(self.name)
        yield once(directory, train_on_survivors, directory, run.workspace, run.progress)


def train_on_survivors(directory: Path, workspace: Workspace, progress: Progress) -> None:
    """Train a tokenizer on survivors drawn by the hash of their content, so that neither order nor workers matter."""
    recipe, every = workspace.plan.recipe, partitions(workspace)
    vocab_size, seed = recipe.vocab_size or 0, recipe.seed
    passed = (partition.counts.by("characters of filtered", 2) for partition in every)
    characters = sum(outcomes.get(PASSED, 0) for outcomes in passed)
    share = min(1.0, TRAINING_CHARACTERS / max(1, characters))
    progress.say(f"train tokenizer: {vocab_size:,} tokens, on {round(share * characters):,} characters")
    trained = train_tokenizer(
        _drawn_texts(every, seed, share),
        vocab_size,
        special_tokens=recipe.special_tokens,
        reserved=recipe.reserve,
        show_progress=progress.on_terminal,
    )
    if trained.vocab_size < vocab_size:
        progress.say(
            f"train tokenizer: {trained.vocab_size:,} ids, not {vocab_size:,}: the text has no more pairs of tokens that "
            "repeat"
        )
    with result_directory(directory) as path:
        trained.save(path)


def _drawn_texts(every: Sequence[Partition], seed: int, share: float) -> Iterator[str]:
    """Draw this share of the survivors, and yield their texts."""
    for partition in every:
        chosen = survives(partition) & drawn(partition.hashes, seed, "tokenizer", share)
        yield from partition.texts(np.flatnonzero(chosen).tolist())


class TokenizeStage(Stage):
    """Encodes the survivors."""

    name = "tokenize"

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        yield Step(
            units=partitions(run.workspace),
            function=tokenize_partition,
            makes=tokens_folder,
            prepare=functools.partial(load_build_tokenizer, run.workspace),
            size=lambda partition: partition.bytes,
        )

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        tokenizer = load_build_tokenizer(workspace)
        if tokenizer.can_lose:
            losses = [read_json(tokens_folder(partition) / _LOST) for partition in partitions(workspace)]
            lost, whole = np.sum([(0, 0), *losses], axis=0).tolist()
            if lost:
                name = workspace.plan.settings["tokenizer"]
                stats.notes.append(f"tokenizer {name}: {tokenizer.loss_text(lost, whole)}")
        return {}


def tokens_folder(partition: Partition) -> Path:
    return partition.workspace.folder(TokenizeStage.name) / f"{partition.number:06d}"


def token_lengths(partition: Partition) -> NDArray[np.int64]:
    """Return how many tokens each document of a partition has; 0 if it does not survive."""
    lengths: NDArray[np.int64] = np.load(tokens_folder(partition) / "lengths.npy")
    return lengths


def tokenize_partition(partition: Partition) -> None:
    """Encode the survivors of one partition, a record batch at a time."""
    tokenizer = load_build_tokenizer(partition.workspace)
    boundaries = bos_and_eos(tokenizer, partition.workspace.plan.recipe)
    losses = [(0, 0)]
    lengths = np.zeros(len(partition.hashes), np.int64)
    with result_directory(tokens_folder(partition)) as directory:
        with open(directory / "tokens.bin", "wb") as file:
            for rows, texts in surviving_texts(partition):
                tokens, lengths[rows] = tokenizer.encode_flat(texts, **boundaries)
                tokens.tofile(file)
                losses += [tokenizer.count_lost(texts, tokens)] if tokenizer.can_lose else []
        np.save(directory / "lengths.npy", lengths)
        if tokenizer.can_lose:
            write_json(directory / _LOST, np.sum(losses, axis=0).tolist())
