"""The tokenize stage: the survivors of a partition -> token ids.

tokenize/000034/tokens.bin      ids in the stored dtype, documents joined
tokenize/000034/lengths.npy     int64, tokens of each document, 0 of no survivor: shards are laid out by these exact counts
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from ..build_tokenizer import document_marks, load_build_tokenizer
from ..partitions.partition import TOKENIZE, Partition, partitions
from ..workspace.atomic_directory import result_directory
from .stage import Run, Stage

BATCH_CHARACTERS = 1 << 22  # texts encoded together


class TokenizeStage(Stage):
    """Encodes the survivors."""

    name = TOKENIZE

    def run(self, run: Run) -> None:
        todo = [partition for partition in partitions(run.workspace) if not partition.tokens_folder.exists()]
        prepare = functools.partial(load_build_tokenizer, run.workspace)
        sizes = {partition: partition.bytes for partition in todo}
        run.do(self.name, tokenize_partition, todo, prepare, sizes.__getitem__)


def tokenize_partition(partition: Partition) -> None:
    """Encode the survivors of one partition."""
    tokenizer = load_build_tokenizer(partition.workspace)
    marks = document_marks(tokenizer, partition.workspace.plan.recipe)
    lengths = [np.zeros(0, np.int64)]
    with result_directory(partition.tokens_folder) as directory:
        with open(directory / "tokens.bin", "wb") as file:
            for texts in surviving_texts(partition):
                for batch in _bounded(texts):
                    tokens, counts = tokenizer.encode_flat(batch, **marks)
                    tokens.tofile(file)
                    lengths.append(counts)
        survives = partition.survives
        every = np.zeros(len(survives), np.int64)
        every[survives] = np.concatenate(lengths)
        np.save(directory / "lengths.npy", every)


def surviving_texts(partition: Partition) -> Iterator[list[str]]:
    """Yield the texts of the survivors of a partition, a record batch at a time."""
    kept = partition.survives
    place = 0
    for batch in partition.batches("text"):
        texts = batch.column(0).to_pylist()
        yield [text for text, keep in zip(texts, kept[place : place + len(texts)].tolist(), strict=True) if keep]
        place += len(texts)


def _bounded(texts: list[str]) -> Iterator[list[str]]:
    """Cut a list of texts so that no piece holds much more than a few million characters."""
    piece: list[str] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
