"""The pass of a stream that is read next, and the position at which it starts.

Frameworks call a pass an epoch. They count their passes from 0 after every restart, so ``set_epoch(e)`` means pass
``e + offset``. The first call that belongs to a load sets the offset.

    what was called                                      the passes that are read after it
    -------------------------------------------------    ---------------------------------------------
    nothing                                              0, 0, 0 ...
    set_epoch(3)                                         3, 3, 3 ...
    load(inside 7)                                       rest of 7, then 7 (whole), 7 ...
    load(end of 7)                                       nothing, then 7, 7 ...
    load(inside 7), set_epoch(0)                         rest of 7, then 7 ...; set_epoch(1) is 8
    load(end of 7), set_epoch(0)                         8, 8 ...; set_epoch(1) is 9
    set_epoch(0), load(inside 7)                         rest of 7, then 7 ...; set_epoch(1) is 8
    set_epoch(0), load(end of 7)                         8, 8 ...; set_epoch(1) is 9
    load(inside 7), a pass, set_epoch(5)                 rest of 7, then 8; set_epoch(6) is 9
    load(end of 7), a pass, set_epoch(5)                 nothing, then 8; set_epoch(6) is 9
    load(inside 7), a pass broken off                    rest of 7 again: reading moves no stream
    load(inside 7), a pass broken off, set_epoch(5)      rest of 7 again; set_epoch(6) is 8
    set_epoch(e) again before anything is read           as after the first call
    set_epoch(e) again after a pass, read or broken off  the same pass, whole

The rows of "set_epoch(0), load" hold if nothing was read between the two: a ``StatefulDataLoader`` loads when a pass begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..passes import Passes
from ..position import Position


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The position at which a stream is read next, and how ``set_epoch`` counts.

    - ``number``: the pass.
    - ``rest``: a position inside the pass that was loaded or skipped to; None: the pass is read whole.
    - ``at_end``: nothing of the pass is left after ``rest``.
    - ``epoch``: the number of the latest ``set_epoch``; None without a call.
    - ``offset``: ``number`` minus ``epoch``; None after a load, until a call sets it.
    - ``weights``: the weights of a mix, if they were set.
    - ``begun``, ``ended``: whether the stream was read since, and whether to the end of the pass.

    >>> stand = Bookmark().load(7, Position(40, pass_number=7), at_end=False).set_epoch(0)
    >>> stand.next_read, replace(stand, begun=True, ended=True).next_read
    ((7, False), (7, True))
    >>> replace(stand, begun=True, ended=True).set_epoch(1).next_read
    (8, True)
    """

    number: int = 0
    rest: Position | None = None
    at_end: bool = False
    epoch: int | None = None
    offset: int | None = 0
    weights: list[list[Any]] | None = None
    begun: bool = False
    ended: bool = False

    @property
    def next_read(self) -> tuple[int, bool]:
        """The pass that ``iter()`` reads, and whether it is read whole.

        If nothing is left of a pass that ``set_epoch`` asked for, this is the next pass.
        """
        number = self.number + (self.rest is not None and self.at_end and self.epoch is not None)
        return number, self.rest is None or self.ended or number > self.number

    def start(self, passes: Passes) -> Position:
        """Return the position at which ``iter()`` begins."""
        number, is_whole = self.next_read
        if self.rest is None or (is_whole and passes.exist):
            return passes.begin(number, self.weights)
        return self.rest

    def load(self, number: int, position: Position, at_end: bool) -> Bookmark:
        """Go to a position in pass ``number``."""
        epoch = None if self.begun else self.epoch
        return Bookmark(number, position, at_end, epoch, offset=None, weights=position.weights)

    def set_epoch(self, epoch: int) -> Bookmark:
        """Go to pass ``epoch + offset``, or after a load give the loaded pass the number ``epoch``."""
        number = self.next_read[0]
        if self.offset is None and (self.epoch is None or not self.begun):
            if self.ended or self.rest is None:
                return self._whole(self.number + 1, epoch)
            named = replace(self, epoch=epoch)
            return replace(named, offset=named.next_read[0] - epoch)
        if epoch == self.epoch and not self.begun:
            return self
        return self._whole(epoch + self._offset(number), epoch)

    def next_pass(self) -> Bookmark:
        """Go to the start of the pass after the one that is read next."""
        number = self.next_read[0]
        offset = self.offset if self.epoch is None else self._offset(number)
        return Bookmark(number + 1, offset=offset, weights=self.weights)

    def move(self, position: Position) -> Bookmark:
        """Go to another position of the pass that is read next."""
        number = self.next_read[0]
        return replace(self, number=number, rest=position, at_end=False, weights=position.weights, ended=False)

    def _whole(self, number: int, epoch: int) -> Bookmark:
        return Bookmark(number, epoch=epoch, offset=number - epoch, weights=self.weights)

    def _offset(self, number: int) -> int:
        return (self.offset or 0) if self.epoch is None else number - self.epoch
