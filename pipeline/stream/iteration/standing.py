"""Where a stream stands among its passes: what ``set_epoch``, ``load_state_dict`` and a pass that was read make of it.

A pass is what frameworks call an epoch; `passes` says which sequences pass ``p`` has. Frameworks count their passes from 0 after
every restart, so ``set_epoch(e)`` means pass ``e + offset``. The first call that belongs to a load gives the offset.

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

"set_epoch(0), load" is one case where nothing was read between the two: a ``StatefulDataLoader`` loads as a pass begins.
Whether a position is the end of its pass, counts say, or of sequential streams readers, which find nothing left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Standing:
    """The pass of a stream, and how ``set_epoch`` counts.

    ``number``: the pass. ``rest``: a loaded position inside it is kept, else it begins whole. ``at_end``: that position is its
    end. ``name``: the latest ``set_epoch`` that holds for it, None if there is none. ``offset``: of passes to the numbers of
    ``set_epoch``; None after a load, until a call says it. ``began``, ``ended``: whether somebody read since, and to its end.

    >>> stand = Standing().load(7, at_end=False).set_epoch(0)
    >>> stand.next_read, replace(stand, began=True, ended=True).next_read
    ((7, False), (7, True))
    >>> replace(stand, began=True, ended=True).set_epoch(1).next_read
    (8, True)
    """

    number: int = 0
    rest: bool = False
    at_end: bool = False
    name: int | None = None
    offset: int | None = 0
    began: bool = False
    ended: bool = False

    @property
    def read(self) -> int:
        """The pass that is read next: the one after, where its name asks for a pass and nothing is left of it."""
        return self.number + (self.rest and self.at_end and self.name is not None)

    @property
    def next_read(self) -> tuple[int, bool]:
        """The pass that ``iter()`` reads, and whether it reads it whole."""
        return self.read, not self.rest or self.ended or self.read > self.number

    def load(self, number: int, at_end: bool) -> Standing:
        """Load a position in pass ``number``."""
        return Standing(number, True, at_end, None if self.began else self.name, None)

    def set_epoch(self, epoch: int) -> Standing:
        """Begin pass ``epoch`` + offset, or name the pass that was loaded."""
        if self.offset is None and (self.name is None or not self.began):
            if self.ended or not self.rest:
                return Standing(self.number + 1, name=epoch, offset=self.number + 1 - epoch)
            named = replace(self, name=epoch)
            return replace(named, offset=named.read - epoch)
        if epoch == self.name and not self.began:
            return self
        offset = self._offset or 0
        return Standing(epoch + offset, name=epoch, offset=offset)

    def next_pass(self, passes: int = 1) -> Standing:
        """Begin the next pass, ``passes`` after this one."""
        return Standing(self.read + passes, offset=self._offset)

    @property
    def _offset(self) -> int | None:
        return self.offset if self.name is None else self.read - self.name
