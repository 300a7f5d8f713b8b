"""The position of one stream in this process. It makes iterators, and is saved, loaded and moved."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

from torch.utils.data import get_worker_info

from ...errors import ConfigError, StateError
from ...notices import say_once
from ..arguments import MAX_ROWS, MAX_STEPS, check_integer
from ..order.mixture import PERIOD, Changes, Served, exact_weights, quotas, weights_to_json
from ..passes import Passes
from ..position import MAX_NUMBER, Position, Topology
from ..ranks import Ranks
from ..settings import StreamSettings
from ..state import from_state, to_state
from ..stream_plan import StreamPlan
from .bookmark import Bookmark
from .items import make_items
from .iterator import StreamIterator
from .progress import IterationProgress, stats_of_workers
from .shared_bookmark import SharedBookmark
from .user_stages import Positioned

_KEPT_CHANGES = 8  # of weights, in a state


class StreamPosition:
    """The position at which every ``iter()`` of a stream begins, and the iterators, several of which may run at once."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._plan: StreamPlan | None = None
        self._ranks = Ranks(settings.stated_topology, settings.peer)
        self._shared = SharedBookmark()
        # The state that a StatefulDataLoader loaded into this worker, until the worker begins there.
        self._worker_bookmark: Bookmark | None = None
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
        return self._bookmark().start(self.passes)

    @property
    def current(self) -> Position:
        """The position after the items handed out by the latest iterator; without an iterator, `start`."""
        return self.start if self._progress is None else self._progress.position

    @property
    def is_resumed(self) -> bool:
        """Whether a state was loaded and no set_epoch() followed."""
        return self._shared.get().offset is None

    def length(self) -> int:
        """Return how many items a rank gets in a whole pass."""
        return self.passes.length(self._ranks.topology())

    def stats(self) -> dict[str, Any]:
        """Return the counts and times of the latest iterator, or of a loader's workers if they read later."""
        if self._shared.memory.by_worker and get_worker_info() is None and (workers := self._shared.counts.read()):
            return stats_of_workers(workers)
        if self._progress is not None:
            return self._progress.stats()
        position = self.current
        return IterationProgress(self.plan.under(position.weights), position, None).stats()

    def _bookmark(self) -> Bookmark:
        bookmark, progress = self._shared.get(), self._progress
        if progress is not None and progress.began is not None and get_worker_info() is None:
            # A loop that knows the number of items asks for none after the last, so no StopIteration shows the end.
            end = self.passes.bounds(progress.position)[1]
            bookmark = replace(bookmark, ended=bookmark.ended or progress.position.sequence_index == end)
        return bookmark

    # Iterating

    def iterate(self) -> StreamIterator:
        """Return an iterator over the items of this process, from the stream's position on."""
        self._ranks.refuse_unknown()
        self._shared.leave_parent()
        self._shared.forget_end()
        topology, passes = self._ranks.topology(), self.passes
        worker_bookmark, self._worker_bookmark = self._worker_bookmark, None
        bookmark = worker_bookmark or self._bookmark()
        position = bookmark.start(passes)
        if worker_bookmark is None:
            self._shared.memory.whole = bookmark.ended
            if get_worker_info() is not None:
                position = replace(position, skip=topology.worker)
        plan = self.plan.under(position.weights)
        reader, items = make_items(plan, position, topology)
        progress = self._progress = IterationProgress(plan, position, reader)
        if worker_bookmark is not None:
            begin = position.sequence_index * plan.step_rows + position.rows_taken
            begin = begin * topology.workers + position.skip
            number = bookmark.number
            items = _looked_ahead(items, lambda is_empty: self._shared.note_rest(topology, number, begin, is_empty))
        if not bookmark.next_read[1] and (bookmark.epoch is not None or worker_bookmark is not None):
            items = self._or_next_pass(items, progress, topology, worker_bookmark)
        iterator = StreamIterator(items, progress, topology, self._ranks, self._shared)
        self._iterators = [weakref.ref(item) for item in (*self._existing(), iterator)]
        return iterator

    def _or_next_pass(
        self, items: Iterator[Positioned], progress: IterationProgress, topology: Topology, loaded: Bookmark | None
    ) -> Iterator[Positioned]:
        """Return the rest of a pass, or the items that follow it if this worker has none in the rest.

        Workers that ``loaded`` their own states have all made their first items before one of them reads on. If others are in a
        later pass already, this worker joins them there. If ``set_epoch`` named the pass, and no worker finds an item in it,
        the next pass follows. Workers that start at one common position, and find no item of their own, look for items of the
        others.
        """
        shared, worker = self._shared, topology.worker

        def begin(position: Position) -> Iterator[Positioned]:
            progress.position = position
            progress.reader, following = make_items(self.plan.under(position.weights), position, topology)
            return following

        def of_later_pass(before: int) -> Position:
            bookmark = shared.get()
            position = self.passes.begin(bookmark.number, bookmark.weights)
            return replace(position, skip=shared.items_of_later_pass() + before)

        def is_read() -> bool:
            if topology.workers == 1 or (loaded is not None and not shared.items_of_later_pass()):
                return loaded is None or shared.nothing_left()
            position = replace(progress.position, skip=0) if loaded is None else of_later_pass(0)
            alone = replace(topology, worker=0, workers=1)
            return next(make_items(self.plan.under(position.weights), position, alone)[1], None) is None

        def rest() -> Iterator[Positioned]:
            found, following = list(islice(items, 1)), items
            if not found and loaded is not None and shared.is_in_earlier_pass(worker):
                following = begin(of_later_pass(shared.workers_before(worker)))
                found = list(islice(following, 1))
            if not found and shared.get().epoch is not None and is_read():
                shared.memory.at_end = True
                before = worker if loaded is None else shared.workers_before(worker)
                following = begin(replace(self.start, skip=before))
            yield from found
            yield from following

        return rest()

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
        if self._shared.memory.by_worker and get_worker_info() is None:
            raise StateError(
                f"the positions of a DataLoader's workers are hidden by its prefetching; {counting}iterate the stream "
                f"without workers{last}"
            )

    def _refuse_uncounted(self, call: str) -> None:
        """Raise ``StateError`` if ``call`` would count from an unknown position."""
        self._refuse_live(call)
        lines = f"stream.load_state_dict(stream.state_dict(batches=n)), then stream.{call}(...)"
        counting = "" if self._settings.sequential else f"after n batches of this pass, write {lines}; or "
        self.refuse_hidden(counting, f" before {call}()")

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
        # Workers read ahead, so they may have finished the pass before the consumer has. Ask the worker that started last.
        bookmark = replace(self._bookmark(), ended=self._shared.memory.whole)
        return self._batches_after(bookmark.start(self.passes), batches)

    def _batches_after(self, position: Position, batches: int) -> Position:
        """Return the position that is ``batches`` (without `.batch`, sequences) after another, in the same pass."""
        index = position.sequence_index + batches * self.plan.step_size
        end = self.passes.bounds(position)[1]
        if end is not None:
            index = max(position.sequence_index, min(index, end))
        return replace(position, sequence_index=index, skip=0)

    # Moving

    def load(self, state: dict[str, Any]) -> None:
        self._refuse_live("load_state_dict")
        passes = self.passes
        number, position, at_end = passes.pass_of(from_state(state, self.plan, self._ranks.topology()))
        bookmark = self._bookmark()
        if (info := get_worker_info()) is None:
            self._move(bookmark.load(number, position, at_end), "load_state_dict")
            return
        # Only all workers together know whether the pass is at its end.
        self._worker_bookmark = bookmark.load(number, position, at_end=False)
        if info.id == 0:
            self._shared.set_by_worker(bookmark.load(number, passes.begin(number, position.weights), at_end=False))
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
        self._refuse_live("set_epoch")
        if epoch > 0 and settings.epochs is not None and settings.epochs > 1:
            raise ConfigError(
                f"set_epoch({epoch}) on a stream with epochs={settings.epochs}, where one pass reads all of them; use "
                "epochs=1, and set_epoch() chooses the epoch of each pass"
            )
        before = self._bookmark()
        bookmark = before.set_epoch(epoch)
        if bookmark.offset is not None and epoch + bookmark.offset < 0:
            raise ConfigError(
                f"set_epoch({epoch}) is before the first epoch, which is set_epoch({-bookmark.offset}): the first call after "
                "loading the state gave its epoch a number; count up from there"
            )
        if bookmark is not before and bookmark.next_read[1]:
            if before.rest is not None and not passes.all_ranks_know(before.rest):
                raise StateError(
                    f"set_epoch({epoch}) moves the lanes of all ranks to one epoch, but the loaded state holds only this rank's "
                    "lanes; other lanes may be in another epoch: load the result of pipeline.merge_states([...]) for all ranks"
                )
            number, index = bookmark.next_read[0], bookmark.start(passes).sequence_index
            if max(number, index) > MAX_NUMBER:
                raise ConfigError(f"set_epoch({epoch}) moves to sequence {index}, above the last, {MAX_NUMBER}")
        self._move(bookmark, "set_epoch", bookmark.start(passes) if bookmark.next_read[1] else None)

    def next_pass(self) -> None:
        """Move to the start of the next pass, as ``set_epoch`` with the next number does."""
        self._refuse_live("the next pass")
        bookmark = self._bookmark().next_pass()
        if not self.passes.exist and self._progress is not None:  # a mix goes on where a take() after apply() ended it
            bookmark = bookmark.move(replace(self._progress.position, given={}))
        self._move(bookmark, "the next pass")

    def skip(self, batches: int) -> None:
        """Move ``batches`` batches on from the current position."""
        batches = check_integer("batches", batches, least=0, most=MAX_STEPS)
        self._refuse_uncounted("skip")
        bookmark = self._bookmark()
        position = self.start if bookmark.ended else self.current
        if self._settings.sequential or not self._settings.counts_items:
            self._move(bookmark.move(position), "skip")
            for _ in islice(self.iterate(), batches):
                pass
            position = self.current
        else:
            position = self._batches_after(position, batches)
        self._move(bookmark.move(position), "skip")

    def set_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of a mix from the current position on."""
        self._refuse_uncounted("set_weights")
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
        self._move(self._bookmark().move(replace(position, weights=written)), "set_weights")

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

    def _move(self, bookmark: Bookmark, what: str, start: Position | None = None) -> None:
        """Set the bookmark. Unread iterators stay valid if they begin at ``start`` of the pass that is read next."""
        self._shared.set(replace(bookmark, begun=False, ended=False))
        self._forget_iterators(what, start)

    def _refuse_live(self, what: str) -> None:
        if any(iterator.live for iterator in self._existing()):
            raise StateError(f"a live iterator of this stream would ignore {what}; end or drop it first")

    def _forget_iterators(self, moved_by: str, start: Position | None = None) -> None:
        """Invalidate iterators that have not begun, unless they begin at ``start``."""
        self._progress = None
        for iterator in self._existing():
            if iterator.keeps(start):
                self._progress = iterator.progress
            else:
                iterator.moved_by = moved_by

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None, "_progress": None, "_iterators": []}


def _looked_ahead(items: Iterator[Positioned], note: Callable[[bool], None]) -> Iterator[Positioned]:
    """Make the first item now, and ``note`` whether there is none. An error is raised when the consumer asks for the item."""
    error: Exception | None = None
    first: list[Positioned] = []
    try:
        first = list(islice(items, 1))
    except Exception as raised:
        error = raised
    note(not first and error is None)

    def all_items() -> Iterator[Positioned]:
        if error is not None:
            raise error
        yield from first
        yield from items

    return all_items()
