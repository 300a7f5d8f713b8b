"""The tokenize unit: the documents of a part that survived dedup -> token ids.

A part's result is one directory: ``tokens.bin`` (ids in the stored dtype, documents joined), ``lengths.npy`` (int64,
tokens of each survivor). The exact counts are what shards are laid out by.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...text.tokenizer.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from ..draws import draws
from ..plan import load_plan
from ..recipe import Recipe
from ..report.stats import PASSED, Flow
from ..workspace import result_directory
from .partition import all_parts, part_path, part_slice, read_columns, read_json

REFERENCES_NAME = "references"  # below the work directory: what the recipe names, by content
TOKENIZER = "tokenizer"  # its folder: below the work directory where it is trained, else among the references
BATCH_CHARACTERS = 1 << 22  # texts encoded together
TRAINING_CHARACTERS = 64 << 20  # of text that a tokenizer is trained on; more hardly changes its merges


def survivors(work: Path, part: int) -> NDArray[np.bool_]:
    """Return which documents of a part survived dedup."""
    return np.load(work / "dedup" / "kind.npy", mmap_mode="r")[part_slice(work, part)] == 0


def surviving_texts(work: Path, part: int) -> Iterator[list[str]]:
    """Yield the texts of a part that survived dedup, a record batch at a time."""
    kept = survivors(work, part)
    place = 0
    for batch in read_columns(work, part, "text"):
        texts = batch.column(0).to_pylist()
        yield [text for text, keep in zip(texts, kept[place : place + len(texts)].tolist(), strict=True) if keep]
        place += len(texts)


def load_build_tokenizer(work: Path) -> Tokenizer:
    """Load the tokenizer of a build, once in each process."""
    recipe = load_plan(work).recipe
    folder = work if recipe.tokenizer.startswith("train:") else work / REFERENCES_NAME
    return load_spec(str(folder / TOKENIZER), recipe.end_token)


def load_spec(spec: str, eos: str | None = None) -> Tokenizer:
    """Load a tokenizer, or return the one loaded last, if it is the same and its files have not changed."""
    path = Path(spec)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return _load_spec(spec, eos, tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@functools.lru_cache(maxsize=1)
def _load_spec(spec: str, eos: str | None, files: tuple[tuple[int, int], ...]) -> Tokenizer:
    return load_tokenizer(spec, eos=eos)


def prepare_tokenizer(work: Path) -> None:
    load_build_tokenizer(work)


def train_on_survivors(work: Path, vocab_size: int) -> Tokenizer:
    """Train a tokenizer on survivors drawn by the hash of their content, so that neither order nor workers matter."""
    parts, seed = range(len(all_parts(work))), load_plan(work).recipe.seed
    passed = (Flow(read_json(part_path(work, part) / "counts.json")["flow"]).by("outcome") for part in parts)
    share = min(1.0, TRAINING_CHARACTERS / max(1, sum(outcomes.get(PASSED, [0, 0])[1] for outcomes in passed)))

    def texts() -> Iterator[str]:
        for part in parts:
            hashes = np.load(work / "dedup" / "hashes.npy", mmap_mode="r")[part_slice(work, part)]
            drawn = draws(hashes, seed, "tokenizer") <= np.uint64(min(share * 2.0**64, 2.0**64 - 2048))
            rows = np.flatnonzero(survivors(work, part) & drawn)
            place = 0
            for batch in read_columns(work, part, "text"):
                column = batch.column(0)
                for row in rows[(rows >= place) & (rows < place + len(column))].tolist():
                    yield column[row - place].as_py()
                place += len(column)

    return train_tokenizer(texts(), vocab_size)


def tokenize_unit(work: Path, part: int) -> int:
    """Encode the survivors of one part into ``work/tokens/PART``; return their tokens."""
    tokenizer = load_build_tokenizer(work)
    marks = document_marks(tokenizer, load_plan(work).recipe)
    lengths = [np.zeros(0, np.int64)]
    with result_directory(tokens_path(work, part)) as directory:
        with open(directory / "tokens.bin", "wb") as file:
            for texts in surviving_texts(work, part):
                for batch in _bounded(texts):
                    tokens, counts = tokenizer.encode_flat(batch, **marks)
                    tokens.tofile(file)
                    lengths.append(counts)
        np.save(directory / "lengths.npy", np.concatenate(lengths))
    return sum(int(counts.sum()) for counts in lengths)


def document_marks(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, bool]:
    """Return which ids stand before and after every document; ``ConfigError`` for one that the tokenizer lacks."""
    found = {}
    for flag, policy, number in (("bos", recipe.bos, tokenizer.bos_id), ("eos", recipe.eos, tokenizer.eos_id)):
        found[flag] = policy != "never"
        if found[flag] and number is None:
            raise ConfigError(
                f"tokenizer {recipe.tokenizer} has no {flag} id; use --{flag} never, or another tokenizer"
            )
    return found


def tokens_path(work: Path, part: int) -> Path:
    return work / "tokens" / f"{part:06d}"


def token_lengths(work: Path, part: int) -> NDArray[np.int64]:
    """Return the tokens of each survivor of a part."""
    return np.load(tokens_path(work, part) / "lengths.npy")


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
