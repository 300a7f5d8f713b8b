"""Opens an input file, wherever it lies."""

from __future__ import annotations

from functools import partial
from typing import Any, BinaryIO

from ...objects.remote_object import RemoteObject
from .hub import HubObject
from .input_file import Credentials, InputFile, StoredObject, StrPath, as_input
from .ranges import StoredRanges, changed
from .remote_file import RANGE_BYTES, RemoteFile
from .shared_ranges import SharedRanges


def open_input(
    path: StrPath | InputFile,
    start: int = 0,
    stop: int | None = None,
    *,
    in_order: bool = True,
    first_bytes: int = RANGE_BYTES,
    shared: SharedRanges | None = None,
) -> BinaryIO:
    """Open an input file for reading.

    If it is remote and read ``in_order``, bytes ``start`` to ``stop`` are fetched ahead in large ranges, the first one of
    ``first_bytes``. All other bytes are fetched when they are asked for. Where ``shared`` is given, they come from there.
    """
    file = as_input(path)
    if file.stored is None:
        return open(file.path, "rb")
    remote = RemoteFile(shared or open_object(file.stored, file.credentials), first_bytes)
    if in_order and shared is None:
        remote.expect_span(start, stop)
    opened: Any = remote
    return opened  # type: ignore[no-any-return]


def open_object(stored: StoredObject, credentials: Credentials) -> StoredRanges:
    """Return the ranges of a listed object. No request is made before the first range is asked for."""
    if stored.url.startswith("hf://"):
        return StoredRanges(stored, HubObject(stored, credentials.access))
    url = credentials.url_of(stored)
    return StoredRanges(stored, RemoteObject(url, credentials.access, partial(changed, stored)))
