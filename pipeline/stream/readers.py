"""Who reads a stream: frameworks that would lose a part of it, or train on something else, without an error, are refused.

- torch: ``DataLoader(stream)`` has ``batch_size=1``, and stacks batches to ``[1, batch_size, seq_len]``.
- Accelerate: a stream gives each rank its own part. ``accelerator.prepare(DataLoader(stream))``, and so
  ``Trainer(train_dataset=stream)``, splits what it reads again: it dispatches the items of rank 0 to all ranks, or keeps
  every n-th item of each rank. Either way a part of the data is never read.
- transformers: models shift labels, and those of a stream are shifted already. A ``Trainer`` resumes by the length of a pass.
- datasets: one of several workers reads an ``IterableDataset.from_generator``, and a stream gives it the part of one.
- Lightning reads one batch ahead of the training step in loaders without a length, and then saves their state: each resume
  loses that batch.

The call stack says who reads: the running methods of loaders and trainers have them as ``self``. Of these, only public classes
and attributes are used. No framework is imported here: if one is not loaded, it reads no stream.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..errors import ConfigError
from .config import StreamConfig

_ROWS = 'train_dataset=stream.rows(keys="hf"), without .batch()'


def refuse_reader(stream: IterableDataset[Any], config: StreamConfig, kind: type, world_size: int) -> None:
    """Raise ``ConfigError`` if the framework that reads ``stream`` now would not train on what the stream gives.

    ``kind`` is the class of all streams, ``world_size`` the number of ranks that share this one.
    """
    loaders = [loader for loader in _loaders() if _may_read(loader, stream, kind)]
    _refuse_second_split(loaders, world_size)
    _refuse_trainer(stream, config, keyed=config.keyed)
    _refuse_stacking(loaders, config)
    _refuse_undivided(loaders, config)
    _refuse_missing_workers()
    _refuse_read_ahead(stream, kind)


def refuse_reader_of_loader(loader: IterableDataset[Any], config: StreamConfig, *, keyed: bool) -> None:
    """Raise ``ConfigError`` if what reads ``stream.loader()`` now is a ``DataLoader``, or a Trainer that needs its ``keys``."""
    if any(_innermost(reader) is loader for reader in _loaders()):
        raise ConfigError(
            f"stream.loader() replaces a DataLoader, and is no dataset of one: give a Trainer {_ROWS}, and a "
            "DataLoader the stream, DataLoader(stream, batch_size=None)"
        )
    _refuse_trainer(loader, config, keyed=keyed)


def has_length(loader: Any) -> bool:
    """Say whether a loader or a stream knows its length."""
    try:
        return len(loader) >= 0
    except (TypeError, NotImplementedError):
        return False


def _readers(*modules: str) -> Iterator[Any]:
    """Yield the objects whose methods, defined in ``modules``, are running now; the innermost call first.

    A worker that was forked still has the calls of its parent.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # Other frames are left alone, since f_locals keeps alive what it names.
        if frame.f_globals.get("__name__", "").startswith(modules) and frame.f_code.co_varnames[:1] == ("self",):
            yield frame.f_locals.get("self")
        frame = frame.f_back


def _loaders() -> list[DataLoader[Any]]:
    """Return the loaders that are read now, the innermost first."""
    readers = _readers("torch.utils.data.", "torchdata.", "accelerate.")
    return [reader for reader in readers if isinstance(reader, DataLoader)]


