"""``shardwright verify``: recomputes every hash, count and index of a dataset."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from json import dumps
from typing import Annotated

from pipeline.errors import ManifestError
from pipeline.objects.request_options import RequestOptions
from pipeline.objects.urls import shown
from pipeline.progress import Progress
from pipeline.shards.dataset_folder import DatasetFolder, size_of
from pipeline.shards.manifest import MANIFEST_NAME
from pipeline.shards.shard_names import expand, may_be_directory
from pipeline.shards.verify.dataset import Problem, verify_dataset, verify_shard
from pipeline.shards.verify.findings import ExpectedTokens

from .command import Command

DESCRIPTION = """\
Recompute every hash, count and index of a dataset, or of single shards, and name what is wrong.

  %(prog)s shards
  %(prog)s s3://bucket/shards --quick

A directory is compared with its manifest. A shard is compared with the manifest in its folder, else with its own index.
Urls (s3://, gs://, https:// and others) are read in full; each worker downloads one shard at a time to a temporary file
($TMPDIR). With --quick, only footers and indexes are read. Each problem is one line: shard, member, byte offset, what is
wrong and the cure."""

EPILOG = "exit status: 0 no problem; 1 problems; 2 an error, or wrong usage; 130 interrupted"

FLAGS = """\
DIRECTORY|SHARD|URL...  datasets, shards, globs or brace patterns
--workers N             worker processes (default: all cores, at most 8)
--quick                 check headers, index and footer only: read no tokens
--json                  print one JSON object for each problem"""


def run(
    paths: list[str],
    *,
    workers: Annotated[int, 1] = min(8, os.cpu_count() or 1),
    quick: bool = False,
    json: bool = False,
    requests: RequestOptions,
) -> int:
    began, progress = time.monotonic(), Progress(quiet=json or not sys.stderr.isatty())
    count = 0
    try:
        for problem in _problems(paths, workers, quick, requests, progress):
            count += 1
            print(dumps(asdict(problem)) if json else problem, flush=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{_count(count)} so far") from None
    if not json:
        seconds = time.monotonic() - began
        print(f"{_count(count)} in {progress.bytes / 1e6:,.1f} MB, {seconds:.1f} s" + (" (quick)" if quick else ""))
    return 1 if count else 0


def _count(problems: int) -> str:
    return f"{problems} problem{'s' * (problems != 1)}" if problems else "no problem"


def _problems(
    paths: list[str], workers: int, quick: bool, requests: RequestOptions, progress: Progress
) -> Iterator[Problem]:
    for path in paths:
        if may_be_directory(path):
            yield from verify_dataset(path, workers=workers, quick=quick, requests=requests, progress=progress)
            continue
        shards = expand(path, requests)
        sizes = {shard: size_of(shard, requests) or 0 for shard in shards}
        with progress.each("verify", shards, sizes.__getitem__, "bytes") as each:
            for shard in each:
                yield from _of_shard(shard, quick, requests)


def _of_shard(shard: str, quick: bool, requests: RequestOptions) -> Iterator[Problem]:
    """Compare a single shard with the manifest in its folder, or with its own index."""
    expected, contents = None, None
    base, _, name = shown(shard).rpartition("/")
    folder = DatasetFolder(base or ".", requests)
    if "?" not in shard and folder.size(MANIFEST_NAME) is not None:  # a signature is valid for one object only
        try:
            manifest = folder.manifest()
        except ManifestError as error:
            yield Problem(folder.path(MANIFEST_NAME), None, None, str(error))
        else:
            expected = {info.name: info for info in manifest.shards}.get(name)
            if expected is None:
                yield Problem(shown(shard), None, None, f"{MANIFEST_NAME} in its folder does not name this shard")
            contents = ExpectedTokens.of(manifest)
    yield from verify_shard(shard, expected, contents, quick=quick, requests=requests)


COMMAND = Command(
    run=run, flags=FLAGS, brief="DIRECTORY|SHARD|URL...", description=DESCRIPTION, epilog=EPILOG, error_status=2
)
