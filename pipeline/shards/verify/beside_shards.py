"""Checks of the files beside shards: the manifest, its counts, the files that it names, and leftovers of builds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...errors import StorageError
from ..dataset_folder import DatasetFolder
from ..manifest import (
    LOCK_NAME,
    MANIFEST_NAME,
    REDACTING_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    SIGNATURES_NAME,
    TEXTS_NAME,
    TOKENIZER_NAME,
    WORK_NAME,
    Manifest,
)
from .balance import imbalances
from .findings import Problem

FOR_PEOPLE = (REJECTED_NAME, REPORT_NAME)  # users may remove these


def leftovers(folder: Path) -> Iterator[Problem]:
    for path in sorted(folder.glob(".*.tmp")):
        yield Problem(str(path), None, None, "left by a process that was killed while writing; remove it")
    if (folder / REDACTING_NAME).exists():
        return
    complete = (folder / MANIFEST_NAME).exists()
    work = [path for path in (folder / WORK_NAME).glob("[!.]*") if path.name != LOCK_NAME]
    # A lock alone belongs to a build that runs now, or that was killed before it did anything.
    if work if complete else (folder / WORK_NAME).exists():
        state = "remove it" if complete else "the same build command again completes it"
        yield Problem(str(folder / WORK_NAME), None, None, f"left by a build or redaction that did not finish; {state}")


def check_redaction(folder: DatasetFolder) -> Iterator[Problem]:
    """Yield the mark of a redaction that has not finished."""
    with suppress(StorageError):  # a server may refuse to say that an object is missing
        if folder.size(REDACTING_NAME) is not None:
            name = folder.path(REDACTING_NAME)
            yield Problem(name, None, None, "a redaction has not finished; run its command again")


def check_manifest(folder: DatasetFolder, manifest: Manifest) -> Iterator[Problem]:
    """Yield the problems that `Manifest.read`, which checks sums and fingerprint, does not look for."""
    name = folder.path(MANIFEST_NAME)
    seen: dict[str, str] = {}
    for split, entry in manifest.splits.items():
        for info in entry.shards:
            if info.name in seen:
                yield Problem(name, None, None, f"shard {info.name} is in split {split!r} and in {seen[info.name]!r}")
            seen[info.name] = split
    yield from _check_counts(name, manifest)
    vocab_size = manifest.tokenizer.get("vocab_size")
    for role in ("eos_id", "bos_id"):
        value = manifest.tokenizer.get(role)
        if value is not None and vocab_size is not None and not 0 <= value < vocab_size:
            yield Problem(name, None, None, f"tokenizer {role} {value} is outside its vocabulary of {vocab_size}")


def check_files(folder: DatasetFolder, manifest: Manifest, quick: bool) -> Iterator[Problem]:
    """Compare the files beside the shards with the manifest; with ``quick``, only their sizes."""
    known = {info.name for info in manifest.files}
    wanted = manifest.tokenizer.get("sha256")
    tokenizer = folder.read(TOKENIZER_NAME) if wanted and TOKENIZER_NAME not in known else None
    if tokenizer is not None and (sha256 := hashlib.sha256(tokenizer).hexdigest()) != wanted:
        reason = f"sha256 {sha256}, but the manifest says {wanted}; copy it again: ids would decode to other text"
        yield Problem(folder.path(TOKENIZER_NAME), None, None, reason)
    for info in manifest.files:
        size, sha256 = folder.size(info.name), info.sha256
        if size is None:
            if info.name not in FOR_PEOPLE:
                reason = "the manifest names this file, but it is not there; copy it again"
                yield Problem(folder.path(info.name), None, None, reason)
            continue
        if size == info.bytes and not quick:
            sha256 = folder.describe(info.name, info.sha256).sha256
        if size != info.bytes:
            reason = f"{size} bytes, but the manifest says {info.bytes}; copy it again"
            yield Problem(folder.path(info.name), None, None, reason)
        elif sha256 != info.sha256:
            reason = f"sha256 {sha256}, but the manifest says {info.sha256}; copy it again"
            yield Problem(folder.path(info.name), None, None, reason)
    if not folder.remote:
        for path in sorted(
            path for name in (SIGNATURES_NAME, TEXTS_NAME) for path in Path(folder.base).glob(f"{name}/*")
        ):
            if f"{path.parent.name}/{path.name}" not in known:
                yield Problem(str(path), None, None, "the manifest does not name this file; remove it")


def _check_counts(name: str, manifest: Manifest) -> Iterator[Problem]:
    """Compare the counts of the build's stages, if the manifest has them, with each other and with the splits."""
    counts = manifest.counts
    sums = {
        "kept": sum(split.documents for split in manifest.splits.values()),
        "tokens": sum(split.tokens for split in manifest.splits.values()),
    }
    for key, total in sums.items():
        if counts.get(key, total) != total:
            yield Problem(name, None, None, f"counts say {key} {counts[key]}, but the splits hold {total}")
    for imbalance in imbalances(counts):
        yield Problem(name, None, None, f"counts say {imbalance}")
