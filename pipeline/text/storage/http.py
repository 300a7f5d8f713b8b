"""Requests over http: redirects without handing credentials on, and the waits that a server asks for."""

from __future__ import annotations

import email.message
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import IO, Any

from ...errors import MissingObjectError, StorageError
from ...shards.remote.transport import Transient
from .urls import same_server, without_secrets

REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_LIMIT = re.compile(r";\s*([rt])=(\d+)")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)\Z")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller: urllib would send the headers, a token among them, to any server."""

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: email.message.Message, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def request(url: str, headers: Mapping[str, str], timeout: float, *, follow: bool = True) -> Any:
    """Return the answer to a GET, whatever its status but a temporary failure, which raises `Transient`.

    Without ``follow``, a redirect is an answer. ``Authorization`` is sent to the url's own server alone.
    """
    asked = {"Accept-Encoding": "identity", "User-Agent": "shardwright", **headers}
    for _ in range(_MOST_REDIRECTS):
        answer = _send(url, asked, timeout)
        if answer.status in _TRANSIENT:
            with answer:
                raise Transient(f"{answer.status} {answer.reason}", wait_asked(answer.headers))
        if not follow or redirect_target(answer, url) is None:
            return answer
        answer.close()
        target = str(redirect_target(answer, url))
        if not same_server(url, target):
            asked.pop("Authorization", None)
        url = target
    raise StorageError(f"{without_secrets(url)}: the server redirects without end; check the url")


def _send(url: str, headers: Mapping[str, str], timeout: float) -> Any:
    try:
        return _OPENER.open(urllib.request.Request(url, headers=dict(headers)), timeout=timeout)
    except urllib.error.HTTPError as answer:
        return answer
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise StorageError(f"{without_secrets(url)}: {error.reason}; check the url and the certificates") from None
        raise Transient(f"no answer: {error.reason}") from None


def redirect_target(answer: Any, url: str) -> str | None:
    """Return the url that an answer leads to; None where it is no redirect to an http server."""
    if answer.status not in REDIRECTS or not answer.headers.get("Location"):
        return None
    target = urllib.parse.urljoin(url, answer.headers["Location"])
    return target if target.lower().startswith(("http://", "https://")) else None


def wait_asked(headers: Mapping[str, str]) -> float:
    """Return the seconds that an answer asks to wait, by ``Retry-After`` or by ``RateLimit``.

    >>> wait_asked({"RateLimit": '"resolvers";r=0;t=117'})
    118.0
    """
    value = headers.get("Retry-After", "")
    limit = dict(_LIMIT.findall(headers.get("RateLimit", "")))
    return max(float(value) if value.isdecimal() else 0.0, int(limit["t"]) + 1.0 if "t" in limit else 0.0)


def refusal(shown: str, answer: Any) -> StorageError:
    """Return the error for an answer that does not give what was asked for."""
    said = f"{shown}: {answer.status} {answer.reason}"
    if answer.status in (404, 410):
        return MissingObjectError(f"{said}; check the url")
    if answer.status in (401, 403):
        return StorageError(f"{said}; the server refuses: check credentials and permissions, or sign the url again")
    return StorageError(f"{said}; the server does not give this object")


def content_range(headers: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the first byte and the whole size that ``Content-Range`` tells."""
    match = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
    return (int(match[1] or 0), int(match[3])) if match else None


def read_body(answer: Any, start: int, stop: int) -> bytes:
    """Return bytes ``start`` to ``stop`` of an object from the answer to a request for them, perhaps the whole object."""
    position = 0
    if answer.status == 206:
        found = content_range(answer.headers)
        if found is None or found[0] != start:
            raise Transient(f"asked for byte {start}, the server sent {answer.headers.get('Content-Range')!r}")
        position = start
    try:
        while position < start:
            passed = len(answer.read(min(1 << 20, start - position)))
            if not passed:
                break
            position += passed
        data: bytes = answer.read(stop - position) if position == start else b""
    except OSError as error:
        raise Transient(f"{type(error).__name__}: {error}") from None
    except Exception as error:  # http.client's own, such as IncompleteRead
        raise Transient(type(error).__name__) from None
    if len(data) < stop - start:
        raise Transient(f"the connection ended at byte {position + len(data)} of {stop}")
    return data
