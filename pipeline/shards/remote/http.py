"""The http client of this project: GET requests over connections that are kept, paced by what servers answer.

A server that takes ten times as long as usual is abandoned and asked again, and where a server says how long to wait, every
thread waits. Redirects are followed; ``Authorization`` never goes to another server.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import StorageError
from .access import CONNECTIONS, Access, Transient, shown, without_secrets
from .pace import PIECE, TRANSIENT, Server, wait_asked

_MOST_REDIRECTS = 5
_CONNECT_SECONDS = 5.0


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
        # By server, as the environment said at its first request: to read it takes as long as a small request.
        self.proxies: dict[str, str] = {}

    def server(self, url: str) -> Server:
        with self.lock:
            return self.servers.setdefault(_place(url), Server())

    def pool(self, url: str) -> Any:
        import urllib3

        place = _place(url)
        proxy = self.proxies.get(place)
        if proxy is None:
            parts = urllib.parse.urlsplit(url)
            proxies = {} if urllib.request.proxy_bypass(parts.hostname or "") else urllib.request.getproxies()
            proxy = self.proxies[place] = proxies.get(parts.scheme.lower(), "")
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


def same_server(one: str, other: str) -> bool:
    """Whether two urls are of one server, to which the same credentials may be sent."""
    return _place(one) == _place(other)


def byte_range(start: int, stop: int | None) -> dict[str, str]:
    """Return the header that asks for bytes ``start`` to ``stop``, None for the end."""
    return {"Range": f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"}


class Answer:
    """The answer to a GET of ``size`` bytes, whatever its status but a temporary failure, which raises `Transient`.

    ``size`` is None where it is not known; then only the beginning of the answer has a time limit, and with ``patient`` one
    of ``access.timeout``, for answers that are computed. Without ``follow``, a redirect is an answer. A context manager,
    which returns the connection where all of the body was read, and closes it otherwise.
    """

    def __init__(
        self,
        url: str,
        access: Access,
        attempt: int = 1,
        headers: Mapping[str, str] | None = None,
        *,
        size: int | None = None,
        follow: bool = True,
        patient: bool = False,
    ) -> None:
        self.url = url
        self._server = server_of(url)
        self._server.wait()
        first, self._allowed = self._server.patience(size, attempt, access)
        first = access.timeout if patient else first
        self._began = time.monotonic()
        self._response = self._ask(dict(headers or {}), min(_CONNECT_SECONDS, access.timeout), first, follow)
        self._first = time.monotonic() - self._began
        self._server.answered = True
        self._read = 0
        self._ended = False
        self.headers = self._response.headers
        self.status: int = self._response.status
        self.reason: str = self._response.reason or ""
        if after := wait_asked(self.status, self.headers):
            self._server.postpone(after)
        if self.status in TRANSIENT:
            self._response.close()
            raise Transient(f"{self.status} {self.reason}", after)

    @property
    def version(self) -> str:
        """What tells one version of the object from another, or ''."""
        return self.headers.get("ETag") or self.headers.get("Last-Modified") or ""

    @property
    def length(self) -> int | None:
        """The bytes of the body, None where the server does not say."""
        length = self.headers.get("Content-Length")
        return None if length is None else int(length)

    @property
    def redirect(self) -> str | None:
        """The url that this answer leads to; None where it is no redirect to an http server."""
        return _redirect(self._response, self.url)

    def body(self) -> bytes:
        """Return all of the body; `Transient` where it ends early."""
        if self.length is not None:
            return b"".join(self.pieces(self.length))
        pieces = []
        while piece := self._piece(PIECE):
            pieces.append(piece)
        self._ended = True
        return b"".join(pieces)

    def pieces(self, count: int) -> Iterator[bytes]:
        """Yield the first ``count`` bytes of the body; `Transient` where they end early or come too slowly."""
        while self._read < count:
            if (seconds := time.monotonic() - self._began) > self._allowed:
                raise Transient(f"too slow: {self._read} bytes of {count} in {seconds:.1f} s")
            piece = self._piece(min(PIECE, count - self._read))
            if not piece:
                raise Transient(f"the connection ended after {self._read} bytes of {count}")
            yield piece
        self._server.note(self._first, time.monotonic() - self._began - self._first, count)

    def drain(self) -> None:
        """Read over the rest of a short body, so that the connection is kept."""
        self._response.drain_conn()
        self._response.release_conn()

    def close(self) -> None:
        if self._ended or self._read == self.length:
            self._response.release_conn()
        else:
            self._response.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _piece(self, most: int) -> bytes:
        import urllib3

        try:
            piece: bytes = self._response.read1(most)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Transient(without_secrets(_reason(error, self._allowed), self.url)) from None
        self._read += len(piece)
        return piece

    def _ask(self, headers: dict[str, str], connect: float, first: float, follow: bool) -> Any:
        given = self.url
        headers = {"Accept-Encoding": "identity", "User-Agent": "shardwright", "Connection": "keep-alive", **headers}
        for _ in range(_MOST_REDIRECTS + 1):
            target, own = _split_user(self.url)
            headers.update(own)
            response = self._send(target, headers, connect, first)
            if not follow or (place := _redirect(response, target)) is None:
                return response
            response.drain_conn()
            if not same_server(target, place):
                headers.pop("Authorization", None)
            self.url = place
        raise StorageError(f"{shown(given)}: the server redirects without end; check the url")

    def _send(self, url: str, headers: dict[str, str], connect: float, first: float) -> Any:
        import urllib3

        timeout = urllib3.Timeout(connect=min(connect, first), read=first)
        options: dict[str, Any] = {"preload_content": False, "redirect": False, "decode_content": False}
        try:
            return _process.pool(url).request("GET", url, headers=headers, timeout=timeout, **options)
        except urllib3.exceptions.HTTPError as error:
            cause = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise StorageError(f"{shown(url)}: {cause}; check the url and the certificates") from None
            # None: what urllib3 says may hold the url.
            raise Transient(without_secrets(_reason(error, first), self.url)) from None
        except (OSError, ValueError) as error:
            raise Transient(without_secrets(f"{type(error).__name__}: {error}", self.url)) from None


def _place(url: str) -> str:
    """Return scheme, host and port of a url."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()


def _redirect(response: Any, url: str) -> str | None:
    place = response.headers.get("Location")
    if response.status not in (301, 302, 303, 307, 308) or not place:
        return None
    target = urllib.parse.urljoin(url, place)
    return target if target.lower().startswith(("http://", "https://")) else None


def _split_user(url: str) -> tuple[str, dict[str, str]]:
    """Return a url without user and password, and the header that states them.

    >>> _split_user("https://me:pw@host/a.jsonl")
    ('https://host/a.jsonl', {'Authorization': 'Basic bWU6cHc='})
    """
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
