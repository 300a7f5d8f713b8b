"""The engines by name. A new one is a module with a function that opens it, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from ...errors import ConfigError, did_you_mean
from .base import Engine, EngineOptions, Prepare
from .local import open_local
from .ray import open_ray, ray_session

ENGINES: Mapping[str, Callable[[EngineOptions, Prepare | None], Engine]] = {"local": open_local, "ray": open_ray}
_SESSIONS: Mapping[str, Callable[[EngineOptions], AbstractContextManager[object]]] = {"ray": ray_session}


def open_engine(
    name: str = "local",
    *,
    workers: int = 1,
    prepare: Prepare | None = None,
    start_method: str | None = None,
    ray_address: str | None = None,
) -> Engine:
    """Return the engine of that name: ``local`` (this process for one worker, else a pool) or ``ray``.

    ``prepare`` runs once before workers are forked, or once in each worker that is spawned; on Ray each task loads
    what it needs. Raises ``ConfigError`` for a name or a number of workers that cannot be.

    >>> with open_engine(workers=1) as engine:
    ...     sorted(engine.map(abs, [-3, 4]))
    [(0, 3), (1, 4)]
    """
    if name not in ENGINES:
        raise ConfigError(f"no engine {name!r}{did_you_mean(name, ENGINES)}")
    if not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"workers must be a whole number of at least 1, got {workers!r}")
    return ENGINES[name](EngineOptions(workers, start_method, ray_address), prepare)


def engine_session(name: str, *, workers: int, ray_address: str | None = None) -> AbstractContextManager[object]:
    """Keep what all engines of a build share, which takes seconds to start: a connection to Ray."""
    session = _SESSIONS.get(name)
    return nullcontext() if session is None else session(EngineOptions(workers, ray_address=ray_address))