def _refuse_second_split(loaders: list[DataLoader[Any]], world_size: int) -> None:
    """Refuse loaders of Accelerate that divide among processes what they read of a stream that is divided already."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if world_size == 1 or accelerate is None:
        return
    for loader in loaders:
        processes = 1
        if isinstance(loader, accelerate.DataLoaderDispatcher):
            processes = loader.state.num_processes
        elif isinstance(loader.dataset, accelerate.IterableDatasetShard):
            processes = loader.dataset.num_processes
        if processes > 1:
            raise ConfigError(
                f"Accelerate would split this stream among {processes} processes, but the stream gives each of "
                f"{world_size} ranks its own part already, so most of the data would never be read: give a Trainer {_ROWS}, "
                "and Accelerate prepare(DataLoader(stream.rows(), batch_size=n)); or use stream.loader() in place of the "
                "DataLoader, and for evaluation stream.loader(repeat=True), which accelerator.prepare leaves alone"
            )


def _refuse_stacking(loaders: list[DataLoader[Any]], config: StreamConfig) -> None:
    """Refuse a loader that would make batches of batches."""
    for loader in loaders:
        if config.batch_size is not None and loader.batch_size is not None:
            raise ConfigError(
                f"this DataLoader has batch_size={loader.batch_size} and would stack batches of this stream, to "
                f"[{loader.batch_size}, {config.batch_size}, ...]: the stream makes the batches, so give it "
                f"DataLoader(stream, batch_size=None), or remove .batch({config.batch_size}); a Trainer takes {_ROWS}"
            )


def _refuse_undivided(loaders: list[DataLoader[Any]], config: StreamConfig) -> None:
    """Refuse a loader that reads `Stream.rows` on each of several ranks, without Accelerate, which would divide them."""
    if not (config.whole_rows and loaders and dist.is_available() and dist.is_initialized()):
        return
    accelerate = sys.modules.get("accelerate.data_loader")
    if dist.get_world_size() > 1 and not (
        accelerate is not None and any(isinstance(loader, accelerate.DataLoaderStateMixin) for loader in loaders)
    ):
        raise ConfigError(
            f"stream.rows() gives the whole stream, so each of {dist.get_world_size()} ranks would read all of it: it is for "
            "a Trainer and accelerator.prepare, which divide it; give this DataLoader the stream itself, which gives each "
            "rank its own part"
        )


def _refuse_missing_workers() -> None:
    """Refuse a dataset of Hugging Face around a stream that starts one of several workers, which has the part of one."""
    module: Any = sys.modules.get("datasets.iterable_dataset")
    worker = get_worker_info()
    if module is None or worker is None:
        return
    for dataset in _readers("datasets.iterable_dataset"):
        if isinstance(dataset, module.IterableDataset) and dataset.num_shards < worker.num_workers:
            raise ConfigError(
                f"a datasets.IterableDataset of {dataset.num_shards} shards reads in as many of {worker.num_workers} workers, "
                "and the rows of the others would never be read: set dataloader_num_workers=1, or give the stream without it"
            )


def _refuse_trainer(dataset: IterableDataset[Any], config: StreamConfig, *, keyed: bool) -> None:
    """Refuse a ``Trainer`` of transformers whose model would shift labels again, or that would resume at another place."""
    transformers: Any = sys.modules.get("transformers.trainer")
    readers = () if transformers is None else _readers("transformers.trainer")
    trainer = next((reader for reader in readers if isinstance(reader, transformers.Trainer)), None)
    if trainer is None:
        return
    callbacks, layout = trainer.callback_handler, config.layout
    given = [trainer.train_dataset, trainer.eval_dataset, callbacks.train_dataloader, callbacks.eval_dataloader]
    if not any(_innermost(loader) is dataset for loader in _flat(given)):
        return
    if not keyed and layout is not None and not layout.same_labels:
        raise ConfigError(
            f"labels of this stream are shifted already, and models of transformers shift them again: give the Trainer {_ROWS}, "
            'or return stream.loader(keys="hf") from get_train_dataloader; for a model that does not shift, keys is a function '
            "of your own, as in keys=lambda batch: batch"
        )
    if trainer.train_dataset is dataset and config.epochs is not None and (config.sequential or config.epochs > 1):
        cure = "set epochs=1, and num_train_epochs of the Trainer"
        if config.sequential:
            cure = "leave epochs out, and set max_steps of the Trainer"
        raise ConfigError(
            f"epochs={config.epochs} of text, filters, best fit, or above 1: a Trainer finds where to resume by the "
            f"length of a single epoch, and this stream has none; {cure}"
        )
    pads = trainer.data_collator is not transformers.default_data_collator
    pads = pads and not isinstance(trainer.data_collator, transformers.DataCollatorWithPadding)  # which pads no labels
    if config.whole_rows and not pads and layout is not None and layout.kind == "documents":
        raise ConfigError(
            "rows of .documents() have several lengths, and the default collator of a Trainer does not pad their labels: set "
            "data_collator=transformers.DataCollatorForSeq2Seq(tokenizer), or use .pack(seq_len, best_fit=True)"
        )


def _refuse_read_ahead(stream: IterableDataset[Any], kind: type) -> None:
    """Refuse Lightning if it trains on a loader of a stream, and would read ahead of a state that it saves."""
    modules = [sys.modules.get(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    classes = tuple(trainer for module in modules if (trainer := getattr(module, "Trainer", None)) is not None)
    if not classes or has_length(stream):
        return
    for trainer in _readers("lightning.pytorch.", "pytorch_lightning."):
        for loader in _flat(trainer.train_dataloader) if isinstance(trainer, classes) and trainer.training else ():
            if hasattr(loader, "load_state_dict") and not has_length(loader) and _may_read(loader, stream, kind):
                raise ConfigError(
                    "Lightning reads one batch ahead in a loader without a length, then saves its state, so each resume "
                    "would lose a batch of this stream: give trainer.fit stream.loader(), which has a length, or bound the "
                    "stream by epochs= or .take(n)"
                )


def _may_read(loader: Any, stream: IterableDataset[Any], kind: type) -> bool:
    """Say whether a loader reads a stream of a ``kind``: itself, or perhaps inside an iterable dataset of the user."""
    innermost = _innermost(loader)
    return innermost is stream or (isinstance(innermost, IterableDataset) and not isinstance(innermost, kind))


def _innermost(loader: Any) -> Any:
    """Return the dataset inside loaders and what frameworks put around it."""
    while (dataset := getattr(loader, "dataset", None)) is not None:
        loader = dataset
    return loader


def _flat(loaders: Any) -> list[Any]:
    """Return the loaders in a collection of any depth."""
    if isinstance(loaders, Mapping):
        return [loader for value in loaders.values() for loader in _flat(value)]
    if isinstance(loaders, list | tuple):
        return [loader for value in loaders for loader in _flat(value)]
    return [] if loaders is None else [loaders]
