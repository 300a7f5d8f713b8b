"""Signatures that a build keeps, so that later builds can drop its documents without reading its text again."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from filters.words import DEFINITION

from ..atomic_directory import discard_whole, result_directory
from ..errors import BuildError, ConfigError, ManifestError, MissingObjectError
from ..objects.remote_object import describe, download
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote, local_name
from ..paths import named_twice
from ..shards.manifest import SIGNATURES_NAME, FileInfo, Manifest
from .dedup.row_files import write_npy
from .partitions.partition import HELD, Partition, partition_rows, partitions
from .recipe import Recipe
from .work.workspace import Workspace

FILES = ("hashes.npy", "signatures.npy")  # of the folder of signatures


def scheme_of(recipe: Recipe) -> dict[str, int]:
    """Return the settings, named as in the manifest, that two builds must share for their signatures to be compared."""
    return {
        "dedup_ngram": recipe.dedup_ngram,
        "dedup_bands": recipe.dedup_bands,
        "dedup_rows": recipe.dedup_rows,
        "dedup_num_perm": recipe.permutations,
    }


def save_signatures(workspace: Workspace, stays: Callable[[Partition], NDArray[np.bool_]]) -> None:
    """Write the hash and signature of every document that stays, about 460 bytes each, to ``OUTPUT/signatures``.

    ``stays`` says which documents of a partition stay. Row k of the files is the document with key k in the shards.
    """
    recipe, folder = workspace.plan.recipe, workspace.output / SIGNATURES_NAME
    discard_whole(folder)  # a run that was killed later may have written it
    every = partitions(workspace)
    count = sum(int(np.count_nonzero(stays(each))) for each in every)
    kinds: list[tuple[str, int, type[np.uint8 | np.uint32]]] = [
        (HELD, 16, np.uint8),
        ("signatures", recipe.permutations, np.uint32),
    ]
    with result_directory(folder) as directory:
        for (kind, width, dtype), name in zip(kinds, FILES, strict=True):
            rows = partition_rows(workspace, kind, width, dtype)
            chosen = (rows.read(each.number)[stays(each)] for each in every)
            with open(directory / name, "wb") as file:
                write_npy(file, (count, width), dtype, chosen)


def dataset_names(specs: Sequence[str]) -> list[str]:
    """Return the names of earlier datasets: the last part of each path or url. Equal names get numbers.

    >>> dataset_names(["s3://bucket/a/first/", "s3://bucket/second", "s3://bucket/b/first"])
    ['first', 'second', 'first (2)']
    """
    names: list[str] = []
    for spec in specs:
        name = spec.rstrip("/").rpartition("/")[2] if is_remote(spec) else Path(local_name(spec)).resolve().name
        numbered = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
        names.append(next(candidate for candidate in numbered if candidate not in names))
    return names


def fetch_earlier(workspace: Workspace, requests: RequestOptions | None = None) -> list[Path]:
    """Return the local folders of the signatures of ``--against``. Signatures at urls are copied to the workspace first."""
    folders = []
    for number, spec in enumerate(workspace.plan.recipe.against):
        if not is_remote(spec):
            folders.append(Path(local_name(spec)).absolute() / SIGNATURES_NAME)
            continue
        folders.append(workspace.root / "against" / f"{number:03d}")
        if not folders[-1].exists():
            with result_directory(folders[-1]) as directory:
                fetch_signatures(spec, _read_manifest(spec, requests), directory, requests)
    return folders


def fetch_signatures(spec: str, manifest: Manifest, directory: Path, requests: RequestOptions | None = None) -> None:
    """Copy the files of signatures of a dataset at a url to a directory, and compare them with its manifest."""
    for info in signature_files(spec, manifest):
        url, path = f"{spec.rstrip('/')}/{info.name}", directory / Path(info.name).name
        download(url, path, describe(url, requests).size, requests, info.sha256)
        _check_file(url, path, info)


def earlier_name(workspace: Workspace, number: int) -> str:
    """Return the dataset and the key of a document of an earlier build, by its number among all of these documents."""
    names = dataset_names(workspace.plan.recipe.against)
    for name, folder in zip(names, fetch_earlier(workspace), strict=True):
        count = len(np.load(folder / "hashes.npy", mmap_mode="r"))
        if number < count:
            return f"{name}:{number:012d}"
        number -= count
    raise BuildError(f"no earlier document {number}: a fault of the builder")


def redacted_earlier(workspace: Workspace) -> dict[str, int]:
    """Return how many documents of each dataset of ``--against`` were redacted or dropped: their hashes are 0."""
    names = dataset_names(workspace.plan.recipe.against)
    hashes = (np.load(folder / "hashes.npy", mmap_mode="r") for folder in fetch_earlier(workspace))
    counts = (len(every) - int(np.count_nonzero(every.any(axis=1))) for every in hashes)
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def check_against(recipe: Recipe, requests: RequestOptions) -> dict[str, str]:
    """Return the fingerprints of the datasets of ``--against``, by their names.

    Raises ``ConfigError`` unless each dataset is named once and keeps signatures that can be compared with this build's. Local
    files must be the ones that the dataset's manifest names; files at urls are compared when they are fetched.
    """
    identities = [
        path.rstrip("/") if is_remote(path) else os.path.realpath(local_name(path)) for path in recipe.against
    ]
    if (message := named_twice(recipe.against, identities)) is not None:
        raise ConfigError(message)
    fingerprints = {}
    for name, path in zip(dataset_names(recipe.against), recipe.against, strict=True):
        manifest = _read_manifest(path, requests)
        files = signature_files(path, manifest)
        settings = manifest.recipe.get("settings", {})
        for setting, value in scheme_of(recipe).items():
            if settings.get(setting) != value:
                raise ConfigError(
                    f"{path}: its signatures have {setting} {settings.get(setting)}, this build has {value}; give this build "
                    "the same value, or build that dataset again"
                )
        for info in files if not is_remote(path) else ():
            file = Path(local_name(path), info.name)
            _check_file(str(file), file, info)
        fingerprints[name] = manifest.fingerprint
    return fingerprints


def _read_manifest(spec: str, requests: RequestOptions | None) -> Manifest:
    try:
        return Manifest.read(spec, requests)
    except (ManifestError, MissingObjectError) as error:
        raise ConfigError(f"{error}; --against: give the directory of a dataset") from None


def signature_files(spec: str, manifest: Manifest) -> list[FileInfo]:
    """Return the files of signatures that a dataset's manifest names.

    Raises ``ConfigError`` unless it names all of them, or if they are of words as earlier releases split them.
    """
    files = {info.name: info for info in manifest.files}
    names = [f"{SIGNATURES_NAME}/{name}" for name in FILES]
    if any(name not in files for name in names):
        raise ConfigError(
            f"{spec}: keeps no signatures of its documents; give the directory of a dataset, built with dedup and without "
            "--no-signatures"
        )
    if manifest.recipe.get("definitions", {}).get("words") != DEFINITION:
        raise ConfigError(
            f"{spec}: its signatures are of words as an earlier release split them: at combining marks, and not between letters "
            "of Chinese or Japanese. They cannot be compared. Build that dataset again with this release, to make its signatures "
            "again; report.html beside it has the command"
        )
    return [files[name] for name in names]


def _check_file(location: str, path: Path, bound: FileInfo) -> None:
    """Raise ``ConfigError``, which names ``location``, unless the file at ``path`` is the one that the manifest names."""
    if not path.is_file():
        raise ConfigError(f"{location}: the manifest names this file, but it is not there; copy the dataset again")
    actual = FileInfo.of(path, bound.name)
    if actual != bound:
        raise ConfigError(
            f"{location}: {actual.bytes} bytes of sha256 {actual.sha256}, but the manifest says {bound.bytes} of {bound.sha256}: "
            "signatures of another build, or damaged ones; copy the dataset again, or build it again"
        )
