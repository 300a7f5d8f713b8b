"""The part of a stream that iterates, and that saves, loads and moves its position."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ...errors import ConfigError, StateError
from ..arguments import MOST_ROWS, MOST_STEPS, check_integer
from ..config import StreamConfig
from ..data.shards import say_once
from ..frameworks.double_sharding import refuse_read_ahead, refuse_second_split
from ..order.mixture import exact_weights, weights_from_json, weights_to_json
from .engine import run, share_of
from .epochs import (
    EpochNumbers,
    after_load,
    first_of,
    has_passes,
    in_its_pass,
    knows_epoch,
    next_pass,
    pass_bounds,
    pass_length,
    start_of_pass,
)
from .iterator import Progress, StreamIterator
from .position import MOST, Position, SharedPosition
from .state import from_state, to_state
from .user_stages import counts_items, initial_takes
from .worker_context import Topology, WorkerContext, refuse_unknown_topology, resolve_context, topology_to_carry


class PositionedStream(IterableDataset[Any]):
    """A config, and the position at which every ``iter()`` begins."""

    def __init__(self, config: StreamConfig) -> None:
        self._config = config
        self._position = SharedPosition(Position(0))
        # Where a loader that saves its workers' states put this worker, until it has begun there.
        self._worker_position: Position | None = None
        # The topology of the process that started this one by spawn; a loader's worker has no process group of its own.
        self._carried: Topology | None = None
        self._epoch_numbers = EpochNumbers()
        self._loaded = False  # whether a state was loaded and no set_epoch() followed
        self._epoch_known = True
        self._progress: Progress | None = None
        self._iterators: list[weakref.ref[StreamIterator]] = []

    # Position

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position after the items handed out by the latest iterator, as plain JSON of some hundred bytes.

        ``batches`` asks for the position after that many of this rank's batches instead, counted from where ``iter()``
        began: for a plain DataLoader, whose workers hide their positions. The state of an indexed stream is the same on all
        ranks; the state of a sequential stream holds this rank's lanes (about 64 bytes each).

        Raises ``StateError`` without ``batches`` where the workers of a DataLoader iterate, and with it for a stream without
        ``.batch``, for a sequential one and after ``.apply``.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2)
        >>> _ = next(iter(stream))
        >>> stream.state_dict()["sequence_index"], stream.state_dict(batches=3)["sequence_index"]
        (2, 6)
        """
        if batches is not None:
            return self._state(self._position_after(batches))
        if self._position.worker_began and get_worker_info() is None:
            counting = "" if self._config.sequential else "use state_dict(batches=n) after n batches, "
            raise StateError(
                f"the positions of a DataLoader's workers are hidden by its prefetching; {counting}iterate the stream "
                "without workers, or use torchdata's StatefulDataLoader"
            )
        return self._state(self._progress.position if self._progress is not None else self._position.get())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``: every ``iter()`` starts at its position.

        Any rank may have saved it, with any number of ranks and workers. Each rank of a sequential stream loads what it
        saved itself, or all ranks load what ``merge_states`` made of the states of all.

        Raises ``StateError``, naming the field and both values, where data, seed or settings of the order differ, and while
        an iterator of this stream is live.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4)
        >>> stream.load_state_dict(stream.state_dict() | {"sequence_index": 3})
        >>> next(iter(stream))["input_ids"].tolist()
        [12, 13, 14, 15]
        """
        self._refuse_live("load_state_dict")
        context = self._context()
        position = in_its_pass(self._config, from_state(state, self._config, context), context.world_size)
        self._overtake("load_state_dict")
        if get_worker_info() is not None:
            self._worker_position = position
            self._position.note_worker(loaded=after_load(self._config, position, context.world_size)[0])
        else:
            self._position.set(position)
            self._loaded, self._epoch_known = True, knows_epoch(self._config, position, context.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of pass ``epoch`` (an int from 0 on): every ``iter()`` starts there.

        With ``epochs=1``, pass ``e`` is epoch ``e`` alone, its last sequence uncut; with ``take(n)`` too, the first ``n`` steps
        of it. With ``take(n)`` alone it is the steps ``e * n`` to ``(e + 1) * n`` of the endless stream, so passes neither
        overlap nor leave anything out. Any other stream, and every sequential one, begins pass ``e`` with epoch ``e``. A mix
        without ``take`` has no passes: this changes nothing there, and logs so once.

        The first call after ``load_state_dict`` keeps the position, whatever ``epoch`` is, since frameworks count their own
        passes from 0; later calls count from there. The pass that holds the loaded position ends where it would have ended.
        At the end of a pass it moves to the next one. Calling it again with the same number changes nothing.

        Raises ``ConfigError`` for an epoch above 0 where ``epochs`` is above 1, and where Accelerate would split the
        stream among the ranks a second time; and ``StateError`` while an iterator is live.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64), epochs=1).pack(4)
        >>> stream.set_epoch(2)
        >>> stream.state_dict()["sequence_index"], len(list(stream))
        (32, 16)
        """
        refuse_second_split(self._context().world_size)
        check_integer("epoch", epoch, least=0, most=MOST_ROWS)
        config, shared = self._config, self._position
        if not has_passes(config):
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
        position, loaded = shared.get(), shared.worker_epoch
        began, ended = shared.worker_began, shared.worker_ended
        if self._progress is not None:
            began, ended = began or self._progress.began is not None, ended or self._progress.finished
        in_workers = loaded is not None
        if self._loaded and not in_workers:
            loaded, position = after_load(config, position, self._context().world_size)
        target = self._epoch_numbers.epoch_of(
            epoch, loaded, iterated=began or in_workers, ended=ended, in_workers=in_workers
        )
        if target is not None and not self._epoch_known:
            raise StateError(
                f"set_epoch({epoch}) moves the lanes of all ranks to one epoch, but the state that was loaded holds this "
                "rank's alone, and others may be in another; load what pipeline.merge_states([...]) makes of all ranks'"
            )
        if target is not None:
            position = start_of_pass(config, target, self._context().world_size, position)
            if max(target, position.sequence_index) > MOST:
                raise ConfigError(
                    f"set_epoch({epoch}) moves to sequence {position.sequence_index}, above the last, {MOST}"
                )
        shared.set(position)
        self._loaded = False
        self._overtake("set_epoch")

    def set_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of a mix, from the next row of its lanes on; every ``iter()`` continues from there.

        ``weights`` maps every source to its share. Sequences handed out before stay as they were, so no source loses or
        repeats one. A state keeps the change, and is loaded where ``mix`` has the weights that the run began with. Raises
        ``ConfigError`` for a stream that is no mix, and ``StateError`` while an iterator is live.

        >>> import pipeline
        >>> sources = {name: pipeline.ShardDataset.from_tokens(range(64)) for name in ("web", "wiki")}
        >>> stream = pipeline.mix(sources, weights={"web": 3, "wiki": 1}).pack(4)
        >>> stream.set_weights({"web": 1, "wiki": 1})
        >>> [float(source["asked"]) for source in stream.stats()["sources"].values()]
        [0.5, 0.5]
        """
        self._refuse_live("set_weights")
        config = self._config
        if not config.mixed:
            raise ConfigError("set_weights is for streams of pipeline.mix")
        position = self._progress.position if self._progress is not None else self._position.get()
        lanes = config.lane_count
        schedule = weights_from_json(position.weights) if position.weights else config.weights
        begin = -(-position.sequence_index // lanes) * lanes
        kept = tuple(segment for segment in schedule if segment[0] < begin or segment[0] == 0)
        changed = (*kept, (begin, exact_weights(weights, list(config.weights[0][1]))))
        self._position.set(replace(position, weights=weights_to_json(changed)))
        self._overtake("set_weights")

    def stats(self) -> dict[str, Any]:
        """Return counts, rates and the position of the latest iterator; cheap enough for every step.

        ``items`` and ``tokens`` (labels that count) handed out, ``seconds`` since it began, ``tokens_per_second``,
        ``waited_seconds`` that the consumer waited for items and their ``waited_share`` of the time, ``bytes_read`` from
        shards, and the position as ``sequence_index`` and ``epoch``. A mix adds ``sources``, with the share asked and served
        of each; a sequential stream adds the ``documents`` read, and those ``rejected``, ``bad_records`` and
        ``damaged_files``. Under a DataLoader its workers count, and this process does not see their counts.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4)
        >>> _ = next(iter(stream))
        >>> stream.stats()["tokens"], stream.stats()["sequence_index"]
        (4, 1)
        """
        progress = self._progress or Progress(self._position.get(), None)
        return progress.stats(self._config_at(progress.position))

    def _position_after(self, batches: int) -> Position:
        """Return the position that a rank reaches by ``batches`` batches from the stream's position."""
        check_integer("batches", batches, least=0, most=MOST_STEPS)
        config, position, world_size = self._config, self._position.get(), self._context().world_size
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
        _, end = pass_bounds(config, first_of(config), position, world_size)
        if end is not None:
            index = max(position.sequence_index, min(index, end))
        return replace(position, sequence_index=index, skip=0)

    def _start_next_pass(self) -> None:
        """Move to the start of the next pass, as ``set_epoch`` of the next number does."""
        self._refuse_live("the next pass")
        config, position = self._config, self._position.get()
        if has_passes(config):
            position = next_pass(config, self._context().world_size, position)
        elif self._progress is not None:  # a mix that a take() after apply() ended goes on where it ended
            position = self._progress.position
            position = replace(position, stages={**position.stages, **initial_takes(config)})
        self._position.set(position)
        self._loaded = False
        self._overtake("the next pass")

    def _refuse_live(self, what: str) -> None:
        for iterator in self._held():
            if iterator.progress.began is not None and iterator.progress.ended is None:
                raise StateError(
                    f"{what} while an iterator of this stream is live would be ignored by it; end or drop it first"
                )

    def _overtake(self, what: str) -> None:
        """Invalidate iterators that have not begun: they hold the old position, and would silently start there."""
        self._progress = None
        for iterator in self._held():
            iterator.overtaken_by = what

    def _held(self) -> list[StreamIterator]:
        """Return the iterators of this stream that somebody still holds."""
        return [iterator for held in self._iterators if (iterator := held()) is not None]

    def _state(self, position: Position) -> dict[str, Any]:
        return to_state(position, self._config, self._context())

    # Iteration

    def __len__(self) -> int:
        """Return how many items this rank gets in one whole pass, whatever the position.

        Raises ``TypeError`` for an endless stream, and where the count is unknown in advance: after ``apply``, and for a
        sequential stream unless ``take`` alone ends it.

        >>> import pipeline
        >>> len(pipeline.ShardDataset.from_tokens(range(64), epochs=1).pack(4).batch(3))
        6
        """
        return pass_length(self._config, self._position.get(), self._context())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        refuse_unknown_topology(self._config.stated_topology, self._carried)
        context, position = self._context(), self._position.get()
        refuse_second_split(context.world_size)
        refuse_read_ahead()
        in_worker = get_worker_info() is not None
        if in_worker:
            self._position.note_worker()
            position = replace(position, skip=context.worker)
            if self._worker_position is not None:
                position, self._worker_position = self._worker_position, None
        config = self._config_at(position)
        share = share_of(config, position, context)
        reader = config.data.make_reader(config, position, context, share)
        progress = Progress(position, reader)
        iterator = StreamIterator(run(config, reader, position, context), progress, config, context, self._position)
        self._progress = progress
        self._iterators = [weakref.ref(each) for each in (*self._held(), iterator)]
        return iterator

    def _config_at(self, position: Position) -> StreamConfig:
        """Return the config with the weights that hold at a position."""
        if position.weights is None:
            return self._config
        return replace(self._config, weights=weights_from_json(position.weights))

    def _context(self) -> WorkerContext:
        return resolve_context(self._config.stated_topology, self._carried)

    def __getstate__(self) -> dict[str, Any]:
        refuse_second_split(self._context().world_size)  # a spawned worker has a call stack of its own
        refuse_read_ahead()
        carried = topology_to_carry(self._config.stated_topology, self._carried)
        return {**self.__dict__, "_carried": carried, "_progress": None, "_iterators": []}
