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


def describe(plan: StreamConfig, position: Position, context: WorkerContext) -> str:
    """Return two lines: the chain as it would be written, then sizes, order and length of a pass."""
    return f"{plan.data!r}{''.join(stages(plan))}\n  {'; '.join(_facts(plan, position, context))}"


def stages(plan: StreamConfig) -> list[str]:
    """Return the stages of a chain in their usual order, each as its call.

    >>> import numpy as np, pipeline
    >>> stages(pipeline.ShardDataset.from_tokens(np.arange(99)).shuffle(lanes=2).pack(8).batch(2, last="drop")._plan)
    ['.shuffle(seed=0, lanes=2)', '.pack(8)', ".batch(2, last='drop')"]
    """
    found = [f".filter({each})" for each in plan.filter_names]
    found += [f".map_documents({each.name})" for each in plan.document_maps]
    if plan.seed is not None:
        found.append(written_call("shuffle", seed=plan.seed, window=plan.window, lanes=plan.lanes))
    if plan.layout is not None:
        found.append(plan.layout.call())
    found += [_step(step) for step in plan.steps]
    if plan.take is not None:
        found.append(written_call("take", plan.take))
    if plan.batch_size is not None:
        last, dtype = "drop" if plan.drop_last else None, "stored" if plan.stored else None
        found.append(written_call("batch", plan.batch_size, last=last, dtype=dtype))
    found += [_step(step) for step in plan.batch_steps]
    if plan.take_batches is not None:
        found.append(written_call("take", plan.take_batches))
    if plan.rank is not None:
        found.append(written_call("shard", plan.rank, plan.world_size))
    if plan.numpy:
        found.append(".numpy()")
    if plan.device is not None:
        found.append(written_call("to", plan.device))
    if plan.prefetch is not None:
        found.append(written_call("prefetch", plan.prefetch))
    return found


def _step(step: Any) -> str:
    if isinstance(step, Take):
        return written_call("take", step.count)
    method, function = ("map", step.function) if isinstance(step, Map) else ("apply", step)
    return f".{method}({getattr(function, '__qualname__', type(function).__qualname__)})"


def _facts(plan: StreamConfig, position: Position, context: WorkerContext) -> list[str]:
    found = [plan.data.sizes()]
    if plan.seed is not None and not plan.sequential and (plan.layout is None or plan.layout.interleaved):
        found.append(f"{plan.lane_count} lanes")
    if plan.epochs is not None:
        found.append(f"epochs={plan.epochs}")
    found.append(_length(plan, position, context))
    return found


def _length(plan: StreamConfig, position: Position, context: WorkerContext) -> str:
    """Return how many sequences a pass has on all ranks, and how many batches on each, where arithmetic tells."""
    unknown = plan.epochs is not None and (plan.sequential or plan.layout is None)
    first = (lambda epoch: 0) if plan.layout is None else first_of(plan)
    start, end = pass_bounds(replace(plan, epochs=None) if unknown else plan, first, position, context.world_size)
    if end is None:
        return "length unknown until it is read" if unknown else "endless"
    kind = "documents" if plan.layout is None or plan.layout.unit == "documents" else "sequences"
    told = f"{'at most ' if unknown or not counts_items(plan) else ''}{end - start:,} {kind}"
    if plan.batch_size is None:
        return told
    batches = item_count(plan, start, end, context, plan.lane_count)
    ranks = f" on each of {context.world_size} ranks" if context.world_size > 1 else ""
    return f"{told}, {batches:,} batches{ranks}"
