"""Runs units as Ray tasks, on a cluster or on one that is started here. Needs the ``ray`` extra.

Workers on other machines need the inputs and the output under the same paths, as on a shared file system.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ...atomic import temporary_path
from ...errors import BuildError, ConfigError
from ...notices import warn
from .engine import Engine, Result, Unit

RETRIES = 3
CONNECT_SECONDS = 7.0
_PROBE_SECONDS = 60.0  # in which each node must answer
_NOTICE_SECONDS = 10.0  # between two lines that say that no CPU is free
_CLIENT_SECONDS = "4"  # of each of the three tries of Ray's client for ray:// addresses
_LEAST_FREE = 256 << 20  # bytes of disk
_ROOT = Path(__file__).resolve().parents[3]


class RayEngine(Engine):
    """Runs units as Ray tasks: at most ``workers`` at a time, each retried where its worker dies.

    It uses the connection to Ray that there is, or connects until it is closed. So the engines of a build share the
    connection of one that stays open around them, and with it the ids of the ``bad_nodes`` that get no unit.
    """

    bad_nodes: ClassVar[list[str]] = []

    def __init__(
        self, workers: int, address: str | None, shared: Path | None = None, skip_bad_nodes: bool = False
    ) -> None:
        """Connect; ``shared`` is a directory that each node of a cluster that runs already must see as this process does.

        Raises ``BuildError`` naming each node that does not, or has another Python or no such package, unless
        ``skip_bad_nodes`` leaves those out.
        """
        for name in ("INITIAL", "MAX"):  # read when Ray is imported
            os.environ.setdefault(f"RAY_CLIENT_{name}_CONNECTION_TIMEOUT_S", _CLIENT_SECONDS)
        import ray

        self._ray = ray
        self._workers = workers
        self._connected_here = not ray.is_initialized()
        if not self._connected_here:
            return
        try:
            with _one_line(ray):
                _connect(ray, workers, address)
                if address and shared is not None:
                    RayEngine.bad_nodes = _check_nodes(ray, shared, skip_bad_nodes)
                _wait_for_cpu(ray)
        except BaseException:
            self.close()
            raise

    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        with _one_line(self._ray):
            yield from self._map(function, units)

    def _map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        ray = self._ray
        options: dict[str, Any] = {"max_retries": RETRIES, "num_cpus": 1}
        if self.bad_nodes:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self.bad_nodes)})"}
        task = ray.remote(_call).options(**options)
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
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                    raise BuildError(
                        f"a Ray worker died {RETRIES + 1} times on unit {units[index]} ({_first_line(error)}); where it was "
                        "memory, give fewer --workers or nodes with more"
                    ) from error
                yield index, result

    def close(self) -> None:
        if self._connected_here:
            RayEngine.bad_nodes = []
            self._ray.shutdown()


def _call(function: Callable[[Unit], Result], unit: Unit) -> Result:
    """Run a unit; a plain function, as Ray wants it, where unit functions carry bound arguments."""
    return function(unit)


@contextmanager
def _one_line(ray: Any) -> Iterator[None]:
    """Raise ``BuildError`` for what Ray raises of its own: lost nodes, a lost driver, versions that differ."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise BuildError(
            f"Ray ended the build: {type(error).__name__}: {_first_line(error)}; what is done is kept: run the same command "
            "again, with this cluster, another one or --engine local"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _wait_for_cpu(ray: Any) -> None:
    """Wait until a task has run; say what is waited for where no CPU is free."""
    running = [ray.remote(_call).options(num_cpus=1).remote(abs, 0)]
    began = time.monotonic()
    while not ray.wait(running, timeout=_NOTICE_SECONDS)[0]:
        total, free = (resources().get("CPU", 0) for resources in (ray.cluster_resources, ray.available_resources))
        warn(
            f"Ray: no CPU is free for {time.monotonic() - began:.0f} s: the cluster has {total:g} CPUs, {free:g} of them free; "
            "the build waits for one, and Ctrl-C ends it"
        )
    ray.get(running)


def _check_nodes(ray: Any, shared: Path, skip_bad_nodes: bool) -> list[str]:
    """Run a task on each node that has CPUs; return the ids of those that cannot work, if they may be left out."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    written = temporary_path(shared / "probe")
    written.write_text(token := secrets.token_hex(8))
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
    try:
        probes = {
            node: ray.remote(_probe)
            .options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote(str(written), token, platform.python_version())
            for node in nodes
        }
        problems = {node: said for node, probe in probes.items() if (said := _problem(ray, probe))}
    finally:
        for left in written.parent.glob(f"{written.name}*"):
            left.unlink(missing_ok=True)
    said = "\n  ".join(
        f"node {nodes[node]['NodeManagerAddress']} ({node[:8]}): {what}" for node, what in problems.items()
    )
    if problems and (not skip_bad_nodes or len(problems) == len(nodes)):
        raise BuildError(
            f"{len(problems)} of {len(nodes)} nodes of the cluster cannot work on this build:\n  {said}\n"
            "Mend them, or leave them out with --ray-skip-bad-nodes"
        )
    if problems:
        warn(f"{len(problems)} of {len(nodes)} nodes are left out:\n  {said}")
    return list(problems)


def _problem(ray: Any, probe: Any) -> str:
    try:
        answer: str = ray.get(probe, timeout=_PROBE_SECONDS)
    except ray.exceptions.GetTimeoutError:
        return f"no answer within {_PROBE_SECONDS:.0f} s"
    except ray.exceptions.RayTaskError as error:  # such as a module that is not there
        return f"{_first_line(error.cause)}; install the same packages there"
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {_first_line(error)}"
    return answer


def _probe(path: str, token: str, python: str) -> str:
    """Say why a build cannot use this node; '' where it can: it reads what the driver wrote, and writes beside it."""
    if platform.python_version() != python:
        return f"Python {platform.python_version()}, but this build runs {python}"
    directory = Path(path).parent
    try:
        if Path(path).read_text() != token:
            return f"{directory}: another directory than that of this build; give an --output that all nodes share"
        Path(f"{path}.{secrets.token_hex(4)}").write_text(token)
    except OSError as error:
        return f"{directory}: {error.strerror}; give an --output on a file system that all nodes share and may write to"
    if shutil.disk_usage(directory).free < _LEAST_FREE:
        return f"{directory}: less than {_LEAST_FREE >> 20} MiB free"
    return ""


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
