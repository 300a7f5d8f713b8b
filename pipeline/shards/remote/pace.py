"""The pace of one http server: how fast it usually answers, and how long it asks its clients to wait."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping

from .access import Access

PIECE = 256 << 10
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
LONGEST_WAIT = 600.0  # seconds that a server can ask for: some count their quotas over five minutes
_LIMIT = re.compile(r";\s*([rt])=(\d+)")
_FIRST_ANSWER_SECONDS = 4.0  # of a server that never answered; twice as long at each further try
_SLOW = 10  # times the usual time is too long
_UNKNOWN_RATE, _LEAST_RATE = 256e3, 32e3  # bytes a second of one answer


class Server:
    """What a process knows of one http server, or of one bucket of a store.

    ``ranges``: whether it answered with a range (None: not known). ``answered``: whether it answered at all. ``signs``: False
    once it is known that a store makes no signed urls, or takes none.
    """

    def __init__(self) -> None:
        self.answered = False
        self.ranges: bool | None = None
        self.signs = True
        self._not_before = 0.0
        self._first = self._rate = 0.0  # usual seconds to the first byte, usual bytes a second

    def wait(self) -> None:
        """Sleep as long as the server asked all to wait."""
        while (left := self.left()) > 0:
            time.sleep(min(left, 1.0))

    def left(self) -> float:
        """Return how many seconds of the wait that the server asked for are left, 0 or less where none are."""
        return self._not_before - time.monotonic()

    def postpone(self, seconds: float) -> None:
        """Have every thread wait before it asks again."""
        self._not_before = max(self._not_before, time.monotonic() + min(seconds, LONGEST_WAIT))

    def patience(self, size: int | None, attempt: int, access: Access) -> tuple[float, float]:
        """Return how many seconds to wait for an answer to begin, and for all its ``size`` bytes, if they are known."""
        usual = _SLOW * self._first if self.answered else _FIRST_ANSWER_SECONDS
        first = max(access.least_patience, usual)
        first = min(access.timeout, first * 2 ** (attempt - 1))
        rate = max(_LEAST_RATE, self._rate / _SLOW) if self._rate else _UNKNOWN_RATE
        return first, math.inf if size is None else first + 2 ** (attempt - 1) * size / rate

    def note(self, first: float, seconds: float, size: int) -> None:
        """Learn from an answer: seconds to its first byte, and from there to the last of ``size``."""
        self._first += 0.2 * (first - self._first) if self._first else first
        if size >= PIECE and seconds > 0:
            self._rate += 0.2 * (size / seconds - self._rate) if self._rate else size / seconds


def wait_asked(status: int, headers: Mapping[str, str]) -> float:
    """Return the seconds that an answer asks to wait, by ``Retry-After`` or by a ``RateLimit`` that is used up.

    >>> wait_asked(429, {"RateLimit": '"resolvers";r=0;t=117'}), wait_asked(503, {"Retry-After": "5"}), wait_asked(200, {})
    (118.0, 5.0, 0.0)
    """
    after = _retry_after(headers.get("Retry-After", "").strip()) if status in TRANSIENT else 0.0
    limit = dict(_LIMIT.findall(headers.get("RateLimit", "")))
    used_up = "t" in limit and (status == 429 or limit.get("r") == "0")
    return max(after, int(limit["t"]) + 1.0) if used_up else after


def _retry_after(value: str) -> float:
    """Return the seconds of a ``Retry-After`` header, in either of its forms."""
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0
