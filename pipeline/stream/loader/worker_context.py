"""Which part of a stream a process iterates: which worker of a loader it is, on which rank."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen

import torch.distributed as dist
from torch.utils.data import get_worker_info


@dataclass(frozen=True, slots=True)
class Topology:
    """Rank and world size as they are in the process with the number ``process``."""

    rank: int
    world_size: int
    process: int


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Worker ``worker`` of ``workers`` (0 of 1 outside a loader's workers) of rank ``rank`` of ``world_size``."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1


def topology_to_carry(stated: tuple[int, int] | None, carried: Topology | None) -> Topology | None:
    """Return what a pickle of a stream carries: this process's topology, where the pickle starts a process."""
    if get_spawning_popen() is None:
        return carried
    context = resolve_context(stated, carried)
    return Topology(context.rank, context.world_size, os.getpid())


def resolve_context(stated: tuple[int, int] | None, carried: Topology | None) -> WorkerContext:
    """Return the context of this process, where an iteration begins.

    Rank and world size are those ``stated`` by the user, else those of torch.distributed where it is initialised, else
    0 of 1. A loader's worker started by spawn or forkserver has no process group; rank and world size are those
    ``carried`` over from the process that started it. A worker started by fork inherits the group of its parent.
    """
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    parent = multiprocessing.parent_process()
    # What an earlier process carried over, such as a launcher before it started the ranks, does not count.
    if info is not None and carried is not None and parent is not None and parent.pid == carried.process:
        stated = stated or (carried.rank, carried.world_size)
    rank, world_size = stated or _distributed()
    return WorkerContext(rank, world_size, worker, workers)


def _distributed() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
