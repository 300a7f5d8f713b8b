"""The settings of requests for remote objects, and the failures after which a request is made again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from ..errors import ConfigError, ShardwrightError

CONNECTIONS = 16
TRIES = 8
TIMEOUT = 20.0
# What stores call the version of an object, the best first.
_VERSION_FIELDS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "blob_id",
    "LastModified",
    "last_modified",
    "mtime",
    "created",
)


class ObjectInfo(NamedTuple):
    """``size`` in bytes, and ``version``: the server's ETag or time, which changes with the contents, or ''."""

    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How remote objects are asked for.

    ``tries`` bounds the attempts at one request (8). A server that sends nothing for ``timeout`` seconds (20) is asked again.
    One that has never answered this process is given up sooner: an attempt takes a quarter of ``timeout``, and none begins
    after half of it. ``options`` go to fsspec (``storage_options``: keys, endpoints). ``first_delay`` (seconds) is the pause
    before the second attempt; each later one is twice as long.

    >>> RequestOptions(tries=3).timeout
    20.0
    """

    tries: int = TRIES
    timeout: float = TIMEOUT
    options: Mapping[str, Any] = field(default_factory=dict)
    first_delay: float = 0.5

    def __post_init__(self) -> None:
        if type(self.tries) is not int or self.tries < 1:
            raise ConfigError(f"tries must be an integer of 1 or more, got {self.tries!r}")
        if type(self.timeout) not in (int, float) or not 0 < self.timeout < math.inf:
            raise ConfigError(f"timeout must be a number of seconds above 0, got {self.timeout!r}")


class RetryableError(Exception):
    """A temporary failure: the request is made again."""


class UnconfirmedError(Exception):
    """An answer that may be a fault of the way here: the request is made once more, then ``error`` is raised."""

    def __init__(self, error: ShardwrightError) -> None:
        super().__init__(str(error))
        self.error = error


def version_of(info: Mapping[str, Any]) -> str:
    """Return what an object store calls the version of an object, '' for none."""
    version = next((info[name] for name in _VERSION_FIELDS if info.get(name)), "")
    # Listings may give in seconds what a look at one object gives as a date.
    return plain_version(str(version.timestamp() if isinstance(version, datetime) else version))


def plain_version(version: str) -> str:
    """Return an ETag without its quotes, and without the sign of a weak one, which proxies add.

    >>> plain_version('W/"abc"')
    'abc'
    """
    return version.removeprefix("W/").strip('"')


def is_version(version: str, known: str) -> bool:
    """Whether a version may be the known one: an answer without a version, as some proxies give, says nothing."""
    return not version or not known or version == known
