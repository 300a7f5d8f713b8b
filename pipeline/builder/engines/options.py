"""The engines by name, and their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_all_start_methods
from pathlib import Path

from ...errors import ConfigError, did_you_mean, not_installed
from ..setting import check_whole
from .local import UNIT_TRIES, Engine, Prepare, ProcessEngine, SerialEngine, default_start_method
from .ray import RayEngine

ENGINES = ("local", "ray")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """How units run: ``engine`` is ``local`` (a single worker is this process, several are processes of their own) or ``ray``.

    ``workers`` None means 1, or on Ray as many as the cluster has CPUs. A unit whose workers die is tried ``unit_tries`` times.
    Raises ``ConfigError`` if a value is wrong or the engine is not installed.

    >>> with EngineOptions(workers=1).open() as engine:
    ...     sorted(engine.map(abs, [-3, 4]))
    [(0, 3), (1, 4)]
    """

    engine: str = "local"
    workers: int | None = 1
    start_method: str | None = None
    ray_address: str | None = None
    ray_skip_bad_nodes: bool = False
    unit_tries: int = UNIT_TRIES

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"no engine {self.engine!r}{did_you_mean(str(self.engine), ENGINES)}")
        if self.engine == "ray" and find_spec("ray") is None:
            raise not_installed("--engine ray", "ray")
        workers = None if self.workers is None else check_whole("workers", self.workers, 1)
        object.__setattr__(self, "workers", workers)
        object.__setattr__(self, "unit_tries", check_whole("unit_tries", self.unit_tries, 1))
        methods = get_all_start_methods()
        if self.start_method is not None and self.start_method not in methods:
            raise ConfigError(f"start_method must be one of {', '.join(methods)}, got {self.start_method!r}")
        if self.ray_address is not None and not (isinstance(self.ray_address, str) and self.ray_address):
            raise ConfigError(f"ray_address must be text, as in 10.0.0.1:6379, got {self.ray_address!r}")
        if not isinstance(self.ray_skip_bad_nodes, bool):
            raise ConfigError(f"ray_skip_bad_nodes must be True or False, got {self.ray_skip_bad_nodes!r}")

    @property
    def is_one_process(self) -> bool:
        """Whether all units run in this process or in forks of it, which know the functions of this process."""
        forks = self.workers in (None, 1) or (self.start_method or default_start_method()) == "fork"
        return self.engine == "local" and forks

    def open(
        self,
        prepare: Prepare | None = None,
        *,
        shared: Path | None = None,
        read_input: Callable[[], object] | None = None,
    ) -> Engine:
        """Start the workers.

        ``prepare`` runs once before workers are forked, or once in each worker that is spawned. On Ray each task loads what
        it needs; with a ``ray_address``, each node must see the directory ``shared`` and run ``read_input`` without an error.
        """
        if self.engine == "ray":
            options = self.ray_address, shared, self.ray_skip_bad_nodes, read_input, self.unit_tries
            return RayEngine(self.workers, *options)
        if self.workers in (None, 1):
            return SerialEngine(prepare)
        method = self.start_method or default_start_method()
        return ProcessEngine(self.workers, prepare, method, self.unit_tries)
