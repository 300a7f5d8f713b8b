"""Signatures that a build keeps, so that later builds dedup against it without reading its text again."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..atomic import write_json
from ..errors import ConfigError
from .parts import part_rows, read_json
from .recipe import Recipe
from .rows import write_npy
from .work import result_directory

FOLDER = "signatures"


def scheme_of(recipe: Recipe) -> dict[str, Any]:
    """Return what makes signatures comparable."""
    fields = {name: getattr(recipe, name) for name in ("ngram", "bands", "rows")}
    return fields | {"num_perm": recipe.permutations, "version": 2}


def save_signatures(work: Path, output: Path, recipe: Recipe, stays: NDArray[np.bool_]) -> None:
    """Keep hash and signature of every document that stays, about 460 bytes each, in ``OUTPUT/signatures``.

    ``stays``: bool, of the documents that passed the filters. Document k of these files has the key k in the shards.
    """
    if (output / FOLDER).exists():
        return
    count = int(np.count_nonzero(stays))
    kinds: list[tuple[str, int, DTypeLike]] = [("hashes", 16, np.uint8), ("signatures", recipe.permutations, np.uint32)]
    with result_directory(output / FOLDER) as directory:
        for name, width, dtype in kinds:
            rows = part_rows(work, name, width, dtype)
            bounds = itertools.pairwise(rows.starts.tolist())
            chosen = (rows.read(part)[stays[first:last]] for part, (first, last) in enumerate(bounds))
            with open(directory / f"{name}.npy", "wb") as file:
                write_npy(file, (count, width), dtype, chosen)
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
