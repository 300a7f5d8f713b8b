"""Runs units as Ray tasks, on a cluster or on a Ray that this process starts. Needs the ``ray`` extra.

Workers on other machines need the inputs and the output under the same paths, as on a shared file system.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import secrets
import shutil
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from ...atomic import temporary_path
from ...errors import BuildError, ConfigError, first_line
from ...notices import warn
from ...signals import kept_handlers
from ...version import PACKAGES, __version__
from .local import UNIT_TRIES, Engine, Result, Unit

CONNECT_SECONDS = 7.0
_PROBE_SECONDS = 60.0  # for the answer of each node
_NOTICE_SECONDS = 10.0  # between two warnings that no unit runs
_HEAD_SECONDS = 15.0  # for the head to answer again: somebody may restart it
_ANSWER_SECONDS = 5.0  # for the actor that knows which units have begun to answer
_CLIENT_SECONDS = "4"  # for each of the three tries by Ray's client, which ray:// addresses use
_RAY_SECONDS = "900"  # until Ray ends this process if the head is gone: our checks come first, also on a busy machine
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)  # of a client of gRPC: empty settings
_LEAST_FREE = 256 << 20  # bytes of disk
_EXTRAS = ("s3fs", "gcsfs", "adlfs", "fastwarc", "resiliparse", "trafilatura", "spacy")  # packages and modules
_ROOT = Path(__file__).resolve().parents[3]


class RayEngine(Engine):
    """Runs units as Ray tasks: at most ``workers`` at a time (None: as many as the cluster has CPUs).

    A unit whose worker dies runs again, after the others. Ray would run it again too, but would not tell why.

    An engine uses an existing connection to Ray, or makes one that ends when the engine is closed. So the first engine of a
    build, which stays open, shares its connection with the others. All engines also share the ids of the ``bad_nodes``, which get
    no unit, and the actor that knows which units have ``begun``.
    """

    bad_nodes: ClassVar[list[str]] = []
    begun: ClassVar[Any] = None

    def __init__(
        self,
        workers: int | None,
        address: str | None,
        shared: Path | None = None,
        skip_bad_nodes: bool = False,
        read_input: Callable[[], object] | None = None,
        tries: int = UNIT_TRIES,
    ) -> None:
        """Connect to the cluster at ``address``, or start one.

        With an ``address``, each node must see the directory ``shared``, have the versions of this process, and run
        ``read_input`` without an error. Raises ``BuildError``, which names the nodes that fail. With ``skip_bad_nodes``, these
        nodes get no unit instead.
        """
        for name in ("INITIAL", "MAX"):  # read when Ray is imported
            os.environ.setdefault(f"RAY_CLIENT_{name}_CONNECTION_TIMEOUT_S", _CLIENT_SECONDS)
        if address:
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _RAY_SECONDS)
        import ray

        self._ray: Any = ray
        self._tries = tries
        self._connected_here = not ray.is_initialized()
        try:
            with _build_errors(ray):
                if self._connected_here:
                    _connect(ray, workers, address)
                    if address and shared is not None:
                        RayEngine.bad_nodes = _check_nodes(ray, shared, skip_bad_nodes, read_input)
                    RayEngine.begun = ray.remote(_Begun).options(num_cpus=0, max_restarts=-1, **self._options).remote()
                cpus = self._cpus()
        except BaseException:
            self.close()
            raise
        self.workers = workers or max(1, int(cpus))
        if self._connected_here and cpus < self.workers:
            warn(
                f"Ray: the cluster has {cpus:g} CPUs, fewer than --workers {self.workers}: no more than {cpus:g} units run at "
                "once until it grows"
            )

    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        with _build_errors(self._ray):
            yield from self._map(function, units)

    def _map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        ray, errors = self._ray, self._ray.exceptions
        deaths = (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError)
        task = ray.remote(_call).options(max_retries=0, num_cpus=1, **self._options)
        name, tries, waiting = secrets.token_hex(4), Counter[int](), deque(range(len(units)))
        running: dict[object, tuple[int, str]] = {}
        last = checked = time.monotonic()
        while waiting or running:
            while waiting and len(running) < self.workers:
                index = waiting.popleft()
                tries[index] += 1
                attempt = f"{name}/{index}/{tries[index]}"
                running[task.remote(function, units[index], attempt, self.begun)] = index, attempt
            ready, _ = ray.wait(list(running), timeout=_NOTICE_SECONDS)
            last = time.monotonic() if ready else last
            # First, since other calls ask the head: if it is gone, Ray ends the process in such a call.
            if not ready or time.monotonic() - checked > _NOTICE_SECONDS:
                self._check_head()
                checked = time.monotonic()
            if not ready and not self._nodes_of([attempt for _, attempt in running.values()]):
                first = self.name_of(units[next(iter(running.values()))[0]])
                warn(
                    f"Ray: no unit has begun for {time.monotonic() - last:.0f} s: the cluster has {self._cpus():g} CPUs, "
                    f"{ray.available_resources().get('CPU', 0):g} of them free; {first} waits for one, and "
                    f"{len(running) + len(waiting) - 1} units after it; Ctrl-C ends the build"
                )
            for reference in ready:
                index, attempt = running.pop(reference)
                try:
                    node, seconds, result = ray.get(reference)
                except errors.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, Exception) else error from error
                except deaths as error:
                    where = "".join(f" on node {node}" for node in self._nodes_of([attempt]))
                    reason = f"{type(error).__name__}{where}: {first_line(error)}"
                    if tries[index] == self._tries:
                        raise BuildError(
                            f"a Ray worker died {self._tries} times on {self.name_of(units[index])} ({reason}); if memory ran "
                            "out, give fewer --workers or nodes with more memory; if nodes come and go, give more --unit-tries. "
                            "Run the same command again to continue"
                        ) from error
                    self.on_retry(index, reason)
                    waiting.append(index)
                    continue
                self.on_node(index, node, seconds)
                yield index, result

    def _check_head(self) -> None:
        """Raise ``BuildError`` if the head of the cluster no longer answers: Ray would end this process after a minute."""
        if self._ray.util.client.ray.is_connected():  # ray:// reaches the head through a proxy
            return
        address = self._ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + _HEAD_SECONDS
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"Ray ended the build: the head of the cluster, {address}, no longer answers ({error}); finished units "
                        "are kept: start a cluster and run the same command again, or give --engine local"
                    ) from None
            time.sleep(1)

    def _nodes_of(self, attempts: Sequence[str]) -> list[str]:
        """Return the nodes of the attempts that have begun."""
        try:
            begun = self._ray.get(self.begun.nodes.remote(), timeout=_ANSWER_SECONDS)
        except self._ray.exceptions.RayError:
            return []
        return [begun[attempt] for attempt in attempts if attempt in begun]

    def _cpus(self) -> float:
        """Return the number of CPUs of all nodes that get units."""
        alive = (node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in self.bad_nodes)
        return float(sum(node["Resources"].get("CPU", 0) for node in alive))

    @property
    def _options(self) -> dict[str, Any]:
        """Options that keep tasks off bad nodes."""
        return {"label_selector": {"ray.io/node-id": f"!in({','.join(self.bad_nodes)})"}} if self.bad_nodes else {}

    def close(self) -> None:
        if self._connected_here:
            RayEngine.bad_nodes, RayEngine.begun = [], None
            self._ray.shutdown()


class _Begun:
    """An actor that knows which attempts have begun, and on which nodes: Ray does not tell whether a task waits or runs."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}

    def note(self, attempt: str, node: str) -> None:
        self._nodes[attempt] = node

    def nodes(self) -> dict[str, str]:
        return self._nodes


