"""The table of extents compared with the manifest, and each shard's part of it with the shard."""

from __future__ import annotations

import numpy as np

from ...errors import ShardwrightError
from ...objects.urls import shown
from ..dataset_folder import REPAIR, DatasetFolder
from ..extents.extent_table import CHECKSUMS, COUNTS, ExtentTable
from ..extents.table_file import read_table, table_of_index
from ..index import ShardIndex
from ..manifest import Manifest
from .findings import Problem, ShardCheck


def check_table(folder: DatasetFolder, manifest: Manifest) -> tuple[ExtentTable | None, list[Problem]]:
    """Return the table of a dataset, and the problems of its file; None if the table cannot be used."""
    try:
        return read_table(folder, manifest), []
    except ShardwrightError as error:
        path = shown(folder.path(manifest.extents.name))
        return None, [Problem(path, None, None, str(error).removeprefix(f"{path}: "))]


def check_extents(check: ShardCheck, stated: ExtentTable, index: ShardIndex, data: memoryview | None) -> None:
    """Compare the table's part for a sound shard with the shard's index, and with its bytes if they are given."""
    actual = table_of_index(index, check.name)
    if len(stated) != len(actual):
        check.add(None, None, f"the table of extents says {len(stated)} extents, found {len(actual)}; {REPAIR}")
        return
    if data is not None:
        actual = actual.with_checksums(data)
    for name in (*COUNTS, *CHECKSUMS):
        wanted, column = getattr(stated, name), getattr(actual, name)
        if column is not None and (unlike := wanted != column).any():
            at = int(np.argmax(unlike))
            message = f"the table of extents says {name} {wanted[at]} of extent {at}, found {column[at]}; {REPAIR}"
            check.add(None, int(actual.offsets[at]), message)
            return
