"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing import get_all_start_methods
from pathlib import Path

from ...errors import ConfigError, did_you_mean, not_installed
from ..setting import check_whole
from .engine import UNIT_TRIES, Engine, Prepare, ProcessEngine, SerialEngine, default_start_method
from .ray import RayEngine

ENGINES = ("local", "ray")


def open_engine(
    name: str = "local",
    *,
    workers: int | None = 1,
    prepare: Prepare | None = None,
    start_method: str | None = None,
    ray_address: str | None = None,
    ray_skip_bad_nodes: bool = False,
    unit_tries: int = UNIT_TRIES,
    shared: Path | None = None,
    read_input: Callable[[], object] | None = None,
) -> Engine:
    """Return the engine of that name: ``local`` (this process for one worker, else worker processes) or ``ray``.

    ``workers`` None means 1, or on Ray as many as the cluster has CPUs. ``prepare`` runs once before workers are forked, or
    once in each worker that is spawned. On Ray each task loads what it needs; with a ``ray_address``, each node must see
    the directory ``shared`` and run ``read_input`` without an error. A unit whose workers die is tried ``unit_tries`` times.
    Raises ``ConfigError`` as `check_engine` does.

    >>> with open_engine(workers=1) as engine:
    ...     sorted(engine.map(abs, [-3, 4]))
    [(0, 3), (1, 4)]
    """
    check_engine(name, workers, start_method, ray_address, ray_skip_bad_nodes, unit_tries)
    if name == "ray":
        return RayEngine(workers, ray_address, shared, ray_skip_bad_nodes, read_input, unit_tries)
    if workers in (None, 1):
        return SerialEngine(prepare)
    return ProcessEngine(workers, prepare, start_method or default_start_method(), unit_tries)


def check_engine(
    engine: object = "local",
    workers: object = 1,
    start_method: object = None,
    ray_address: object = None,
    ray_skip_bad_nodes: object = False,
    unit_tries: object = UNIT_TRIES,
) -> None:
    """Raise ``ConfigError`` if an argument of `open_engine` is invalid, or the engine is not installed."""
    if engine not in ENGINES:
        raise ConfigError(f"no engine {engine!r}{did_you_mean(str(engine), ENGINES)}")
    if engine == "ray" and find_spec("ray") is None:
        raise not_installed("--engine ray", "ray")
    for what, number in (("workers", 1 if workers is None else workers), ("unit_tries", unit_tries)):
        check_whole(what, number, 1)
    methods = get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ConfigError(f"start_method must be one of {', '.join(methods)}, got {start_method!r}")
    if ray_address is not None and not (isinstance(ray_address, str) and ray_address):
        raise ConfigError(f"ray_address must be text, as in 10.0.0.1:6379, got {ray_address!r}")
    if not isinstance(ray_skip_bad_nodes, bool):
        raise ConfigError(f"ray_skip_bad_nodes must be True or False, got {ray_skip_bad_nodes!r}")