def _call(function: Callable[[Unit], Result], unit: Unit, attempt: str, begun: Any) -> tuple[str, float, Result]:
    """Run a unit; return its node, the seconds that it took, and its result."""
    import ray

    started = time.monotonic()
    address = ray.util.get_node_ip_address()
    node = _node_name(address, ray.get_runtime_context().get_node_id())
    begun.note.remote(attempt, node)
    result = function(unit)
    return node, time.monotonic() - started, result


def _node_name(address: str, node: str) -> str:
    return f"{address} ({node[:8]})"


@contextmanager
def _build_errors(ray: Any) -> Iterator[None]:
    """Raise ``BuildError`` for errors of Ray itself: a lost node or driver, versions that differ."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise BuildError(
            f"Ray ended the build: {type(error).__name__}: {first_line(error)}; finished units are kept: run the same "
            "command again, with this cluster, another one or --engine local"
        ) from error


def _check_nodes(ray: Any, shared: Path, skip_bad_nodes: bool, read_input: Callable[[], object] | None) -> list[str]:
    """Probe each node that has CPUs, and return the ids of bad nodes. Raises ``BuildError`` if these may not be skipped."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    written = temporary_path(shared / "probe")
    written.write_text(token := secrets.token_hex(8))
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
    try:
        probes = {
            node: ray.remote(_probe)
            .options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote(str(written), token, _versions(), read_input)
            for node in nodes
        }
        problems = {node: problem for node, probe in probes.items() if (problem := _problem(ray, probe))}
    finally:
        for left in written.parent.glob(f"{written.name}*"):
            left.unlink(missing_ok=True)
    listed = "\n  ".join(
        f"node {_node_name(nodes[node]['NodeManagerAddress'], node)}: {problem}" for node, problem in problems.items()
    )
    if problems and (not skip_bad_nodes or len(problems) == len(nodes)):
        raise BuildError(
            f"{len(problems)} of {len(nodes)} nodes of the cluster cannot work on this build:\n  {listed}\n"
            "Mend them, or leave them out with --ray-skip-bad-nodes"
        )
    if problems:
        warn(f"{len(problems)} of {len(nodes)} nodes are left out:\n  {listed}")
    return list(problems)


