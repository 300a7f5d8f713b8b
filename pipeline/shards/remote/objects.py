"""Ranges of remote objects, each pinned to the version that it had at its first answer."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator, Sequence

from ...errors import CorruptShardError, ManifestError, StorageError
from .access import Access, ObjectInfo, Transient, identity, is_http, shown
from .http import server_of
from .http_range import RangeAnswer, ask_range
from .transport import SIGNED_SECONDS, by_http_or_store, describe, fsspec_read, signed

_SIGN_AGAIN_SECONDS = 900.0


class RemoteObjects:
    """Objects by number, of ``sizes`` bytes where that is known.

    Where a file system signs urls, as that of S3 does, objects are read by http, else by the file system itself.

    An object that changes while it is read raises ``CorruptShardError``, one of another size ``ManifestError``, a server that
    answers no ranges ``StorageError``.
    """

    def __init__(self, urls: Sequence[str], sizes: Sequence[int | None], access: Access) -> None:
        self._urls = urls
        self._sizes = sizes
        self._access = access
        self._versions: dict[int, str] = {}
        self._lock = threading.Lock()
        self._signed: dict[int, tuple[float, str]] = {}

    def name(self, number: int) -> str:
        """Return what errors call an object."""
        return shown(self._urls[number])

    def target(self, number: int) -> str:
        """Return the url by which an object is read: its own, or a signed one."""
        url = self._urls[number]
        if is_http(url) or not server_of(url).signs:
            return url
        when, found = self._signed.get(number, (0.0, ""))
        if not found or time.monotonic() - when > _SIGN_AGAIN_SECONDS:
            found = signed(url, self._access, SIGNED_SECONDS) or ""
            if not found:
                server_of(url).signs = False
                return url
            self._signed[number] = time.monotonic(), found
        return found

    def info(self, number: int) -> ObjectInfo:
        """Return size and version of an object, which is pinned to them."""
        info = describe(self._urls[number], self._access)
        self._pin(number, info.size, info.version)
        return info

    def marks(self, number: int) -> tuple[str, int, str]:
        """Return what tells an object from any other, and from itself once it changes."""
        return identity(self._urls[number]), *self.info(number)

    def read(self, number: int, start: int, size: int, attempt: int = 1) -> bytes:
        """Return bytes of an object, in one try."""
        data = bytearray(size)
        self.fill(number, start, memoryview(data), attempt)
        return bytes(data)

    def fill(self, number: int, start: int, target: memoryview, attempt: int = 1) -> None:
        """Fill ``target`` from byte ``start`` of an object on, in one try."""
        done = 0
        for piece in self._pieces(number, start, start + len(target), attempt):
            if done + len(piece) > len(target):
                raise Transient(f"more than {len(target)} bytes came from byte {start}")
            target[done : done + len(piece)] = piece
            done += len(piece)
        if done < len(target):
            raise Transient(f"{done} bytes came of {len(target)} from byte {start}")

    def _pieces(self, number: int, start: int, stop: int, attempt: int) -> Iterator[bytes]:
        if start == stop:
            return
        own, target = self._urls[number], self.target(number)

        def by_http(url: str) -> Iterator[bytes]:
            return _ranged(ask_range(url, start, stop, self._access, attempt, functools.partial(self._pin, number)))

        def by_store() -> Iterator[bytes]:
            return fsspec_read(own, start, stop, self._access)

        yield from by_http_or_store(own, self._access, by_http, by_store, target if target != own else None)

    def _pin(self, number: int, size: int, version: str) -> None:
        known = self._sizes[number]
        name = self.name(number)
        if known is not None and size != known:
            raise ManifestError(f"{name}: {size} bytes, but the manifest says {known}; copy it again or rebuild it")
        with self._lock:
            pinned = self._versions.setdefault(number, version)
        if pinned != version:
            raise CorruptShardError(
                f"{name}: it changed while it was read: its version was {pinned}, now it is {version}; restore the object, or "
                "make the stream again"
            )


def _ranged(answer: RangeAnswer) -> Iterator[bytes]:
    with answer:
        if not answer.ranged:
            raise StorageError(
                f"{shown(answer.url)}: the server knows no ranges, though another of this dataset does; give "
                "whole_shards=True"
            )
        yield from answer.pieces()
