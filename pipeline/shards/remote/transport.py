"""Bytes of remote objects, with retries: http(s) by the standard library, everything else through fsspec."""

from __future__ import annotations

import errno
import http.client
import random
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...errors import ConfigError, MissingObjectError, ShardwrightError, StorageError, did_you_mean

# Scheme -> what has to be installed for it. Schemes outside are refused: some of fsspec's run commands or chain urls.
SCHEMES: dict[str, str] = {
    "http": "",
    "https": "",
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "hf": "huggingface_hub",
    "memory": "",
}
BLOCK_BYTES = 16 << 20  # of one request through fsspec, which has no streams that can be resumed
_PIECE = 1 << 20
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_COLLAPSED = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/(?!/)")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)\Z")
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # of the machine's own disk: the caller tells what to free
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError)
_JITTER = random.Random()  # of its own: training code may have seeded the global one, and counts on its draws

T = TypeVar("T")


class ObjectInfo(NamedTuple):
    """``size`` in bytes, and ``version``: the server's mark (ETag or time) that changes with the contents, or ''."""

    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How remote objects are reached.

    ``tries`` bounds the attempts at one object, ``first_delay`` and ``longest_delay`` (seconds) the exponential back-off
    between them; ``timeout`` (seconds) is for one answer of an http server. ``options`` go to fsspec
    (``storage_options``: keys, endpoints).
    """

    tries: int = 8
    first_delay: float = 0.5
    longest_delay: float = 30.0
    timeout: float = 60.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ConfigError(f"tries must be 1 or more, got {self.tries}")


class Transient(Exception):
    """A temporary failure; ``after`` is how many seconds the server asked to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


def is_remote(spec: str) -> bool:
    """Whether a spec is a url of a remote object; ``file://`` is local, and ``pipe:`` or an unknown scheme raises.

    >>> is_remote("s3://bucket/a.tar"), is_remote("data/a.tar"), is_remote("file:///data/a.tar")
    (True, False, False)
    """
    if spec.startswith("pipe:"):
        raise ConfigError(f"{spec!r}: commands are never run; give the url itself, such as s3://bucket/name.tar")
    if "://" not in spec:
        collapsed = _COLLAPSED.match(spec) if ":/" in spec else None
        if collapsed and collapsed[1].lower() in SCHEMES:
            raise ConfigError(
                f"{spec!r}: a url that lost a slash, as in pathlib.Path; give it as text, {collapsed[1]}://..."
            )
        return False
    if "::" in spec:
        raise ConfigError(f"{spec!r}: chained urls are not opened; give the last url alone, shards are cached anyway")
    match = _SCHEME.match(spec)
    if match is None or match[1].lower() == "file":
        return False
    if match[1].lower() not in SCHEMES:
        raise ConfigError(f"{spec!r}: unknown kind of url{did_you_mean(match[1].lower(), SCHEMES)}")
    return True


def local_name(spec: str) -> str:
    """Return the path that a local spec, perhaps a ``file://`` url, means."""
    if not spec.lower().startswith("file://"):
        return spec
    parts = urllib.parse.urlsplit(spec)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{spec!r}: a file of host {parts.netloc!r}; write file:///path")
    return urllib.parse.unquote(parts.path)


def describe(url: str, access: Access | None = None) -> ObjectInfo:
    """Return size and version of a remote object; ``StorageError`` names it where it is not there."""
    reader = _http_info if _is_http(url) else _fsspec_info
    return retrying(lambda: reader(url, access or Access()), url, "look it up", access)


def read_range(url: str, start: int, length: int, access: Access | None = None) -> bytes:
    """Return ``length`` bytes of an object from byte ``start``; fewer raise ``StorageError``."""

    def read() -> bytes:
        pieces, held = [], 0
        with closing(read_from(url, start, start + length, access)) as source:
            for piece in source:
                pieces.append(piece)
                held += len(piece)
        if held != length:
            raise Transient(f"{held} bytes of {length} came")
        return b"".join(pieces)

    return retrying(read, url, f"read {length} bytes from byte {start}", access) if length else b""


