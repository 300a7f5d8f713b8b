"""Runs a function in several processes that find each other as ranks do: by the environment that torchrun sets."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests.helpers.interpreters import LOADED

# Imported once, in the server from which ranks are forked, so that a rank starts in some milliseconds.
FRAMEWORKS = ["torch.distributed.checkpoint", "accelerate", "transformers.trainer", "pytorch_lightning"]
SECONDS = 240
SECONDS_AFTER_A_FAILURE = 5


def run_ranks(function: Callable[..., Any], world_size: int, *arguments: Any, killed: bool = False) -> list[Any]:
    """Return what ``function(*arguments)`` returned on each rank, as JSON gives it back.

    ``killed``: every rank is to call `die_together`, and an empty list is returned. Raises ``AssertionError`` with the
    traceback of every rank that failed.
    """
    import torch.distributed as dist

    context = multiprocessing.get_context("forkserver")
    with_frameworks = function.__module__.startswith(("tests.stream.recipes", "tests.stream.test_stack"))
    context.set_forkserver_preload([*LOADED, *(FRAMEWORKS if with_frameworks else ())])
    with tempfile.TemporaryDirectory() as directory:
        # As torchrun does: its own store is where ranks meet, so that no port is free for others before a rank takes it.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        ranks = []
        for rank in range(world_size):
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            environment |= {
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "GROUP_RANK": "0",
                "TORCHELASTIC_RUN_ID": "tests",
            }
            arguments_of_rank = (function, arguments, dict(environment), directory)
            ranks.append(context.Process(target=_run, args=arguments_of_rank))
        for process in ranks:
            process.start()
        try:
            _join(ranks, -9 if killed else 0)
            codes = [process.exitcode for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.join()
        failures = "\n".join(path.read_text() for path in sorted(Path(directory).glob("*.failed")))
        expected = [-9 if killed else 0] * world_size
        assert codes == expected, f"ranks ended with {codes}, not {expected}\n{failures}"
        return [] if killed else [json.loads(Path(directory, f"{n}.json").read_text()) for n in range(world_size)]


def die_together() -> None:
    """End this rank by SIGKILL, once all ranks call this: the death of one could break a message that another waits for."""
    folder = Path(os.environ["FOLDER_OF_RANKS"])
    (folder / f"{os.getpid()}.dying").touch()
    while len(list(folder.glob("*.dying"))) < int(os.environ.get("WORLD_SIZE", 1)):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def _join(ranks: list[Any], expected: int) -> None:
    """Wait until all ranks have ended; after one has failed, the others have little time left, as under torchrun."""
    deadline = time.monotonic() + SECONDS
    while running := [process for process in ranks if process.exitcode is None]:
        if any(process.exitcode not in (None, expected) for process in ranks):
            deadline = min(deadline, time.monotonic() + SECONDS_AFTER_A_FAILURE)
        if time.monotonic() >= deadline:
            return
        connection.wait([process.sentinel for process in running], 0.2)


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], environment: dict[str, str], directory: str) -> None:
    import torch

    faulthandler.dump_traceback_later(SECONDS - 10)
    # As under torchrun, loaders fork their workers. From a fork server these would outlive a rank that is killed.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    rank = environment["RANK"]
    if environment["WORLD_SIZE"] != "1":
        os.environ |= environment
    os.environ["FOLDER_OF_RANKS"] = directory
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "TOKENIZERS_PARALLELISM": "false"}
    try:
        result = function(*arguments)
    except BaseException:
        Path(directory, f"{rank}.failed").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        raise
    Path(directory, f"{rank}.json").write_text(json.dumps(result))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
