"""Signatures that a build keeps, so that later builds dedup against it without reading its text again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from ..errors import ConfigError
from .recipe import Recipe
from .work import result_directory

FOLDER = "signatures"


def scheme_of(recipe: Recipe) -> dict[str, Any]:
    """Return what makes signatures comparable."""
    return {"ngram": recipe.ngram, "bands": recipe.bands, "rows": recipe.rows, "seed": recipe.seed, "version": 1}


def save_signatures(work: Path, output: Path, recipe: Recipe) -> None:
    """Keep hash and signature of every document that stayed, about 460 bytes each, in ``OUTPUT/signatures``."""
    if (output / FOLDER).exists():
        return
    kept = np.load(work / "dedup" / "kept.npy")
    width = recipe.bands * recipe.rows
    with result_directory(output / FOLDER) as directory:
        np.save(directory / "hashes.npy", np.load(work / "dedup" / "hashes.npy")[kept])
        signatures = np.zeros((0, width), np.uint32)
        if len(kept):
            signatures = np.memmap(work / "signatures.bin", np.uint32, "r", shape=(len(kept), width))[kept]
        np.save(directory / "signatures.npy", signatures)
        write_json(directory / "scheme.json", scheme_of(recipe))


def load_earlier(recipe: Recipe) -> tuple[int, NDArray[np.uint8], NDArray[np.uint32]]:
    """Return how many documents the builds of ``--against`` hold, their hashes and their signatures.

    Raises ``ConfigError`` for a build without signatures, or with signatures of another scheme, naming both values.
    """
    hashes, signatures = [np.zeros((0, 16), np.uint8)], [np.zeros((0, recipe.bands * recipe.rows), np.uint32)]
    for path in recipe.against:
        folder = Path(path) / FOLDER
        if not (folder / "scheme.json").exists():
            raise ConfigError(
                f"{path}: keeps no signatures to dedup against; build it with dedup and without discarding them"
            )
        scheme, ours = json.loads((folder / "scheme.json").read_text(encoding="utf-8")), scheme_of(recipe)
        for field, value in ours.items():
            if scheme.get(field) != value:
                raise ConfigError(f"{path}: its signatures have {field} {scheme.get(field)}, this build has {value}")
        hashes.append(np.load(folder / "hashes.npy"))
        signatures.append(np.load(folder / "signatures.npy", mmap_mode="r"))
    return sum(map(len, hashes)), np.concatenate(hashes), np.concatenate(signatures)
