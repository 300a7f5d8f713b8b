"""Answers of http servers to requests for ranges, compared with the requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..errors import MissingObjectError, ShardwrightError, StorageError
from .http import Answer, server_of
from .request_options import RequestOptions, RetryableError, UnconfirmedError
from .urls import shown

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)\Z")

# Takes the size and version of an object. Returns an error, or None if they are the expected ones.
Check = Callable[[int, str], ShardwrightError | None]


class RangeAnswer:
    """Bytes ``start`` to ``stop`` of an object, from an answer with this range or with the whole object.

    ``ranged``: whether the range came alone. ``size``: the object's, None if the server does not state it. ``version``: as in
    `Answer`. ``check`` gets size and version before anything else is compared. Raises `UnconfirmedError` if a proxy or a
    broken connection may have caused the answer. As a context manager, it closes the answer.
    """

    def __init__(self, answer: Answer, url: str, start: int, stop: int, check: Check | None = None) -> None:
        self._answer = answer
        self._start, self._stop = start, stop
        self.url = url
        self.version = answer.version
        try:
            self.ranged, self.size = self._parse(check)
        except BaseException:
            answer.close()
            raise

    def _parse(self, check: Check | None) -> tuple[bool, int | None]:
        """Return whether a range came, and the object's size."""
        answer, start, stop = self._answer, self._start, self._stop
        stated = answer.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.match(stated)
        if answer.status not in (200, 206):
            raise UnconfirmedError(self._refusal())
        if answer.status == 206 and match is None:
            raise UnconfirmedError(
                self._error(f"206 with Content-Range {stated!r}: the server does not say which bytes it sends")
            )
        size = answer.length if match is None else int(match[3]) if match[3] != "*" else None
        if size is not None and check is not None and (error := check(size, self.version)) is not None:
            raise UnconfirmedError(error)
        if size == 0 and start == 0:
            self._stop = 0
            return True, 0
        if size is not None and size < stop:
            raise UnconfirmedError(too_short(self.url, size, stop))
        if match is not None:  # some S3 servers answer 200 with a range
            first, end = int(match[1]), int(match[2]) + 1
            if first != start or end != stop or answer.length not in (None, end - start):
                raise RetryableError(f"asked for bytes {start} to {stop}, the server sent {first} to {end}")
            server_of(self.url).ranges = True
            return True, size
        if answer.status != 200:
            raise UnconfirmedError(self._refusal())
        packing = answer.headers.get("Content-Encoding", "identity").lower()
        if packing not in ("", "identity"):
            raise UnconfirmedError(
                self._error(f"the server packs its answers (Content-Encoding: {packing}); serve it as a plain file")
            )
        return False, size

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from ``start`` on. If the whole object came, the bytes before ``start`` are skipped."""
        skip = 0 if self.ranged else self._start
        for piece in self._answer.pieces(self._stop - self._start + skip):
            if skip < len(piece):
                yield piece[skip:] if skip else piece
            skip = max(0, skip - len(piece))

    def __enter__(self) -> RangeAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()

    def _error(self, text: str) -> StorageError:
        return StorageError(f"{shown(self.url)}: {text}")

    def _refusal(self) -> StorageError:
        status = self._answer.status
        kind = MissingObjectError if status in (404, 410) else StorageError
        cure = "the server does not send this object; check the url"
        if status in (401, 403):
            cure = "the server refuses: check credentials and permissions, or sign the url again"
        elif status in (404, 410):
            cure = "check the url"
        return kind(f"{shown(self.url)}: {status} {self._answer.reason}; {cure}")


def request_range(url: str, start: int, stop: int, requests: RequestOptions, check: Check | None = None) -> RangeAnswer:
    """Ask for bytes ``start`` to ``stop`` of an object, in one try.

    An object that has no such bytes, as an empty one, is asked for without a range: few servers state its size with a 416.
    """
    answer = Answer(url, requests, range_header(start, stop))
    if answer.status == 416:
        answer.drain()
        answer = Answer(url, requests)
    return RangeAnswer(answer, url, start, stop, check)


def range_header(start: int, stop: int) -> dict[str, str]:
    """Return the header that asks for bytes ``start`` to ``stop``."""
    return {"Range": f"bytes={start}-{stop - 1}"}


def too_short(url: str, size: int, stop: int) -> StorageError:
    """Return the error for an object with fewer bytes than expected."""
    return StorageError(
        f"{shown(url)}: {size} bytes, but {stop} or more are expected: the object was cut at its source; upload it again"
    )
