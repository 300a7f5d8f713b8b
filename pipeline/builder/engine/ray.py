"""Runs units as Ray tasks, on a cluster or on one that is started here. Needs the ``ray`` extra.

Workers on other machines need the inputs and the output under the same paths, as on a shared file system.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...errors import BuildError, ConfigError
from .base import Engine, EngineOptions, Prepare, Result, Unit

RETRIES = 3
CONNECT_SECONDS = 10.0
_ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def ray_session(options: EngineOptions) -> Iterator[Any]:
    """Give Ray, connected to a cluster: as it is if it is connected, else until the block ends."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--engine ray needs Ray: pip install 'shardwright[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    # Workers import this package from where this process did, installed or not.
    # What else the user's PYTHONPATH names is found there too, such as modules of measures.
    paths = [str(_ROOT), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}
    where: dict[str, Any] = {"num_cpus": options.workers, "include_dashboard": False}
    if options.ray_address:
        check_address(options.ray_address)
        where = {"address": options.ray_address}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment, **where)
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise ``ConfigError`` unless something answers at ``HOST:PORT`` or ``ray://HOST:PORT``; Ray itself waits minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" and "local", which Ray resolves by itself
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray-address {address}: nothing answers there ({error}); start a cluster with `ray start --head "
            "--port=6379`, or leave the flag out to use this machine alone"
        ) from None


def open_ray(options: EngineOptions, prepare: Prepare | None) -> Engine:
    """Return an engine of Ray tasks; each task loads what it needs, so nothing is prepared here."""
    return RayEngine(options)


class RayEngine(Engine):
    """An engine of Ray tasks: at most ``workers`` at a time, each retried where its worker dies."""

    def __init__(self, options: EngineOptions) -> None:
        self._session = ExitStack()
        self._ray = self._session.enter_context(ray_session(options))
        self._workers = options.workers

    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        """Yield ``(index of the unit, result)`` as tasks finish; the first exception of a unit ends the map."""
        ray = self._ray
        task = ray.remote(_call).options(max_retries=RETRIES, num_cpus=1)
        waiting = iter(range(len(units)))
        running: dict[Any, int] = {}
        while True:
            for index in waiting:
                running[task.remote(function, units[index])] = index
                if len(running) >= self._workers:
                    break
            if not running:
                return
            ready, _ = ray.wait(list(running))
            for reference in ready:
                index = running.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, Exception) else error from error
                except ray.exceptions.WorkerCrashedError as error:
                    raise BuildError(f"a Ray worker died {RETRIES + 1} times on unit {units[index]}") from error
                yield index, result

    def close(self) -> None:
        self._session.close()


def _call(function: Callable[[Any], Any], unit: Any) -> Any:
    """Run a unit; a plain function, as Ray wants it, where unit functions carry bound arguments."""
    return function(unit)
