"""The check of one shard: of a file, of a copy of a remote shard, of a tar of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ...errors import MissingObjectError, ShardwrightError, TruncatedShardError
from ...objects.remote_object import describe, read_range
from ...objects.request_options import RequestOptions
from ...objects.urls import is_remote, shown
from ..dataset_folder import local_copy, size_of
from ..extents.extent_table import ExtentTable
from ..foreign import scan_index
from ..format import INDEX_PREFIX, KEY_COLUMN
from ..index import index_of
from ..manifest import ShardInfo
from ..shard_access import ShardAccess
from ..tar_members import map_file
from .extent_checks import check_extents
from .findings import MISSING, ExpectedTokens, ShardCheck
from .shard import check_shard, check_walk


class ShardTask(NamedTuple):
    """A shard to check, by path or url, and its expected values: its entry in the manifest, contents, extents."""

    path: str
    expected: ShardInfo | None
    contents: ExpectedTokens
    quick: bool
    requests: RequestOptions | None
    extent_table: ExtentTable | None = None

    def size(self) -> int:
        if is_remote(self.path) and self.expected is not None:
            return self.expected.bytes
        return size_of(self.path, self.requests) or 0

    def check(self) -> ShardCheck:
        """Return the findings on the shard. A remote shard is copied to a temporary file; with ``quick``, read in two parts."""
        check = ShardCheck(shown(self.path))
        try:
            if not is_remote(self.path):
                self._check_file(Path(self.path), check)
            elif not self.quick or not self._has_index(check):
                with local_copy(self.path, self.requests, self.expected.sha256 if self.expected else "") as path:
                    self._check_file(path, check)
        except MissingObjectError as error:
            if self.expected is None:
                check.add_error(error)
            else:
                check.add(None, None, MISSING)
        except ShardwrightError as error:
            check.add_error(error)
        check.shorten()
        return check

    def keys(self) -> list[str]:
        """Return the keys of the documents."""
        return ShardAccess(requests=self.requests, use_cache=False).table(self.path)[KEY_COLUMN]

    def _check_file(self, path: Path, check: ShardCheck) -> None:
        try:
            data = map_file(path)
        except (OSError, ShardwrightError) as error:
            check.add(None, 0 if isinstance(error, TruncatedShardError) else None, str(error).removeprefix(f"{path}: "))
            return
        # A damaged shard of this format is not a shard of another tool.
        if self.expected is None and data.find(INDEX_PREFIX.encode()) < 0:
            check_walk(data, check)
            if not check.problems:
                scan_index(data, check.name)
            return
        index = check_shard(data, check, self.expected, self.contents, quick=self.quick)
        if self.extent_table is not None and index is not None and not check.problems:  # else the table is not at fault
            check_extents(check, self.extent_table, index, None if self.quick else memoryview(data))

    def _has_index(self, check: ShardCheck) -> bool:
        """Check only size, footer and index of a remote shard; return whether it has an index."""
        size = describe(self.path, self.requests).size
        index = index_of(
            lambda start, count: read_range(self.path, start, count, self.requests), size, check.name, self.expected
        )
        if index is not None and self.extent_table is not None:
            check_extents(check, self.extent_table, index, None)
        return index is not None
