"""The http client of this project: GET requests over connections that are kept.

If a server asks for a delay, every thread waits. Redirects are followed; ``Authorization`` never goes to another server.
Proxies are taken from the environment.
"""

from __future__ import annotations

import functools
import logging
import os
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..daemon_threads import is_wanted, sleep
from ..errors import StorageError
from .request_options import CONNECTIONS, RequestOptions, RetryableError, plain_version
from .urls import hide_secrets, shown

_TRANSIENT = {408, 425, 429, *range(500, 600)}
_MOST_REDIRECTS = 5
_PATIENT_SECONDS = 60.0
_LONGEST_WAIT = 600.0  # in seconds; a server may ask for more
_LEAST_RATE = 8 << 10  # bytes a second that an answer must reach after the time limit
_PIECE_BYTES = 256 << 10
_LOGGED_SECONDS = 10.0  # a shorter wait is not logged

log = logging.getLogger("pipeline")


class _QueryFilter(logging.Filter):
    """Removes queries, which may hold signatures, from the urls that urllib3 logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(shown(arg.split("?")[0]) if isinstance(arg, str) else arg for arg in record.args)
        return True


for _name in ("connectionpool", "poolmanager", "util.retry"):
    logging.getLogger(f"urllib3.{_name}").addFilter(_QueryFilter())


class Server:
    """Facts that a process has learned about one http server, or about one bucket of a store.

    ``answered``: whether the server has ever answered. ``ranges``: whether it answers with ranges (None: not known).
    ``signs``: False once no url could be signed for a store, or the store refused a signed url.
    """

    def __init__(self, name: str) -> None:
        self.answered = False
        self.ranges: bool | None = None
        self.signs = True
        self._name = name
        self._not_before = 0.0

    def wait(self) -> None:
        """Sleep until the delay that the server asked for is over."""
        while (left := self._not_before - time.monotonic()) > 0:
            sleep(min(left, 1.0))
            if not is_wanted():
                raise RetryableError("nothing waits for the answer any more")

    def postpone(self, seconds: float) -> None:
        """Make every thread wait before its next request, ten minutes at most."""
        wait = min(seconds, _LONGEST_WAIT)
        until = time.monotonic() + wait
        if seconds >= _LOGGED_SECONDS and until > self._not_before + 1:
            log.warning("%s asks to wait %.0f s: waiting %.0f s", self._name, seconds, wait)
        self._not_before = max(self._not_before, until)


_servers: dict[str, Server] = {}
_pools: dict[str, Any] = {}  # pools of connections, by the url of the proxy ('' without one)


def _after_fork() -> None:
    _servers.clear()
    _pools.clear()


os.register_at_fork(after_in_child=_after_fork)


def server_of(url: str) -> Server:
    """Return what this process knows of a url's server."""
    name = _server_name(url)
    return _servers.get(name) or _servers.setdefault(name, Server(name))


@functools.lru_cache(256)
def _proxy(scheme: str, host: str) -> str:
    """Return the proxy for a server, read from the environment at its first request; '' for none."""
    return "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme, "")


def _pool(url: str) -> Any:
    """Return the pool of connections for a server."""
    import urllib3

    parts = urllib.parse.urlsplit(url)
    proxy = _proxy(parts.scheme.lower(), parts.hostname or "")
    if proxy not in _pools:
        options: dict[str, Any] = {"num_pools": 64, "maxsize": 2 * CONNECTIONS}
        bare, user = _split_user(proxy)
        headers = urllib3.make_headers(proxy_basic_auth=user) if user else None
        pool = urllib3.ProxyManager(bare, proxy_headers=headers, **options) if proxy else urllib3.PoolManager(**options)
        _pools.setdefault(proxy, pool)  # another thread may have been faster
    return _pools[proxy]


def same_server(one: str, other: str) -> bool:
    """Whether two urls are on one server. Credentials for one url may be sent with the other."""
    return _server_name(one) == _server_name(other)


