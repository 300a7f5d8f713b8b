"""The settings of requests for remote objects, and the failures after which a request is repeated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from ..errors import ConfigError, ShardwrightError
from ..integers import as_integer

CONNECTIONS = 16
TRIES = 8
TIMEOUT = 20.0
# The fields in which stores state the version of an object, the best first.
_VERSION_FIELDS = "ETag etag generation md5Hash blob_id LastModified last_modified mtime created".split()


class ObjectInfo(NamedTuple):
    """An object's ``size`` in bytes, and its ``version``: an ETag or a time, which changes with the contents, or ''."""

    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How remote objects are requested.

    ``tries``: the most attempts at one request (8). ``timeout``: the seconds without a byte after which an attempt ends (20).
    If a server has never answered this process, an attempt takes a quarter of ``timeout``, and none begins after half of it.
    ``options``: passed to fsspec as ``storage_options`` (keys, endpoints). ``first_delay``: the seconds before the second
    attempt; each later delay is twice as long.

    >>> RequestOptions(tries=3).timeout
    20.0
    """

    tries: int = TRIES
    timeout: float = TIMEOUT
    options: Mapping[str, Any] = field(default_factory=dict)
    first_delay: float = 0.5

    def __post_init__(self) -> None:
        tries = as_integer(self.tries)
        if tries is None or tries < 1:
            raise ConfigError(f"tries must be an integer of 1 or more, got {self.tries!r}")
        object.__setattr__(self, "tries", tries)
        if type(self.timeout) not in (int, float) or not 0 < self.timeout < math.inf:
            raise ConfigError(f"timeout must be a number of seconds above 0, got {self.timeout!r}")


class RetryableError(Exception):
    """A temporary failure: the request is repeated."""


class UnconfirmedError(Exception):
    """An answer that a proxy or a broken connection may have caused. The request is repeated once, then ``error`` is raised."""

    def __init__(self, error: ShardwrightError) -> None:
        super().__init__(str(error))
        self.error = error


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version that an object store states for an object, '' if it states none."""
    version = next((info[name] for name in _VERSION_FIELDS if info.get(name)), "")
    # A store may state the time of an object in seconds in a listing, and as a date in a look-up of the object.
    return plain_version(str(version.timestamp() if isinstance(version, datetime) else version))


def plain_version(version: str) -> str:
    """Return an ETag without its quotes and without the mark of a weak ETag, which proxies add.

    >>> plain_version('W/"abc"')
    'abc'
    """
    return version.removeprefix("W/").strip('"')


def is_version(version: str, known: str) -> bool:
    """Whether a version may be the known one. True if either is missing: some proxies remove the version."""
    return not version or not known or version == known