def list_remote(pattern: str, access: Access | None = None) -> list[str]:
    """Return the urls of the objects that a remote pattern with wildcards matches."""
    if _is_http(pattern):
        raise ConfigError(f"{pattern!r}: http servers cannot list; write a range, such as name-{{000000..000127}}.tar")
    files = filesystem(pattern, access or Access())

    def list_all() -> list[str]:
        return [files.unstrip_protocol(name) for name in files.glob(pattern)]

    return retrying(list_all, pattern, "list it", access)


def read_from(url: str, start: int, stop: int, access: Access | None = None) -> Generator[bytes, None, None]:
    """Yield bytes ``start`` to ``stop`` of an object in pieces, in one try; a temporary failure raises `Transient`.

    A server without range requests sends the whole object; the bytes before ``start`` are then skipped.
    """
    if start < stop:
        reader = _http_read if _is_http(url) else _fsspec_read
        yield from reader(url, start, stop, access or Access())


def download(url: str, part: Path, size: int, access: Access | None = None) -> None:
    """Complete the file ``part`` with an object's ``size`` bytes, from where an earlier try stopped, in one try."""
    with open(part, "ab") as file:
        if file.tell() > size:
            file.truncate(0)
        with closing(read_from(url, file.tell(), size, access)) as source:
            for piece in source:
                file.write(piece)
        if file.tell() != size:
            raise Transient(f"{file.tell()} bytes came of {size}")


def retrying(action: Callable[[], T], url: str, doing: str, access: Access | None = None) -> T:
    """Return what ``action`` returns; retry it after temporary failures, at most ``access.tries`` times in all."""
    access = access or Access()
    began = time.monotonic()
    for attempt in range(1, access.tries + 1):
        try:
            return action()
        except ShardwrightError:
            raise
        except Exception as error:
            passing = as_transient(error, url)
            if attempt == access.tries:
                raise StorageError(
                    f"{shown(url)}: could not {doing}: gave up after {attempt} tries in {time.monotonic() - began:.1f} s; "
                    f"the last: {passing}. Check the network and the server, or allow more tries"
                ) from error
            pause(attempt, passing.after, access)
    raise AssertionError("unreachable: the last try returns or raises")


def pause(attempt: int, after: float, access: Access) -> None:
    """Sleep before the next try: exponential, jittered so that many workers do not come back together."""
    delay = min(access.longest_delay, access.first_delay * 2.0 ** (attempt - 1))
    time.sleep(max(min(after, access.longest_delay), delay * _JITTER.uniform(0.5, 1.0)))


def as_transient(error: Exception, url: str) -> Transient:
    """Return a temporary failure as `Transient`; raise ``StorageError`` for a permanent one."""
    if isinstance(error, Transient):
        return error
    if isinstance(error, urllib.error.HTTPError):
        if error.code in _TRANSIENT:
            return Transient(f"{error.code} {error.reason}", _retry_after(error))
        kind = MissingObjectError if error.code in (404, 410) else StorageError
        raise kind(f"{shown(url)}: {error.code} {error.reason}; {_cure(error.code)}") from error
    if isinstance(error, FileNotFoundError):
        raise MissingObjectError(f"{shown(url)}: no such object; check the url") from error
    if isinstance(error, OSError) and error.errno in _DISK:
        raise error
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    name = type(error).__name__
    if isinstance(error, _PERMANENT) or isinstance(cause, ssl.SSLCertVerificationError) or "Credentials" in name:
        raise StorageError(
            f"{shown(url)}: {name}: {error}; check the url, the credentials and the storage options"
        ) from error
    return Transient(f"{name}: {error}" if str(error) else name)


def shown(url: str) -> str:
    """Return a url as messages show it: without its query, which may hold a signature.

    >>> shown("https://host/a.tar?X-Amz-Signature=0f3a")
    'https://host/a.tar'
    """
    return url.split("?", 1)[0] if _is_http(url) else url


