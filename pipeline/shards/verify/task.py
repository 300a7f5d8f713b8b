"""The check of one shard, wherever it lies: a file, a url of which a copy is read, a tar of another tool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...errors import MissingObjectError, ShardwrightError
from ...objects.access import Access
from ...objects.remote_object import describe, read_range
from ...objects.urls import is_remote, shown
from ..extents.table import ExtentTable
from ..folder import local_copy, size_of
from ..foreign import scan_index
from ..format import INDEX_PREFIX
from ..index import index_of
from ..manifest import ShardInfo
from ..reader import read_index
from ..tar import CURE, Member, TarDamage, map_file, walk
from .extents import check_extents
from .findings import MISSING, Contents, ShardCheck
from .shard import check_shard


class ShardTask(NamedTuple):
    """A shard to be checked, by path or url, with what must hold for it: its entry in the manifest, contents, extents."""

    path: str
    expected: ShardInfo | None
    contents: Contents
    quick: bool
    access: Access | None
    extents: ExtentTable | None = None

    def size(self) -> int:
        """Return the bytes of the shard."""
        if is_remote(self.path) and self.expected is not None:
            return self.expected.bytes
        return size_of(self.path, self.access) or 0

    def check(self) -> ShardCheck:
        """Check the shard, quickly if asked."""
        if is_remote(self.path):
            return self._check_remote()
        path = Path(self.path)
        if self.expected is None and not _is_own(path):
            return _check_foreign(path)
        check = check_shard(path, self.expected, self.contents, quick=self.quick)
        if self.extents is not None and not check.problems:  # of a damaged shard, the table is not at fault
            check_extents(check, self.extents, read_index(path), None if self.quick else memoryview(map_file(path)))
        return check

    def keys(self) -> list[str]:
        """Return the keys of the samples."""
        if is_remote(self.path):
            with local_copy(self.path, self.access) as path:
                return self._replace(path=str(path)).keys()
        names = (item.name for item in walk(map_file(self.path)) if isinstance(item, Member))
        return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]

    def _check_remote(self) -> ShardCheck:
        """Check a copy of a remote shard, which is gone afterwards; or, quickly, what two small reads tell."""
        check = ShardCheck(shown(self.path))
        try:
            if self.quick and self._has_index(check):
                return check
            with local_copy(self.path, self.access, self.expected.sha256 if self.expected else "") as path:
                found = self._replace(path=str(path)).check()
            problems = [
                replace(problem, shard=check.name, message=problem.message.replace(str(path), check.name))
                for problem in found.problems
            ]
            return replace(found, name=check.name, problems=problems)
        except MissingObjectError as error:
            if self.expected is None:
                check.add_error(error)
            else:
                check.add(None, None, MISSING)
        except ShardwrightError as error:
            check.add_error(error)
        return check

    def _has_index(self, check: ShardCheck) -> bool:
        """Check size, footer and index of a remote shard alone; return whether it has an index."""
        check.bytes = describe(self.path, self.access).size
        index = index_of(
            lambda start, count: read_range(self.path, start, count, self.access),
            check.bytes,
            check.name,
            self.expected,
        )
        if index is not None and self.extents is not None:
            check_extents(check, self.extents, index, None)
        return index is not None


def _is_own(path: Path) -> bool:
    """Whether a tar has any part of our index: a damaged shard of this format is not a shard of another tool."""
    try:
        return map_file(path).find(INDEX_PREFIX.encode()) >= 0
    except (OSError, ShardwrightError):
        return True


def _check_foreign(path: Path) -> ShardCheck:
    check, data = ShardCheck(str(path)), map_file(path)
    check.bytes = len(data)
    damage = next((item for item in walk(data) if isinstance(item, TarDamage)), None)
    if damage is not None:
        check.add(damage.member or None, damage.offset, f"{damage.reason}; {CURE}")
        return check
    try:
        scan_index(data, str(path))
    except ShardwrightError as error:
        check.add_error(error)
    return check
