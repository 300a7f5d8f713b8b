"""The part of a stream that a process iterates (its rank and loader worker), and the end of a stream for all ranks."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from ..errors import ConfigError, StateError
from .position import Topology
from .stream_plan import StreamPlan

if TYPE_CHECKING:
    from .context_parallel import ContextPeer


# The variables in which launchers state the number of processes that run this program, and the rank of each: torchrun, Slurm
# (of a step: a script of sbatch has no such variables), Open MPI, MPICH and Intel MPI, MVAPICH, Horovod, Flux.
LAUNCHERS = {
    "WORLD_SIZE": "RANK",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE": "PMI_RANK",
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_RANK",
    "HOROVOD_SIZE": "HOROVOD_RANK",
    "FLUX_JOB_SIZE": "FLUX_TASK_RANK",
}


class Launched(NamedTuple):
    """How many processes run this program: ``processes``, as ``name`` states; ``rank`` is code that returns the rank."""

    processes: int = 1
    name: str = ""
    rank: str = "rank"


def launched() -> Launched:
    """Return how many processes a launcher, or JAX, says that it runs; 1 if none says so."""
    for size, rank in LAUNCHERS.items():
        text = os.environ.get(size, "")
        if text.isdecimal() and int(text) > 1:
            return Launched(int(text), f"{size} is {text} in the environment", f'int(os.environ["{rank}"])')
    # jax.process_count() would start the devices.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if (count := getattr(state, "num_processes", 1)) and count > 1:
        return Launched(count, f"jax.distributed has {count} processes", "jax.process_index()")
    return Launched()


@dataclass(frozen=True, slots=True)
class _Carried:
    """Facts that process ``process`` sends to a loader's worker that it starts without fork, and so without a process group.

    ``part`` is rank and world size; None if they are unknown although several ranks were ``launched``.
    """

    process: int
    part: tuple[int, int] | None
    launched: Launched


class Ranks:
    """Rank and world size of this process.

    They are those ``stated`` by the user, else those of torch.distributed if it is initialised, else 0 of 1. A loader's
    forked worker inherits the process group; other workers get rank and world size in the pickle that starts them.
    If ``peer`` is given, neighbouring ranks of torch.distributed are its peers, and count as one rank.
    """

    def __init__(self, stated: tuple[int, int] | None, peer: ContextPeer | None = None) -> None:
        self.stated = stated
        self.peer = peer
        self._carried: _Carried | None = None

    def topology(self) -> Topology:
        """Return rank and worker of this process at the beginning of an iteration."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rank, world_size = self._known() or (0, 1)
        return Topology(rank, world_size, worker, workers)

    def refuse_unknown(self) -> None:
        """Raise ``ConfigError`` if rank and world size are unknown, but there may be several ranks.

        Variables of launchers never decide the rank. If one says that several processes run, each of them would read the whole
        stream without a group.
        """
        if self._known() is not None:
            return
        ranks, name, rank = self._launched()
        if ranks > 1:
            raise ConfigError(
                f"{name}, but torch.distributed has no process group here; each of the {ranks} processes would read the whole "
                "stream: call torch.distributed.init_process_group() before iter(), or state the part of this process by "
                f".shard(rank, world_size), as .shard({rank}, {ranks}); .shard(0, 1) reads the whole stream on purpose"
            )
        if get_worker_info() is not None and not _is_forked():
            raise ConfigError(
                "this worker of a DataLoader cannot see whether its parent has a process group: the worker was started without "
                "fork, and the stream is not the loader's dataset; give the DataLoader the stream itself, or state the part by "
                ".shard(rank, world_size); .shard(0, 1) reads the whole stream on purpose"
            )

    def refuse_later_group(self, began: Topology) -> None:
        """Raise ``ConfigError`` if a process group made after ``began`` gives this process another rank or world size."""
        if self.stated is not None or get_worker_info() is not None:
            return
        now = self._distributed()
        if now is not None and now != (began.rank, began.world_size):
            raise ConfigError(
                f"this iteration began as rank {began.rank} of {began.world_size}, but torch.distributed was initialised "
                f"later, as rank {now[0]} of {now[1]}: call torch.distributed.init_process_group() before iter(), or state "
                "the part of this process by .shard(rank, world_size)"
            )

    def __getstate__(self) -> dict[str, object]:
        carried = self._carried
        if get_spawning_popen() is not None:
            launched = self._launched()
            carried = _Carried(os.getpid(), self._known() or (None if launched.processes > 1 else (0, 1)), launched)
        return {"stated": self.stated, "peer": self.peer, "_carried": carried}

    def _known(self) -> tuple[int, int] | None:
        """Return rank and world size; None if they were not stated and this process has no group."""
        carried = self._from_parent()
        return self.stated or (None if carried is None else carried.part) or self._distributed()

    def _from_parent(self) -> _Carried | None:
        """Return what the parent of a loader's worker carried over; None if an earlier process did, such as a launcher."""
        parent = multiprocessing.parent_process()
        if get_worker_info() is None or self._carried is None or parent is None:
            return None
        return self._carried if parent.pid == self._carried.process else None

    def _launched(self) -> Launched:
        """Return what `launched` returns in this process, or returned in the parent of a worker."""
        carried = self._from_parent()
        return launched() if carried is None else carried.launched

    def _distributed(self) -> tuple[int, int] | None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        rank, ranks, peer = dist.get_rank(), dist.get_world_size(), self.peer
        if peer is None:
            return rank, ranks
        if ranks % peer.size or rank % peer.size != peer.rank:
            raise ConfigError(
                f"context=({peer.rank}, {peer.size}) on rank {rank} of {ranks}: without a mesh, each {peer.size} neighbouring "
                "ranks share rows; give the mesh, .shard(mesh['dp', 'cp']), or state which rows this process reads, "
                ".shard(rank, world_size, context=...)"
            )
        return rank // peer.size, ranks // peer.size


