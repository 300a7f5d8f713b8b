"""The position of one stream in this process: makes its iterators, and saves, loads and moves it."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from torch.utils.data import get_worker_info

from ...errors import ConfigError, StateError
from ..arguments import MAX_ROWS, MAX_STEPS, check_integer
from ..config import StreamConfig
from ..data.shards import say_once
from ..order.mixture import exact_weights, weights_from_json, weights_to_json
from ..position import MAX_NUMBER, Position
from .items import make_items
from .iterator import Progress, StreamIterator
from .passes import Passes
from .shared_position import SharedPosition
from .stages import counts_items
from .state import from_state, to_state
from .stats import Stats
from .topology import Topology


class StreamPosition:
    """Where every ``iter()`` of a stream of ``config`` begins, and its iterators, of which several may be under way."""

    def __init__(self, config: StreamConfig) -> None:
        self._config = config
        self._topology = Topology(config.stated_topology)
        self._shared = SharedPosition(Position(0))
        # Where a loader that saves its workers' states put this worker, until it has begun there.
        self._of_worker: Position | None = None
        self.loaded = False  # whether a state was loaded and no set_epoch() followed
        self._all_know_pass = True  # the pass of the state that was loaded
        # Pass e + offset is what set_epoch(e) names, since frameworks count their own passes from 0 after every restart.
        self._offset = 0
        self._last: int | None = None  # the number of the latest set_epoch()
        self._progress: Progress | None = None  # of the latest iterator
        self._iterators: list[weakref.ref[StreamIterator]] = []

    @property
    def current(self) -> Position:
        """The position after the items handed out by the latest iterator; without one, where the next begins."""
        return self._shared.get() if self._progress is None else self._progress.position

    @property
    def world_size(self) -> int:
        """The number of ranks that share the stream."""
        return self._topology.context().world_size

    @property
    def passes(self) -> Passes:
        """The passes of the stream on so many ranks."""
        return Passes(self._config, self.world_size)

    def length(self) -> int:
        """Return how many items a rank gets in one whole pass."""
        return self.passes.length(self._shared.get(), self._topology.context())

    def iterate(self) -> StreamIterator:
        """Return an iterator over the items of this process from the position on."""
        self._topology.refuse_unknown()
        context, position = self._topology.context(), self._shared.get()
        if get_worker_info() is not None:
            self._shared.memory.worker_began = True
            position = replace(position, skip=context.worker)
            if self._of_worker is not None:
                position, self._of_worker = self._of_worker, None
        config = self._config_at(position)
        reader, items = make_items(config, position, context)
        self._progress = Progress(config, self.world_size, position, reader)
        iterator = StreamIterator(items, self._progress, context, self._topology, self._shared)
        self._iterators = [weakref.ref(item) for item in (*self._existing(), iterator)]
        return iterator

    def standing(self) -> tuple[StreamConfig, Position]:
        """Return the config with the weights in force, and the position at which ``iter()`` begins."""
        position = self._shared.get()
        return self._config_at(position), position

    def stats(self) -> Stats:
        """Return the counts and times of the latest iterator."""
        if self._progress is not None:
            return self._progress.stats()
        position = self._shared.get()
        return Progress(self._config_at(position), self.world_size, position, None).stats()

    def save(self, batches: int | None) -> dict[str, Any]:
        """Return the state of the current position, or of that after so many batches from where ``iter()`` begins."""
        if batches is not None:
            return to_state(self._after(batches), self._config, self._topology.context())
        if self._shared.memory.worker_began and get_worker_info() is None:
            counting = "" if self._config.sequential else "use state_dict(batches=n) after n batches, "
            raise StateError(
                f"the positions of a DataLoader's workers are hidden by its prefetching; {counting}iterate the stream "
                "without workers, or use torchdata's StatefulDataLoader"
            )
        return to_state(self.current, self._config, self._topology.context())

    def load(self, state: dict[str, Any]) -> None:
        """Move to the position of a state."""
        self._refuse_live("load_state_dict")
        passes = self.passes
        position = passes.loaded(from_state(state, self._config, self._topology.context()))
        if get_worker_info() is not None:
            self._of_worker = position
            self._shared.memory.worker_pass = passes.named(position)[0]
            self._forget_iterators("load_state_dict")
        else:
            self._move(position, "load_state_dict")
            self.loaded, self._all_know_pass = True, passes.all_ranks_know(position)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of a pass, or name the pass of a position that was loaded."""
        check_integer("epoch", epoch, least=0, most=MAX_ROWS)
        config, passes = self._config, self.passes
        if not passes.exist:
            say_once(
                "set_epoch() changes nothing on a mix, which has no epochs; .take(n), before any .apply(), gives it passes "
                "of n steps"
            )
            return
        self._refuse_live("set_epoch")
        if epoch > 0 and config.epochs is not None and config.epochs > 1:
            raise ConfigError(
                f"set_epoch({epoch}) on a stream of epochs={config.epochs}, which passes over all of them at once; use "
                "epochs=1, and set_epoch() chooses the epoch of each pass"
            )
        keeps, offset, position = self._named(epoch, passes)
        if not keeps:
            if not self._all_know_pass:
                raise StateError(
                    f"set_epoch({epoch}) moves the lanes of all ranks to one epoch, but the state that was loaded holds "
                    "this rank's alone, and others may be in another; load what pipeline.merge_states([...]) makes of all "
                    "ranks'"
                )
            position = passes.begin(epoch + offset, position.weights)
            if max(epoch + offset, position.sequence_index) > MAX_NUMBER:
                raise ConfigError(
                    f"set_epoch({epoch}) moves to sequence {position.sequence_index}, above the last, {MAX_NUMBER}"
                )
        self._offset, self._last = offset, epoch
        self._move(position, "set_epoch")

    def _named(self, epoch: int, passes: Passes) -> tuple[bool, int, Position]:
        """Say whether ``set_epoch`` of a number keeps the position; return the offset of later numbers, and the position.

        The first call after a load names the pass that the load put the stream in. Two cases are other. A loader that loads
        as it begins a pass was told the number before; and where that pass was read to its end, the call means the next.
        """
        position, memory, progress = self._shared.get(), self._shared.memory, self._progress
        began = memory.worker_began or (progress is not None and progress.began is not None)
        ended = memory.worker_ended or (progress is not None and progress.finished)
        in_workers, offset = memory.worker_pass >= 0, self._offset
        if self.loaded or in_workers:
            number, position = (memory.worker_pass, position) if in_workers else passes.named(position)
            if (began or in_workers) and self._last is not None:
                named = self._last
            else:
                named = epoch - 1 if in_workers or ended else epoch
            offset, keeps = number - named, named == epoch
        else:
            keeps = epoch == self._last and not began
        if epoch + offset < 0:
            raise ConfigError(
                f"set_epoch({epoch}) lies before the first epoch, which is set_epoch({-offset}): the first call after the state "
                "was loaded named the epoch that it was saved in; count up from there"
            )
        return keeps, offset, position

    def next_pass(self) -> None:
        """Move to the start of the next pass, as ``set_epoch`` of the next number does."""
        self._refuse_live("the next pass")
        passes, position = self.passes, self._shared.get()
        if passes.exist:
            position = passes.after(position)
        elif self._progress is not None:  # a mix that a take() after apply() ended goes on where it ended
            position = replace(self._progress.position, given={})
        self._last = None
        self._move(position, "the next pass")

    def set_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of a mix from the current position on."""
        self._refuse_live("set_weights")
        config, position = self._config, self.current
        if not config.mixed:
            raise ConfigError("set_weights is for streams of pipeline.mix")
        lanes = config.stream_lanes(self.world_size)
        schedule = weights_from_json(position.weights) if position.weights else config.weights
        begin = -(-position.sequence_index // lanes) * lanes
        kept = tuple(segment for segment in schedule if segment[0] < begin or segment[0] == 0)
        changed = (*kept, (begin, exact_weights(weights, list(config.weights[0][1]))))
        loaded = self.loaded
        self._move(replace(position, weights=weights_to_json(changed)), "set_weights")
        self.loaded = loaded

    def _after(self, batches: int) -> Position:
        """Return the position that a rank reaches by ``batches`` batches from the stream's position."""
        check_integer("batches", batches, least=0, most=MAX_STEPS)
        config, position, world_size = self._config, self._shared.get(), self.world_size
        if not counts_items(config):
            raise StateError(
                "a stage given to .apply() may drop items, so batches cannot be counted past it; iterate the stream "
                "without workers, or use torchdata's StatefulDataLoader"
            )
        if config.sequential:
            raise StateError(
                "batches of text, filters and best-fit packing cannot be counted in advance, since each lane has its own cursor; "
                "iterate the stream without workers, or use torchdata's StatefulDataLoader"
            )
        if config.batch_size is None:
            raise StateError(
                "this stream gives single sequences, and what a DataLoader makes of them in its workers cannot be "
                "counted; add .batch(size) to the stream and give the DataLoader batch_size=None, or use torchdata's "
                "StatefulDataLoader"
            )
        index = position.sequence_index + batches * config.batch_size * world_size
        end = self.passes.bounds(position)[1]
        if end is not None:
            index = max(position.sequence_index, min(index, end))
        return replace(position, sequence_index=index, skip=0)

    def _config_at(self, position: Position) -> StreamConfig:
        """Return the config with the weights that hold at a position."""
        if position.weights is None:
            return self._config
        return replace(self._config, weights=weights_from_json(position.weights))

    def _move(self, position: Position, what: str) -> None:
        self._shared.set(position)
        self.loaded = False
        self._forget_iterators(what)

    def _refuse_live(self, what: str) -> None:
        if any(iterator.live for iterator in self._existing()):
            raise StateError(
                f"{what} while an iterator of this stream is live would be ignored by it; end or drop it first"
            )

    def _forget_iterators(self, moved_by: str) -> None:
        """Invalidate iterators that have not begun: they start at the old position."""
        self._progress = None
        for iterator in self._existing():
            iterator.moved_by = moved_by

    def _existing(self) -> list[StreamIterator]:
        """Return the iterators of this stream that somebody still refers to."""
        return [iterator for reference in self._iterators if (iterator := reference()) is not None]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_iterators": []}
