"""Ranges of objects on http servers: what an answer says of the object, held to what was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from ...errors import MissingObjectError, StorageError
from .access import Access, ObjectInfo, Transient, shown
from .http import Answer, byte_range, server_of

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)\Z")

Check = Callable[[int, str], None]


class RangeAnswer:
    """Bytes ``start`` to ``stop`` (None: the end) of an object, by an answer of these or of the whole object.

    ``size`` is that of the object, None where the server does not say; ``version`` its mark. ``check`` gets both before
    anything else is held against them, and raises for an object that is not the expected one. A context manager, as is
    the answer.
    """

    def __init__(self, answer: Answer, url: str, start: int, stop: int | None, check: Check | None = None) -> None:
        self._answer = answer
        self._start = start
        self.url = url
        self.version = answer.version
        try:
            self.ranged, self.begin, self.end, self.size = self._parse(stop, check)
        except BaseException:
            answer.close()
            raise

    def _parse(self, stop: int | None, check: Check | None) -> tuple[bool, int, int, int | None]:
        """Return whether a range came, its first byte and end, and the object's size."""
        answer, start = self._answer, self._start
        match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if answer.status not in (200, 206) and (answer.status != 416 or match is None):
            raise self._refusal()
        size = answer.length if match is None else int(match[3])
        if check is not None and size is not None:
            check(size, self.version)
        if size == 0 and start == 0:
            return answer.status != 200, 0, 0, 0
        if size is not None and size < (start if stop is None else stop):
            raise too_short(self.url, size, start if stop is None else stop)
        # Some S3 servers answer 200 with a range.
        if answer.status == 206 or (match is not None and match[1] is not None):
            if match is None or match[1] is None or int(match[1]) != start:
                said = answer.headers.get("Content-Range")
                raise Transient(f"asked for byte {start}, the server sent {said!r}")
            end = int(match[2]) + 1
            if stop is not None and (end != stop or answer.length not in (None, end - start)):
                raise Transient(f"asked for bytes {start} to {stop}, the server sent {start} to {end}")
            server_of(self.url).ranges = True
            return True, start, end, size
        if answer.status != 200:
            raise self._refusal()
        if stop is not None and (start, stop) != (0, size):  # some answer so where all bytes are asked for
            server_of(self.url).ranges = False
        if size is None and stop is None:
            raise no_size(self.url)
        return False, 0, stop if stop is not None else int(size or 0), size

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from ``start`` on; those of a whole object before it are skipped."""
        skip = self._start - self.begin
        for piece in self._answer.pieces(self.end - self.begin):
            if skip < len(piece):
                yield piece[skip:] if skip else piece
            skip = max(0, skip - len(piece))

    def __enter__(self) -> RangeAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back, or close it where bytes are left."""
        self._answer.close()

    def _refusal(self) -> StorageError:
        status = self._answer.status
        kind = MissingObjectError if status in (404, 410) else StorageError
        cure = "the server does not give this object"
        if status in (401, 403):
            cure = "the server refuses: check credentials and permissions, or sign the url again"
        elif status in (404, 410):
            cure = "check the url"
        return kind(f"{shown(self.url)}: {status} {self._answer.reason}; {cure}")


def ask_range(
    url: str,
    start: int,
    stop: int | None,
    access: Access,
    attempt: int = 1,
    check: Check | None = None,
    headers: Mapping[str, str] | None = None,
) -> RangeAnswer:
    """Ask for bytes ``start`` to ``stop`` (None: the end) of an object, in one try."""
    size = None if stop is None else stop - start
    answer = Answer(url, access, attempt, {**(headers or {}), **byte_range(start, stop)}, size=size)
    return RangeAnswer(answer, url, start, stop, check)


def http_info(url: str, access: Access, attempt: int = 1) -> ObjectInfo:
    """Return size and version of an object."""
    # A ranged GET, not HEAD: presigned urls allow one method only.
    with ask_range(url, 0, 1, access, attempt) as answer:
        if answer.ranged:
            for _ in answer.pieces():
                pass
        if answer.size is None:
            raise no_size(url)
        return ObjectInfo(answer.size, answer.version)


def no_size(url: str) -> StorageError:
    """Return the error for an object whose size is not known."""
    return StorageError(f"{shown(url)}: the server does not tell its size; serve it as a plain file")


def too_short(url: str, size: int, stop: int) -> StorageError:
    """Return the error for an object that has fewer bytes than are expected."""
    return StorageError(
        f"{shown(url)}: {size} bytes, but {stop} are expected: it is shorter than expected, cut at the source; upload it again"
    )
