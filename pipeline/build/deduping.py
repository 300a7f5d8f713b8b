"""The dedup stage: hashes and signatures of all parts, joined -> which documents stay.

Its result is one directory of arrays with an entry for each document that passed the filters, in input order:

    kind.npy            uint8: 0 stays, 1 exact, 2 near duplicate
    keeper.npy          int64: the document that stands for it; below 0, counted from the end of the earlier builds'
    cluster_size.npy    int32: documents in its cluster
    hashes.npy          uint8 [n, 16]: the hash of its text
    starts.npy          int64 [parts + 1]: where each part's documents begin
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from .dedup import EXACT, NEAR, find_duplicates
from .earlier import copy_rows, earlier_folders
from .exactly import ExactSimilarity
from .parts import all_parts, column_numbers, part_path, read_json
from .recipe import Recipe
from .work import result_directory


def dedup(work: Path, recipe: Recipe) -> None:
    """Find duplicates over the whole input and leave the result in ``work/dedup``; the first in input order stays."""
    parts = range(len(all_parts(work)))
    kept = [read_json(part_path(work, part) / "counts.json")["kept"] for part in parts]
    starts = np.cumsum([0, *kept], dtype=np.int64)
    n = int(starts[-1])
    before, hashes = _joined(work, recipe, "hashes", 16, np.uint8)
    kind, keeper, size = np.zeros(n, np.uint8), np.arange(n), np.ones(n, np.int32)
    if recipe.dedup and n:
        _, signatures = _joined(work, recipe, "signatures", recipe.permutations, np.uint32)
        found = find_duplicates(
            hashes,
            signatures,
            bands=recipe.bands,
            rows=recipe.rows,
            threshold=recipe.threshold,
            before=before,
            keep=recipe.keep,
            lengths=_lengths(work, before) if recipe.keep == "longest" else None,
            confirm=ExactSimilarity(work, starts, before, recipe.ngram, recipe.threshold)
            if recipe.verify == "exact"
            else None,
        )
        kind, keeper, size = found.kind[before:], found.keeper[before:] - before, found.cluster_size[before:]
    with result_directory(work / "dedup") as directory:
        arrays: list[tuple[str, NDArray[Any]]] = [
            ("kind", kind),
            ("keeper", keeper),
            ("cluster_size", size),
            ("starts", starts),
        ]
        for name, array in arrays:
            np.save(directory / f"{name}.npy", array)
        np.save(directory / "hashes.npy", hashes[before:])
        sizes, times = np.unique(size[kind == 0], return_counts=True)
        counts = {
            "duplicates": {"exact": int((kind == EXACT).sum()), "near": int((kind == NEAR).sum())},
            "cluster_sizes": dict(zip(map(str, sizes.tolist()), times.tolist(), strict=True)),
        }
        write_json(directory / "counts.json", {"before": before, **counts})


def _joined(work: Path, recipe: Recipe, name: str, width: int, dtype: Any) -> tuple[int, NDArray[Any]]:
    """Join the files of earlier builds and of all parts into one, mapped so that it needs no memory of its own."""
    path = work / f"{name}.bin"
    with open(path, "wb") as out:
        before = copy_rows([folder / f"{name}.npy" for folder in earlier_folders(recipe)], out)
        for part in range(len(all_parts(work))):
            with open(part_path(work, part) / f"{name}.bin", "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
    if path.stat().st_size == 0:
        return 0, np.zeros((0, width), dtype)
    return before, np.memmap(path, dtype=dtype, mode="r").reshape(-1, width)


def _lengths(work: Path, before: int) -> NDArray[np.int64]:
    """Return the characters of every document, for the policy that keeps the longest."""
    parts = range(len(all_parts(work)))
    lengths = [column_numbers(work, part, "characters", np.int64) for part in parts]
    return np.concatenate([np.zeros(before, np.int64), *lengths])
