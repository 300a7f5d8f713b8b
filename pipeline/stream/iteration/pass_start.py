"""The pass that a stream reads next, and where it starts: the value that each row of the table in `StreamPosition` changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..position import Position
from ..stream_plan import Passes


@dataclass(frozen=True, slots=True)
class PassStart:
    """Where the next pass starts, and how ``set_epoch`` counts.

    - ``number``: the pass.
    - ``rest``: a position inside the pass that was loaded or skipped to; None: the pass is read whole.
    - ``at_end``: nothing of the pass is left after ``rest``.
    - ``epoch``: the number of the latest ``set_epoch``; None without a call.
    - ``offset``: ``number`` minus ``epoch``; None after a load, until a call sets it.
    - ``weights``: the weights of a mix, if they were set.
    - ``begun``: whether the stream was read since.

    >>> loaded = PassStart().load(7, Position(40, pass_number=7), at_end=False).set_epoch(0)
    >>> loaded.next_pass, loaded.is_whole, loaded.ended().set_epoch(1).next_pass
    (7, False, 8)
    """

    number: int = 0
    rest: Position | None = None
    at_end: bool = False
    epoch: int | None = None
    offset: int | None = 0
    weights: list[list[Any]] | None = None
    begun: bool = False

    @property
    def next_pass(self) -> int:
        """The pass that ``iter()`` reads: the one after ``number``, if nothing is left of a pass that ``set_epoch`` named."""
        return self.number + (self.rest is not None and self.at_end and self.epoch is not None)

    @property
    def is_whole(self) -> bool:
        """Whether ``iter()`` reads a pass from its beginning."""
        return self.rest is None or self.next_pass > self.number

    def position(self, passes: Passes) -> Position:
        """Return the position at which ``iter()`` begins."""
        if self.rest is None or (self.is_whole and passes.exist):
            return passes.begin(self.next_pass, self.weights)
        return self.rest

    def load(self, number: int, position: Position, at_end: bool) -> PassStart:
        """Go to a position in pass ``number``."""
        epoch = None if self.begun else self.epoch
        return PassStart(number, position, at_end, epoch, offset=None, weights=position.weights)

    def set_epoch(self, epoch: int) -> PassStart:
        """Go to pass ``epoch + offset``, or after a load give the loaded pass the number ``epoch``."""
        if self.offset is None and (self.epoch is None or not self.begun):
            if self.rest is None:
                return self._whole(self.number + 1, epoch)
            named = replace(self, epoch=epoch)
            return replace(named, offset=named.next_pass - epoch)
        if epoch == self.epoch and not self.begun:
            return self
        return self._whole(epoch + self._offset, epoch)

    def ended(self) -> PassStart:
        """Go to the start of the pass that was read to its end."""
        return replace(self, number=self.next_pass, rest=None, at_end=False, begun=True)

    def went_on(self) -> PassStart:
        """Go to the start of the next pass, because nothing of the pass was left when it was read. Epochs are named anew."""
        return replace(self, number=self.number + 1, rest=None, at_end=False, begun=True)

    def later(self, count: int = 1) -> PassStart:
        """Go to the start of a pass after the one that is read next. Epochs keep their numbers."""
        offset = self.offset if self.epoch is None else self._offset
        return PassStart(self.next_pass + count, offset=offset, weights=self.weights)

    def move(self, position: Position) -> PassStart:
        """Go to another position of the pass that is read next."""
        return replace(self, number=self.next_pass, rest=position, at_end=False, weights=position.weights)

    def _whole(self, number: int, epoch: int) -> PassStart:
        return PassStart(number, epoch=epoch, offset=number - epoch, weights=self.weights)

    @property
    def _offset(self) -> int:
        return (self.offset or 0) if self.epoch is None else self.next_pass - self.epoch
