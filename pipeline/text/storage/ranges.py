"""One remote object by ranges, each pinned to the version that was listed: what changed since is refused."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from typing import Any

from ...errors import InputError
from ...shards.remote.access import is_http, version_of
from ...shards.remote.http import server_of
from ...shards.remote.http_range import RangeAnswer, ask_range
from ...shards.remote.transport import Access, Transient, attempting, by_http_or_store, describe, filesystem, retrying
from .input_file import Credentials, StoredObject
from .whole_files import WHOLE_FILES


def changed(stored: StoredObject, size: int, version: str) -> InputError:
    """Return the error for an object that is not the one that was listed."""
    was, now = stored.version or "none", version or "none"
    return InputError(
        f"{stored.url}: it changed since it was listed: {stored.size:,} bytes of version {was} before, now {size:,} bytes "
        f"of version {now}. Restore it to continue, or start over with --overwrite once nothing writes to it"
    )


def check_version(stored: StoredObject, size: int, version: str) -> None:
    """Raise ``InputError`` unless size and version are those that were listed."""
    if size != stored.size or (stored.version and version and version != stored.version):
        raise changed(stored, size, version)


class ObjectRanges:
    """Ranges of a remote object, read over http unless `pieces` is overridden. A retry continues where the last try stopped."""

    def __init__(self, stored: StoredObject, access: Access) -> None:
        self.stored = stored
        self.key: Hashable = stored
        self.access = access

    def ask(self, start: int, stop: int, attempt: int) -> RangeAnswer:
        """Ask for a range of the version that was listed, in one try."""
        raise NotImplementedError

    def pieces(self, start: int, stop: int, attempt: int) -> Iterator[bytes]:
        """Return the pieces of a range as they come, in one try."""
        return _pieces(self.ask(start, stop, attempt))

    def fetch(self, start: int, stop: int) -> bytes:
        pieces: list[bytes] = []
        held = 0

        def read(attempt: int) -> None:
            nonlocal held
            for piece in self.pieces(start + held, stop, attempt):
                pieces.append(piece)
                held += len(piece)

        attempting(read, self.stored.url, f"read {stop - start:,} bytes from byte {start:,}", self.access)
        return b"".join(pieces)

    def close(self) -> None:
        """Connections belong to the process, not to one object."""

    def check(self, size: int, version: str) -> None:
        check_version(self.stored, size, plain(version))


class HttpObject(ObjectRanges):
    """An object of a web server."""

    def __init__(self, stored: StoredObject, credentials: Credentials) -> None:
        super().__init__(stored, credentials.access)
        self._url = credentials.url_of(stored)
        self.key = stored, self._url

    def pieces(self, start: int, stop: int, attempt: int) -> Iterator[bytes]:
        """Return the pieces of a range; a server without ranges is asked for all bytes once."""
        whole, size = start == 0 and stop == self.stored.size, self.stored.size
        if whole or server_of(self._url).ranges is not False:
            answer = ask_range(self._url, start, stop, self.access, attempt, self.check)
            if whole or answer.ranged:
                return _pieces(answer)
            answer.close()

        def all_pieces() -> Iterator[bytes]:
            return _pieces(ask_range(self._url, 0, size, self.access, attempt, self.check))

        return iter([WHOLE_FILES.read(self.key, size, all_pieces, start, stop)])


def _pieces(answer: RangeAnswer) -> Iterator[bytes]:
    with answer:
        yield from answer.pieces()


def describe_http(url: str, credentials: Credentials) -> StoredObject:
    """Ask a web server for size and version of an object."""
    found = describe(credentials.urls.get(url, url), credentials.access)
    return StoredObject(url, found.size, plain(found.version))


def plain(version: str) -> str:
    """Return a version without the quotes that http puts around it."""
    return version.strip('"')


class StoreObject(ObjectRanges):
    """An object of a store, by signed urls, or by fsspec where the store signs none: to load its clients takes long."""

    def __init__(self, stored: StoredObject, access: Access) -> None:
        super().__init__(stored, access)
        self._lock = threading.Lock()
        self._file: Any = None

    def pieces(self, start: int, stop: int, attempt: int) -> Iterator[bytes]:
        def by_http(url: str) -> Iterator[bytes]:
            return _pieces(ask_range(url, start, stop, self.access, attempt, self.check))

        def by_store() -> Iterator[bytes]:
            with self._lock:  # the file of fsspec has one position
                return iter([self._fetch_once(start, stop)])

        return by_http_or_store(self.stored.url, self.access, by_http, by_store)

    def close(self) -> None:
        self._file = None

    def _fetch_once(self, start: int, stop: int) -> bytes:
        if self._file is None:
            # Without fsspec's cache, which asks for more than is wanted. The file holds reads to its own version.
            self._file = filesystem(self.stored.url, self.access).open(self.stored.url, "rb", cache_type="none")
            check_version(self.stored, int(self._file.details["size"]), plain(version_of(self._file.details)))
        try:
            self._file.seek(start)
            data: bytes = self._file.read(stop - start)
        except OSError as error:
            self._file = None  # it may have changed: the next try looks
            if type(error).__name__ == "FileExpired":
                filesystem(self.stored.url, self.access).invalidate_cache()
                raise Transient("it changed while it was read") from error
            raise
        if len(data) < stop - start:
            self._file = None
            raise Transient(f"{len(data):,} bytes of {stop - start:,} came")
        return data


def describe_again(stored: StoredObject, credentials: Credentials) -> None:
    """Raise ``InputError`` unless a remote object still is the one that was listed.

    An object of the hub belongs to a commit, which never changes.
    """
    if stored.url.startswith("hf://"):
        return
    if is_http(stored.url):
        now = describe_http(stored.url, credentials)
        check_version(stored, now.size, now.version)
        return
    access = credentials.access

    def ask() -> dict[str, Any]:
        files = filesystem(stored.url, access)
        files.invalidate_cache(stored.url)
        info: dict[str, Any] = files.info(stored.url)
        return info

    info = retrying(ask, stored.url, "look it up", access)
    check_version(stored, int(info["size"]), plain(version_of(info)))
