"""Remote objects: size and version, bytes of the whole object or of ranges, and listings."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..errors import ConfigError, ShardwrightError, StorageError
from .http import server_of
from .range_answers import Check, RangeAnswer, request_range
from .request_options import CONNECTIONS, ObjectInfo, RequestOptions, RetryableError, UnconfirmedError
from .request_threads import side_by_side
from .retries import retrying
from .store_clients import by_http_or_store, file_system, store_info, store_pieces
from .urls import is_http, shown

_PART_BYTES = 1 << 20  # the least size of a request for one part of a whole object

T = TypeVar("T")
Contents = Callable[[memoryview], ShardwrightError | None]  # returns the error if the bytes are wrong, else None


class NoRangesError(StorageError):
    """A server sent the whole object when a range was asked for."""


class RemoteObject:
    """Reads an object by ranges. ``check`` compares the size and version of each answer with the expected ones."""

    def __init__(self, url: str, requests: RequestOptions, check: Check | None = None) -> None:
        self.url = url
        self.requests = requests
        self._check = check
        self._is_checked = False  # whether `check` has compared the size and version that the store's client states

    def read(self, start: int, size: int, *, whole: bool = False) -> bytes:
        data = bytearray(size)
        self.fill(start, memoryview(data), whole=whole)
        return bytes(data)

    def fill(self, start: int, target: memoryview, contents: Contents | None = None, *, whole: bool = False) -> None:
        """Fill ``target`` with the object's bytes from ``start`` on. A retry continues where the last try stopped.

        If ``contents`` returns an error, all bytes are read once more. ``whole`` is passed to `pieces`.
        """
        done = 0

        def read() -> None:
            nonlocal done
            with closing(self.pieces(start + done, start + len(target), whole=whole)) as pieces:
                for piece in pieces:
                    target[done : done + len(piece)] = piece
                    done += len(piece)
            if done < len(target):
                raise RetryableError(f"{done} bytes of {len(target)} came")
            if contents is not None and (error := contents(target)) is not None:
                done = 0
                raise UnconfirmedError(error)

        if len(target):
            retrying(read, self.url, f"read {len(target)} bytes from byte {start}", self.requests)

    def pieces(self, start: int, stop: int, *, whole: bool = False) -> Generator[bytes, None, None]:
        """Yield bytes ``start`` to ``stop`` in one try. An answer with more of the object is refused unless ``whole`` is set."""

        def by_http(url: str) -> Iterator[bytes]:
            answer = self.request(url, start, stop)
            if answer.ranged or whole or (start, stop) == (0, answer.size):
                return _pieces(answer)
            with answer:
                raise UnconfirmedError(
                    NoRangesError(f"{shown(self.url)}: the server does not support ranges; give whole_shards=True")
                )

        def by_store() -> Iterator[bytes]:
            if self._check is not None and not self._is_checked:
                if (error := self._check(*store_info(self.url, self.requests))) is not None:
                    raise error
                self._is_checked = True
            pieces = store_pieces(self.url, start, stop, self.requests)
            # The first piece is read here, so that a refusal raises here.
            return itertools.chain([next(pieces, b"")], pieces)

        if start < stop:
            yield from by_http_or_store(self.url, self.requests, by_http, by_store)

    def request(self, url: str, start: int, stop: int) -> RangeAnswer:
        """Ask for a range in one try; ``url`` is the object's own or a signed one."""
        return request_range(url, start, stop, self.requests, self._check)


def _pieces(answer: RangeAnswer) -> Iterator[bytes]:
    with answer:
        yield from answer.pieces()


