"""One budget of open files for the process, which all its streams share: the least recently used close first.

A map of a shard holds a descriptor until Python 3.13, and a remote one its lease too. Half of what the process may open is
left to others.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

MOST = 16_384  # maps of one process: its kernel allows 65,530 of all kinds
_ticks = itertools.count(1)


class Holder(Protocol):
    """What holds files open."""

    @property
    def held(self) -> int:
        """How many descriptors it holds."""

    def closable(self) -> list[tuple[int, int, int]]:
        """Return what it can do without, as (tick of the last use, number, descriptors)."""

    def close_files(self, numbers: list[int]) -> None:
        """Close those; called from any thread."""

    def forget(self) -> None:
        """Close all, after a fork, in the child: locks may be held by threads that are not there."""


class OpenFiles:
    """A budget of ``limit`` descriptors (None: half of those that the process may open) that holders share.

    ``crowded`` says that more than half are in use, so that holders note what they use.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.crowded = False
        self._given = limit
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    @property
    def limit(self) -> int:
        """How many descriptors may be open."""
        most = max(8, min(_allowed() // 2, MOST))
        return most if self._given is None else min(most, self._given)

    @property
    def held(self) -> int:
        """How many descriptors are open."""
        return sum(holder.held for holder in self._members())

    def join(self, holder: Holder) -> None:
        """Count what a holder holds, for as long as it lives."""
        with self._lock:
            self._holders.add(holder)

    def make_room(self, count: int) -> None:
        """Close the least recently used until ``count`` more fit; call it without a holder's lock."""
        limit, held = self.limit, self.held
        self.crowded = held + count > limit // 2
        if held + count <= limit:
            return
        # Some more than must go, so that the next few find room without a search for the oldest.
        excess = held + count - limit + limit // 8
        found = [(*each, holder) for holder in self._members() for each in holder.closable()]
        closing: dict[Holder, list[int]] = {}
        for _, number, files, holder in sorted(found, key=lambda each: each[0]):
            if excess <= 0:
                break
            closing.setdefault(holder, []).append(number)
            excess -= files
        for holder, numbers in closing.items():
            holder.close_files(numbers)

    def opening(self, open_one: Callable[[], T], count: int) -> T:
        """Make room for ``count`` descriptors, and open; where others took too many, keep to half of what is held now."""
        self.make_room(count)
        try:
            return open_one()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._given = max(8, self.held // 2)
        self.make_room(count)
        try:
            return open_one()
        except OSError as error:
            error.add_note(
                f"this process may open {_allowed()} files, and others than its streams hold most; raise ulimit -n"
            )
            raise

    def after_fork(self) -> None:
        """Close what a child inherited: nobody reads on there, and its copies count as its own."""
        self._lock = threading.Lock()
        for holder in self._members():
            holder.forget()

    def _members(self) -> list[Holder]:
        with self._lock:
            return list(self._holders)


OPEN_FILES = OpenFiles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=OPEN_FILES.after_fork)


def tick() -> int:
    """Return a number above all that were returned before, in the whole process."""
    return next(_ticks)


def _allowed() -> int:
    try:
        import resource

        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except ImportError:  # not a Unix system
        return 1024
    return allowed if allowed > 0 else 2 * MOST
