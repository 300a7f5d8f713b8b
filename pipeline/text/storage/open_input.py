"""Opens an input file, local or remote."""

from __future__ import annotations

from typing import Any, BinaryIO

from ...objects.http import server_of
from ...objects.remote_object import RemoteObject, describe
from ...objects.urls import is_http
from .hub import HubObject
from .input_file import Credentials, InputFile, StoredObject, StrPath, as_input
from .remote_file import RANGE_BYTES, ObjectRanges, RemoteFile


def open_input(
    path: StrPath | InputFile,
    start: int = 0,
    stop: int | None = None,
    *,
    in_order: bool = True,
    first_bytes: int = RANGE_BYTES,
    whole: bool = False,
) -> BinaryIO:
    """Open an input file for reading.

    If a remote file is read ``in_order``, bytes ``start`` to ``stop`` are fetched ahead in large ranges, the first one of
    ``first_bytes``. All other bytes are fetched when they are read. ``whole`` says that several readers read all of the
    file, so the process downloads it once.
    """
    file = as_input(path)
    if file.stored is None:
        return open(file.path, "rb")
    remote = RemoteFile(open_object(file.stored, file.credentials, whole=whole), first_bytes)
    if in_order:
        remote.expect_span(start, stop)
    opened: Any = remote
    return opened  # type: ignore[no-any-return]


def open_object(stored: StoredObject, credentials: Credentials, *, whole: bool = False) -> ObjectRanges:
    """Return the ranges of a listed object. No request is made before the first range is asked for."""
    if stored.url.startswith("hf://"):
        return ObjectRanges(stored, HubObject(stored, credentials.requests), whole=whole)
    remote = RemoteObject(credentials.url_of(stored), credentials.requests, stored.difference)
    return ObjectRanges(stored, remote, whole=whole)


def describe_again(stored: StoredObject, credentials: Credentials, *, was_read: bool = False) -> None:
    """Raise ``InputError`` if a remote object changed since it was listed.

    An object of the hub needs no request, since a commit never changes. Neither does an object that this process read by
    http, since the version of each response was compared.
    """
    url = credentials.url_of(stored)
    is_known = was_read and stored.size and stored.version and (is_http(url) or server_of(url).signs)
    if not (is_known or stored.url.startswith("hf://")):
        error = stored.difference(*describe(url, credentials.requests))
        if error is not None:
            raise error
