"""The leaks stage: counts what of the validation documents is in training documents. It changes no document.

leaks/val.npz       of validation documents: the hashes of their texts and of their runs of 13 words, words and places of runs
leaks/000034.npy    int64: which runs of these occur in the training documents of partition 34; less than 0: a text that does

Runs are compared by the 64-bit hashes of `word_runs`. If validation has more than `MOST_TOKENS`, some of its documents are drawn
by their contents, and the counts are theirs. The tokens of all training documents are searched for 10 tokens in a row that
validation has, since finding words would take four times as long. Words are compared in the documents with such tokens.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ...draws import drawn
from ...shards.shard_plan import TRAIN, VAL
from ..counts.build_stats import BuildStats
from ..counts.sums import Counts
from ..dedup.decontaminate import NGRAM
from ..dedup.word_runs import Words, covered_words, find_words
from ..partitions.partition import Partition, partitions
from ..recipe import Recipe
from ..work.workspace import Workspace
from .section import Section
from .split import load_split, split_sizes
from .stage import Run, Stage, Step, once
from .tokenize import token_lengths, tokens_folder

MOST_TOKENS = 1 << 20  # of validation documents that are compared; their runs take 24 MB
MOSTLY = 0.8  # of the words of a document
_BATCH = 256  # texts whose words are found at once
# Of training, runs of 10 tokens are looked up at each third token. A copy of 13 words has at least 12 equal tokens, and so one of
# these runs: only its first word may have other tokens than in validation.
_TOKENS, _STRIDE = 10, 3
_PREFILTER_BITS = 5  # beyond the bits that number the runs: one in 32 runs of training passes by chance


class LeaksStage(Stage):
    """Compares validation documents with training documents."""

    name = "leaks"

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.val_fraction > 0

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        yield once(_val_path(run.workspace), hash_validation, run.workspace)
        yield Step(
            units=partitions(run.workspace),
            function=find_in_training,
            makes=_found_path,
            prepare=functools.partial(load_validation, run.workspace),
            size=lambda partition: partition.bytes,
        )

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        """Return ``leaks``, which compares ``documents`` of validation, ``of`` all, with training.

        It counts those that are ``equal`` to a training document, others of which training has 80% of the words or more
        (``mostly``), all ``words``, and ``shared_words``: those in runs of 13 words that training has.
        """
        validation, every = load_validation(workspace), partitions(workspace)
        found = np.unique(np.concatenate([np.zeros(0, np.int64), *(np.load(_found_path(each)) for each in every)]))
        is_equal = np.zeros(len(validation.texts), bool)
        is_equal[-1 - found[found < 0]] = True
        is_found = np.zeros(len(validation.runs), bool)
        is_found[found[found >= 0]] = True
        places = validation.places[is_found[validation.entries]]
        covered = covered_words(places, NGRAM, int(validation.words.sum()))
        owners = np.repeat(np.arange(len(validation.words)), validation.words)
        shared = np.bincount(owners[covered], minlength=len(validation.words))
        is_mostly = ~is_equal & (shared > 0) & (shared >= MOSTLY * validation.words)
        leaks = {
            "documents": len(is_equal),
            "of": int(split_sizes(workspace)[:, VAL].sum()),
            "equal": int(is_equal.sum()),
            "mostly": int(is_mostly.sum()),
            "words": int(validation.words.sum()),
            "shared_words": int(shared.sum()),
        }
        return {"leaks": leaks if len(is_equal) else {}}

    def section(self, counts: Mapping[str, Any]) -> Section:
        said = [leaks_text(counts["leaks"])] if counts.get("leaks") else []
        return Section(lines=said, about_splits=said)


def leaks_text(leaks: Mapping[str, int]) -> str:
    """Return how much of validation is in training.

    >>> print(leaks_text({"documents": 100, "of": 900, "equal": 0, "mostly": 2, "words": 5000, "shared_words": 175}))
    3.5% of the words of val are in runs of 13 words that train has; 100 of its 900 documents were compared: 0 equal one of train, 2 have 80% of their words or more there
    """  # noqa: E501
    drawn = f"{leaks['documents']:,} of its {leaks['of']:,} documents were compared"
    return (
        f"{leaks['shared_words'] / max(1, leaks['words']):.1%} of the words of val are in runs of 13 words that train has; "
        f"{drawn}: {leaks['equal']:,} equal one of train, {leaks['mostly']:,} have 80% of their words or more there"
    )


class Validation(NamedTuple):
    """Validation documents: the first 64 bits of the hash of each text, and its number of words.

    ``tokens`` are the different hashes of their runs of tokens, ascending.
    ``runs`` are the different hashes of their runs of words, ascending. For each run in turn, ``entries`` is the
    index in ``runs``, and ``places`` its first word, counted over all texts.
    """

    texts: NDArray[np.uint64]
    tokens: NDArray[np.uint64]
    words: NDArray[np.int64]
    runs: NDArray[np.uint64]
    entries: NDArray[np.int64]
    places: NDArray[np.int64]


def hash_validation(workspace: Workspace) -> None:
    """Write the hashes of validation documents, which are drawn if they have many tokens."""
    every = partitions(workspace)
    tokens = [int(token_lengths(each)[load_split(each) == VAL].sum()) for each in every]
    share, seed = MOST_TOKENS / max(1, sum(tokens)), workspace.plan.recipe.seed
    texts, token_runs, hashes = ([np.zeros(0, np.uint64)] for _ in range(3))
    lengths = [np.zeros(0, np.int64)]
    for partition in every:
        chosen = (load_split(partition) == VAL) & drawn(partition.hashes, seed, LeaksStage.name, share)
        if not chosen.any():
            continue
        texts.append(_text_hashes(partition)[chosen])
        token_runs.append(np.unique(_token_runs(partition, chosen)[0]))
        for words in _words(partition, chosen):
            hashes.append(_runs(words.hashes, words.stops, NGRAM))
            lengths.append(np.diff(words.stops, prepend=0))
    joined, words_of = np.concatenate(hashes), np.concatenate(lengths)
    ends = np.repeat(np.cumsum(words_of), words_of)
    places = np.flatnonzero(np.arange(len(joined)) + NGRAM <= ends)
    runs, entries = np.unique(joined[places], return_inverse=True)
    found_tokens = np.unique(np.concatenate(token_runs))
    found_tokens = found_tokens[found_tokens > 0]
    with atomic_file(_val_path(workspace)) as file:
        np.savez(file, **Validation(np.concatenate(texts), found_tokens, words_of, runs, entries, places)._asdict())


def find_in_training(partition: Partition) -> None:
    """Write which runs and texts of validation documents are in the training documents of a partition."""
    validation = load_validation(partition.workspace)
    chosen = load_split(partition) == TRAIN
    found = [-1 - np.flatnonzero(np.isin(validation.texts, _text_hashes(partition)[chosen]))]
    runs, stops = _token_runs(partition, chosen)
    places = _STRIDE * _known(runs[::_STRIDE], validation.tokens)[0]
    numbers = np.unique(np.searchsorted(stops, places, side="right"))
    chosen[np.delete(np.flatnonzero(chosen), numbers)] = False
    every = (_runs(words.hashes, words.stops, NGRAM) for words in _words(partition, chosen))
    found += [np.unique(_known(each, validation.runs)[1]) for each in every]
    with atomic_file(_found_path(partition)) as file:
        np.save(file, np.unique(np.concatenate(found)))


def _known(runs: NDArray[np.uint64], known: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where ``runs`` has one of the ``known`` hashes, which ascend, and their indices there."""
    bits = len(known).bit_length() + _PREFILTER_BITS
    prefixes, shift = np.zeros(1 << bits, bool), np.uint64(64 - bits)
    prefixes[known >> shift] = True
    places = np.flatnonzero(prefixes[runs >> shift])
    entries = np.searchsorted(known, runs[places])
    is_known = np.append(known, np.uint64(0))[entries] == runs[places]
    is_known &= entries < len(known)
    return places[is_known], entries[is_known]


