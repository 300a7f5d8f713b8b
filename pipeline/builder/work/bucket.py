"""An output in an object store: a build works in a local directory, and moves each file to the store when it is finished.

The process that writes a shard uploads it, then deletes the local copy. The manifest is uploaded last, so that no reader
sees half a dataset. An object names the build that writes there, its owner: of several builds, only one can make this object. If
it is missing, no build owns the output.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ...atomic import read_json, write_json
from ...errors import BuildError, ConfigError, MissingObjectError
from ...objects.request_options import RequestOptions
from ...objects.request_threads import side_by_side
from ...objects.uploads import abort_uploads, check_writable, objects_below, put_file, put_new, read, remove
from ...objects.urls import shown
from ...shards.manifest import MANIFEST_NAME, OWNER_NAME, Manifest

BUCKET_NAME = "bucket.json"  # in the work directory: the url, and the id of this build


def not_empty(found: object) -> BuildError:
    """Return the error for an output that holds something, but no dataset and no build to continue."""
    return BuildError(
        f"{found}: the output is not empty, and holds neither a dataset nor a build to continue; choose an empty or new "
        "--output, or give --overwrite, which removes only the files of earlier builds"
    )


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name, or its folder, matches one of the patterns."""
    folder = name.rpartition("/")[0]
    return any(
        fnmatchcase(one, p) and one.count("/") == p.count("/") for p in patterns for one in (name, folder) if one
    )


@dataclass(frozen=True, slots=True)
class Bucket:
    """The url of an output, and the options of requests to it. Workers get both."""

    url: str
    requests: RequestOptions = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        check_writable(self.url)

    def __str__(self) -> str:
        return shown(self.url)

    def path(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def manifest(self) -> Manifest | None:
        try:
            return Manifest.read(self.url, self.requests)
        except MissingObjectError:
            return None

    def move(self, directory: Path, name: str) -> None:
        """Upload a finished file, then delete the local copy."""
        put_file(directory / name, self.path(name), self.requests)
        (directory / name).unlink()

    def claim(self, work: Path, results: Iterable[str], *, overwrite: bool = False) -> None:
        """Make this build the owner of the output, until `release`.

        Raises ``BuildError`` if another build is the owner, or if the output holds anything. With ``overwrite``, this build takes
        the output over, and removes objects whose names match the patterns ``results``, the manifest first.
        """
        note, owned = work / BUCKET_NAME, self.path(OWNER_NAME)
        mine = read_json(note) if note.exists() else {"url": str(self), "id": secrets.token_hex(16), "begun": False}
        if mine["url"] != str(self):
            raise ConfigError(
                f"{work.parent}: this work directory belongs to {mine['url']}, not to {self}; give another --work"
            )
        write_json(note, mine)
        owner = {"id": mine["id"], "by": f"process {os.getpid()} on {platform.node()}, in {work.parent}"}
        if overwrite:
            remove([owned], self.requests)
        found = json.loads(put_new(json.dumps(owner).encode(), owned, self.requests))
        if found.get("id") != mine["id"]:
            raise BuildError(
                f"{self}: another build writes there ({found.get('by', 'unknown')}); wait for it, or continue it with its "
                f"--work. If its directory is lost, start over with --overwrite; the object {OWNER_NAME} marks the owner"
            )
        if overwrite or not mine["begun"]:
            self._make_room(results, overwrite)
            write_json(note, {**mine, "begun": True})
        abort_uploads(self.url, self.requests)

    def _make_room(self, results: Iterable[str], overwrite: bool) -> None:
        patterns = list(results)
        there = [name for name in objects_below(self.url, self.requests) if name != OWNER_NAME]
        if there and not overwrite:
            remove([self.path(OWNER_NAME)], self.requests)
            raise not_empty(self.path(there[0]))
        remove([self.path(MANIFEST_NAME)], self.requests)
        gone = [name for name in there if _is_any(name, patterns)]
        side_by_side(partial(remove, [self.path(name)], self.requests) for name in gone)

    def publish(self, directory: Path, work: Path, names: Iterable[str], manifest: Manifest) -> None:
        """Upload the files of these names, then the manifest. Local copies stay, in case the build is killed.

        Raises ``BuildError`` if another build took over, or if an uploaded shard is gone or has another size.
        """
        there = [name for name in names if (directory / name).exists()]
        side_by_side(partial(put_file, directory / name, self.path(name), self.requests) for name in there)
        owner = json.loads(read(self.path(OWNER_NAME), self.requests))
        if owner.get("id") != read_json(work / BUCKET_NAME)["id"]:
            raise BuildError(
                f"{self}: another build took this output over ({owner.get('by', 'unknown')}); choose another --output"
            )
        sizes = objects_below(self.url, self.requests)
        wanted = {info.name: info.bytes for info in manifest.shards} | {
            info.name: info.bytes for info in manifest.files
        }
        for name, size in wanted.items():
            if sizes.get(name) != size:
                raise BuildError(
                    f"{self.path(name)}: {sizes.get(name, 'no')} bytes, but this build uploaded {size}: another program "
                    "writes or removes objects there; start over with --overwrite, or choose another --output"
                )
        manifest.write(work)
        put_file(work / MANIFEST_NAME, self.path(MANIFEST_NAME), self.requests)

    def release(self, work: Path) -> None:
        """Give up the ownership of the output, if this build has it."""
        with suppress(FileNotFoundError):
            mine, owner = read_json(work / BUCKET_NAME), json.loads(read(self.path(OWNER_NAME), self.requests))
            if owner.get("id") == mine["id"]:
                remove([self.path(OWNER_NAME)], self.requests)
