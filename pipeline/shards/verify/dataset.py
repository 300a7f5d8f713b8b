"""Recomputes whole datasets: every hash, count, index and key is compared with the manifest and with each other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import ConfigError, ManifestError, MissingObjectError
from ...objects.request_options import RequestOptions
from ...objects.urls import shown
from ...progress import Progress
from ..dataset_folder import DatasetFolder
from ..manifest import MANIFEST_NAME, ShardInfo
from .beside_shards import check_files, check_manifest, check_redaction, leftovers
from .extent_checks import check_table
from .findings import MISSING, ExpectedTokens, Problem, ShardCheck
from .processes import run_checks
from .task import ShardTask

__all__ = ["Problem", "verify_dataset", "verify_shard"]

PROCESS_BYTES = 64 << 20  # of shards: to read so many takes as long as to start a process


def verify_shard(
    path: str | Path,
    expected: ShardInfo | None = None,
    contents: ExpectedTokens | None = None,
    *,
    quick: bool = False,
    requests: RequestOptions | None = None,
) -> list[Problem]:
    """Return the problems of one shard, with shard, member and byte offset; an empty list means that it is sound.

    Every tar and npy header, the padding, keys and their order, token ids, index, footer, end blocks and checksums are
    recomputed from the bytes. ``expected``, the shard's entry in the manifest, adds size, counts and sha256. ``contents``
    adds rules for all tokens. A tar of another tool, without ``expected``, must keep the rules of `scan_index`. ``quick``
    checks headers, index and footer alone. ``path`` may be a url: then a temporary copy is checked, and ``quick`` fetches
    footer and index alone.
    """
    return ShardTask(os.fspath(path), expected, contents or ExpectedTokens(), quick, requests).check().problems


def verify_dataset(
    directory: str | Path,
    *,
    workers: int = 1,
    quick: bool = False,
    progress: Progress | None = None,
    requests: RequestOptions | None = None,
    process_bytes: int = PROCESS_BYTES,
) -> Iterator[Problem]:
    """Yield the problems of a dataset directory or url: of the manifest, of each shard, and between them.

    Besides the problems of `verify_shard`, it finds: a manifest that is missing, damaged or contradicts itself; a table of
    extents that is missing, damaged, or disagrees with the manifest or a shard; shards that are missing, extra or swapped;
    keys that two shards share; files beside the shards (tokenizer, signatures, report) that differ from the manifest;
    leftovers of an interrupted build. Up to ``workers`` processes share the shards, one for each ``process_bytes``.
    ``progress`` shows how far it is (default: no output).
    """
    if workers < 1:
        raise ConfigError(f"workers must be 1 or more, got {workers}")
    progress = progress or Progress(quiet=True)
    folder = DatasetFolder(directory, requests)
    if not folder.remote:
        yield from leftovers(Path(folder.base))
    try:
        manifest = folder.manifest()
    except (ManifestError, MissingObjectError) as error:
        name = folder.path(MANIFEST_NAME)
        yield Problem(name, None, None, str(error).removeprefix(f"{name}: "))
        tasks = [ShardTask(folder.path(tar), None, ExpectedTokens(), quick, requests) for tar in folder.tars()]
        for check in run_checks(tasks, workers, progress, process_bytes):
            yield from check.problems
        return
    yield from check_redaction(folder)
    yield from check_manifest(folder, manifest)
    yield from check_files(folder, manifest, quick)
    table, problems = check_table(folder, manifest)
    yield from problems
    infos, contents = manifest.shards, ExpectedTokens.of(manifest)
    tasks, redacted = [], manifest.redacted
    for number, info in enumerate(infos):
        path = folder.path(info.name)
        if folder.remote or os.path.isfile(path):  # whether a remote shard exists is known when it is read
            extents = table.select([number]) if table is not None else None
            expected = replace(contents, redacted=tuple(redacted.get(info.name, ())))
            tasks.append(ShardTask(path, info, expected, quick, requests, extents))
        else:
            yield Problem(path, None, None, MISSING)
    for name in sorted({*folder.tars()} - {info.name for info in infos}):
        yield Problem(folder.path(name), None, None, "the manifest does not name this shard; remove it, or rebuild")
    owner = {info.sha256: info.name for info in infos}
    checks = []
    for check in run_checks(tasks, workers, progress, process_bytes):
        yield from check.problems
        name = owner.get(check.sha256 or "", Path(check.name).name)
        if name != Path(check.name).name:
            yield Problem(check.name, None, None, f"it holds what the manifest calls {name}: shards were swapped")
        checks.append(check)
    yield from _shared_keys(checks, {shown(task.path): task for task in tasks})


def _shared_keys(checks: Sequence[ShardCheck], tasks: Mapping[str, ShardTask]) -> Iterator[Problem]:
    """Yield keys that two shards share. Only shards whose ranges of keys overlap are read again and compared."""
    ranges = sorted((check.first_key, check.last_key, check.name) for check in checks if check.last_key)
    suspects: set[str] = set()
    reach, holder = "", ""
    for first, last, name in ranges:
        if holder and first <= reach:
            suspects |= {holder, name}
        if last > reach:
            reach, holder = last, name
    seen: dict[str, str] = {}
    for name in (check.name for check in checks if check.name in suspects):
        keys = tasks[name].keys()
        twice = [key for key in keys if key in seen]
        if twice:
            more = f", and {len(twice) - 1} more keys" if len(twice) > 1 else ""
            reason = f"key {json.dumps(twice[0])} is also in {seen[twice[0]]}{more}; keys are unique over a dataset"
            yield Problem(name, f"{twice[0]}.npy", None, reason)
        seen.update(dict.fromkeys(keys, name))