def _runs(items: NDArray[np.uint64], stops: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    """Return the hash of the run of ``length`` items that begins at each item; 0 if its document ends before."""
    from ..dedup.kernels import hash_runs

    hashes = np.zeros(len(items), np.uint64)
    hash_runs(items, stops, length, hashes)
    return hashes


def _token_runs(partition: Partition, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash of the run of tokens that begins at each token of the chosen documents, and the end of each document."""
    lengths, ids = token_lengths(partition), np.fromfile(tokens_folder(partition) / "tokens.bin", np.uint8)
    size = len(ids) // max(1, int(lengths.sum()))  # bytes of an id: to load the tokenizer would take longer
    own, stops = ids.view(f"<u{size or 1}")[np.repeat(chosen, lengths)], np.cumsum(lengths[chosen])
    return _runs(own.astype(np.uint64), stops, _TOKENS), stops


def _words(partition: Partition, chosen: NDArray[np.bool_]) -> Iterator[Words]:
    """Yield the words of the chosen documents, those of some at a time."""
    texts = partition.texts(np.flatnonzero(chosen).tolist())
    while batch := list(itertools.islice(texts, _BATCH)):
        yield find_words(batch)


def _text_hashes(partition: Partition) -> NDArray[np.uint64]:
    hashes: NDArray[np.uint64] = np.fromfile(partition.held_path, np.uint64).reshape(-1, 2)[:, 0]
    return hashes


def _val_path(workspace: Workspace) -> Path:
    return workspace.folder(LeaksStage.name) / "val.npz"


def _found_path(partition: Partition) -> Path:
    return partition.workspace.folder(LeaksStage.name) / f"{partition.number:06d}.npy"


def load_validation(workspace: Workspace) -> Validation:
    """Return what `hash_validation` wrote. Each process reads it once."""
    path = _val_path(workspace)
    return _load(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _load(path: Path, mtime_ns: int) -> Validation:
    with np.load(path) as arrays:
        return Validation(**arrays)
