"""Recomputes the table of extents: compares its file with the manifest, and each shard's part of it with the shard."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from ...errors import ManifestError, ShardError
from ..folder import Folder
from ..index import Index
from ..manifest import MANIFEST_NAME, Manifest
from ..verify.findings import Problem, ShardCheck
from .file import COMMAND, EXTENTS_NAME
from .loading import read_table, table_of_index
from .table import CHECKSUMS, COUNTS, PER_SHARD, ExtentTable

CURE = f"copy it again, or write it again: {COMMAND}"


def check_table(folder: Folder, manifest: Manifest) -> tuple[ExtentTable | None, list[Problem]]:
    """Return the table of a dataset and what is wrong with its file; no table where it has none that can be used."""
    if manifest.extents is None:
        path = folder.path(EXTENTS_NAME)
        stray = not folder.remote and folder.size(EXTENTS_NAME) is not None
        reason = f"{MANIFEST_NAME} does not name it; remove it, or complete it: {COMMAND}"
        return None, [Problem(path, None, None, reason)] if stray else []
    path = folder.path(manifest.extents.name)
    try:
        raw = folder.read(manifest.extents.name)
        if raw is None:
            return None, [Problem(path, None, None, f"the manifest names it, but it is not there; {CURE}")]
        return read_table(path, manifest, raw), []
    except (ManifestError, OSError) as error:
        return None, [Problem(path, None, None, str(error).removeprefix(f"{path}: "))]


def check_extents(check: ShardCheck, stated: ExtentTable, index: Index, data: bytes | memoryview | None) -> None:
    """Hold what the table says of a sound shard to its index, and to its bytes where they are given; note one problem."""
    try:
        found = table_of_index(index, check.name)
    except ShardError as error:
        check.add(None, None, str(error).removeprefix(f"{check.name}: "))
        return
    for name, at, held, wanted in _differences(stated, found, data):
        place = None if at is None else int(found.offsets[at])
        unit = "of the shard" if at is None else f"of extent {at}"
        check.add(None, place, f"the table of extents says {name} {held} {unit}, found {wanted}; {CURE}")
        return


def _differences(
    stated: ExtentTable, found: ExtentTable, data: bytes | memoryview | None
) -> Iterator[tuple[str, int | None, int, int]]:
    """Yield field, extent (None: of the shard), value stated and value found, of what differs."""
    for name in PER_SHARD:
        held, wanted = int(getattr(stated, name)[0]), int(getattr(found, name)[0])
        if held != wanted:
            yield name, None, held, wanted
            return
    for name in (*COUNTS, CHECKSUMS[0]):
        columns = getattr(stated, name), getattr(found, name)
        for at in np.flatnonzero(columns[0] != columns[1]).tolist():
            yield name, at, int(columns[0][at]), int(columns[1][at])
    if data is None or stated.crc32 is None:
        return
    view = memoryview(data)
    ends = (found.offsets + found.sizes).tolist()
    for at, (begin, end) in enumerate(zip(found.offsets.tolist(), ends, strict=True)):
        crc32 = zlib.crc32(view[begin:end])
        if crc32 != stated.crc32[at]:
            yield "crc32", at, int(stated.crc32[at]), crc32
