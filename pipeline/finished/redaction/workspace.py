"""Where a redaction works: changed files wait in a local folder until they replace files of the directory or bucket."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...atomic import keep_access, move
from ...atomic_directory import discard, explain_disk_full_errors
from ...builder.work.lock import locked
from ...errors import BuildError, StorageError
from ...objects.remote_object import describe, download
from ...objects.uploads import abort_uploads, check_writable, put_file, put_new, remove
from ...objects.urls import shown
from ...shards.dataset_folder import DatasetFolder
from ...shards.manifest import MANIFEST_NAME, OWNER_NAME, REDACTING_NAME, WORK_NAME

WAITING_NAME = "redaction"  # the folder of changed files, in the work directory


class RedactionWorkspace:
    """The files of a dataset: `source` reads them, `put` replaces them. For a bucket, files wait in the current directory."""

    def __init__(self, folder: DatasetFolder, waiting: Path | None = None) -> None:
        self._folder, self.remote = folder, folder.remote
        base = Path(folder.base.rstrip("/").rpartition("/")[2] + ".redaction" if folder.remote else folder.base)
        self._work = base.absolute() if folder.remote else base.absolute() / WORK_NAME
        self.waiting = waiting or self._work / WAITING_NAME
        self._fetched: set[str] = set()

    @contextmanager
    def claimed(self, request: str, *, lock: bool = True) -> Iterator[None]:
        """Let no other build or redaction write the dataset until the block ends. ``request`` identifies this redaction.

        Raises ``BuildError`` if a build or another redaction works there. A killed redaction keeps its claim of a bucket.
        """
        cure = "wait for it, or end it"
        elsewhere = (
            "run it in another directory" if self.remote else "give this user access, or write a new one by --drop"
        )
        with (
            explain_disk_full_errors(self._work),
            locked(self._work, lock=lock, patience=0, cure=cure, elsewhere=elsewhere),
        ):
            if self._folder.remote:
                check_writable(self._folder.base)
                owner = {"id": request, "by": f"process {os.getpid()} on {platform.node()}, a redaction"}
                found = json.loads(put_new(json.dumps(owner).encode(), self._url(OWNER_NAME), self._folder.requests))
                if found.get("id") != request:
                    raise BuildError(
                        f"{shown(self._folder.base)}: another build or redaction writes there ({found.get('by', 'unknown')}); "
                        f"{cure}. The object {OWNER_NAME} marks it"
                    )
                abort_uploads(self._folder.base, self._folder.requests)
            self.waiting.mkdir(exist_ok=True)
            try:
                yield
            finally:
                with suppress(StorageError):
                    self._release()

    def _release(self) -> None:
        """Give up the claim, unless files are being replaced: then the same command continues."""
        if self._folder.size(REDACTING_NAME) is None:
            discard(self.waiting)
            if self._folder.remote:
                remove([self._url(OWNER_NAME)], self._folder.requests)

    def clear(self) -> None:
        """Remove all waiting files."""
        discard(self.waiting)
        self.waiting.mkdir()

    def is_there(self, name: str) -> bool:
        """Return whether the dataset has a file."""
        return self._folder.size(name) is not None

    def source(self, name: str) -> Path:
        """Return the local path of a file of the dataset. A file of a bucket is downloaded, and again only after `put`."""
        if not self._folder.remote:
            return Path(self._folder.path(name))
        path = self.waiting / "before" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in self._fetched:
            return path
        self._fetched.add(name)
        download(self._url(name), path, describe(self._url(name), self._folder.requests).size, self._folder.requests)
        return path

    def target(self, name: str) -> Path:
        """Return the path at which the changed file waits."""
        path = self.waiting / name
        path.parent.mkdir(exist_ok=True)
        return path

    def put(self, name: str) -> None:
        """Replace a file of the dataset by the waiting one, atomically."""
        if self._folder.remote:
            put_file(self.waiting / name, self._url(name), self._folder.requests)
            self._fetched.discard(name)
            return
        path = Path(os.path.realpath(self._folder.path(name)))
        old = path if path.exists() else Path(self._folder.path(MANIFEST_NAME))
        keep_access(old.stat(), self.waiting / name)
        move(self.waiting / name, path)

    def remove(self, name: str) -> None:
        """Remove a file of the dataset, if it is there."""
        if self._folder.remote:
            remove([self._url(name)], self._folder.requests)
        else:
            Path(self._folder.path(name)).unlink(missing_ok=True)

    def _url(self, name: str) -> str:
        return self._folder.path(name)
