"""The bytes of one input on a server or in a store, pinned to the version that was listed: what changed since is refused."""

from __future__ import annotations

from collections.abc import Hashable

from ...errors import InputError
from ...objects.access import is_version
from ...objects.http import server_of
from ...objects.remote_object import NoRangesError, RemoteObject, describe
from ...objects.retries import retrying
from ...objects.urls import is_http
from .input_file import Credentials, StoredObject
from .whole_files import WHOLE_FILES


def changed(stored: StoredObject, size: int, version: str) -> InputError | None:
    """Return the error for an object that is not the one that was listed, by its size and version; None where it is."""
    if size == stored.size and is_version(version, stored.version):
        return None
    was, now = stored.version or "none", version or "none"
    return InputError(
        f"{stored.url}: it changed since it was listed: {stored.size:,} bytes of version {was} before, now {size:,} bytes "
        f"of version {now}. Restore it to continue, or start over with --overwrite once nothing writes to it"
    )


class StoredRanges:
    """Ranges of a listed object, for any thread. ``key`` tells it from every other in this process, as its url's query does."""

    def __init__(self, stored: StoredObject, remote: RemoteObject) -> None:
        self.stored = stored
        self.key: Hashable = stored, remote.url
        self._remote = remote

    def fetch(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes from ``start`` to ``stop``; a server without ranges is asked for all bytes once."""
        remote, size = self._remote, self.stored.size
        if not is_http(remote.url) or server_of(remote.url).ranges is not False:
            try:
                return remote.read(start, stop - start)
            except NoRangesError:
                pass

        def read() -> bytes:
            return WHOLE_FILES.read(self.key, size, lambda: remote.pieces(0, size, whole=True), start, stop)

        return retrying(read, remote.url, "read it", remote.access)


def describe_again(stored: StoredObject, credentials: Credentials) -> None:
    """Raise ``InputError`` unless a remote object still is the one that was listed.

    An object of the hub belongs to a commit, which never changes.
    """
    if not stored.url.startswith("hf://"):
        error = changed(stored, *describe(credentials.url_of(stored), credentials.access))
        if error is not None:
            raise error
