"""Recomputes whole datasets: every hash, count, index and key is compared with the manifest and with each other."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...errors import ConfigError, ManifestError, MissingObjectError, ShardwrightError
from ...objects.access import Access
from ...objects.urls import is_remote, shown
from ..extents.table import ExtentTable
from ..folder import Folder, local_copy, size_of
from ..foreign import scan_index
from ..format import INDEX_PREFIX
from ..manifest import MANIFEST_NAME, SIGNATURES_NAME, WORK_NAME, Manifest, ShardInfo
from ..reader import read_index
from ..store import remote_index
from ..tar import CURE, Member, TarDamage, map_file, walk
from .counts import imbalances
from .extents import check_extents, check_table
from .findings import Contents, Problem, ShardCheck
from .shard import check_shard

__all__ = ["Problem", "verify_dataset", "verify_shard"]

LOCK_NAME = "lock"
TOKENIZER_NAME = "tokenizer.json"
FOR_PEOPLE = ("rejected.jsonl", "report.html")  # which nothing reads: they may be removed

MISSING = "the manifest names this shard, but it is not there; copy or rebuild it"
PROCESS_BYTES = 64 << 20  # of shards: read in the time that a process takes to start

Progress = Callable[[int, int], None]


def verify_shard(
    path: str | Path,
    expected: ShardInfo | None = None,
    contents: Contents | None = None,
    *,
    quick: bool = False,
    access: Access | None = None,
) -> list[Problem]:
    """Return what is wrong with one shard, by shard, member and byte offset; an empty list means sound.

    Every tar and npy header, the padding, keys and their order, token ids, index, footer, end blocks and
    checksums are recomputed from the bytes; ``expected``, its entry in the manifest, adds size, counts and sha256, and
    ``contents`` what must hold for all tokens. A tar of another tool, without ``expected``, must keep the rules of
    `scan_index`. ``quick`` looks at headers, index and footer alone. ``path`` may be a url: the shard is read through
    a temporary file then, and ``quick`` fetches its footer and index alone.

    >>> import tempfile, numpy as np
    >>> from pipeline.shards.writer import write_shard
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "a.tar")
    >>> info, _ = write_shard(path, tokens=np.arange(3, dtype=np.uint16), lengths=[3], keys=["k"])
    >>> verify_shard(path, info)
    []
    >>> raw = bytearray(path.read_bytes())
    >>> raw[512 + 128] ^= 1
    >>> _ = path.write_bytes(raw)
    >>> [problem.member for problem in verify_shard(path)]
    ['k.npy']
    """
    return _check(_Task(os.fspath(path), expected, contents or Contents(), quick, access)).problems


def verify_dataset(
    directory: str | Path,
    *,
    workers: int = 1,
    quick: bool = False,
    progress: Progress | None = None,
    access: Access | None = None,
    process_bytes: int = PROCESS_BYTES,
) -> Iterator[Problem]:
    """Yield what is wrong with a dataset directory or url: the manifest, each shard, and how they fit together.

    Found, besides what `verify_shard` finds: a manifest that is missing, damaged or contradicts itself, a table of extents
    that is missing, damaged, or wrong about the manifest or a shard, shards that are missing, extra or swapped, keys that
    two shards share, files beside the shards (tokenizer, signatures, report) that are not the manifest's, and what an
    interrupted build left behind. Up to ``workers`` processes share the shards, one for each ``process_bytes`` of them;
    ``progress`` is called with (bytes done, bytes in all).
    """
    if workers < 1:
        raise ConfigError(f"workers must be 1 or more, got {workers}")
    folder = Folder(directory, access)
    if not folder.remote:
        yield from _leftovers(Path(folder.base))
    try:
        manifest = folder.manifest()
    except (ManifestError, MissingObjectError) as error:
        name = folder.path(MANIFEST_NAME)
        yield Problem(name, None, None, str(error).removeprefix(f"{name}: "))
        tasks = [_Task(folder.path(tar), None, Contents(), quick, access) for tar in folder.tars()]
        for check in _run(tasks, workers, progress, process_bytes):
            yield from check.problems
        return
    yield from _check_manifest(folder, manifest)
    yield from _check_files(folder, manifest, quick)
    table, problems = check_table(folder, manifest)
    yield from problems
    infos = manifest.shards
    tokenizer = manifest.tokenizer
    contents = Contents(manifest.dtype, tokenizer.get("vocab_size"), tokenizer.get("eos_id"))
    tasks = []
    for number, info in enumerate(infos):
        path = folder.path(info.name)
        if folder.remote or os.path.isfile(path):  # of a remote one that is known when it is read
            extents = table.select([number]) if table is not None else None
            tasks.append(_Task(path, info, contents, quick, access, extents))
        else:
            yield Problem(path, None, None, MISSING)
    for name in sorted({*folder.tars()} - {info.name for info in infos}):
        yield Problem(folder.path(name), None, None, "the manifest does not name this shard; remove it, or rebuild")
    owner = {info.sha256: info.name for info in infos}
    checks = []
    for check in _run(tasks, workers, progress, process_bytes):
        yield from check.problems
        name = owner.get(check.sha256 or "", Path(check.name).name)
        if name != Path(check.name).name:
            yield Problem(check.name, None, None, f"it holds what the manifest calls {name}: shards were swapped")
        checks.append(check)
    yield from _shared_keys(checks, {shown(task.path): task for task in tasks})


class _Task(NamedTuple):
    path: str
    expected: ShardInfo | None
    contents: Contents
    quick: bool
    access: Access | None
    extents: ExtentTable | None = None


def _check(task: _Task) -> ShardCheck:
    if is_remote(task.path):
        return _check_remote(task)
    path = Path(task.path)
    if task.expected is None and not _is_own(path):
        return _check_foreign(path)
    check = check_shard(path, task.expected, task.contents, quick=task.quick)
    if task.extents is not None and not check.problems:  # of a damaged shard, the table is not at fault
        check_extents(check, task.extents, read_index(path), None if task.quick else memoryview(map_file(path)))
    return check


def _check_remote(task: _Task) -> ShardCheck:
    """Check a copy of a remote shard, which is gone afterwards; or, quickly, what two small reads tell."""
    check = ShardCheck(shown(task.path))
    try:
        if task.quick and _is_whole(task, check):
            return check
        with local_copy(task.path, task.access, task.expected.sha256 if task.expected else "") as path:
            found = _check(task._replace(path=str(path)))
        problems = [
            replace(problem, shard=check.name, message=problem.message.replace(str(path), check.name))
            for problem in found.problems
        ]
        return replace(found, name=check.name, problems=problems)
    except MissingObjectError as error:
        check.add(None, None, MISSING if task.expected else str(error).removeprefix(f"{check.name}: "))
    except ShardwrightError as error:
        check.add(None, None, str(error).removeprefix(f"{check.name}: "))
    return check


def _is_whole(task: _Task, check: ShardCheck) -> bool:
    """Look at size, footer and index of a remote shard alone; whether it has these."""
    size = size_of(task.path, task.access)
    if size is None:
        raise MissingObjectError(f"{check.name}: no such object; check the url")
    check.bytes = size
    if task.expected is not None and size != task.expected.bytes:
        check.add(None, None, f"{size} bytes, but the manifest says {task.expected.bytes}; copy it again or rebuild it")
        return True
    index = remote_index(task.path, task.expected, task.access)
    if index is not None and task.extents is not None:
        check_extents(check, task.extents, index, None)
    return index is not None


def _check_foreign(path: Path) -> ShardCheck:
    check = ShardCheck(str(path))
    damage = [item for item in walk(map_file(path)) if isinstance(item, TarDamage)]
    for item in damage:
        check.add(item.member or None, item.offset, f"{item.reason}; {CURE}")
    if not damage:
        try:
            scan_index(map_file(path), str(path))
        except ShardwrightError as error:
            check.add(None, None, str(error).removeprefix(f"{path}: "))
    return check


def _is_own(path: Path) -> bool:
    """Whether a tar has any part of our index: a damaged shard of this format is not a shard of another tool."""
    try:
        data = map_file(path)
    except (OSError, ShardwrightError):
        return True
    return data.find(INDEX_PREFIX.encode()) >= 0


def _run(tasks: Sequence[_Task], workers: int, progress: Progress | None, process_bytes: int) -> Iterator[ShardCheck]:
    """Check shards, in processes where that helps, and yield the findings in the order of ``tasks``."""
    sizes = [_size(task) for task in tasks]
    done, total = 0, sum(sizes)
    workers = min(workers, len(tasks), 1 + total // process_bytes)
    if workers <= 1:
        results: Iterator[ShardCheck] = map(_check, tasks)
        pool = None
    else:
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
        with _signals_deferred():  # workers inherit the mask, and are started whole
            results = pool.map(_check_in_worker, tasks)
    try:
        for size, check in zip(sizes, results, strict=True):
            done += size
            if progress is not None:
                progress(done, total)
            yield check
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Block SIGINT in this thread, and handle it and SIGTERM only when the block ends.

    The mask alone is not enough: the kernel may give a signal to another thread, and Python then to the main thread.
    """
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if main}
    deferred = {number: handler for number, handler in handlers.items() if callable(handler)}
    received: list[int] = []
    for number in deferred:
        signal.signal(number, lambda number, frame: received.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in deferred.items():
            signal.signal(number, handler)
        for first in received[:1]:
            signal.raise_signal(first)


def _check_in_worker(task: _Task) -> ShardCheck:
    """Check a shard in a worker process, where Ctrl-C may end the check, and nothing else.

    Ctrl-C reaches every process of the terminal; a worker that starts or waits would print a traceback.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return _check(task)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _size(task: _Task) -> int:
    if is_remote(task.path):
        return task.expected.bytes if task.expected else size_of(task.path, task.access) or 0
    return os.path.getsize(task.path)


def _leftovers(folder: Path) -> Iterator[Problem]:
    for path in sorted(folder.glob(".*.tmp")):
        yield Problem(str(path), None, None, "left by a process that was killed while writing; remove it")
    complete = (folder / MANIFEST_NAME).exists()
    held = [path for path in (folder / WORK_NAME).glob("[!.]*") if path.name != LOCK_NAME]
    # A lock alone is of a build command that runs now or was killed before it did anything.
    if held if complete else (folder / WORK_NAME).exists():
        state = "remove it" if complete else "the same build command again completes it"
        yield Problem(str(folder / WORK_NAME), None, None, f"left by a build that did not finish; {state}")


def _check_manifest(folder: Folder, manifest: Manifest) -> Iterator[Problem]:
    """What `Manifest.read`, which holds sums and fingerprint to the contents, does not look at."""
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
            yield Problem(name, None, None, f"tokenizer {role} {value} lies outside its vocabulary of {vocab_size}")


def _check_files(folder: Folder, manifest: Manifest, quick: bool) -> Iterator[Problem]:
    """Compare the files beside the shards with the manifest, ``quick`` their sizes alone."""
    known = {info.name for info in manifest.files}
    wanted = manifest.tokenizer.get("sha256")
    tokenizer = folder.read(TOKENIZER_NAME) if wanted and TOKENIZER_NAME not in known else None
    if tokenizer is not None and (found := hashlib.sha256(tokenizer).hexdigest()) != wanted:
        reason = f"sha256 {found}, but the manifest says {wanted}; copy it again: ids would decode to other text"
        yield Problem(folder.path(TOKENIZER_NAME), None, None, reason)
    for info in manifest.files:
        size, found = folder.size(info.name), info.sha256
        if size is None:
            if info.name not in FOR_PEOPLE:
                reason = "the manifest names this file, but it is not there; copy it again"
                yield Problem(folder.path(info.name), None, None, reason)
            continue
        if size == info.bytes and not quick:
            found = folder.describe(info.name, info.sha256).sha256
        if size != info.bytes:
            reason = f"{size} bytes, but the manifest says {info.bytes}; copy it again"
            yield Problem(folder.path(info.name), None, None, reason)
        elif found != info.sha256:
            reason = f"sha256 {found}, but the manifest says {info.sha256}; copy it again"
            yield Problem(folder.path(info.name), None, None, reason)
    if not folder.remote:
        for path in sorted(Path(folder.base).glob(f"{SIGNATURES_NAME}/*")):
            if f"{SIGNATURES_NAME}/{path.name}" not in known:
                yield Problem(str(path), None, None, "the manifest does not name this file; remove it")


def _check_counts(name: str, manifest: Manifest) -> Iterator[Problem]:
    """Hold the counts of the build's stages, where the manifest has them, to each other and to the splits."""
    counts = manifest.counts
    sums = {
        "kept": sum(split.documents for split in manifest.splits.values()),
        "tokens": sum(split.tokens for split in manifest.splits.values()),
    }
    for key, found in sums.items():
        if counts.get(key, found) != found:
            yield Problem(name, None, None, f"counts say {key} {counts[key]}, but the splits hold {found}")
    for imbalance in imbalances(counts):
        yield Problem(name, None, None, f"counts say {imbalance}")


def _shared_keys(checks: Sequence[ShardCheck], tasks: Mapping[str, _Task]) -> Iterator[Problem]:
    """Find keys that two shards hold; only shards whose ranges of keys overlap are read again and compared."""
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
        keys = _keys(tasks[name])
        twice = [key for key in keys if key in seen]
        if twice:
            more = f", and {len(twice) - 1} more keys" if len(twice) > 1 else ""
            reason = f"key {json.dumps(twice[0])} is also in {seen[twice[0]]}{more}; keys are unique over a dataset"
            yield Problem(name, f"{twice[0]}.npy", None, reason)
        seen.update(dict.fromkeys(keys, name))


def _keys(task: _Task) -> list[str]:
    if is_remote(task.path):
        with local_copy(task.path, task.access) as path:
            return _keys(task._replace(path=str(path)))
    path = Path(task.path)
    names = (item.name for item in walk(map_file(path)) if isinstance(item, Member))
    return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