class Answer:
    """The answer to a GET, of any status. A temporary failure raises `RetryableError`.

    A server that sends nothing for ``requests.timeout`` seconds has failed. With ``patient``, a server that computes its
    answer has at least a minute. Without ``follow``, a redirect is an answer. The context manager keeps the connection if the
    whole body was read, and closes it otherwise.
    """

    def __init__(
        self,
        url: str,
        requests: RequestOptions,
        headers: Mapping[str, str] | None = None,
        *,
        follow: bool = True,
        patient: bool = False,
    ) -> None:
        self.url = url
        server = server_of(url)
        server.wait()
        self._connect_seconds = requests.timeout / 4
        self._seconds = requests.timeout if server.answered else self._connect_seconds
        if patient:
            self._seconds = max(_PATIENT_SECONDS, requests.timeout)
        self._began = time.monotonic()
        self._response = self._send(headers or {}, follow)
        server.answered = True
        self._read = 0
        self._ended = False
        self.headers = self._response.headers
        self.status: int = self._response.status
        self.reason: str = self._response.reason or ""
        if after := _wait_time(self.status, self.headers):
            server.postpone(after)
        if self.status in _TRANSIENT:
            self._response.close()
            raise RetryableError(f"{self.status} {self.reason}".strip())

    @property
    def version(self) -> str:
        """The ETag of the object, else its time of change, else ''."""
        return plain_version(self.headers.get("ETag") or self.headers.get("Last-Modified") or "")

    @property
    def length(self) -> int | None:
        """The bytes of the body; None if the server does not state them."""
        length = self.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None

    @property
    def redirect(self) -> str | None:
        """The url that this answer redirects to; None if it does not redirect to an http server."""
        location = self._response.get_redirect_location()
        target = urllib.parse.urljoin(self.url, location) if location else ""
        return target if target.lower().startswith(("http://", "https://")) else None

    def body(self) -> bytes:
        """Return the whole body, unpacked if the server packed it; raises `RetryableError` if it ends early."""
        body = b"".join(self.pieces(self.length))
        if self.headers.get("Content-Encoding", "").lower() == "gzip":
            import gzip

            try:
                return gzip.decompress(body)
            except (OSError, EOFError) as error:
                raise RetryableError(f"a body that is no gzip: {error}") from None
        return body

    def pieces(self, count: int | None) -> Iterator[bytes]:
        """Yield ``count`` bytes of the body (None: all); raises `RetryableError` if they end early or are too slow."""
        while count is None or self._read < count:
            seconds = time.monotonic() - self._began
            if seconds > self._seconds + self._read / _LEAST_RATE:
                raise RetryableError(f"too slow: {self._read} bytes in {seconds:.1f} s")
            piece = self._piece(_PIECE_BYTES if count is None else min(_PIECE_BYTES, count - self._read))
            if not piece:
                self._ended = True
                if count is None:
                    return
                raise RetryableError(f"the connection ended after {self._read} bytes of {count}")
            yield piece

    def drain(self) -> None:
        """Read the rest of a short body, so that the connection is kept."""
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
            raise self._failure(error) from None
        self._read += len(piece)
        return piece

    def _send(self, headers: Mapping[str, str], follow: bool) -> Any:
        import urllib3

        target, user = _split_user(self.url)
        sent = {"Accept-Encoding": "identity", "User-Agent": "shardwright", "Connection": "keep-alive", **headers}
        sent |= urllib3.make_headers(basic_auth=user) if user else {}
        # urllib3 retries nothing: `retrying` counts the tries for servers, stores and wrong contents. A redirect is no failure.
        redirects = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=_MOST_REDIRECTS)
        timeout = urllib3.Timeout(connect=self._connect_seconds, read=self._seconds)
        try:
            return _pool(self.url).request(
                "GET",
                _escape_dots(target),
                headers=sent,
                timeout=timeout,
                retries=redirects,
                redirect=follow,
                preload_content=False,
                decode_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._failure(error) from None  # the message of urllib3 may hold the url

    def _failure(self, error: Exception) -> Exception:
        """Return the error of this package for an error of urllib3, without secrets."""
        import urllib3

        if isinstance(error, urllib3.exceptions.MaxRetryError):
            if isinstance(error.reason, urllib3.exceptions.ResponseError):
                return StorageError(f"{shown(self.url)}: the server redirects without end; check the url")
            error = error.reason or error
        cause = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error.__cause__ or error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StorageError(f"{shown(self.url)}: {cause}; check the url and the certificates")
        refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # a subclass of ConnectTimeoutError
        if not refused and isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError):
            return RetryableError(f"no answer within {self._seconds:.1f} s")
        return RetryableError(hide_secrets(f"{type(cause).__name__}: {cause}", self.url))


def _server_name(url: str) -> str:
    """Return scheme, host and port of a url."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()


def _split_user(url: str) -> tuple[str, str]:
    """Return a url without its user and password, and ``user:password``.

    >>> _split_user("https://me:p%40w@host/a.jsonl")
    ('https://host/a.jsonl', 'me:p@w')
    """
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl() if user else url, urllib.parse.unquote(user)


def _escape_dots(url: str) -> str:
    """Return a url with its folders ``.`` and ``..`` escaped: urllib3 would resolve them, but keys of stores may have them.

    >>> _escape_dots("https://host/a/../b?c=/../d")
    'https://host/a/%2E%2E/b?c=/../d'
    """
    path, mark, query = url.partition("?")
    if "/." not in path:
        return url
    dots = {".": "%2E", "..": "%2E%2E"}
    return "/".join(dots.get(part, part) for part in path.split("/")) + mark + query


def _wait_time(status: int, headers: Mapping[str, str]) -> float:
    """Return the seconds that an answer asks to wait, by ``Retry-After`` or a used-up ``RateLimit``.

    >>> _wait_time(429, {"RateLimit": '"resolvers";r=0;t=117'}), _wait_time(503, {"Retry-After": "5"}), _wait_time(200, {})
    (118.0, 5.0, 0.0)
    """
    import urllib3

    after = 0.0
    if status in _TRANSIENT and (value := headers.get("Retry-After")):
        with suppress(urllib3.exceptions.InvalidHeader):
            after = float(urllib3.Retry().parse_retry_after(value))
    fields = (field.partition("=") for field in headers.get("RateLimit", "").split(";"))
    limit = {name.strip(): int(value) for name, _, value in fields if value.strip().isdecimal()}
    used_up = "t" in limit and (status == 429 or limit.get("r") == 0)
    return max(after, limit["t"] + 1.0) if used_up else after
