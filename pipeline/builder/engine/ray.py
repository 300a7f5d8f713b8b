"""Runs units as Ray tasks, on a cluster or on one that is started here. Needs the ``ray`` extra.

Workers on other machines need the inputs and the output under the same paths, as on a shared file system.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import BuildError, ConfigError
from .base import Engine, Result, Unit

RETRIES = 3
CONNECT_SECONDS = 7.0
_CLIENT_SECONDS = "4"  # of each of the three tries of Ray's client for ray:// addresses
_ROOT = Path(__file__).resolve().parents[3]


class RayEngine(Engine):
    """Runs units as Ray tasks: at most ``workers`` at a time, each retried where its worker dies.

    It uses the connection to Ray that there is, or connects until it is closed. So the engines of a build share the
    connection of one that stays open around them.
    """

    def __init__(self, workers: int, address: str | None) -> None:
        for name in ("INITIAL", "MAX"):  # read when Ray is imported
            os.environ.setdefault(f"RAY_CLIENT_{name}_CONNECTION_TIMEOUT_S", _CLIENT_SECONDS)
        import ray

        self._ray = ray
        self._workers = workers
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            _connect(ray, workers, address)

    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        ray = self._ray
        task = ray.remote(_call).options(max_retries=RETRIES, num_cpus=1)
        waiting = iter(range(len(units)))
        running: dict[object, int] = {}
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
        if self._connected_here:
            self._ray.shutdown()


def _call(function: Callable[[Unit], Result], unit: Unit) -> Result:
    """Run a unit; a plain function, as Ray wants it, where unit functions carry bound arguments."""
    return function(unit)


def _connect(ray: Any, workers: int, address: str | None) -> None:
    """Connect to the cluster at an address, or start one here."""
    # Workers import this package from where this process did, installed or not.
    # What else the user's PYTHONPATH names is found there too, such as modules of measures.
    paths = [str(_ROOT), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    settings: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}}
    settings |= {"log_to_driver": False, "logging_level": logging.ERROR}
    if not address:
        ray.init(num_cpus=workers, include_dashboard=False, **settings)
        return
    check_address(address)
    try:
        ray.init(address=address, **settings)
    except Exception as error:  # of any type: its client fails by what it lacks
        raise ConfigError(
            f"--ray-address {address}: something answers there, but Ray cannot connect to it ({error}); ray:// "
            "addresses need `pip install 'ray[client]'`, and a cluster with tokens needs its own in RAY_AUTH_TOKEN and "
            "RAY_AUTH_MODE=token"
        ) from None


def check_address(address: str) -> None:
    """Raise ``ConfigError`` where nothing answers at ``HOST:PORT`` or ``ray://HOST:PORT``; Ray itself waits minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" and "local", which Ray resolves by itself
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray-address {address}: nothing answers there ({error}); start a cluster with `ray start --head --port=6379`, "
            "or leave the flag out to use this machine alone"
        ) from None
