"""One remote object by ranges, each pinned to the version that was listed: what changed since is refused."""

from __future__ import annotations

import threading
from typing import Any

from ...errors import InputError
from ...shards.remote.transport import Access, Transient, filesystem, retrying
from .http import content_range, read_body, refusal, request
from .input_file import Credentials, StoredObject
from .urls import is_http, with_authorization

_MARKS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "last_modified", "mtime", "created")


def version_of(info: dict[str, Any]) -> str:
    """Return the mark by which an object store tells one version of an object from another."""
    return str(next((info[name] for name in _MARKS if info.get(name)), "")).strip('"')


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


class HttpObject:
    """An object of a web server."""

    def __init__(self, stored: StoredObject, credentials: Credentials) -> None:
        self.stored = stored
        self._access = credentials.access
        self._url, self._headers = with_authorization(credentials.url_of(stored))

    def fetch(self, start: int, stop: int) -> bytes:
        doing = f"read {stop - start:,} bytes from byte {start:,}"
        return retrying(lambda: self._fetch_once(start, stop), self.stored.url, doing, self._access)

    def close(self) -> None:
        """Nothing stays open between ranges."""

    def _fetch_once(self, start: int, stop: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={start}-{stop - 1}"}
        with request(self._url, headers, self._access.timeout) as answer:
            found = content_range(answer.headers)
            if answer.status not in (200, 206) and (answer.status != 416 or found is None):
                raise refusal(self.stored.url, answer)
            size = found[1] if found else int(answer.headers.get("Content-Length", self.stored.size))
            check_version(self.stored, size, mark_of(answer.headers))
            return read_body(answer, start, stop)


def mark_of(headers: Any) -> str:
    """Return what tells one version from another in the headers of an answer."""
    return (headers.get("ETag") or headers.get("Last-Modified") or "").strip('"')


def describe_http(url: str, credentials: Credentials) -> StoredObject:
    """Ask a web server for size and version of an object."""
    access = credentials.access
    given, headers = with_authorization(credentials.urls.get(url, url))

    def ask() -> StoredObject:
        # A ranged GET, not HEAD: presigned urls allow one method only.
        with request(given, {**headers, "Range": "bytes=0-0"}, access.timeout) as answer:
            found = content_range(answer.headers)
            if answer.status == 416 and found is not None and found[1] == 0:
                return StoredObject(url, 0, "")
            if answer.status not in (200, 206):
                raise refusal(url, answer)
            size = str(found[1]) if found else answer.headers.get("Content-Length")
            if size is None:
                raise InputError(f"{url}: the server does not tell its size; serve it as a plain file")
            return StoredObject(url, int(size), mark_of(answer.headers))

    return retrying(ask, url, "look it up", access)


class StoreObject:
    """An object of a store that fsspec reaches."""

    def __init__(self, stored: StoredObject, access: Access) -> None:
        self.stored = stored
        self._access = access
        self._lock = threading.Lock()
        self._file: Any = None

    def fetch(self, start: int, stop: int) -> bytes:
        doing = f"read {stop - start:,} bytes from byte {start:,}"
        with self._lock:  # the file of fsspec has one position
            return retrying(lambda: self._fetch_once(start, stop), self.stored.url, doing, self._access)

    def close(self) -> None:
        self._file = None

    def _fetch_once(self, start: int, stop: int) -> bytes:
        if self._file is None:
            # Without fsspec's cache, which asks for more than is wanted. The file holds reads to its own version.
            self._file = filesystem(self.stored.url, self._access).open(self.stored.url, "rb", cache_type="none")
            check_version(self.stored, int(self._file.details["size"]), version_of(self._file.details))
        try:
            self._file.seek(start)
            data: bytes = self._file.read(stop - start)
        except OSError as error:
            self._file = None  # it may have changed: the next try looks
            if type(error).__name__ == "FileExpired":
                filesystem(self.stored.url, self._access).invalidate_cache()
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
    check_version(stored, int(info["size"]), version_of(info))
