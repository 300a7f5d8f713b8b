"""Ranges of objects on http servers, over connections that are kept.

A server's answers set the pace: one that takes ten times as long as others is abandoned and asked again, and where the server
says how long to wait, every thread waits.
"""

from __future__ import annotations

import base64
import email.utils
import logging
import os
import re
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from ...errors import MissingObjectError, StorageError
from .access import CONNECTIONS, Access, ObjectInfo, Transient, shown, without_secrets

PIECE = 256 << 10
MOST_REDIRECTS = 5
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)\Z")
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_LIMIT = re.compile(r";\s*([rt])=(\d+)")
_CONNECT_SECONDS = 5.0
_FIRST_ANSWER_SECONDS = 4.0  # of a server that never answered; twice as long at each further try
_LEAST_PATIENCE = 1.0
_SLOW = 10  # times the usual time is too long
_UNKNOWN_RATE, _LEAST_RATE = 256e3, 32e3  # bytes a second of one answer
LONGEST_WAIT = 600.0  # seconds that a server can ask for: some count their quotas over five minutes


class Server:
    """What a process knows of one http server.

    ``ranges``: whether it answered with a range (None: not known). ``answered``: whether it answered at all.
    """

    def __init__(self) -> None:
        self.answered = False
        self.ranges: bool | None = None
        self._not_before = 0.0
        self._first = self._rate = 0.0  # usual seconds to the first byte, usual bytes a second

    def wait(self) -> None:
        """Sleep as long as the server asked all to wait."""
        while (left := self._not_before - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))

    def postpone(self, seconds: float) -> None:
        """Have every thread wait before it asks again."""
        self._not_before = max(self._not_before, time.monotonic() + min(seconds, LONGEST_WAIT))

    def patience(self, size: int, attempt: int, access: Access) -> tuple[float, float]:
        """Return how many seconds to wait for an answer to begin, and for all its ``size`` bytes."""
        first = max(_LEAST_PATIENCE, _SLOW * self._first) if self.answered else _FIRST_ANSWER_SECONDS
        first = min(access.timeout, first * 2 ** (attempt - 1))
        rate = max(_LEAST_RATE, self._rate / _SLOW) if self._rate else _UNKNOWN_RATE
        return first, first + 2 ** (attempt - 1) * size / rate

    def note(self, first: float, seconds: float, size: int) -> None:
        """Learn from an answer: seconds to its first byte, and from there to the last of ``size``."""
        self._first += 0.2 * (first - self._first) if self._first else first
        if size >= PIECE and seconds > 0:
            self._rate += 0.2 * (size / seconds - self._rate) if self._rate else size / seconds


class _WithoutQueries(logging.Filter):
    """Takes signatures out of what urllib3 logs of each request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(arg.split("?")[0] if isinstance(arg, str) else arg for arg in record.args)
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_WithoutQueries())


class _Process:
    """Connections and servers of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.servers: dict[str, Server] = {}
        self.pools: dict[str, Any] = {}  # by the url of the proxy, '' for none

    def server(self, url: str) -> Server:
        parts = urllib.parse.urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()
        with self.lock:
            return self.servers.setdefault(place, Server())

    def pool(self, url: str) -> Any:
        import urllib3

        parts = urllib.parse.urlsplit(url)
        proxies = {} if urllib.request.proxy_bypass(parts.hostname or "") else urllib.request.getproxies()
        proxy = proxies.get(parts.scheme.lower(), "")
        with self.lock:
            if proxy not in self.pools:
                options: dict[str, Any] = {"num_pools": 64, "maxsize": 2 * CONNECTIONS, "retries": False}
                made = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
                self.pools[proxy] = made
            return self.pools[proxy]


_process = _Process()


def _after_fork() -> None:
    global _process
    _process = _Process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def server_of(url: str) -> Server:
    """Return what this process knows of a url's server."""
    return _process.server(url)


