"""Runs units as Ray tasks, on a cluster or on one that is started here. Needs the ``ray`` extra.

Workers on other machines need the inputs and the output under the same paths, as on a shared file system.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import BuildError, ConfigError
from .base import Engine, EngineOptions, Prepare, Result, Unit

RETRIES = 3
CONNECT_SECONDS = 7.0  # to connect, and to receive the first frame
_CLIENT_SECONDS = 4  # of each try of Ray's client for ray:// addresses
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty frame of HTTP/2 settings, with which each side begins
_ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def ray_session(options: EngineOptions) -> Iterator[ModuleType]:
    """Give Ray, connected to a cluster: as it is if it is connected, else until the block ends."""
    for name in ("INITIAL", "MAX"):  # read when Ray is imported; its client makes three tries
        os.environ.setdefault(f"RAY_CLIENT_{name}_CONNECTION_TIMEOUT_S", str(_CLIENT_SECONDS))
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
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment, **where)
    except (
        ConnectionError,
        RuntimeError,
        ValueError,
        ImportError,
        AttributeError,
    ) as error:  # whatever its client lacks
        if not options.ray_address:
            raise
        raise ConfigError(
            f"--ray-address {options.ray_address}: something answers there, but Ray cannot connect to it ({error}); ray:// "
            "addresses need `pip install 'ray[client]'`, and a cluster with tokens needs its own in RAY_AUTH_TOKEN and "
            "RAY_AUTH_MODE=token"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str, seconds: float = CONNECT_SECONDS) -> None:
    """Raise ``ConfigError`` unless Ray answers at ``HOST:PORT`` or ``ray://HOST:PORT`` in time; Ray itself waits minutes.

    What answers there must begin as a gRPC server does, which all of Ray's ports for clients are.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" and "local", which Ray resolves by itself
    cure = "start a cluster with `ray start --head --port=6379`, or leave the flag out to use this machine alone"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("0", ""):  # else the server first wants a certificate
                said = _greeting(connection, time.monotonic() + seconds)
                if said[3:4] != _SETTINGS[3:4]:
                    found = f"begins with {said!r}" if said else f"says nothing for {seconds:g} s or hangs up"
                    raise ConfigError(
                        f"--ray-address {address}: what answers there {found}, so it is no port of a Ray cluster; give the "
                        f"port that `ray start` named, or {cure}"
                    )
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--ray-address {address}: nothing answers there ({error}); {cure}") from None


def _greeting(connection: socket.socket, deadline: float) -> bytes:
    """Greet a server as a client of HTTP/2, and return the head of its first frame; fewer bytes if it is late or hangs up."""
    said = b""
    with suppress(OSError):
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
        while len(said) < len(_SETTINGS) and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (part := connection.recv(len(_SETTINGS) - len(said))):
                break
            said += part
    return said


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
        self._session.close()


def _call(function: Callable[[Unit], Result], unit: Unit) -> Result:
    """Run a unit; a plain function, as Ray wants it, where unit functions carry bound arguments."""
    return function(unit)
