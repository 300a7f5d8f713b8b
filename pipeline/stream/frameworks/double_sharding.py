"""Refuses a stream where a training framework would lose a part of it without an error.

Frameworks leave no mark on the dataset that they iterate, so the call stack tells: their frames are on it while
``set_epoch`` runs, while an iteration begins, and while a worker starts.

Accelerate: a stream gives each rank its own part. ``accelerator.prepare(DataLoader(stream))``, and so
``Trainer(train_dataset=stream)``, splits what it reads again: it dispatches the items of rank 0 to all ranks, or keeps
every n-th item of each rank. Either way a part of the data is never read.

Lightning reads one batch ahead of the training step in loaders without a length, and then saves their state: each resume
loses that batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ...errors import ConfigError

# The classes that split the items of a dataset among ranks, by module and name: nothing is imported to look for them.
_SPLITTERS = {
    ("accelerate.data_loader", "DataLoaderDispatcher"),
    ("accelerate.data_loader", "IterableDatasetShard"),
    ("transformers.trainer_pt_utils", "IterableDatasetShard"),
}
_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def refuse_second_split(world_size: int) -> None:
    """Raise ``ConfigError`` where a loader that splits what it reads calls a stream split among ``world_size`` ranks."""
    if world_size == 1 or "accelerate" not in sys.modules:
        return
    for frame in _callers({module for module, _ in _SPLITTERS}):
        if (processes := _processes(frame.f_locals.get("self"))) > 1:
            raise ConfigError(
                f"Accelerate would split this stream among {processes} processes, but the stream gives each of "
                f"{world_size} ranks its own part already, so most of the data would never be read: use "
                "stream.loader() in place of the DataLoader, and for evaluation stream.loader(repeat=True), each pass of "
                "which is the same; accelerator.prepare leaves them alone, and a Trainer takes them from "
                "get_train_dataloader and get_eval_dataloader"
            )


def refuse_read_ahead() -> None:
    """Raise ``ConfigError`` where Lightning begins to fit and would read ahead of a state that it saves."""
    if not any(module in sys.modules for module in _FIT_LOOPS):
        return
    for frame in _callers(_FIT_LOOPS):
        if frame.f_code.co_name != "setup_data":  # where the training loaders are iterated first
            continue
        loaders = getattr(frame.f_locals.get("combined_loader"), "flattened", ())
        if any(hasattr(loader, "load_state_dict") and not _has_length(loader) for loader in loaders):
            raise ConfigError(
                "Lightning reads one batch ahead in a loader without a length, then saves its state, so each resume would "
                "lose a batch of this stream: give trainer.fit stream.loader(), which has a length, or bound the stream "
                "by epochs= or .take(n)"
            )


def _callers(modules: Any) -> Iterator[FrameType]:
    """Yield the frames of ``modules`` on the call stack, the innermost first."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") in modules:
            yield frame
        frame = frame.f_back


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) >= 0
    except (TypeError, NotImplementedError):
        return False


def _processes(caller: object) -> int:
    """Return among how many processes ``caller`` splits what it reads: 1 where it is no such loader."""
    # DataLoaderDispatcher overrides __class__: isinstance looks at the loader that it wraps.
    if not any((each.__module__, each.__qualname__) in _SPLITTERS for each in type(caller).__mro__):
        return 1
    own = vars(caller)
    return int(own["num_processes"] if "num_processes" in own else getattr(own.get("state"), "num_processes", 1))
