"""The work directory ``OUTPUT/.build``. Every stage keeps its results there until the manifest is written.

    plan.json          the plan, fixed before the first unit
    references/        copies of the files that the recipe names (transforms/references.py)
    lock               held by the process that builds here (lock.py)
    bucket.json        the output, if it is a bucket (bucket.py)
    ingest/            the documents that were read, filtered and hashed (partitions/partition.py)
    round/STAGE/       the results of each later stage, which its module describes

If token quotas need more of the input, ``round`` is removed, and the later stages run again over all that was read.

Results appear by rename. A path that exists is complete, so the same command continues where a killed one stopped.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...atomic import is_temporary
from ...atomic_directory import discard_whole, explain_disk_full_errors, sweep
from ...shards.manifest import LOCK_NAME, PLAN_NAME, TEXTS_NAME, WORK_NAME
from ..plan import Plan, load_plan
from .bucket import BUCKET_NAME, Bucket
from .lock import locked

REFERENCES_NAME = "references"
MATERIALIZED_NAME = "materialized"  # inputs in memory, as files
_CONTINUE = "run the same command: it continues"


@dataclass(frozen=True, slots=True)
class Workspace:
    """The work directory of the dataset directory ``output``. Small and picklable: every worker gets it.

    If the dataset is in a ``bucket``, ``output`` is a local directory from which finished files move to the bucket.
    """

    output: Path
    bucket: Bucket | None = None

    def __str__(self) -> str:
        return str(self.bucket or self.output)

    @property
    def root(self) -> Path:
        return self.output / WORK_NAME

    @property
    def outputs(self) -> tuple[str, ...]:
        """The directory that this build writes and may clear, and the url if the output is a bucket."""
        return str(self.output), *([self.bucket.url] if self.bucket else [])

    @property
    def plan(self) -> Plan:
        """The plan of the build. Each process reads it once, and again if its file changes."""
        return load_plan(self.root)

    @property
    def is_planned(self) -> bool:
        return (self.root / PLAN_NAME).exists()

    @property
    def references(self) -> Path:
        return self.root / REFERENCES_NAME

    @property
    def round(self) -> Path:
        """The directory of all stages after the ingest stage."""
        return self.root / "round"

    def folder(self, stage: str) -> Path:
        return self.round / stage

    @contextmanager
    def locked(self, patience: float, lock: bool) -> Iterator[None]:
        """Lock the directory as `lock.locked` does. Raises ``BuildError`` in the block if the disk is full."""
        with locked(self.root, lock=lock, patience=patience), explain_disk_full_errors(self.output, _CONTINUE):
            yield

    def finish(self, name: str) -> None:
        """Move a finished file to the bucket, if there is one."""
        if self.bucket is not None:
            self.bucket.move(self.output, name)

    def clear(self, keep: Container[str] = ()) -> None:
        """Remove all but the lock and ``keep``, the plan first: a build without a plan is not continued."""
        paths = sorted(self.root.iterdir(), key=lambda path: path.name != PLAN_NAME)
        for path in paths:
            if path.name != LOCK_NAME and path.name not in keep:
                discard_whole(path)

    def unexpected(self) -> Path | None:
        """Return a path in the output that no build makes before it has a plan; None if there is none."""
        early = (WORK_NAME, LOCK_NAME, REFERENCES_NAME, MATERIALIZED_NAME, BUCKET_NAME)
        there = (path for folder in (self.output, self.root) for path in sorted(folder.iterdir()))
        return next((path for path in there if path.name not in early and not is_temporary(path)), None)

    def sweep(self) -> None:
        """Remove unfinished files of killed processes: here, in the output directory and among the kept texts."""
        sweep(self.root)
        for folder in (self.output, self.output / TEXTS_NAME):
            for path in filter(is_temporary, folder.glob(".*.tmp")):
                discard_whole(path)
