"""The loop that repeats requests: one for http servers, object stores and wrong contents."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..daemon_threads import is_wanted, sleep
from ..errors import MissingObjectError, ShardwrightError, StorageError
from .http import server_of
from .request_options import RequestOptions, RetryableError, UnconfirmedError
from .urls import hide_secrets, shown

_LONGEST_DELAY = 30.0
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # errors of this machine's disk: the caller says what to free
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError)
_JITTER = random.Random()  # not the global generator: training code may have seeded it, and relies on its draws

T = TypeVar("T")


def retrying(action: Callable[[], T], url: str, doing: str, requests: RequestOptions) -> T:
    """Return what ``action`` returns. After a temporary failure it is called again, ``requests.tries`` times at most.

    An `UnconfirmedError` is believed when it comes twice. A server that has never answered this process is not tried again
    after half of ``requests.timeout``. Other errors of this package are raised at once. Nothing is tried again in a thread
    whose result is not wanted any more.
    """
    began, server = time.monotonic(), server_of(url)
    doubted = False
    for attempt in range(1, requests.tries + 1):
        # Jitter keeps many workers from retrying at the same time.
        delay = min(_LONGEST_DELAY, requests.first_delay * 2.0 ** (attempt - 1)) * _JITTER.uniform(0.5, 1.0)
        try:
            result = action()
            server.answered = True
            return result
        except ShardwrightError:
            raise
        except UnconfirmedError as doubt:
            if doubted or attempt == requests.tries:
                raise doubt.error from None
            doubted = True
        except Exception as error:
            failure = _reason(error, url)
            seconds = time.monotonic() - began
            is_dead = not server.answered and seconds + delay > requests.timeout / 2
            if attempt == requests.tries or is_dead:
                raise StorageError(
                    f"{shown(url)}: could not {doing}: gave up after {attempt} tries in {seconds:.1f} s; the last: "
                    f"{failure}. Check the network and the server, or allow more tries= or a longer timeout="
                ) from None
        sleep(delay)
        if not is_wanted():
            break
    raise StorageError(f"{shown(url)}: could not {doing}: nothing waits for the answer any more")


def _reason(error: Exception, url: str) -> str:
    """Return the text of a temporary failure; raises ``StorageError`` if it is permanent."""
    if isinstance(error, RetryableError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        raise MissingObjectError(f"{shown(url)}: no such object; check the url") from None
    if isinstance(error, OSError) and error.errno in _DISK:
        raise error
    name, text = type(error).__name__, hide_secrets(str(error), url)
    if isinstance(error, _PERMANENT) or "Credentials" in name:
        raise StorageError(
            f"{shown(url)}: {name}: {text}; check the url, the credentials and the storage options"
        ) from None
    return f"{name}: {text}" if text else name
