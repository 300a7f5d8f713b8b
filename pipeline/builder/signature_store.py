"""Signatures that a build keeps, so that later builds can drop its documents without reading its text again."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from ..errors import BuildError, ConfigError, ManifestError, MissingObjectError
from ..objects.remote_object import describe, download, read_whole
from ..objects.urls import is_remote, local_name
from ..paths import named_twice, special_kind
from ..shards.manifest import SIGNATURES_NAME, FileInfo, Manifest
from .dedup.row_files import write_npy
from .partitions.partition import partition_rows
from .recipe import Recipe
from .workspace.atomic_directory import discard_whole, result_directory
from .workspace.workspace import Workspace

SCHEME_NAME = "scheme.json"
FILES = ("hashes.npy", SCHEME_NAME, "signatures.npy")  # of the folder of signatures


def scheme_of(recipe: Recipe) -> dict[str, int]:
    """Return the settings that two builds must share for their signatures to be compared."""
    return {
        "ngram": recipe.dedup_ngram,
        "bands": recipe.dedup_bands,
        "rows": recipe.dedup_rows,
        "num_perm": recipe.permutations,
        "version": 2,
    }


def save_signatures(workspace: Workspace, stays: NDArray[np.bool_]) -> None:
    """Keep hash and signature of every document that stays, about 460 bytes each, in ``OUTPUT/signatures``.

    ``stays``: bool, of the documents that passed the filters. Document k of these files has the key k in the shards.
    """
    recipe, folder = workspace.plan.recipe, workspace.output / SIGNATURES_NAME
    discard_whole(folder)  # of a run that was killed behind this step
    count = int(np.count_nonzero(stays))
    kinds: list[tuple[str, int, type[np.uint8 | np.uint32]]] = [
        ("hashes", 16, np.uint8),
        ("signatures", recipe.permutations, np.uint32),
    ]
    with result_directory(folder) as directory:
        for name, width, dtype in kinds:
            rows = partition_rows(workspace, name, width, dtype)
            bounds = itertools.pairwise(rows.starts.tolist())
            chosen = (rows.read(number)[stays[first:last]] for number, (first, last) in enumerate(bounds))
            with open(directory / f"{name}.npy", "wb") as file:
                write_npy(file, (count, width), dtype, chosen)
        write_json(directory / SCHEME_NAME, scheme_of(recipe))


def dataset_names(specs: Sequence[str]) -> list[str]:
    """Return the names of earlier datasets, in any directories: the last name of each path or url.

    Datasets of the same name are numbered in their order, so that their names differ.

    >>> dataset_names(["s3://bucket/a/first/", "s3://bucket/second", "s3://bucket/b/first"])
    ['first', 'second', 'first (2)']
    """
    names: list[str] = []
    for spec in specs:
        name = spec.rstrip("/").rpartition("/")[2] if is_remote(spec) else Path(local_name(spec)).resolve().name
        numbered = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
        names.append(next(each for each in numbered if each not in names))
    return names


def fetch_earlier(workspace: Workspace) -> list[Path]:
    """Return the folders of signatures of ``--against`` on this machine: those of urls are copied to the workspace."""
    folders = []
    for number, spec in enumerate(workspace.plan.recipe.against):
        if not is_remote(spec):
            folders.append(Path(local_name(spec)).absolute() / SIGNATURES_NAME)
            continue
        folders.append(workspace.folder("against") / f"{number:03d}")
        if not folders[-1].exists():
            bound = _bound(spec)
            with result_directory(folders[-1]) as directory:
                for name in ("hashes.npy", "signatures.npy"):
                    url = f"{spec.rstrip('/')}/{SIGNATURES_NAME}/{name}"
                    download(url, directory / name, describe(url).size, sha256=bound[name].sha256)
                    _check_file(url, FileInfo.of(directory / name, bound[name].name), bound[name])
    return folders


def earlier_name(workspace: Workspace, number: int) -> str:
    """Name a document of an earlier build, by its number among all of these: its dataset, and its key there."""
    names = dataset_names(workspace.plan.recipe.against)
    for name, folder in zip(names, fetch_earlier(workspace), strict=True):
        count = len(np.load(folder / "hashes.npy", mmap_mode="r"))
        if number < count:
            return f"{name}:{number:012d}"
        number -= count
    raise BuildError(f"no earlier document {number}: a fault of the builder")


def _bound(spec: str) -> dict[str, FileInfo]:
    """Return the files of signatures that an earlier dataset's manifest names; `ConfigError` unless it names all."""
    try:
        files = {info.name: info for info in Manifest.read(spec).files}
    except (ManifestError, MissingObjectError) as error:
        raise ConfigError(f"{error}; --against: give the directory of a dataset") from None
    if any(f"{SIGNATURES_NAME}/{name}" not in files for name in FILES):
        raise _no_signatures(spec)
    return {name: files[f"{SIGNATURES_NAME}/{name}"] for name in FILES}


def _no_signatures(spec: str) -> ConfigError:
    return ConfigError(
        f"{spec}: keeps no signatures to dedup against; give the directory of a dataset, built with dedup and without "
        "--no-signatures"
    )


def _check_file(path: str, actual: FileInfo, bound: FileInfo) -> None:
    if actual != bound:
        raise ConfigError(
            f"{path}: {actual.bytes} bytes of sha256 {actual.sha256}, but the manifest says {bound.bytes} of {bound.sha256}: "
            "signatures of another build, or damaged ones; copy the dataset again, or build it again"
        )


def _read_scheme(spec: str, bound: FileInfo) -> dict[str, object]:
    """Return the scheme that an earlier dataset keeps with its signatures."""
    path = f"{spec.rstrip('/') if is_remote(spec) else local_name(spec)}/{SIGNATURES_NAME}/{SCHEME_NAME}"
    if kind := special_kind(path):
        raise ConfigError(f"{path}: {kind}, where a file is expected; copy the dataset again")
    try:
        raw = (
            bytes(read_whole(path, describe(path).size, sha256=bound.sha256))
            if is_remote(spec)
            else Path(path).read_bytes()
        )
    except (MissingObjectError, FileNotFoundError):
        raise _no_signatures(spec) from None
    _check_file(path, FileInfo(bound.name, len(raw), hashlib.sha256(raw).hexdigest()), bound)
    scheme: dict[str, object] = json.loads(raw)
    return scheme


def check_against(recipe: Recipe) -> None:
    """Raise ``ConfigError`` unless the datasets of ``--against`` keep signatures that can be compared with this build's.

    Each is named once. Signatures are those of the documents of all splits. The error names both values where the scheme
    differs. Files on this machine must be those that the manifest of the dataset names; those of urls are compared when they
    are fetched.
    """
    wanted = scheme_of(recipe)
    identities = [
        path.rstrip("/") if is_remote(path) else os.path.realpath(local_name(path)) for path in recipe.against
    ]
    if (message := named_twice(recipe.against, identities)) is not None:
        raise ConfigError(message)
    for path in recipe.against:
        bound = _bound(path)
        scheme = _read_scheme(path, bound[SCHEME_NAME])
        for field, value in wanted.items():
            if scheme.get(field) != value:
                raise ConfigError(
                    f"{path}: its signatures have {field} {scheme.get(field)}, this build has {value}; give this build "
                    f"the same dedup_{field}, or build that one again"
                )
        for name, info in bound.items() if not is_remote(path) else ():
            file = Path(local_name(path), SIGNATURES_NAME, name)
            if not file.is_file():
                raise _no_signatures(path)
            _check_file(str(file), FileInfo.of(file, info.name), info)