class Answer:
    """The answer to a request for bytes ``start`` to ``stop``: of these, or of the whole object (``begin`` is 0).

    ``size`` is that of the object, None where the server does not say; ``version`` its mark. A context manager, which
    returns the connection where all bytes were read, and closes it otherwise.
    """

    def __init__(self, url: str, start: int, stop: int | None, access: Access, attempt: int) -> None:
        self._url = url
        self._server = server_of(url)
        self._server.wait()
        # Of a whole object's size nothing is known, so only its beginning has a limit.
        wanted = (1 << 40) if stop is None else stop - start
        first, self._allowed = self._server.patience(wanted, attempt, access)
        self._began = time.monotonic()
        self._response = self._ask(start, stop, access, first)
        self._first = time.monotonic() - self._began
        self._server.answered = True
        self.left = 0
        self.headers = self._response.headers
        self.status: int = self._response.status
        self.version = self.headers.get("ETag") or self.headers.get("Last-Modified") or ""
        try:
            self._obey_limits()
            self.begin, self.end, self.size = self._parse(start, stop)
        except BaseException:
            self._response.close()
            raise
        self.left = self.end - self.begin
        self._held = self.left

    def _ask(self, start: int, stop: int | None, access: Access, first: float) -> Any:
        url = self._url
        headers = {"Accept-Encoding": "identity", "User-Agent": "shardwright", "Connection": "keep-alive"}
        headers["Range"] = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        for _ in range(MOST_REDIRECTS + 1):
            target, own = _split_user(url)
            response = self._send(target, {**headers, **own}, min(_CONNECT_SECONDS, access.timeout), first)
            place = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or not place:
                return response
            response.drain_conn()
            url = urllib.parse.urljoin(url, place)
            if not url.lower().startswith(("http://", "https://")):
                break
        raise StorageError(f"{shown(self._url)}: the server redirects without end, or to no http server; check the url")

    def _send(self, url: str, headers: dict[str, str], connect: float, first: float) -> Any:
        import urllib3

        timeout = urllib3.Timeout(connect=min(connect, first), read=first)
        try:
            return _process.pool(url).request(
                "GET",
                url,
                headers=headers,
                timeout=timeout,
                preload_content=False,
                redirect=False,
                decode_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            cause = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise StorageError(f"{shown(self._url)}: {cause}; check the url and the certificates") from None
            # None: what urllib3 says may hold the url.
            raise Transient(without_secrets(_reason(error, first), self._url)) from None
        except (OSError, ValueError) as error:
            raise Transient(without_secrets(f"{type(error).__name__}: {error}", self._url)) from None

    def _obey_limits(self) -> None:
        """Have all threads wait where the server says so, then raise for an answer that is no success."""
        after = _retry_after(self.headers) if self.status in _TRANSIENT else 0.0
        limit = dict(_LIMIT.findall(self.headers.get("RateLimit", "")))
        if "t" in limit and (self.status == 429 or limit.get("r") == "0"):
            after = max(after, int(limit["t"]) + 1.0)
        if after:
            self._server.postpone(after)
        if self.status in _TRANSIENT:
            raise Transient(f"{self.status} {self._response.reason}", after)

    def _parse(self, start: int, stop: int | None) -> tuple[int, int, int | None]:
        """Return first byte, end, and the object's size; raises where the answer is none to the question."""
        match = _CONTENT_RANGE.match(self.headers.get("Content-Range", ""))
        length = self.headers.get("Content-Length")
        if self.status == 416 and match is not None and match[1] is None:
            if start == 0 and match[3] == "0":
                return 0, 0, 0
            raise too_short(self._url, int(match[3]), start + 1 if stop is None else stop)
        if self.status == 200 and match is not None and match[1] is not None:  # so some S3 servers answer with a range
            self.status = 206
        if self.status == 206:
            if match is None or match[1] is None or int(match[1]) != start:
                raise Transient(f"asked for byte {start}, the server sent {self.headers.get('Content-Range')!r}")
            begin, end, size = int(match[1]), int(match[2]) + 1, int(match[3])
            if stop is not None and size < stop:
                raise too_short(self._url, size, stop)
            if stop is not None and (end != stop or (length is not None and int(length) != end - begin)):
                raise Transient(f"asked for bytes {start} to {stop}, the server sent {begin} to {end}, {length} bytes")
            self._server.ranges = True
            return begin, end, size
        if self.status != 200:
            kind = MissingObjectError if self.status in (404, 410) else StorageError
            raise kind(f"{shown(self._url)}: {self.status} {self._response.reason}; {_cure(self.status)}")
        if stop is not None:  # some answer so where all bytes are asked for
            self._server.ranges = False
        if length is None and stop is None:
            raise StorageError(f"{shown(self._url)}: the server does not tell its size; serve it as a plain file")
        whole = None if length is None else int(length)
        if whole is not None and stop is not None and whole < stop:
            raise too_short(self._url, whole, stop)
        return 0, stop if stop is not None else int(length or 0), whole

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from ``begin`` to ``end``; `Transient` where they end early or come too slowly."""
        import urllib3

        while self.left:
            if (seconds := time.monotonic() - self._began) > self._allowed:
                raise Transient(f"too slow: {self._held - self.left} bytes of {self._held} in {seconds:.1f} s")
            try:
                piece: bytes = self._response.read1(min(PIECE, self.left))
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise Transient(without_secrets(_reason(error, self._allowed), self._url)) from None
            if not piece:
                raise Transient(f"the connection ended at byte {self.end - self.left} of {self.end}")
            self.left -= len(piece)
            yield piece
        self._server.note(self._first, time.monotonic() - self._began - self._first, self._held)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        whole = self.status == 206 or self.end == self.size
        if self.left == 0 and whole and self.headers.get("Content-Length") is not None:
            self._response.release_conn()
        else:
            self._response.close()


def http_info(url: str, access: Access, attempt: int = 1) -> ObjectInfo:
    """Return size and version of an object."""
    # A ranged GET, not HEAD: presigned urls allow one method only.
    with Answer(url, 0, 1, access, attempt) as answer:
        if answer.status == 206:
            for _ in answer.pieces():
                pass
        if answer.size is None:
            raise StorageError(f"{shown(url)}: the server does not tell its size; serve it as a plain file")
        return ObjectInfo(answer.size, answer.version)


def http_read(url: str, start: int, stop: int, access: Access, attempt: int = 1) -> Iterator[bytes]:
    """Yield bytes ``start`` to ``stop`` of an object in pieces; of a server without ranges, those before are skipped."""
    with Answer(url, start, stop, access, attempt) as answer:
        if answer.size is not None and answer.size < stop:
            raise too_short(url, answer.size, stop)
        position = answer.begin
        for piece in answer.pieces():
            position += len(piece)
            if position > start:
                yield piece[-(position - start) :] if position - start < len(piece) else piece


def too_short(url: str, size: int, stop: int) -> StorageError:
    """Return the error for an object that has fewer bytes than are expected."""
    return StorageError(
        f"{shown(url)}: {size} bytes, but {stop} are expected: it is shorter than expected, cut at the source; upload it again"
    )


def _split_user(url: str) -> tuple[str, dict[str, str]]:
    """Return a url without user and password, and the header that states them."""
    parts = urllib.parse.urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    token = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    return parts._replace(netloc=place).geturl(), {"Authorization": f"Basic {token}"}


def _reason(error: Exception, seconds: float) -> str:
    import urllib3

    cause = error.__cause__ or error
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError) and isinstance(cause, TimeoutError):
        return f"no connection within {min(_CONNECT_SECONDS, seconds):.1f} s"
    if isinstance(error, urllib3.exceptions.ReadTimeoutError | TimeoutError):
        return f"no answer within {seconds:.1f} s"
    return f"{type(cause).__name__}: {cause}"


def _retry_after(headers: Any) -> float:
    """Return the seconds of a ``Retry-After`` header, in either of its forms."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def _cure(code: int) -> str:
    if code == 416:
        return "it is shorter than expected: upload it again"
    if code in (401, 403):
        return "the server refuses: check credentials and permissions"
    return "check the url" if code in (404, 410) else "the server does not give this object"
