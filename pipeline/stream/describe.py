"""A stream as text: its calls as they were written, and one line of sizes and position. Nothing is opened or read for it."""

from __future__ import annotations

from typing import Any

from .config import StreamConfig
from .layout import written_call
from .loader.position import Position
from .loader.user_stages import Map, Take


def describe(config: StreamConfig, position: Position) -> str:
    """Return two lines: the chain, then how much data it has, and where it is."""
    epochs = "endless" if config.epochs is None else f"epochs={config.epochs}"
    at = f"sequence_index={position.sequence_index:,}"
    return f"{config.data!r}{''.join(stages(config))}\n  {config.data.sizes()}; {epochs}; {at}"


def stages(config: StreamConfig) -> list[str]:
    """Return the stages of a chain in their usual order, each as its call.

    >>> import numpy as np, pipeline
    >>> stages(pipeline.ShardDataset.from_tokens(np.arange(99)).shuffle(lanes=2).pack(8).batch(2, last="drop")._config)
    ['.shuffle(seed=0, lanes=2)', '.pack(8)', ".batch(2, last='drop')"]
    """
    maps = [f"{each.name}, same_length=True" if each.same_length else each.name for each in config.document_maps]
    found = [f".filter({name})" for name in config.filter_names] + [f".map_documents({each})" for each in maps]
    shuffled, moved = config.seed is not None, config.device is not None
    found += [written_call("shuffle", seed=config.seed, window=config.window, lanes=config.lanes)] * shuffled
    found += [config.layout.call()] if config.layout is not None else []
    found += [_step(step) for step in (*config.steps, *([Take(config.take)] if config.take is not None else []))]
    if config.batch_size is not None:
        last, dtype = "drop" if config.drop_last else None, "stored" if config.stored else None
        found.append(written_call("batch", config.batch_size, last=last, dtype=dtype))
    found += [_step(step) for step in config.batch_steps]
    found += [written_call("take", config.take_batches)] * (config.take_batches is not None)
    found += [written_call("shard", config.rank, config.world_size)] * (config.rank is not None)
    found += [".numpy()"] * config.numpy + [written_call("to", config.device)] * moved
    return found + [written_call("prefetch", config.prefetch)] * (config.prefetch is not None)


def _step(step: Any) -> str:
    if isinstance(step, Take):
        return written_call("take", step.count)
    method, function = ("map", step.function) if isinstance(step, Map) else ("apply", step)
    return f".{method}({getattr(function, '__qualname__', type(function).__qualname__)})"
