"""Signatures that a build keeps, so that later builds dedup against it without reading its text again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from ..errors import ConfigError
from .parts import read_json
from .recipe import Recipe
from .work import result_directory

FOLDER = "signatures"
_CHUNK = 1 << 16  # documents copied at a time


def scheme_of(recipe: Recipe) -> dict[str, Any]:
    """Return what makes signatures comparable."""
    fields = {name: getattr(recipe, name) for name in ("ngram", "bands", "rows", "seed")}
    return fields | {"num_perm": recipe.permutations, "version": 1}


def save_signatures(work: Path, output: Path, recipe: Recipe, before: int, stays: NDArray[np.bool_]) -> None:
    """Keep hash and signature of every document that stays, about 460 bytes each, in ``OUTPUT/signatures``.

    ``before``: documents of earlier builds, which come first in the work directory's arrays; ``stays``: bool, of ours.
    Document k of these files has the key k in the shards.
    """
    if (output / FOLDER).exists():
        return
    width = recipe.permutations
    rows = np.flatnonzero(stays)
    with result_directory(output / FOLDER) as directory:
        np.save(directory / "hashes.npy", np.load(work / "dedup" / "hashes.npy", mmap_mode="r")[rows])
        shape = (len(rows), width)
        kept = np.lib.format.open_memmap(directory / "signatures.npy", mode="w+", dtype=np.uint32, shape=shape)
        if len(rows):
            every = np.memmap(work / "signatures.bin", np.uint32, "r").reshape(-1, width)
            for begin in range(0, len(rows), _CHUNK):
                kept[begin : begin + _CHUNK] = every[before + rows[begin : begin + _CHUNK]]
        kept.flush()
        write_json(directory / "scheme.json", scheme_of(recipe))


def earlier_folders(recipe: Recipe) -> list[Path]:
    """Return the folders of signatures of ``--against``.

    Raises ``ConfigError`` for a build without signatures, or with signatures of another scheme, naming both values.
    """
    folders = []
    for path in recipe.against:
        folder = Path(path) / FOLDER
        if not (folder / "scheme.json").exists():
            raise ConfigError(
                f"{path}: keeps no signatures to dedup against; build it with dedup and without discarding them"
            )
        scheme, ours = read_json(folder / "scheme.json"), scheme_of(recipe)
        for field, value in ours.items():
            if scheme.get(field) != value:
                raise ConfigError(
                    f"{path}: its signatures have {field} {scheme.get(field)}, this build has {value}; give this build "
                    f"the same {field}, or build that one again"
                )
        folders.append(folder)
    return folders


def copy_rows(sources: Sequence[Path], target: Any) -> int:
    """Append the rows of npy files to an open binary file, some at a time; return how many there were."""
    rows = 0
    for source in sources:
        array = np.load(source, mmap_mode="r")
        for begin in range(0, len(array), _CHUNK):
            np.ascontiguousarray(array[begin : begin + _CHUNK]).tofile(target)
        rows += len(array)
    return rows