def _problem(ray: Any, probe: Any) -> str:
    try:
        answer: str = ray.get(probe, timeout=_PROBE_SECONDS)
    except ray.exceptions.GetTimeoutError:
        return f"no answer within {_PROBE_SECONDS:.0f} s"
    except ray.exceptions.RayTaskError as error:
        cure = "; install the same packages there" if isinstance(error.cause, ImportError) else ""
        return f"{first_line(error.cause)}{cure}"
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return answer


def _version(name: str) -> str:
    """Return the version of Python, of this package with its code, or of another package."""
    if name == "Python":
        return platform.python_version()
    if name == "shardwright":
        code = hashlib.sha256()
        for folder in ("filters", "pipeline"):
            for path in sorted((_ROOT / folder).rglob("*.py")):
                code.update(path.relative_to(_ROOT).as_posix().encode() + path.read_bytes())
        return f"{__version__} (code {code.hexdigest()[:8]})"
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _versions() -> dict[str, str]:
    """Return the versions that decide the bytes of a result: of Python, this package, and the packages that it uses."""
    names = ("Python", "shardwright", *PACKAGES, *(name for name in _EXTRAS if name in sys.modules))
    return {name: _version(name) for name in names}


def _probe(path: str, token: str, versions: dict[str, str], read_input: Callable[[], object] | None) -> str:
    """Return why a build cannot use this node, or ''. The task reads a file of the driver, and writes another beside it."""
    for name, wanted in versions.items():
        if (found := _version(name)) != wanted:
            return f"{name} {found}, but this build runs {wanted}; install that version there"
    directory = Path(path).parent
    try:
        if Path(path).read_text() != token:
            return f"{directory}: not the directory of this build; give an --output that all nodes share"
        Path(f"{path}.{secrets.token_hex(4)}").write_text(token)
    except OSError as error:
        return f"{directory}: {error.strerror}; give an --output on a file system that all nodes share and may write to"
    if shutil.disk_usage(directory).free < _LEAST_FREE:
        return f"{directory}: less than {_LEAST_FREE >> 20} MiB free"
    if read_input is not None:
        read_input()
    return ""


def _connect(ray: Any, workers: int | None, address: str | None) -> None:
    """Connect to the cluster at an address, or start one here."""
    # Workers import this package from the path of this process. On a node without that path, they import the installed package.
    # Ray could send the package (py_modules), but then each worker of a new cluster would compile its loops, for 40 seconds. Its
    # dependencies must be installed on every node in any case. Workers also find the modules on the user's PYTHONPATH.
    paths = [str(_ROOT), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    settings: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}}
    settings |= {"log_to_driver": False, "logging_level": logging.ERROR}
    if not address:
        with kept_handlers():  # else Ray would end the process at SIGTERM, before the build can say how to go on
            ray.init(address="local", num_cpus=workers, include_dashboard=False, **settings)
        return
    check_address(address)
    try:
        with kept_handlers():
            ray.init(address=address, **settings)
    except Exception as error:  # Ray's client raises errors of any type
        raise ConfigError(
            f"--ray-address {address}: something answers there, but Ray cannot connect to it ({error}); ray:// "
            "addresses need `pip install 'ray[client]'`, and a cluster that asks for a token needs it in RAY_AUTH_TOKEN, with "
            "RAY_AUTH_MODE=token"
        ) from None


def check_address(address: str, answer_seconds: float = _HEAD_SECONDS) -> None:
    """Raise ``ConfigError`` if nothing answers at ``HOST:PORT`` or ``ray://HOST:PORT``. Ray itself would wait for minutes.

    A head that is alive answers a client of gRPC. The system accepts connections even if the head hangs.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" and "local", which Ray resolves by itself
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "1":
                connection.settimeout(answer_seconds)
                connection.sendall(_PREFACE)
                if not connection.recv(1):
                    raise ConnectionResetError("it closed the connection")
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray-address {address}: nothing answers there ({error}); start a cluster with `ray start --head --port=6379`, "
            "or leave the flag out to use this machine alone"
        ) from None
