"""Which part of a stream a process iterates: which worker of a loader it is, on which rank."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen

import torch.distributed as dist
from torch.utils.data import get_worker_info

from ...errors import ConfigError


@dataclass(frozen=True, slots=True)
class Topology:
    """Rank and world size as they are in the process with the number ``process``; ``rank`` None: it does not know its own."""

    rank: int | None
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
    known, ranks = _known(stated, carried), _launched_ranks(carried)
    if known is None and ranks > 1:
        return Topology(None, ranks, os.getpid())
    return Topology(*(known or (0, 1)), os.getpid())


def resolve_context(stated: tuple[int, int] | None, carried: Topology | None) -> WorkerContext:
    """Return the context of this process, where an iteration begins.

    Rank and world size are those ``stated`` by the user, else those of torch.distributed where it is initialised, else
    0 of 1. A loader's worker started by spawn or forkserver has no process group; rank and world size are those
    ``carried`` over from the process that started it. A worker started by fork inherits the group of its parent.
    """
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    rank, world_size = _known(stated, carried) or (0, 1)
    return WorkerContext(rank, world_size, worker, workers)


def refuse_unknown_topology(stated: tuple[int, int] | None, carried: Topology | None) -> None:
    """Raise ``ConfigError`` where nothing tells rank and world size, but there may be several ranks.

    ``WORLD_SIZE`` above 1, which torchrun sets, never decides the rank. It shows that several processes run, and without a
    group each of them would read the whole stream. A loader's worker that was not forked sees no group of its parent.
    """
    if _known(stated, carried) is not None:
        return
    if (ranks := _launched_ranks(carried)) > 1:
        raise ConfigError(
            f"WORLD_SIZE is {ranks} in the environment, but torch.distributed has no process group here, so each of the "
            f"{ranks} processes would read the whole stream: call torch.distributed.init_process_group() before iter(), or "
            "state the part of this process by .shard(rank, world_size); .shard(0, 1) reads the whole stream on purpose"
        )
    if get_worker_info() is not None and not _is_forked():
        raise ConfigError(
            "this worker of a DataLoader was started without fork and got this stream in another way than as the loader's "
            "dataset, so it cannot see whether its parent has a process group: give the DataLoader the stream itself, or "
            "state the part by .shard(rank, world_size); .shard(0, 1) reads the whole stream on purpose"
        )


def refuse_later_group(stated: tuple[int, int] | None, context: WorkerContext) -> None:
    """Raise ``ConfigError`` where a process group that came after an iteration began gives this process another part."""
    if stated is not None or get_worker_info() is not None:
        return
    began, now = (context.rank, context.world_size), _distributed()
    if now is not None and now != began:
        raise ConfigError(
            f"this iteration began as rank {began[0]} of {began[1]}, but torch.distributed is initialised since, as rank "
            f"{now[0]} of {now[1]}: call torch.distributed.init_process_group() before iter(), or state the part of this "
            "process by .shard(rank, world_size)"
        )


def _known(stated: tuple[int, int] | None, carried: Topology | None) -> tuple[int, int] | None:
    """Return rank and world size, None where nobody stated them and this process has no group."""
    if stated is None and (told := _told(carried)) is not None and told.rank is not None:
        return told.rank, told.world_size
    return stated or _distributed()


def _told(carried: Topology | None) -> Topology | None:
    """Return what a loader's worker was told by the process that started it.

    What an earlier process carried over, such as a launcher before it started the ranks, does not count.
    """
    parent = multiprocessing.parent_process()
    if get_worker_info() is None or carried is None or parent is None or parent.pid != carried.process:
        return None
    return carried


def _distributed() -> tuple[int, int] | None:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return None


def _launched_ranks(carried: Topology | None) -> int:
    """Return how many ranks the launcher says it started, to this process or its parent; 1 where it says nothing."""
    if (told := _told(carried)) is not None:
        return told.world_size
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1


def _is_forked() -> bool:
    """Say whether this process has the memory of its parent, and with it a process group."""
    # Of the default context the class names no method; a child is told the default of its parent.
    method = getattr(multiprocessing.current_process(), "_start_method", None) or multiprocessing.get_start_method()
    return method == "fork"