def describe(url: str, requests: RequestOptions | None = None) -> ObjectInfo:
    """Return the size and version of an object; raises ``MissingObjectError`` if there is none."""
    settings = requests or RequestOptions()

    def by_http(target: str) -> ObjectInfo:
        for _ in range(2):  # a single answer without a range proves nothing
            # A ranged GET, not HEAD: presigned urls allow one method only.
            with request_range(target, 0, 1, settings) as answer:
                if answer.ranged:
                    for _ in answer.pieces():
                        pass
                    break
        else:
            server_of(target).ranges = server_of(target).ranges or False
        if answer.size is None:
            raise UnconfirmedError(
                StorageError(f"{shown(url)}: the server does not state its size; serve it as a plain file")
            )
        return ObjectInfo(answer.size, answer.version)

    def look() -> ObjectInfo:
        return by_http_or_store(url, settings, by_http, lambda: store_info(url, settings))

    return retrying(look, url, "look it up", settings)


def knows_ranges(url: str, requests: RequestOptions | None = None) -> bool:
    """Whether the server of an object answers requests for ranges. If this is not known yet, the server is asked."""
    if not is_http(url):
        return True
    if server_of(url).ranges is None:
        describe(url, requests)
    return bool(server_of(url).ranges)


def read_range(url: str, start: int, length: int, requests: RequestOptions | None = None) -> bytes:
    """Return ``length`` bytes of an object from byte ``start`` on; raises ``StorageError`` if it has fewer.

    A server without ranges sends the whole object; the other bytes are skipped.
    """
    return RemoteObject(url, requests or RequestOptions()).read(start, length, whole=True)


def read_whole(url: str, size: int, requests: RequestOptions | None = None, sha256: str = "") -> memoryview:
    """Return all bytes of an object. Its parts are requested side by side, since many servers limit the speed of a request.

    If the hash is not ``sha256``, all bytes are read once more: the network may have damaged them.
    """
    data, remote = memoryview(bytearray(size)), RemoteObject(url, requests or RequestOptions())
    step = max(_PART_BYTES, -(-size // (2 * CONNECTIONS)))
    for _ in range(2):
        side_by_side(partial(remote.fill, at, data[at : at + step]) for at in range(0, size, step))
        if not sha256 or hashlib.sha256(data).hexdigest() == sha256:
            break
    return data.toreadonly()


def read_parsed(url: str, most: int, parse: Callable[[bytes], T], requests: RequestOptions | None = None) -> T:
    """Return ``parse`` of the bytes of an object, which are at most ``most``. If it raises, the object is read once more."""
    settings = requests or RequestOptions()

    def read() -> T:
        size = describe(url, settings).size
        if size > most:
            raise StorageError(f"{shown(url)}: {size:,} bytes, but such a file has at most {most:,}; check the url")
        raw = read_range(url, 0, size, settings)
        try:
            return parse(raw)
        except ShardwrightError as error:
            raise UnconfirmedError(error) from None

    return retrying(read, url, "read it", settings)


def download(url: str, path: Path, size: int, requests: RequestOptions | None = None, sha256: str = "") -> str:
    """Write an object's ``size`` bytes to a file and return their hash. A retry continues where the last try stopped.

    If the hash is not ``sha256``, the object is downloaded once more: the network may have damaged it.
    """
    settings = requests or RequestOptions()
    remote = RemoteObject(url, settings)
    # The file is not emptied: a file in the cache already has its full size, so that the cache counts it.
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:

        def read() -> None:
            with closing(remote.pieces(file.tell(), size, whole=True)) as pieces:
                for piece in pieces:
                    file.write(piece)
            if file.tell() != size:
                raise RetryableError(f"the server sent {file.tell()} of {size} bytes")

        for _ in range(2):
            file.seek(0)
            retrying(read, url, "download it", settings)
            file.truncate()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest == (sha256 or digest):
                break
    return digest


def list_objects(pattern: str, requests: RequestOptions | None = None) -> list[str]:
    """Return the urls of the objects that match a pattern with wildcards."""
    if is_http(pattern):
        raise ConfigError(f"{pattern!r}: http servers cannot list; write a range, such as name-{{000000..000127}}.tar")
    files = file_system(pattern, requests or RequestOptions())

    def look() -> list[str]:
        return [files.unstrip_protocol(name) for name in files.glob(pattern)]

    return retrying(look, pattern, "list it", requests or RequestOptions())
