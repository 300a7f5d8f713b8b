"""The tokenize unit: the documents of a filter unit that survived dedup -> token ids.

A unit's result is one directory: ``tokens.bin`` (ids in the stored dtype, documents joined) and ``lengths.npy`` (int64,
tokens of each surviving document). The exact counts are what shards are laid out by.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..text.tokens import Tokenizer, load_tokenizer, train_tokenizer
from .filtering import unit_path
from .plan import load_plan
from .work import result_directory

BATCH_CHARACTERS = 1 << 22  # texts encoded together
TRAINING_BYTES = 64 << 20  # of text that a tokenizer is trained on; more hardly changes its merges


def read_column(work: Path, number: int, *names: str) -> Iterator[Any]:
    """Yield the record batches of a filter unit's documents, with only the columns named."""
    import pyarrow as pa

    path = unit_path(work, number) / "documents.arrow"
    with pa.memory_map(str(path)) as source:
        schema = pa.ipc.open_file(source).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
        reader = pa.ipc.open_file(source, options=options)
        for batch in range(reader.num_record_batches):
            yield reader.get_batch(batch)


def survivors(work: Path, number: int) -> NDArray[np.bool_]:
    """Return which documents of a filter unit survived dedup."""
    return np.load(work / "dedup" / "kept.npy", mmap_mode="r")[unit_slice(work, number)]


def unit_slice(work: Path, number: int) -> slice:
    """Return where a filter unit's documents stand among those of all units."""
    starts = np.load(work / "dedup" / "starts.npy", mmap_mode="r")
    return slice(int(starts[number]), int(starts[number + 1]))


def surviving_texts(work: Path, number: int) -> Iterator[list[str]]:
    """Yield the texts of a unit that survived dedup, a record batch at a time."""
    kept = survivors(work, number)
    place = 0
    for batch in read_column(work, number, "text"):
        texts = batch.column(0).to_pylist()
        yield [text for text, keep in zip(texts, kept[place : place + len(texts)].tolist(), strict=True) if keep]
        place += len(texts)


def load_build_tokenizer(work: Path) -> Tokenizer:
    """Load the tokenizer of a build, once in each process."""
    spec = load_plan(work).recipe.tokenizer
    trained = work / "tokenizer" / "tokenizer.json"
    return _load(str(trained.parent), trained.stat().st_mtime_ns) if spec.startswith("train:") else _load(spec, 0)


@functools.lru_cache(maxsize=1)
def _load(spec: str, mtime_ns: int) -> Tokenizer:
    return load_tokenizer(spec)


def prepare_tokenizer(work: Path) -> None:
    load_build_tokenizer(work)


def train_on_survivors(work: Path, units: int, vocab_size: int, seed: int) -> Tokenizer:
    """Train a tokenizer on survivors chosen by the hash of their content, so that neither order nor workers matter."""
    hashes = np.load(work / "dedup" / "hashes.npy", mmap_mode="r")
    kept = np.load(work / "dedup" / "kept.npy", mmap_mode="r")
    sizes = sum((unit_path(work, unit) / "documents.arrow").stat().st_size for unit in range(units))
    share = min(1.0, TRAINING_BYTES / max(1, 3 * sizes))  # compressed text is about a third
    chosen = kept & (hashes[:, 8:12].copy().view("<u4")[:, 0] <= np.uint32(share * 0xFFFFFFFF))

    def texts() -> Iterator[str]:
        for unit in range(units):
            place = unit_slice(work, unit).start
            for batch in read_column(work, unit, "text"):
                column = batch.column(0)
                for row in np.flatnonzero(chosen[place : place + len(column)]).tolist():
                    yield column[row].as_py()
                place += len(column)

    return train_tokenizer(texts(), vocab_size)


def tokenize_unit(work: Path, number: int) -> int:
    """Encode the survivors of one filter unit into ``work/tokens/NUMBER``; return their tokens."""
    tokenizer, recipe = load_build_tokenizer(work), load_plan(work).recipe
    before = [tokenizer.bos_id] if recipe.bos == "always" else []
    after = [tokenizer.eos_id] if recipe.eos == "always" else []
    lengths: list[int] = []
    with result_directory(tokens_path(work, number)) as directory:
        with open(directory / "tokens.bin", "wb") as file:
            for texts in surviving_texts(work, number):
                for part in _bounded(texts):
                    for ids in tokenizer.encode_batch(part):
                        document = np.concatenate([before, ids, after]).astype(tokenizer.dtype)
                        lengths.append(len(document))
                        document.tofile(file)
        np.save(directory / "lengths.npy", np.asarray(lengths, dtype=np.int64))
    return sum(lengths)


def tokens_path(work: Path, number: int) -> Path:
    return work / "tokens" / f"{number:06d}"


def _bounded(texts: list[str]) -> Iterator[list[str]]:
    """Cut a list of texts so that no part holds much more than a few million characters."""
    part: list[str] = []
    size = 0
    for text in texts:
        part.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield part
            part, size = [], 0
    if part:
        yield part
