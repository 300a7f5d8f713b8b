"""The tokenize stage: the survivors of a partition -> token ids.

tokenize/000034/tokens.bin      ids in the stored dtype, documents joined
tokenize/000034/lengths.npy     int64, tokens of each document, 0 of no survivor: shards are laid out by these exact counts
"""

from __future__ import annotations

import functools

import numpy as np

from ..build_tokenizer import document_marks, load_build_tokenizer
from ..partitions.partition import TOKENIZE, Partition, partitions
from ..work.atomic_directory import result_directory
from .stage import Run, Stage


class TokenizeStage(Stage):
    """Encodes the survivors."""

    name = TOKENIZE

    def run(self, run: Run) -> None:
        todo = [partition for partition in partitions(run.workspace) if not partition.tokens_folder.exists()]
        prepare = functools.partial(load_build_tokenizer, run.workspace)
        sizes = {partition: partition.bytes for partition in todo}
        run.do(self.name, tokenize_partition, todo, prepare, sizes.__getitem__)


def tokenize_partition(partition: Partition) -> None:
    """Encode the survivors of one partition, a record batch at a time."""
    tokenizer = load_build_tokenizer(partition.workspace)
    marks = document_marks(tokenizer, partition.workspace.plan.recipe)
    survives, first = partition.survives, 0
    lengths = np.zeros(len(survives), np.int64)
    with result_directory(partition.tokens_folder) as directory:
        with open(directory / "tokens.bin", "wb") as file:
            for batch in partition.batches("text"):
                texts, rows = batch.column(0).to_pylist(), np.flatnonzero(survives[first : first + len(batch)])
                if len(rows):
                    tokens, counts = tokenizer.encode_flat([texts[row] for row in rows.tolist()], **marks)
                    tokens.tofile(file)
                    lengths[first + rows] = counts
                first += len(batch)
        np.save(directory / "lengths.npy", lengths)
