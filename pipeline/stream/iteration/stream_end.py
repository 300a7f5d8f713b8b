"""The end of a stream: on several ranks, whose lanes end after unequally many rows, they agree on it at each step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from ...errors import ConfigError, StateError
from ..config import StreamConfig
from ..position import WorkerContext
from .stages import counts_items

T = TypeVar("T")

_group: tuple[Any, Any] | None = None  # the default group, and the group of the same ranks that agree on the CPU

log = logging.getLogger("pipeline")


def ranks_agree(config: StreamConfig, context: WorkerContext) -> bool:
    """Say whether the ranks of a stream must agree on its end: it is bounded, and none of them knows the others' lanes."""
    return config.sequential and config.epochs is not None and context.world_size > 1


class StreamEnd:
    """Says at each step whether a stream goes on.

    Of one rank, it ends behind the last row. Of several, ``last="pad"`` goes on until no rank has a row, and ``last="drop"``
    until one of them lacks a row: each step is one sum of three numbers over the ranks, by a group of its own, and it is
    made in the thread of the training, so that it keeps its place among other collectives. A rank that fails says so, and the
    others end with an error instead of waiting.

    Raises ``ConfigError`` where ranks must agree and cannot.
    """

    def __init__(self, config: StreamConfig, context: WorkerContext) -> None:
        self._drop_last = config.drop_last
        self._agree = ranks_agree(config, context)
        why = ""
        if get_worker_info() is not None:
            why = "which a worker of a DataLoader cannot; use num_workers=0"
        elif config.stated_topology is not None:
            why = "by torch.distributed; call init_process_group() and leave .shard() out"
        elif config.prefetch or not counts_items(config):
            why = "so nothing is read ahead and no stage drops items; remove .prefetch() and .apply()"
        if self._agree and why:
            raise ConfigError(
                f"epochs={config.epochs} on {context.world_size} ranks: at each step, ranks agree on the end of text, filters "
                f"and best-fit packing, {why}, or end the stream by .take(n), not epochs"
            )

    def read(self, read: Callable[[], T]) -> T:
        """Return what ``read`` does; where it fails, the other ranks fail at this step, too."""
        try:
            return read()
        except Exception:
            self._sum(0, 0, 1)
            raise

    def goes_on(self, filled: int, missing: int, tokens_left: Callable[[], int]) -> bool:
        """Say whether the stream has this step, of which this rank has ``filled`` rows and misses others.

        ``tokens_left()`` are those that wait behind these rows.
        """
        some, short, failed = self._sum(filled, missing, 0)
        if failed:
            raise StateError("another rank failed at this step, and its error says why; this rank ends with it")
        if not short or (some and not self._drop_last):
            return True
        if self._agree and some:
            rest = "its lanes have ended"
            if not missing:
                rest = f"its lanes hold {tokens_left():,} tokens in memory, and what they have not read yet"
            log.warning(
                "last='drop' ends the stream where a rank lacks a row: this rank drops %d rows of this step; %s",
                filled,
                rest,
            )
        elif filled:
            log.warning("last='drop' drops the last %d sequences, short of a batch", filled)
        return False

    def _sum(self, *numbers: int) -> list[int]:
        """Return the sums of numbers over the ranks."""
        global _group
        if not self._agree:
            return list(numbers)
        if _group is None or _group[0] is not dist.group.WORLD:
            _group = dist.group.WORLD, dist.new_group(backend="gloo")
        total = torch.tensor(numbers)
        dist.all_reduce(total, group=_group[1])
        return [int(number) for number in total]
