"""How remote objects are reached: the settings, and what every way of reading them shares."""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import ConfigError

CONNECTIONS = 16
_USER = re.compile(r"\A([a-z0-9+.-]+://)[^/]*@", re.IGNORECASE)
KEYS = re.compile(r"\A([a-z0-9+.-]+://)[^/@]*:[^/]*@", re.IGNORECASE)  # in the url of an object store


# What stores call the mark of an object's version, the best first.
_MARKS = ("ETag", "etag", "generation", "md5Hash", "blob_id", "LastModified", "last_modified", "mtime", "created")


class ObjectInfo(NamedTuple):
    """``size`` in bytes, and ``version``: the server's mark (ETag or time) that changes with the contents, or ''."""

    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How remote objects are reached.

    ``tries`` bounds the attempts at one object, ``first_delay`` and ``longest_delay`` (seconds) the exponential back-off
    between them; ``timeout`` (seconds) is for the beginning of one answer of an http server. An answer that is slower than
    usual is given up and asked for again, but not within ``least_patience`` seconds. A server that never answered is given up
    after ``dead_after`` seconds. ``options`` go to fsspec (``storage_options``: keys, endpoints).
    """

    tries: int = 8
    first_delay: float = 0.5
    longest_delay: float = 30.0
    timeout: float = 60.0
    least_patience: float = 1.0
    dead_after: float = 12.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ConfigError(f"tries must be 1 or more, got {self.tries}")


class Transient(Exception):
    """A temporary failure; ``after`` is how many seconds the server asked to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


def version_of(info: Mapping[str, Any]) -> str:
    """Return the mark by which an object store tells one version of an object from another, '' for none."""
    return str(next((info[name] for name in _MARKS if info.get(name)), ""))


def is_http(url: str) -> bool:
    """Whether a url is read by the http protocol."""
    return url.lower().startswith(("http://", "https://"))


def shown(url: str) -> str:
    """Return a url as it is shown and written: without user, password, query and fragment, which may authorize.

    >>> shown("https://me:secret@host/a.tar?X-Amz-Signature=0f3a")
    'https://host/a.tar'
    >>> shown("abfs://container@account/a.tar"), shown("hf://datasets/org/name@main/a.parquet")
    ('abfs://container@account/a.tar', 'hf://datasets/org/name@main/a.parquet')
    """
    return _USER.sub(r"\1", re.split(r"[?#]", url, maxsplit=1)[0]) if is_http(url) else KEYS.sub(r"\1", url)


def identity(url: str) -> str:
    """Return what tells one object's url from every other: as it is shown, and a hash of its query, which may authorize.

    >>> identity("https://me:secret@host/a.tar"), identity("https://host/get.tar?f=1") == identity("https://host/get.tar?f=2")
    ('https://host/a.tar', False)
    """
    query = urllib.parse.urlsplit(url).query if is_http(url) else ""
    return f"{shown(url)}?{hashlib.blake2b(query.encode(), digest_size=16).hexdigest()}" if query else shown(url)


def without_secrets(text: str, url: str) -> str:
    """Return a message, of a library that may repeat the url, without what `shown` leaves out of it."""
    parts = urllib.parse.urlsplit(url) if is_http(url) else None
    for secret in (parts.query, parts.netloc.rpartition("@")[0], parts.password) if parts is not None else ():
        if secret:
            text = text.replace(secret, "...")
    return text
