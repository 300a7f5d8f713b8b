"""A stream as text: the chain of its stages, and how much data it has. Nothing is opened or read for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .config import PackLayout, Plan
from .data.mixture import MixedData
from .data.shards import Data
from .data.text import TextData
from .loader.epochs import first_of, item_count, pass_bounds
from .loader.position import Position
from .loader.user_stages import Map, Take, counts_items
from .loader.worker_context import WorkerContext


def describe(plan: Plan, position: Position, context: WorkerContext) -> str:
    """Return two lines: the chain as it would be written, then sizes, order and length of a pass."""
    return f"{plan.data!r}{''.join(stages(plan))}\n  {'; '.join(_facts(plan, position, context))}"


def stages(plan: Plan) -> list[str]:
    """Return the stages of a chain in their usual order, each as its call.

    >>> import numpy as np, pipeline
    >>> stages(pipeline.ShardDataset.from_tokens(np.arange(99)).shuffle(lanes=2).pack(8).batch(2, last="drop")._plan)
    ['.shuffle(seed=0, lanes=2)', '.pack(8)', ".batch(2, last='drop')"]
    """
    found = [f".filter({each})" for each in plan.filter_names]
    found += [f".map_documents({each.name})" for each in plan.document_maps]
    if plan.seed is not None:
        found.append(_call("shuffle", seed=plan.seed, window=plan.window, lanes=plan.lanes))
    if (layout := layout_stage(plan)) is not None:
        found.append(layout)
    found += [_step(step) for step in plan.steps]
    if plan.take is not None:
        found.append(_call("take", plan.take))
    if plan.batch_size is not None:
        last, dtype = "drop" if plan.drop_last else None, "stored" if plan.stored else None
        found.append(_call("batch", plan.batch_size, last=last, dtype=dtype))
    found += [_step(step) for step in plan.batch_steps]
    if plan.take_batches is not None:
        found.append(_call("take", plan.take_batches))
    if plan.rank is not None:
        found.append(_call("shard", plan.rank, plan.world_size))
    if plan.numpy:
        found.append(".numpy()")
    if plan.device is not None:
        found.append(_call("to", plan.device))
    if plan.prefetch is not None:
        found.append(_call("prefetch", plan.prefetch))
    return found


def layout_stage(plan: Plan) -> str | None:
    """Return the call that says what a sample is, or None where no stage did."""
    layout = plan.layout
    if layout is None:
        return None
    labels = "same" if layout.same_labels else None
    if not isinstance(layout, PackLayout):
        multiple = layout.pad_to_multiple_of if layout.pad_to_multiple_of > 1 else None
        first = () if layout.max_length is None else (layout.max_length,)
        return _call("documents", *first, pad_to_multiple_of=multiple, labels=labels, bucket=layout.bucket)
    shift = "divisors" if layout.shift is None else layout.shift if layout.shift != 1 else None
    options: dict[str, Any] = {"shift": shift, "boundaries": layout.boundaries or None, "labels": labels}
    if layout.stride is None:
        return _call("sample", layout.seq_len, **options)
    stride = layout.stride if layout.stride != layout.seq_len else None
    return _call("pack", layout.seq_len, stride=stride, **options, best_fit=layout.best_fit or None)


def _call(name: str, *values: Any, **options: Any) -> str:
    given = [*map(repr, values), *(f"{key}={value!r}" for key, value in options.items() if value is not None)]
    return f".{name}({', '.join(given)})"


def _step(step: Any) -> str:
    if isinstance(step, Take):
        return _call("take", step.count)
    method, function = ("map", step.function) if isinstance(step, Map) else ("apply", step)
    return f".{method}({getattr(function, '__qualname__', type(function).__qualname__)})"


def _facts(plan: Plan, position: Position, context: WorkerContext) -> list[str]:
    found = [_sizes(plan.data)]
    if (
        plan.seed is not None
        and not plan.by_cursors
        and not (isinstance(plan.layout, PackLayout) and plan.layout.stride is None)
    ):
        found.append(f"{plan.lane_count} lanes")
    if plan.epochs is not None:
        found.append(f"epochs={plan.epochs}")
    found.append(_length(plan, position, context))
    return found


def _sizes(data: Data | MixedData | TextData) -> str:
    if isinstance(data, TextData):
        return f"{len(data.files):,} files, {data.bytes:,} bytes of text"
    if isinstance(data, MixedData):
        return ", ".join(f"{name}: {_sizes(source)}" for name, source in data.sources.items())
    return f"{len(data.documents):,} shards, {sum(data.documents):,} documents, {sum(data.tokens):,} tokens"


def _length(plan: Plan, position: Position, context: WorkerContext) -> str:
    """Return how many sequences a pass has on all ranks, and how many batches on each, where arithmetic tells."""
    unknown = plan.epochs is not None and (plan.by_cursors or plan.layout is None)
    first = (lambda epoch: 0) if plan.layout is None else first_of(plan)
    start, end = pass_bounds(replace(plan, epochs=None) if unknown else plan, first, position, context.world_size)
    if end is None:
        return "length unknown until it is read" if unknown else "endless"
    kind = "sequences" if isinstance(plan.layout, PackLayout) else "documents"
    told = f"{'at most ' if unknown or not counts_items(plan) else ''}{end - start:,} {kind}"
    if plan.batch_size is None:
        return told
    batches = item_count(plan, start, end, context, plan.lanes_in_force)
    ranks = f" on each of {context.world_size} ranks" if context.world_size > 1 else ""
    return f"{told}, {batches:,} batches{ranks}"
