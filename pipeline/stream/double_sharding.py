"""Refuses a stream whose items Accelerate would split among the ranks once more.

A stream gives each rank its own part. ``accelerator.prepare(DataLoader(stream))``, and so ``Trainer(train_dataset=stream)``,
splits what it reads again: it dispatches the items of rank 0 to all ranks, or keeps every n-th item of each rank. Either
way a part of the data is never read, without an error. Accelerate leaves no mark on the dataset, so the call stack tells:
Python frames of a loader that splits are on it while a worker starts, while ``set_epoch`` runs, and while an iteration
begins.
"""

from __future__ import annotations

import sys

from ..errors import ConfigError

# The classes that split the items of a dataset among ranks, by module and name: nothing is imported to look for them.
_SPLITTERS = {
    ("accelerate.data_loader", "DataLoaderDispatcher"),
    ("accelerate.data_loader", "IterableDatasetShard"),
    ("transformers.trainer_pt_utils", "IterableDatasetShard"),
}


def refuse_second_split(world_size: int) -> None:
    """Raise ``ConfigError`` where a loader that splits what it reads calls a stream split among ``world_size`` ranks."""
    if world_size == 1 or "accelerate" not in sys.modules:
        return
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if any(module == home for home, _ in _SPLITTERS):
            processes = _processes(frame.f_locals.get("self"))
            if processes > 1:
                raise ConfigError(
                    f"Accelerate would split this stream among {processes} processes, but the stream gives each of "
                    f"{world_size} ranks its own part already, so most of the data would never be read: use "
                    "stream.loader() in place of the DataLoader, which accelerator.prepare leaves alone and a Trainer "
                    "takes from get_train_dataloader or get_eval_dataloader"
                )
        frame = frame.f_back


def _processes(caller: object) -> int:
    """Return among how many processes ``caller`` splits what it reads: 1 where it is no such loader."""
    # DataLoaderDispatcher overrides __class__, so isinstance would look at the loader that it wraps.
    if not any((each.__module__, each.__qualname__) in _SPLITTERS for each in type(caller).__mro__):
        return 1
    own = vars(caller)
    return int(own["num_processes"] if "num_processes" in own else getattr(own.get("state"), "num_processes", 1))
