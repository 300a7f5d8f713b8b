"""When to say that a search through the data, by a filter or a stage of the user, has found nothing for long."""

from __future__ import annotations

import time

_SECONDS = 5.0  # without a find; then twice as many


class LongSearch:
    """The time since something was found."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin to wait for the next find."""
        self._since = time.monotonic()
        self._due = _SECONDS

    def overdue(self) -> int | None:
        """Return the seconds that were waited, where it is time to say so, else None."""
        waited = time.monotonic() - self._since
        if waited < self._due:
            return None
        self._due = 2 * waited
        return int(waited)
