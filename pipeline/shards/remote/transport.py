"""Bytes of remote objects, with retries: http(s) over kept connections, S3 so too by signed urls, all else through fsspec."""

from __future__ import annotations

import errno
import itertools
import random
import re
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ConfigError, MissingObjectError, ShardwrightError, StorageError, did_you_mean
from .access import CONNECTIONS, KEYS, Access, ObjectInfo, Transient, is_http, shown, version_of, without_secrets
from .http import server_of
from .http_range import RangeAnswer, ask_range, http_info, too_short
from .pace import LONGEST_WAIT
from .requests import REQUESTS
from .s3 import sign_s3

__all__ = ["Access", "ObjectInfo", "Transient", "shown"]

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
# What file systems would do themselves for longer than a server that is not there may take.
_QUICK = {
    "config_kwargs": {
        "connect_timeout": 4,
        "read_timeout": 20,
        "retries": {"max_attempts": 1},
        "signature_version": "s3v4",
    }
}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _QUICK, "s3a": _QUICK}
SIGNED_SECONDS = 3600
BLOCK_BYTES = 16 << 20  # of one request through fsspec, which has no streams that can be resumed
_PLAIN = ("http://", "https://")  # most urls, which are told at once: a dataset has many
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_IPV6 = re.compile(r"\A(https?://)\[[^\]/]*\]", re.IGNORECASE)  # a host by its address
_COLLAPSED = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/(?!/)")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # of the machine's own disk: the caller tells what to free
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError)
_JITTER = random.Random()  # of its own: training code may have seeded the global one, and counts on its draws

T = TypeVar("T")


def is_remote(spec: str) -> bool:
    """Whether a spec is a url of a remote object; ``file://`` is local, and ``pipe:`` or an unknown scheme raises.

    >>> is_remote("s3://bucket/a.tar"), is_remote("data/a.tar"), is_remote("file:///data/a.tar")
    (True, False, False)
    >>> is_remote("http://[::1]:8000/a.tar")
    True
    """
    if spec.startswith(_PLAIN) and "::" not in spec:
        return True
    if spec.startswith("pipe:"):
        raise ConfigError(f"{spec!r}: commands are never run; give the url itself, such as s3://bucket/name.tar")
    if "://" not in spec:
        collapsed = _COLLAPSED.match(spec) if ":/" in spec else None
        if collapsed and collapsed[1].lower() in SCHEMES:
            raise ConfigError(
                f"{spec!r}: a url that lost a slash, as in pathlib.Path; give it as text, {collapsed[1]}://..."
            )
        return False
    if keys := KEYS.match(spec) if not is_http(spec) else None:
        raise ConfigError(
            f"{keys[1]}...@...: keys in the url of an object store are not read; set the variables of its client, or give "
            "storage_options"
        )
    if "::" in _IPV6.sub(r"\1", shown(spec)):
        raise ConfigError(
            f"{shown(spec)!r}: chained urls are not opened; give the last url alone, shards are cached anyway"
        )
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
    settings = access or Access()

    def ask(attempt: int) -> ObjectInfo:
        def by_http(target: str) -> ObjectInfo:
            return http_info(target, settings, attempt)

        return by_http_or_store(url, settings, by_http, lambda: _fsspec_info(url, settings))

    return attempting(ask, url, "look it up", access)


def read_range(url: str, start: int, length: int, access: Access | None = None) -> bytes:
    """Return ``length`` bytes of an object from byte ``start``; fewer raise ``StorageError``."""
    _fill(url, start, memoryview(data := bytearray(length)), access)
    return bytes(data)


