"""Refuses a stream where a training framework would lose a part of it without an error.

Accelerate: a stream gives each rank its own part. ``accelerator.prepare(DataLoader(stream))``, and so
``Trainer(train_dataset=stream)``, splits what it reads again: it dispatches the items of rank 0 to all ranks, or keeps
every n-th item of each rank. Either way a part of the data is never read. ``GradientState`` has the loader that is
iterated.

Lightning reads one batch ahead of the training step in loaders without a length, and then saves their state: each resume
loses that batch. A ``Trainer`` has its loaders, but no list holds the trainers: Python's collector of garbage finds what
refers to their class.

Nothing is imported here: where a framework is not loaded, it reads no stream.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from ...errors import ConfigError


def refuse_second_split(stream: IterableDataset[Any], kind: type, world_size: int) -> None:
    """Raise ``ConfigError`` where Accelerate splits what it reads of a stream that is split among ``world_size`` ranks.

    ``kind`` is the class of all streams.
    """
    data_loader, state = sys.modules.get("accelerate.data_loader"), sys.modules.get("accelerate.state")
    if world_size == 1 or data_loader is None or state is None:
        return
    loader = state.GradientState().active_dataloader
    if loader is None or not _may_read(loader, stream, kind):
        return
    processes = 1
    if isinstance(loader, data_loader.DataLoaderDispatcher):
        processes = state.PartialState().num_processes
    elif isinstance(loader.dataset, data_loader.IterableDatasetShard):
        processes = loader.dataset.num_processes
    if processes > 1:
        raise ConfigError(
            f"Accelerate would split this stream among {processes} processes, but the stream gives each of "
            f"{world_size} ranks its own part already, so most of the data would never be read: use "
            "stream.loader() in place of the DataLoader, and for evaluation stream.loader(repeat=True), each pass of "
            "which is the same; accelerator.prepare leaves them alone, and a Trainer takes them from "
            "get_train_dataloader and get_eval_dataloader"
        )


def refuse_read_ahead(stream: IterableDataset[Any], kind: type) -> None:
    """Raise ``ConfigError`` where Lightning trains on a loader of a stream, and would read ahead of a state that it saves."""
    modules = [sys.modules.get(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    classes = [trainer for module in modules if (trainer := getattr(module, "Trainer", None)) is not None]
    if not classes or has_length(stream):
        return
    classes = [kind for base in classes for kind in _with_subclasses(base)]
    for trainer in [referrer for referrer in gc.get_referrers(*classes) if type(referrer) in classes]:
        for loader in _flat(trainer.train_dataloader) if trainer.training else ():
            if hasattr(loader, "load_state_dict") and not has_length(loader) and _may_read(loader, stream, kind):
                raise ConfigError(
                    "Lightning reads one batch ahead in a loader without a length, then saves its state, so each resume "
                    "would lose a batch of this stream: give trainer.fit stream.loader(), which has a length, or bound the "
                    "stream by epochs= or .take(n)"
                )


def has_length(loader: Any) -> bool:
    """Say whether a loader or a stream knows its length."""
    try:
        return len(loader) >= 0
    except (TypeError, NotImplementedError):
        return False


def _may_read(loader: Any, stream: IterableDataset[Any], kind: type) -> bool:
    """Say whether a loader reads a stream of a ``kind``: itself, or perhaps inside an iterable dataset of the user."""
    while (dataset := getattr(loader, "dataset", None)) is not None:
        loader = dataset
    return loader is stream or (isinstance(loader, IterableDataset) and not isinstance(loader, kind))


def _with_subclasses(kind: Any) -> list[Any]:
    return [kind, *(subclass for inner in kind.__subclasses__() for subclass in _with_subclasses(inner))]


def _flat(loaders: Any) -> list[Any]:
    """Return the loaders in a collection of any depth."""
    if isinstance(loaders, Mapping):
        return [loader for value in loaders.values() for loader in _flat(value)]
    if isinstance(loaders, list | tuple):
        return [loader for value in loaders for loader in _flat(value)]
    return [] if loaders is None else [loaders]
