"""The table of `StreamPosition` as a model, which knows passes and nothing of the code, and drawn sequences of its events."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import StateError
from tests.stream.streams import ids

PASSES = 24
AHEAD = 2  # items that a loader asks each of its workers for in advance


@dataclass(frozen=True)
class Place:
    """A row's ``before`` or ``after``: "rest of 7 = e", "end of 7 = ?", "7 = e".

    ``gone`` items of pass ``number`` are before a ``rest``. ``epoch`` is e, None for "?". ``called``: by set_epoch(e);
    ``loaded``: no set_epoch has followed a load; ``unread``: nothing was read since.
    """

    number: int = 0
    gone: int = 0
    rest: bool = False
    epoch: int | None = 0
    called: bool = False
    loaded: bool = False
    unread: bool = True

    def whole(self, number: int) -> Place:
        return replace(self, number=number, gone=0, rest=False)

    def load(self, number: int, gone: int) -> Place:
        keeps = self.called and self.unread
        return Place(number, gone, True, self.epoch if keeps else None, keeps, loaded=True)

    def set_epoch(self, epoch: int, sizes: Callable[[int], int]) -> Place:
        at_end = self.rest and self.gone == sizes(self.number)
        named = Place(epoch=epoch, called=True)
        if self.loaded and (self.epoch is None or self.unread):
            if not self.rest or at_end:
                return named.whole(self.number + 1)
            return replace(named, number=self.number, gone=self.gone, rest=True)
        if self.called and self.unread and epoch == self.epoch:
            return self
        assert self.epoch is not None
        return named.whole(self.number + epoch - self.epoch)

    def followed(self) -> Place:
        return Place(self.number + 1, epoch=None if self.epoch is None else self.epoch + 1, loaded=self.loaded)


@dataclass(frozen=True)
class Kind:
    """A kind of loader; ``make`` is None for the stream itself."""

    make: Callable[[pipeline.Stream], Any] | None = None
    workers: int = 0
    persistent: bool = False
    stateful: bool = False
    loader: bool = False


def torch_loader(workers: int, persistent: bool = False, stateful: bool = False) -> Kind:
    options: dict[str, Any] = {"batch_size": None, "num_workers": workers, "persistent_workers": persistent}

    def make(stream: pipeline.Stream) -> Any:
        module = pytest.importorskip("torchdata.stateful_dataloader") if stateful else None
        return (DataLoader if module is None else module.StatefulDataLoader)(stream, **options)

    return Kind(make, workers, persistent, stateful)


KINDS = {
    "stream": Kind(),
    "loader": Kind(lambda stream: stream.loader(), loader=True),
    "0 workers": torch_loader(0),
    "2 workers": torch_loader(2),
    "persistent": torch_loader(2, persistent=True),
    "stateful, 0": torch_loader(0, stateful=True),
    "stateful, 1": torch_loader(1, stateful=True),
    "stateful, 3": torch_loader(3, stateful=True),
    "stateful, persistent": torch_loader(2, persistent=True, stateful=True),
}


class Passes:
    """The items of each pass, as a stream of its own gives them. ``changes`` of weights are (pass, items gone, weights)."""

    def __init__(self, make: Callable[[], pipeline.Stream], changes: tuple[Any, ...] = ()) -> None:
        self.make, self.changes = make, changes
        self.of = cache(self._read)

    def __getitem__(self, number: int) -> list[Any]:
        return self.of(number)

    def _read(self, number: int) -> list[Any]:
        stream, items = self.make(), list[Any]()
        for at, gone, weights in self.changes:
            if at <= number:
                stream.set_epoch(at)
                items = ids(islice(stream, gone))
                stream.set_weights(weights)
        if not self.changes or self.changes[-1][0] < number:
            stream.set_epoch(number)
            items = []
        return items + ids(stream)

    def size(self, number: int) -> int:
        return len(self[number])


class Run:
    """A drawn run: each event is done to a stream and to the model, and both must agree."""

    def __init__(self, passes: Passes, kinds: list[str], seed: int, *, ranks: bool) -> None:
        self.draw, self.make, self.passes = random.Random(seed), passes.make, passes
        self.unchanged, self.ranks = passes, ranks  # whether two ranks read the passes of one
        self.known = self.allows(lambda stream: len(stream))
        self.countable = self.allows(lambda stream: stream.state_dict(batches=0))
        self.kinds = [name for name in kinds if self.known or not KINDS[name].loader]
        self.saved: tuple[Any, ...] | None = None
        self.log: list[str] = []
        self.begin()

    def allows(self, call: Callable[[pipeline.Stream], Any]) -> bool:
        try:
            call(self.make())
        except (TypeError, StateError):
            return False
        return True

    def begin(self) -> None:
        self.source: Any = None
        self.stream, self.place, self.passes = self.make(), Place(), self.unchanged
        self.new_loader()

    def new_loader(self) -> None:
        self.source = None  # which ends its workers
        self.name = self.draw.choice(self.kinds)
        self.kind = KINDS[self.name]
        self.source = self.stream if self.kind.make is None else self.kind.make(self.stream)
        self.lives = self.live = self.by_workers = self.iterated = False
        self.pending: tuple[Any, ...] | None = None  # what a StatefulDataLoader loads when it is iterated
        self.taken: tuple[int, int] | None = (
            None  # the pass of the latest iteration, and how many of its items are gone
        )
        self.batches: int | None = None  # that the latest iteration gave
        self.ended = False
        self.log.append(f"as {self.name}")

    def run(self, events: int) -> None:
        """Do so many events; an error names all that were done."""
        try:
            for _ in range(events):
                self.step()
        except Exception as error:
            error.add_note("\n".join(self.log))
            raise
        finally:
            self.source = None

    def step(self) -> None:
        events = ["read"] * 4 + ["set_epoch"] * 3 + ["save"] * 2 + ["load", "new", "skip", "new loader", "ranks"]
        event = self.draw.choice(events)
        getattr(self, f"do_{event.replace(' ', '_')}")()

    def expect(self, error: bool, call: Callable[[], Any]) -> bool:
        """Do a call and say whether it was done, or see that it is refused."""
        if not error:
            call()
            return True
        with pytest.raises(StateError, match=r"persistent workers|hidden by its prefetching|a live iterator"):
            call()
        return False

    # Events

    def do_read(self) -> None:
        """Iterate: all items, all without asking for more, or some."""
        kind, place, joined = self.kind, self.place, False
        if (kind.loader and self.iterated) or (self.lives and not place.unread):
            place = place.followed()
        if self.pending is not None:
            number, gone, finished, _ = self.pending
            place = place.load(number, gone)
            joined = kind.workers > 0
            if finished and kind.workers:  # the loader begins another pass at once
                if kind.persistent:
                    place = replace(place.followed(), epoch=place.epoch, called=place.called)
                else:
                    place = place.whole(number + place.called)
        at_end = place.rest and place.gone == self.passes.size(place.number)
        follows = kind.loader and place.loaded and place.epoch is None
        if at_end and (place.called or follows) and not (joined and kind.persistent):
            place = place.whole(place.number + 1)
        items = self.passes[place.number][place.gone :]
        count, how = len(items), self.draw.choice(["all", "exactly", "some", "some"])
        if how == "some":
            # Workers read ahead; a rest that they have read counts as read.
            most = count - 1 if not kind.workers else count - 1 - kind.workers * AHEAD
            if most < 1:
                how = "all"
            else:
                count = self.draw.randint(1, most)
        if count == 0:
            how = "all"
        self.log.append(f"read {how} {count} of {len(items)} of {place}")
        self.pending = None
        found = ids(self.source if how == "all" else islice(self.source, count))
        assert found == items[:count], f"got {[self.find(item) for item in found]}"
        ended = count == len(items) and (how == "all" or self.known)
        self.taken, self.batches = (place.number, place.gone + count), None if joined else count
        self.finished = how == "all"
        self.place = replace(place, unread=False)
        if ended or kind.persistent:
            self.place = self.place.whole(place.number)
        elif joined:
            self.place = replace(self.place, gone=0, rest=True)
        self.latest = place.number
        self.live = kind.stateful and not kind.workers and how != "all"  # its loader keeps the iterator
        self.lives, self.by_workers, self.iterated = kind.persistent, kind.workers > 0, True
        self.ended = ended

    def find(self, item: Any) -> str:
        return next((f"{n}:{self.passes[n].index(item)}" for n in range(PASSES) if item in self.passes[n]), "?")

    def do_set_epoch(self) -> None:
        place, size = self.place, self.passes.size
        after = place.set_epoch(self.draw.choice([0, 1, 2, (place.epoch or 0) + 1, place.epoch or 0]), size)
        if self.pending is not None and self.draw.random() < 0.5:
            return
        assert after.epoch is not None
        if not 0 <= after.number < PASSES - 2 or after.number - after.epoch < 0:
            return
        self.log.append(f"set_epoch({after.epoch}) to {after}")
        target = self.draw.choice([self.source, self.stream]) if self.kind.loader else self.stream
        live = self.live or (target is not self.source and self.kind.loader and self.iterated and not self.finished)
        follows = not self.lives or (not after.rest and after.number == self.latest + 1)
        refused = after is not place and (live or not follows)
        if self.expect(refused, lambda: target.set_epoch(after.epoch)) and after is not place:
            self.move(after)

    def move(self, place: Place) -> None:
        self.place, self.taken, self.batches, self.iterated = place, None, None, False
        self.by_workers = False

    def do_save(self) -> None:
        """Save the position after the items handed out."""
        if self.pending is not None or (self.kind.stateful and not self.iterated):
            return
        place = self.place
        number, gone = self.taken or (place.number, place.gone)
        if self.taken is None and place.called and place.rest and gone == self.passes.size(number):
            return
        if self.kind.stateful:
            state, form = self.source.state_dict(), (self.kind.workers, self.finished)
        elif not self.by_workers:
            state, form = self.stream.state_dict(), (0, False)
        elif self.countable and self.batches is not None:
            self.expect(True, self.stream.state_dict)
            state, form = self.stream.state_dict(batches=self.batches), (0, False)
        else:
            self.expect(True, self.stream.state_dict)
            return
        state = json.loads(json.dumps(state)) if form == (0, False) and not self.kind.stateful else state
        self.log.append(f"save {number}:{gone} {form}")
        self.saved = (number, gone, self.kind.stateful, form, state, self.passes)

    def do_load(self) -> None:
        """Load the latest state into this stream, or if a loader saved it, into a new loader of this kind."""
        if self.saved is None:
            return
        number, gone, stateful, (workers, finished), state, passes = self.saved
        if passes is not self.passes and self.lives:
            return
        if stateful:
            fits = [n for n in self.kinds if KINDS[n].stateful and KINDS[n].workers == workers]
            if (passes.changes and workers) or (self.lives and self.name not in fits):
                return
            name, self.source = self.draw.choice(fits), None
            kinds, self.kinds = self.kinds, [name]
            self.new_loader()
            self.kinds = kinds
            self.source.load_state_dict(state)
            self.pending, self.passes = (number, gone, finished, None), passes
            self.log.append(f"loader loads {number}:{gone} finished={finished}")
            return
        self.log.append(f"load {number}:{gone}")
        target = self.source if self.kind.loader else self.stream
        if self.expect(self.lives or self.live, lambda: target.load_state_dict(state)):
            self.pending, self.passes = None, passes
            self.move(self.place.load(number, gone))

    def do_new(self) -> None:
        """Start another process, as it were: a new stream, which loads the latest state."""
        self.log.append("new stream")
        self.begin()
        self.do_load()

    def do_new_loader(self) -> None:
        if self.pending is None and not (self.kind.persistent and not self.ended):
            kept = self.taken, self.by_workers, self.batches, self.ended
            self.new_loader()
            self.taken, self.by_workers, self.batches, self.ended = kept

    def do_skip(self) -> None:
        if self.pending is not None or (self.kind.loader and self.iterated):
            return
        count, weights = self.draw.randint(0, 3), self.draw.random() < 0.3
        place = self.place
        number, gone = (place.number, place.gone) if self.taken is None or self.ended else self.taken
        gone = min(gone + count, self.passes.size(number))
        if not self.expect(self.lives or self.live or self.by_workers, lambda: self.stream.skip(count)):
            return
        self.log.append(f"skip {count}")
        self.move(replace(place, number=number, gone=gone, rest=True, unread=True))
        if weights and self.stream.source_names[1:] and self.draw.random() < 0.5:
            first, second = self.stream.source_names
            shares = {first: self.draw.randint(1, 9), second: self.draw.randint(1, 9)}
            at_end = gone == self.passes.size(number)
            if at_end or (self.passes.changes and self.passes.changes[-1][:2] >= (number, gone)):
                return
            self.stream.set_weights(shares)
            self.passes = Passes(self.make, (*self.passes.changes, (number, gone, shares)))
            self.log.append(f"set_weights({shares}) at {number}:{gone}")

    def do_ranks(self) -> None:
        """Read the rest of the saved pass on two ranks, which must share its rows."""
        if self.saved is None or self.saved[2] or not self.ranks or self.saved[-1].changes:
            return
        number, gone, *_, state, passes = self.saved
        ranks = []
        for rank in range(2):
            stream = self.make().shard(rank, 2)
            stream.load_state_dict(state)
            ranks.append(ids(stream))
        rows = [row for step in zip(*ranks, strict=True) for batch in step for row in batch]
        expected = [row for batch in passes[number][gone:] for row in batch]
        assert sorted(row for row in rows if any(row)) == sorted(row for row in expected if any(row))