def read_parts(url: str, size: int, access: Access | None = None, *, least: int = 1 << 20) -> memoryview:
    """Return all bytes of an object, by requests for ``least`` bytes or more: many servers limit the speed of each."""
    data = memoryview(bytearray(size))
    step = max(least, -(-size // (2 * CONNECTIONS)))
    reads = [partial(_fill, url, at, data[at : at + step], access) for at in range(0, size, step)]
    futures = [REQUESTS.submit(read) for read in reads]
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()
    return data.toreadonly()


def _fill(url: str, start: int, target: memoryview, access: Access | None) -> None:
    """Fill ``target`` from byte ``start`` of an object on."""
    size = len(target)

    def read(attempt: int) -> None:
        done = 0
        with closing(read_from(url, start, start + size, access, attempt)) as source:
            for piece in source:
                if done + len(piece) > size:
                    raise Transient(f"more than {size} bytes came")
                target[done : done + len(piece)] = piece
                done += len(piece)
        if done < size:
            raise Transient(f"{done} bytes of {size} came")

    if size:
        attempting(read, url, f"read {size} bytes from byte {start}", access)


def read_object(url: str, most: int, access: Access | None = None) -> bytes:
    """Return all that an object of at most ``most`` bytes holds, by one request where it is on an http server."""

    def hold(size: int | None) -> int:
        if size is not None and size > most:
            raise StorageError(f"{shown(url)}: {size:,} bytes, more than such a file takes ({most:,})")
        return size or 0

    settings = access or Access()

    def read(attempt: int) -> bytes:
        def by_http(target: str) -> bytes:
            with ask_range(target, 0, None, settings, attempt) as answer:
                hold(answer.size)
                return b"".join(answer.pieces())

        def by_store() -> bytes:
            size = hold(_fsspec_info(url, settings).size)
            return b"".join(fsspec_read(url, 0, size, settings))

        return by_http_or_store(url, settings, by_http, by_store)

    return attempting(read, url, "read it", access)


def knows_ranges(url: str, access: Access | None = None) -> bool:
    """Whether the server of an object answers requests for ranges; it is asked where that is not known yet."""
    if not is_http(url):
        return True
    if server_of(url).ranges is None:
        describe(url, access)
    return bool(server_of(url).ranges)


def list_remote(pattern: str, access: Access | None = None) -> list[str]:
    """Return the urls of the objects that a remote pattern with wildcards matches."""
    if is_http(pattern):
        raise ConfigError(f"{pattern!r}: http servers cannot list; write a range, such as name-{{000000..000127}}.tar")
    files = filesystem(pattern, access or Access())

    def list_all() -> list[str]:
        return [files.unstrip_protocol(name) for name in files.glob(pattern)]

    return retrying(list_all, pattern, "list it", access)


def read_from(
    url: str,
    start: int,
    stop: int,
    access: Access | None = None,
    attempt: int = 1,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Generator[bytes, None, None]:
    """Yield bytes ``start`` to ``stop`` of an object in pieces, in one try; a temporary failure raises `Transient`.

    A server without range requests sends the whole object; the bytes before ``start`` are then skipped. Slow answers are
    given more time at each ``attempt``. One request through fsspec asks for ``block_bytes``.
    """
    if start < stop:
        settings = access or Access()

        def by_http(target: str) -> Iterator[bytes]:
            return _answered(ask_range(target, start, stop, settings, attempt), url, stop)

        def by_store() -> Iterator[bytes]:
            return fsspec_read(url, start, stop, settings, block_bytes)

        yield from by_http_or_store(url, settings, by_http, by_store)


def _answered(answer: RangeAnswer, url: str, stop: int) -> Iterator[bytes]:
    with answer:
        if answer.size == 0:
            raise too_short(url, 0, stop)
        yield from answer.pieces()


def download(url: str, part: Path, size: int, access: Access | None = None, attempt: int = 1) -> None:
    """Complete the file ``part`` with an object's ``size`` bytes, from where an earlier try stopped, in one try."""
    with open(part, "ab") as file:
        if file.tell() > size:
            file.truncate(0)
        with closing(read_from(url, file.tell(), size, access, attempt)) as source:
            for piece in source:
                file.write(piece)
        if file.tell() != size:
            raise Transient(f"{file.tell()} bytes came of {size}")


def retrying(action: Callable[[], T], url: str, doing: str, access: Access | None = None) -> T:
    """Return what ``action`` returns; retry it after temporary failures, at most ``access.tries`` times in all."""
    return attempting(lambda _: action(), url, doing, access)


def attempting(action: Callable[[int], T], url: str, doing: str, access: Access | None = None) -> T:
    """Do what `retrying` does with ``action(attempt)``, attempts counted from 1.

    A server that never answered this process is given up after ``access.dead_after`` seconds.
    """
    access = access or Access()
    began = time.monotonic()
    for attempt in range(1, access.tries + 1):
        try:
            result = action(attempt)
            server_of(url).answered = True
            return result
        except ShardwrightError:
            raise
        except Exception as error:
            passing = as_transient(error, url)
        seconds = time.monotonic() - began
        dead = not server_of(url).answered and seconds >= access.dead_after / 2
        if attempt == access.tries or dead:
            raise StorageError(
                f"{shown(url)}: could not {doing}: gave up after {attempt} tries in {seconds:.1f} s; the last: {passing}. "
                "Check the network and the server, or allow more tries"
            )
        pause(attempt, passing.after, access)
    raise AssertionError("unreachable: the last try returns or raises")


def pause(attempt: int, after: float, access: Access) -> None:
    """Sleep before the next try."""
    time.sleep(back_off(attempt, after, access))


def back_off(attempt: int, after: float, access: Access) -> float:
    """Return the seconds to wait after a try: exponential, jittered so that many workers do not come back together.

    ``after`` is how long the server asked to wait.
    """
    delay = min(access.longest_delay, access.first_delay * 2.0 ** (attempt - 1))
    return max(min(after, LONGEST_WAIT), delay * _JITTER.uniform(0.5, 1.0))


def as_transient(error: Exception, url: str) -> Transient:
    """Return a temporary failure as `Transient`; raise ``StorageError`` for a permanent one."""
    if isinstance(error, Transient):
        return error
    if isinstance(error, FileNotFoundError):
        raise MissingObjectError(f"{shown(url)}: no such object; check the url") from None
    if isinstance(error, OSError) and error.errno in _DISK:
        raise error
    name, text = type(error).__name__, without_secrets(str(error), url)
    if isinstance(error, _PERMANENT) or "Credentials" in name:
        raise StorageError(
            f"{shown(url)}: {name}: {text}; check the url, the credentials and the storage options"
        ) from None
    return Transient(f"{name}: {text}" if text else name)


# fsspec


def filesystem(url: str, access: Access) -> Any:
    scheme = url.split("://", 1)[0].lower()
    try:
        import fsspec

        return fsspec.filesystem(scheme, **{**_OPTIONS.get(scheme, {}), **access.options})
    except ImportError as error:
        package = SCHEMES[scheme] or "fsspec"
        raise ConfigError(f"{url}: {scheme}:// needs {package}, which is not here: pip install {package}") from error


def by_http_or_store(
    url: str, access: Access, by_http: Callable[[str], T], by_store: Callable[[], T], target: str | None = None
) -> T:
    """Return what is found at a url, or at a signed one of its object, or by its store where this signs no urls.

    ``target`` is the signed url, where one was made before. A store that gives what it refuses by a signed url is asked
    for no more signed ones.
    """
    if is_http(url):
        return by_http(url)
    store = server_of(url)
    if target is None and store.signs:
        target = signed(url, access, SIGNED_SECONDS)
    if target is not None:
        try:
            return by_http(target)
        except Transient as error:
            raise Transient(f"{urllib.parse.urlsplit(target).netloc}: {error}", error.after) from error
        except MissingObjectError:
            raise
        except StorageError:
            if server_of(target).ranges:
                raise
    found = by_store()
    store.signs = False
    return found


def signed(url: str, access: Access, seconds: int) -> str | None:
    """Return an http url that reads an object without further credentials for so long; None where none can be made."""
    try:
        found = sign_s3(url, access.options, seconds) if url.lower().startswith(("s3://", "s3a://")) else None
        if found is None:
            found = filesystem(url, access).sign(url, expiration=seconds)
    except ConfigError:
        raise
    except Exception:  # most file systems sign nothing, and some only with some kinds of credentials
        return None
    return found if isinstance(found, str) and is_http(found) else None


def _fsspec_info(url: str, access: Access) -> ObjectInfo:
    files = filesystem(url, access)
    files.invalidate_cache()  # an object replaced since the last listing must not pass for the old one
    info = files.info(url)
    if info.get("type") == "directory" or info.get("size") is None:
        raise StorageError(f"{shown(url)}: no object but a directory; name a shard in it")
    return ObjectInfo(int(info["size"]), version_of(info))


def fsspec_read(url: str, start: int, stop: int, access: Access, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Return pieces of an object, the first of which is here: a store that refuses raises at once."""
    pieces = _fsspec_pieces(url, start, stop, access, block_bytes)
    return itertools.chain([next(pieces, b"")], pieces)


def _fsspec_pieces(url: str, start: int, stop: int, access: Access, block_bytes: int) -> Iterator[bytes]:
    from fsspec.spec import AbstractFileSystem

    files = filesystem(url, access)
    # Where fsspec reads a range through a file, as of hf://, the file would read ahead more than is wanted.
    exact = {"cache_type": "none"} if type(files).cat_file is AbstractFileSystem.cat_file else {}
    while start < stop:
        end = min(stop, start + block_bytes)
        piece = files.cat_file(url, start=start, end=end, **exact)
        if len(piece) != end - start:
            size = _fsspec_info(url, access).size
            if size < stop:
                raise too_short(url, size, stop)
            raise Transient(f"{len(piece)} bytes came where {end - start} were asked for, from byte {start}")
        yield piece
        start = end
