"""A stream as text: the chain of its stages, and how much data it has. Nothing is opened or read for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .config import StreamConfig
from .layout import written_call
from .loader.epochs import first_of, item_count, pass_bounds
from .loader.position import Position
from .loader.user_stages import Map, Take, counts_items
from .loader.worker_context import WorkerContext


def describe(config: StreamConfig, position: Position, context: WorkerContext) -> str:
    """Return two lines: the chain as it would be written, then sizes, order and length of a pass."""
    return f"{config.data!r}{''.join(stages(config))}\n  {'; '.join(_facts(config, position, context))}"


def stages(config: StreamConfig) -> list[str]:
    """Return the stages of a chain in their usual order, each as its call.

    >>> import numpy as np, pipeline
    >>> stages(pipeline.ShardDataset.from_tokens(np.arange(99)).shuffle(lanes=2).pack(8).batch(2, last="drop")._config)
    ['.shuffle(seed=0, lanes=2)', '.pack(8)', ".batch(2, last='drop')"]
    """
    found = [f".filter({each})" for each in config.filter_names]
    found += [
        f".map_documents({each.name}{', same_length=True' if each.same_length else ''})"
        for each in config.document_maps
    ]
    if config.seed is not None:
        found.append(written_call("shuffle", seed=config.seed, window=config.window, lanes=config.lanes))
    if config.layout is not None:
        found.append(config.layout.call())
    found += [_step(step) for step in config.steps]
    if config.take is not None:
        found.append(written_call("take", config.take))
    if config.batch_size is not None:
        last, dtype = "drop" if config.drop_last else None, "stored" if config.stored else None
        found.append(written_call("batch", config.batch_size, last=last, dtype=dtype))
    found += [_step(step) for step in config.batch_steps]
    if config.take_batches is not None:
        found.append(written_call("take", config.take_batches))
    if config.rank is not None:
        found.append(written_call("shard", config.rank, config.world_size))
    if config.numpy:
        found.append(".numpy()")
    if config.device is not None:
        found.append(written_call("to", config.device))
    if config.prefetch is not None:
        found.append(written_call("prefetch", config.prefetch))
    return found


def _step(step: Any) -> str:
    if isinstance(step, Take):
        return written_call("take", step.count)
    method, function = ("map", step.function) if isinstance(step, Map) else ("apply", step)
    return f".{method}({getattr(function, '__qualname__', type(function).__qualname__)})"


def _facts(config: StreamConfig, position: Position, context: WorkerContext) -> list[str]:
    found = [config.data.sizes()]
    if config.seed is not None and not config.sequential and (config.layout is None or config.layout.interleaved):
        found.append(f"{config.lane_count} lanes")
    if config.epochs is not None:
        found.append(f"epochs={config.epochs}")
    found.append(_length(config, position, context))
    return found


def _length(config: StreamConfig, position: Position, context: WorkerContext) -> str:
    """Return how many sequences a pass has on all ranks, and how many batches on each, where arithmetic tells."""
    unknown = config.epochs is not None and (config.sequential or config.layout is None)
    first = (lambda epoch: 0) if config.layout is None else first_of(config)
    start, end = pass_bounds(replace(config, epochs=None) if unknown else config, first, position, context.world_size)
    if end is None:
        return "length unknown until it is read" if unknown else "endless"
    kind = "documents" if config.layout is None or config.layout.unit == "documents" else "sequences"
    told = f"{'at most ' if unknown or not counts_items(config) else ''}{end - start:,} {kind}"
    if config.batch_size is None:
        return told
    batches = item_count(config, start, end, context, config.lane_count)
    ranks = f" on each of {context.world_size} ranks" if context.world_size > 1 else ""
    return f"{told}, {batches:,} batches{ranks}"