def _too_short(url: str, size: int, stop: int) -> StorageError:
    return StorageError(
        f"{shown(url)}: {size} bytes, but {stop} are expected: it is cut at the source; upload it again"
    )


def _cure(code: int) -> str:
    if code == 416:
        return "it is shorter than expected: upload it again"
    if code in (401, 403):
        return "the server refuses: check credentials and permissions"
    return "check the url" if code in (404, 410) else "the server does not give this object"


def _retry_after(error: urllib.error.HTTPError) -> float:
    value = error.headers.get("Retry-After", "") if error.headers else ""
    return float(value) if value.isdecimal() else 0.0  # the date form is rare; the back-off serves there


# http


def _is_http(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _http_open(url: str, start: int, stop: int, access: Access) -> http.client.HTTPResponse:
    request = urllib.request.Request(
        url, headers={"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity", "User-Agent": "shardwright"}
    )
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=access.timeout)
    return answer


def _http_info(url: str, access: Access) -> ObjectInfo:
    # A ranged GET, not HEAD: presigned urls allow one method only.
    try:
        with _http_open(url, 0, 1, access) as answer:
            match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", "")) if answer.status == 206 else None
            size = match[3] if match else answer.headers.get("Content-Length")
            version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    except urllib.error.HTTPError as error:
        match = _CONTENT_RANGE.match(error.headers.get("Content-Range", "")) if error.code == 416 else None
        if match is None or match[3] != "0":
            raise
        size, version = "0", ""
    if size is None:
        raise StorageError(f"{shown(url)}: the server does not tell its size; serve it as a plain file")
    return ObjectInfo(int(size), version)


def _http_read(url: str, start: int, stop: int, access: Access) -> Iterator[bytes]:
    with _http_open(url, start, stop, access) as answer:
        position = 0
        if answer.status == 206:
            match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
            if match is None or match[1] is None or int(match[1]) != start:
                raise Transient(f"asked for byte {start}, the server sent {answer.headers.get('Content-Range')!r}")
            if int(match[3]) < stop:
                raise _too_short(url, int(match[3]), stop)
            position = start
        while position < stop:
            piece = answer.read(min(_PIECE, stop - position))
            if not piece:
                raise Transient(f"the connection ended at byte {position} of {stop}")
            position += len(piece)
            if position > start:
                yield piece[-(position - start) :] if position - start < len(piece) else piece


# fsspec


def filesystem(url: str, access: Access) -> Any:
    scheme = url.split("://", 1)[0].lower()
    try:
        import fsspec

        return fsspec.filesystem(scheme, **access.options)
    except ImportError as error:
        package = SCHEMES[scheme] or "fsspec"
        raise ConfigError(f"{url}: {scheme}:// needs {package}, which is not here: pip install {package}") from error


def _fsspec_info(url: str, access: Access) -> ObjectInfo:
    files = filesystem(url, access)
    files.invalidate_cache()  # an object replaced since the last listing must not pass for the old one
    info = files.info(url)
    if info.get("type") == "directory" or info.get("size") is None:
        raise StorageError(f"{shown(url)}: no object but a directory; name a shard in it")
    marks = (info.get(name) for name in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created"))
    return ObjectInfo(int(info["size"]), str(next((mark for mark in marks if mark), "")))


def _fsspec_read(url: str, start: int, stop: int, access: Access) -> Iterator[bytes]:
    files = filesystem(url, access)
    while start < stop:
        end = min(stop, start + BLOCK_BYTES)
        piece = files.cat_file(url, start=start, end=end)
        if len(piece) != end - start:
            size = _fsspec_info(url, access).size
            if size < stop:
                raise _too_short(url, size, stop)
            raise Transient(f"{len(piece)} bytes came where {end - start} were asked for, from byte {start}")
        yield piece
        start = end