def _is_forked() -> bool:
    """Say whether this process has inherited the memory of its parent, and so the process group."""
    # The class of the default context names no start method; a child is told its parent's default.
    method = getattr(multiprocessing.current_process(), "_start_method", None) or multiprocessing.get_start_method()
    return method == "fork"


T = TypeVar("T")

_group: tuple[Any, Any] | None = None  # the default group, and a group of the same ranks that sums on the CPU

log = logging.getLogger("pipeline")


class StreamEnd:
    """Says at each step whether a stream goes on.

    On one rank, the stream ends after the last row. On several, ``last="pad"`` goes on until no rank has a row, and
    ``last="drop"`` until one rank lacks a row. To agree, ranks sum three numbers at each step: in a CPU group made for this, or
    in the group given to `Stream.shard`. They sum in the training thread, so that all ranks run collectives in the same order.
    A rank that fails says so, and the others end with an error instead of waiting.

    Raises ``ConfigError`` if ranks must agree and cannot.
    """

    def __init__(self, plan: StreamPlan) -> None:
        settings = plan.settings
        self.gave_nothing = True  # until a rank has a row
        self._drop_last, self._agree, self._group = settings.drop_last, plan.ranks_agree, settings.group
        why = ""
        if get_worker_info() is not None:
            why = "which a worker of a DataLoader cannot; use num_workers=0"
        elif settings.stated_topology is not None and settings.group is None:
            why = "by torch.distributed; call init_process_group(), and leave .shard() out or give it a mesh or a group"
        elif settings.prefetch or not settings.counts_items:
            why = "so nothing is read ahead and no stage drops items; remove .prefetch() and .apply()"
        if self._agree and why:
            raise ConfigError(
                f"epochs={settings.epochs} on {plan.world_size} ranks: at each step, ranks agree on the end of text, filters "
                f"and best-fit packing, {why}, or end the stream by .take(n) instead of epochs"
            )

    def read(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``; if it fails, the other ranks fail at this step too."""
        try:
            return read()
        except Exception:
            self._sum(0, 0, 1)
            raise

    def has_step(self, filled: int, missing: int, tokens_left: Callable[[], int]) -> bool:
        """Say whether the stream has this step. This rank has ``filled`` rows of it and lacks ``missing``.

        ``tokens_left()`` counts the tokens in memory after these rows.
        """
        some, short, failed = self._sum(filled, missing, 0)
        if failed:
            raise StateError("another rank failed at this step, so this rank ends too; see the error of that rank")
        self.gave_nothing &= not some
        if not short or (some and not self._drop_last):
            return True
        if self._agree and some:
            rest = "its lanes have ended"
            if not missing:
                rest = f"its lanes hold {tokens_left():,} tokens in memory, and have unread input"
            log.warning(
                "last='drop' ends the stream when a rank lacks a row: this rank drops %d rows of this step; %s",
                filled,
                rest,
            )
        elif filled:
            log.warning("last='drop' drops the last %d sequences, short of a batch", filled)
        return False

    def _sum(self, *numbers: int) -> list[int]:
        """Return the sums of numbers over the ranks."""
        if not self._agree:
            return list(numbers)
        group = _cpu_group() if self._group is None else self._group
        devices = dist.get_backend_config(group)  # as in cpu:gloo,cuda:nccl
        total = torch.tensor(numbers, device="cpu" if "cpu:" in devices else devices.partition(":")[0])
        dist.all_reduce(total, group=group)
        return [int(number) for number in total.tolist()]


def _cpu_group() -> Any:
    """Return a group of all ranks that sums on the CPU."""
    global _group
    if _group is None or _group[0] is not dist.group.WORLD:
        _group = dist.group.WORLD, dist.new_group(backend="gloo")
    return _group[1]
