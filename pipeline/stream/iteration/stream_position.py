"""The owner of a stream's position. It makes iterators, and is saved, loaded and moved."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain, islice
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from ...errors import ConfigError, StateError
from ...notices import say_once
from ..arguments import MAX_ROWS, MAX_STEPS, check_integer
from ..order.mixture import PERIOD, Changes, Served, exact_weights, quotas, weights_to_json
from ..position import MAX_NUMBER, Position
from ..ranks import Ranks
from ..settings import StreamSettings
from ..state import from_state, to_state
from ..stream_plan import Passes, StreamPlan
from .items import Made, make_items
from .iterator import StreamIterator
from .pass_start import PassStart
from .progress import IterationProgress, stats_of_workers
from .user_stages import Positioned
from .worker_notes import WorkerNotes

_KEPT_CHANGES = 8  # of weights, in a state


class StreamPosition:
    """The position of one stream, in the process that calls ``iter()``, and the iterators, several of which may run at once.

    An event moves the position from ``before`` to ``after``. "rest of 7" is a position inside pass 7, "end of 7" one with
    nothing left after it, and "7" the whole pass. Frameworks count their passes from 0 after every restart. So ``set_epoch``
    counts from a pass: "7 = e" says that ``set_epoch(e)`` means pass 7. After a load, the next call of ``set_epoch`` decides
    this ("7 = ?"). What ``iter()`` reads next is the position.

        event                           before                          after
        ------------------------------  ------------------------------  ---------------------------------------
        the stream is made                                              0 = 0
        items, and a break              any                             as before: the next iter() begins there again
        all items                       rest of 7, end of 7, or 7       7, with its number
        all items, of which none is     end of 7 = e                    8 = e: they are those of pass 8
        load, inside or at end of 7     any                             rest or end of 7 = ?
        load, inside or at end of 7     7 = e by set_epoch(e), unread   rest or end of 7 = e, or = what comes next
        set_epoch(e)                    rest of 7 = ?                   rest of 7 = e
        set_epoch(e)                    end of 7 = ?                    8 = e
        set_epoch(e)                    7 = ?, since its rest was read  8 = e
        set_epoch(e)                    7 = e by set_epoch(e), unread   as before
        set_epoch(e)                    any of 7 = d                    7 + e - d = e, whole
        skip(n)                         any of 7 = d                    rest of 7 = d, n items later
        set_weights                     any of 7 = d                    rest of 7 = d, after the items handed out
        the next pass of a `Loader`     any of 7 = d                    8 = d + 1
        copy, pickle, fork              any                             the same, and each moves alone

    **Workers of a loader** start at the position that their parent has then, and learn nothing later. They note which pass they
    read, and when they have finished it. So the events of the table are theirs as well, with three differences:

    - Workers read ahead, so their parent does not know the position after a batch. ``state_dict()``, ``skip`` and
      ``set_weights`` are refused after batches of workers; ``state_dict(batches=n)`` counts them. A pass counts as read when
      its workers have made its last item.
    - Workers that live on (``persistent_workers``) begin the next pass at each ``iter()``, as a `Loader` does. Moves other than
      ``set_epoch`` with the number of that pass are refused while they live.
    - A ``StatefulDataLoader`` loads the state of each worker in that worker, for its next pass alone. The parent then is at
      the beginning of that pass.

    The calls that move a stream are refused while an iterator of this process is live.
    """

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._plan: StreamPlan | None = None
        self._ranks = Ranks(settings.stated_topology, settings.peer)
        self._start = PassStart()  # where the latest move went; `_now` adds what was read since
        self._memory = WorkerNotes()
        self._process = os.getpid()  # that shares `_memory` with the workers it starts
        # Of a worker: it loaded a state of its own, it iterates from there, its next iteration reads the next pass.
        self._loads = self._loaded = self._follows = False
        self._progress: IterationProgress | None = None  # of the latest iterator
        self._iterators: list[weakref.ref[StreamIterator]] = []

    # The position

    @property
    def plan(self) -> StreamPlan:
        """The plan of the stream on the ranks that share it now."""
        world_size = self._ranks.topology().world_size
        if self._plan is None or self._plan.world_size != world_size:
            self._plan = StreamPlan(self._settings, world_size)
        return self._plan

    @property
    def passes(self) -> Passes:
        """The passes of the stream."""
        return self.plan.passes

    @property
    def start(self) -> Position:
        """The position at which ``iter()`` begins."""
        return self._now().position(self.passes)

    @property
    def current(self) -> Position:
        """The position after the items handed out by the latest iterator; without an iterator, `start`."""
        return self.start if self._progress is None else self._progress.position

    def length(self) -> int:
        """Return how many items a rank gets in a whole pass."""
        return self.passes.length(self._ranks.topology())

    def stats(self) -> dict[str, Any]:
        """Return the counts and times of the latest iterator, or of a loader's workers if they read later."""
        if self._notes.memory.by_worker and get_worker_info() is None and (workers := self._notes.counts()):
            return stats_of_workers(workers)
        if self._progress is not None:
            return self._progress.stats()
        position = self.current
        return IterationProgress(self.plan.under(position.weights), position, None).stats()

    @property
    def _notes(self) -> WorkerNotes:
        """What happened since the latest move. A process that was forked, and is no worker of a loader, moves alone."""
        if os.getpid() != self._process and get_worker_info() is None:
            self._process = os.getpid()
            self._start, self._memory = self._now(), WorkerNotes()
        return self._memory

    def _now(self) -> PassStart:
        """Return where the next pass starts, after all that was read since the latest move."""
        notes, start, passes = self._notes, self._start, self.passes
        memory, lives = notes.memory, notes.workers_live()
        # In this order: another worker may note its pass between the two, and it notes `first` before `latest`.
        latest, first = memory.latest - 1, memory.first - 1
        if memory.loaded:
            number = notes.loaded_pass(memory.reads_next)
            start = replace(start, begun=memory.read_before)
            start = start.load(number, passes.begin(number, start.weights), at_end=False)
            if start.epoch is not None and latest > number and notes.loaded_pass(reads_next=True) > number:
                start, first = start.went_on(), first + 1
        if first > start.next_pass:
            start = start.went_on()
        if latest > first:
            start = start.later(latest - first)
        start = replace(start, begun=start.begun or memory.begun > 0)
        return start.ended() if (memory.ended or lives) and passes.exist else start

    # Iterating

    def iterate(self, *, follows: bool = False) -> StreamIterator:
        """Return an iterator over the items of this process, from the stream's position on.

        ``follows``: after a load, the items are those of the next pass if nothing is left of the loaded one.
        """
        self._ranks.refuse_unknown()
        notes, loads, in_worker = self._notes, self._loads, get_worker_info() is not None
        notes.enter()
        start, topology, passes = self._begin(), self._ranks.topology(), self.passes
        position = start.position(passes)
        if not loads:
            notes.note_pass(start.next_pass, position == passes.begin(start.next_pass, start.weights))
        if in_worker:
            self._start, self._loads, self._loaded, self._follows = start, False, loads, bool(notes.lives_on)
            position = position if loads else replace(position, skip=topology.worker)
        made, progress = self._make(position)
        items, reads_next = made.items, start.epoch is not None or (follows and start.offset is None)
        if loads:
            items = self._or_pass_of_others(made, progress)
        elif reads_next and not start.is_whole:
            items = self._or_next_pass(made, progress)
        iterator = StreamIterator(items, progress, topology, self._ranks, notes)
        self._iterators = [weakref.ref(item) for item in (*self._existing(), iterator)]
        return iterator

    def _begin(self) -> PassStart:
        """Return where an iteration in this process starts."""
        if self._loads:
            return self._start
        if not self._follows:
            if self._notes.memory.with_weights:
                raise StateError(
                    "workers of a StatefulDataLoader loaded weights of set_weights() for one pass, and the next pass would lack "
                    "them: give the loader persistent_workers=True, or save and load stream.state_dict(batches=n) instead"
                )
            return self._now()
        if self._loaded:
            number = self._notes.loaded_pass(self._notes.memory.reads_next)
            self._start = replace(self._start, number=number, rest=None)  # the rest was this worker's own
            self._notes.note_pass(number, whole=False)
        return self._start.later() if self.passes.exist else self._start

    def _make(self, position: Position) -> tuple[Made, IterationProgress]:
        plan, topology = self.plan.under(position.weights), self._ranks.topology()
        made = make_items(plan, position, topology)
        self._progress = progress = IterationProgress(plan, position, made.reader)
        left = self.passes.items_left(position, topology)
        progress.expected = None if left is None else max(0, -(-(left - position.skip) // topology.workers))
        return made, progress

    def _or_next_pass(self, made: Made, progress: IterationProgress) -> Iterator[Positioned]:
        """Yield the items of the rest of a pass, or those of the next pass if no worker has an item in the rest."""
        first = list(islice(made.items, 1))
        yield from first
        if first or made.passed():
            yield from made.items
            return
        start, passes = self._start.went_on(), self.passes
        if passes.exist:
            position = replace(passes.begin(start.number, start.weights), skip=progress.position.skip)
        else:  # a mix goes on where a take() after apply() ended it
            position = replace(progress.position, given={})
            start = replace(start, rest=position)
        yield from self._gone_on(start, position, progress)

    def _or_pass_of_others(self, made: Made, progress: IterationProgress) -> Iterator[Positioned]:
        """Return the items of the rest that this worker loaded, or those of the pass in which the other workers are then.

        A loader takes items of its workers in turn, so this worker knows which item of a later pass would be its next one. It
        notes the pass of this item now. All workers have noted theirs before one of them yields an item.
        """
        notes, passes, topology = self._notes, self.passes, self._ranks.topology()
        position, number, error = progress.position, self._start.number, None
        first: list[Positioned] = []
        try:
            first = list(islice(made.items, 1))
        except Exception as raised:  # the consumer gets it
            error = raised
        inside = bool(first or error)
        if not inside:
            skip, number = position.skip - made.passed(), number + 1
            if count := passes.items_left(passes.begin(number), topology):
                number, skip = number + skip // count, skip % count
            position = replace(passes.begin(number, position.weights), skip=skip)
        notes.note_next(number, inside)

        def items() -> Iterator[Positioned]:
            if error is not None:
                raise error
            if notes.lives_on:
                notes.note_pass(notes.loaded_pass(notes.memory.reads_next), whole=False)
            if inside:
                yield from chain(first, made.items)
            elif notes.loaded_pass(notes.memory.reads_next) == number:
                yield from self._gone_on(replace(self._start.went_on(), number=number), position, progress)

        return items()

    def _gone_on(self, start: PassStart, position: Position, progress: IterationProgress) -> Iterator[Positioned]:
        """Yield the items of a later pass, in place of those of a pass of which nothing was left."""
        self._start = start
        if not self._loaded:
            self._notes.note_later_pass(start.number)
        made, later = self._make(position)
        progress.position, progress.reader, progress.expected = later.position, later.reader, later.expected
        self._progress = progress
        yield from made.items

    def _existing(self) -> list[StreamIterator]:
        """Return the iterators of this stream that still exist."""
        return [iterator for reference in self._iterators if (iterator := reference()) is not None]

    # Saving

    def save(self, batches: int | None) -> dict[str, Any]:
        """Return the state of the current position, or of the position ``batches`` after the start of ``iter()``."""
        if batches is not None:
            return to_state(self._after(batches), self.plan, self._ranks.topology())
        counting = "" if self._settings.sequential else "use state_dict(batches=n) after n batches, "
        self.refuse_hidden(counting, ", or use torchdata's StatefulDataLoader")
        return to_state(self.current, self.plan, self._ranks.topology())

    def refuse_hidden(self, counting: str, last: str = "") -> None:
        """Raise ``StateError`` if a loader's workers handed out the latest items."""
        if self._notes.memory.by_worker and get_worker_info() is None:
            raise StateError(
                f"the positions of a DataLoader's workers are hidden by its prefetching; {counting}iterate the stream "
                f"without workers{last}"
            )

    def _refuse_uncounted(self, what: str, argument: Any) -> None:
        """Raise ``StateError`` if the call ``what(argument)`` would count from an unknown position."""
        call = f"{what}({argument})"
        self._refuse_live(what, None)
        lines = f"del loader, stream.load_state_dict(stream.state_dict(batches=n)), then stream.{call}"
        counting = "" if self._settings.sequential else f"after n batches of this pass, write {lines}; or "
        self.refuse_hidden(counting, f" before {what}()")
        self._refuse_live(what, call)

    def _after(self, batches: int) -> Position:
        """Return the position ``batches`` after the start of ``iter()``; ``StateError`` if they cannot be counted."""
        batches = check_integer("batches", batches, least=0, most=MAX_STEPS)
        settings = self._settings
        if not settings.counts_items:
            raise StateError(
                "a stage given to .apply() may drop items, so batches cannot be counted past it; iterate the stream "
                "without workers, or use torchdata's StatefulDataLoader"
            )
        if settings.sequential:
            raise StateError(
                "batches of text, filters and best-fit packing cannot be counted in advance, since each lane has its own cursor; "
                "iterate the stream without workers, or use torchdata's StatefulDataLoader"
            )
        if settings.batch_size is None:
            raise StateError(
                "this stream gives single sequences, and batches that a DataLoader makes of them cannot be counted; add "
                ".batch(size) to the stream and give the DataLoader batch_size=None, or use torchdata's StatefulDataLoader"
            )
        memory, position = self._notes.memory, self.start
        if memory.loaded and not memory.latest:
            raise StateError(
                "the workers of a StatefulDataLoader loaded states of their own, so batches cannot be counted from the stream's "
                "position: save the loader's state_dict()"
            )
        if memory.latest:  # workers read ahead, so they may have finished the pass before the consumer has
            begin = self.passes.begin(memory.latest - 1, self._start.weights)
            position = begin if memory.whole else self._start.position(self.passes)
        return self._batches_after(position, batches)

    def _batches_after(self, position: Position, batches: int) -> Position:
        """Return the position that is ``batches`` (without `.batch`, sequences) after another, in the same pass."""
        index = position.sequence_index + batches * self.plan.step_size
        end = self.passes.bounds(position)[1]
        if end is not None:
            index = max(position.sequence_index, min(index, end))
        return replace(position, sequence_index=index, skip=0)

    # Moving

    def load(self, state: dict[str, Any]) -> None:
        self._refuse_live("load_state_dict", "load_state_dict(state)")
        number, position, at_end = self.passes.pass_of(from_state(state, self.plan, self._ranks.topology()))
        if get_worker_info() is None:
            self._move(self._now().load(number, position, at_end), "load_state_dict")
            return
        notes = self._notes
        start = replace(self._start, begun=self._start.begun or notes.memory.begun > 0)
        # Only all workers together know whether the pass is at its end.
        self._start, self._loads = start.load(number, position, at_end=False), True
        weights, known = (self.plan.under(each).changes for each in (position.weights, start.weights))
        notes.note_load(read_before=start.begun, named=self._start.epoch is not None, with_weights=weights != known)
        self._forget_iterators("load_state_dict")

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of a pass, or set the number of the pass of a loaded position."""
        epoch = check_integer("epoch", epoch, least=0, most=MAX_ROWS)
        settings, passes = self._settings, self.passes
        if not passes.exist:
            say_once(
                "set_epoch() changes nothing on a mix, which has no epochs; .take(n), before any .apply(), gives it passes "
                "of n steps"
            )
            return
        if epoch > 0 and settings.epochs is not None and settings.epochs > 1:
            raise ConfigError(
                f"set_epoch({epoch}) on a stream with epochs={settings.epochs}, where one pass reads all of them; use "
                "epochs=1, and set_epoch() chooses the epoch of each pass"
            )
        before = self._now()
        after = before.set_epoch(epoch)
        if after is before:
            return
        follows = after.is_whole and after.next_pass == self._notes.memory.following
        self._refuse_live("set_epoch", None if follows else f"set_epoch({epoch})")
        if after.offset is not None and epoch + after.offset < 0:
            raise ConfigError(
                f"set_epoch({epoch}) is before the first epoch, which is set_epoch({-after.offset}): the first call after "
                "loading the state gave its epoch a number; count up from there"
            )
        if after.is_whole:
            if before.rest is not None and not passes.all_ranks_know(before.rest):
                raise StateError(
                    f"set_epoch({epoch}) moves the lanes of all ranks to one epoch, but the loaded state holds only this rank's "
                    "lanes; other lanes may be in another epoch: load the result of pipeline.merge_states([...]) for all ranks"
                )
            number, index = after.next_pass, after.position(passes).sequence_index
            if max(number, index) > MAX_NUMBER:
                raise ConfigError(f"set_epoch({epoch}) moves to sequence {index}, above the last, {MAX_NUMBER}")
        self._move(after, "set_epoch", after.position(passes) if after.is_whole else None)

    def next_pass(self) -> None:
        """Move to the start of the next pass, as ``set_epoch`` with the next number does."""
        self._refuse_live("the next pass", "loader()")
        after = self._now().later()
        if not self.passes.exist and self._progress is not None:  # a mix goes on where a take() after apply() ended it
            after = after.move(replace(self._progress.position, given={}))
        self._move(after, "the next pass")

    def skip(self, batches: int) -> None:
        """Move ``batches`` batches on from the current position."""
        batches = check_integer("batches", batches, least=0, most=MAX_STEPS)
        self._refuse_uncounted("skip", batches)
        after = self._now()
        position = self.start if self._progress is None or self._progress.has_ended else self._progress.position
        if self._settings.sequential or not self._settings.counts_items:
            self._ranks.refuse_unknown()
            made, progress = self._make(position)
            for progress.position, _ in islice(made.items, batches):
                pass
            position = progress.position
        else:
            position = self._batches_after(position, batches)
        self._move(after.move(position), "skip")

    def set_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of a mix from the current position on."""
        self._refuse_uncounted("set_weights", weights)
        settings, position = self._settings, self.current
        if not settings.sources.is_mix:
            raise ConfigError("set_weights is for streams of pipeline.mix")
        if settings.stopping_strategy is not None:
            raise ConfigError(
                f"the end of a mix with stopping_strategy={settings.stopping_strategy!r} is counted from its first weights; "
                "state changes in advance, as a schedule, or end the mix by .take(n)"
            )
        lanes = self.plan.lane_count
        begin = -(-position.sequence_index // lanes) * lanes
        before = self.plan.under(position.weights)
        kept = tuple(change for change in before.changes if change[0] < begin or change[0] == before.changes[0][0])
        # As they act, since exact ones may take many digits.
        rows = quotas(exact_weights(weights, list(settings.sources.by_name)))
        changed = (*kept, (begin, {name: Fraction(count, PERIOD) for name, count in rows.items()}))
        written = weights_to_json(*self._without_early_changes(before, changed, position, lanes))
        self._move(self._now().move(replace(position, weights=written)), "set_weights")

    def _without_early_changes(
        self, before: StreamPlan, changed: Changes, position: Position, lanes: int
    ) -> tuple[Changes, Served]:
        """Return the changes that a state keeps: the latest ones, and all since the beginning of a pass, which may be read again.

        Of earlier changes, the numbers of rows that they gave are enough to go on.
        """
        read = self.passes.bounds(position)[0] if self.passes.exist else position.sequence_index
        first = len(changed) - _KEPT_CHANGES
        while first > 0 and before.row_of_change(changed[first][0]) * lanes > read:
            first -= 1
        if first <= 0:
            return changed, before.served
        mixture = before.mixture()
        assert mixture is not None
        row = before.row_of_change(changed[first][0])
        return changed[first:], [mixture.counts(row, lane) for lane in range(lanes)]

    def _move(self, start: PassStart, what: str, position: Position | None = None) -> None:
        """Go to ``start``. Unread iterators stay valid if they begin at ``position`` of the pass that is read next."""
        self._start, self._follows = replace(start, begun=False), False
        self._notes.forget()
        self._forget_iterators(what, position)

    def _refuse_live(self, what: str, call: str | None) -> None:
        """Raise ``StateError`` if an iterator, or living workers of a loader, would ignore ``call``; None: they follow it."""
        if any(iterator.live for iterator in self._existing()):
            raise StateError(f"a live iterator of this stream would ignore {what}; end or drop it first")
        if call is not None and self._notes.workers_live():
            raise StateError(
                f"persistent workers of a DataLoader read this stream, begin the next pass at each iter(), and would ignore "
                f"{what}; end them before the call, and make a new loader after it:\n"
                f"    del loader  # and its iterators\n    stream.{call}"
            )

    def _forget_iterators(self, moved_by: str, start: Position | None = None) -> None:
        """Invalidate iterators that have not begun, unless they begin at ``start``."""
        self._progress = None
        for iterator in self._existing():
            if iterator.keeps(start):
                self._progress = iterator.progress
            else:
                iterator.moved_by = moved_by

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_plan": None, "_progress": None, "_iterators": []}
        if get_spawning_popen() is None:
            state |= {"_start": self._now(), "_loads": False, "_loaded": False, "_follows": False}
        return state
