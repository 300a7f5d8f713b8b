"""Refuses frameworks that would silently lose a part of a stream, or train on other labels.

- torch: ``DataLoader(stream)`` has ``batch_size=1``, and stacks batches to ``[1, batch_size, seq_len]``.
- Accelerate: each rank of a stream reads its own part. ``accelerator.prepare(DataLoader(stream))``, and so
  ``Trainer(train_dataset=stream)``, splits that part again: it dispatches the items of rank 0 to all ranks, or keeps
  every n-th item of each rank. Either way a part of the data is never read.
- transformers: models shift labels, but a stream has shifted them already. A ``Trainer`` resumes by the length of a pass.
- Collators of transformers and TRL add attention masks of ones, drop ``position_ids`` and replace labels, so boundaries and
  loss masks are lost. TRL cuts rows at 1,024 tokens. Flash attention keeps documents apart only in batches of one row.
- datasets: only one of several workers reads an ``IterableDataset.from_generator``, and reads only its own part of the stream.
- torch: with ``in_order=False``, a position does not say which batches of several workers were read.
- Lightning: in a loader without a length, it reads one batch ahead of the training step, and then saves the loader's state.
  Each resume loses that batch.

The call stack shows which loaders and trainers read: they are the ``self`` of running methods. Only their public classes and
attributes are used. No framework is imported here: a framework that is not loaded cannot read a stream.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..errors import ConfigError
from .batch.collate import IGNORE
from .ranks import launched
from .settings import StreamSettings

_ROWS = 'train_dataset=stream.rows(keys="hf"), without .batch()'


def check_frameworks(stream: IterableDataset[Any], settings: StreamSettings, kind: type, world_size: int) -> None:
    """Raise ``ConfigError`` if the framework that reads ``stream`` now would lose or change items.

    ``kind`` is the class of all streams, ``world_size`` the number of ranks that share ``stream``.
    """
    loaders = [loader for loader in _loaders() if _may_read(loader, stream, kind)]
    _refuse_second_split(loaders, world_size)
    _refuse_trainer(stream, settings, keyed=bool(settings.keyed))
    _refuse_collator(loaders, settings)
    _refuse_stacking(loaders, settings)
    _refuse_undivided(loaders, settings)
    _refuse_any_order(loaders)
    _refuse_missing_workers()
    _refuse_read_ahead(stream, kind)


def check_frameworks_of_loader(loader: IterableDataset[Any], settings: StreamSettings, *, keyed: bool) -> None:
    """Raise ``ConfigError`` if a ``DataLoader`` reads ``stream.loader()`` now, or a Trainer that needs ``keys``."""
    if any(_innermost(reader) is loader for reader in _loaders()):
        raise ConfigError(
            f"a DataLoader reads stream.loader(), which is not a dataset but replaces a DataLoader: give a Trainer {_ROWS}, "
            "and a DataLoader the stream, DataLoader(stream, batch_size=None)"
        )
    _refuse_trainer(loader, settings, keyed=keyed)


def has_length(loader: Any) -> bool:
    """Say whether a loader or a stream knows its length."""
    try:
        return len(loader) >= 0
    except (TypeError, NotImplementedError):
        return False


def _readers(*modules: str) -> Iterator[Any]:
    """Yield the objects whose methods, defined in ``modules``, are running now; the innermost call first.

    The stack of a forked worker includes the calls of its parent.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # f_locals keeps objects alive, so it is read for these frames alone.
        if frame.f_globals.get("__name__", "").startswith(modules) and frame.f_code.co_varnames[:1] == ("self",):
            yield frame.f_locals.get("self")
        frame = frame.f_back


def _loaders() -> list[DataLoader[Any]]:
    """Return the loaders that are being read now, the innermost first."""
    readers = _readers("torch.utils.data.", "torchdata.", "accelerate.")
    return [reader for reader in readers if isinstance(reader, DataLoader)]


def _refuse_second_split(loaders: list[DataLoader[Any]], world_size: int) -> None:
    """Refuse loaders of Accelerate that divide a stream among processes although ranks read parts of it already."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if world_size == 1 or accelerate is None:
        return
    for loader in loaders:
        processes = _processes(loader, accelerate)
        if processes > 1:
            raise ConfigError(
                f"Accelerate would split this stream among {processes} processes, but the stream already gives each of "
                f"{world_size} ranks its own part; most of the data would never be read: give a Trainer {_ROWS}, "
                "and Accelerate prepare(DataLoader(stream.rows(), batch_size=n)); or use stream.loader() in place of the "
                "DataLoader, and for evaluation stream.loader(repeat=True), which accelerator.prepare leaves alone"
            )


def _processes(loader: Any, accelerate: Any) -> int:
    """Return among how many processes a loader of Accelerate divides its dataset."""
    if isinstance(loader, accelerate.DataLoaderDispatcher):
        return int(loader.state.num_processes)
    return int(loader.dataset.num_processes) if isinstance(loader.dataset, accelerate.IterableDatasetShard) else 1


def _refuse_stacking(loaders: list[DataLoader[Any]], settings: StreamSettings) -> None:
    """Refuse a loader that would make batches of batches."""
    for loader in loaders:
        if settings.batch_size is not None and loader.batch_size is not None:
            raise ConfigError(
                f"this DataLoader has batch_size={loader.batch_size} and would stack batches of this stream, to "
                f"[{loader.batch_size}, {settings.batch_size}, ...]: the stream makes the batches, so give it "
                f"DataLoader(stream, batch_size=None), or remove .batch({settings.batch_size}); a Trainer takes {_ROWS}"
            )


def _refuse_undivided(loaders: list[DataLoader[Any]], settings: StreamSettings) -> None:
    """Refuse a loader that reads `Stream.rows` on each of several ranks, unless Accelerate divides the rows."""
    if not (settings.whole_rows and loaders):
        return
    accelerate = sys.modules.get("accelerate.data_loader")
    divided = accelerate is not None and any(isinstance(loader, accelerate.DataLoaderStateMixin) for loader in loaders)
    if dist.is_available() and dist.is_initialized():
        if dist.get_world_size() > 1 and not divided:
            raise ConfigError(
                f"stream.rows() gives the whole stream, so each of {dist.get_world_size()} ranks would read all of it: it is for "
                "a Trainer and accelerator.prepare, which divide it; give this DataLoader the stream itself, without .rows()"
            )
        return
    ranks, name, _ = launched()
    on_purpose = any(call.startswith(".shard(") for call in settings.calls)
    if ranks > 1 and not on_purpose and not (divided and any(_processes(each, accelerate) > 1 for each in loaders)):
        raise ConfigError(
            f"{name}, but torch.distributed has no process group here, so each of the {ranks} processes would read all rows: "
            "start the program by torchrun or accelerate launch; .shard(0, 1).rows() reads them on purpose"
        )


def _refuse_any_order(loaders: list[DataLoader[Any]]) -> None:
    """Refuse a loader that hands out batches in the order in which its workers finish them."""
    for loader in loaders:
        if loader.num_workers > 1 and not getattr(loader, "in_order", True):
            raise ConfigError(
                "in_order=False hands out batches in the order in which workers finish them, so no state says which batches "
                "were read, and a resume would lose some and repeat others: remove in_order=False or dataloader_in_order"
            )


def _refuse_missing_workers() -> None:
    """Refuse a Hugging Face dataset around a stream if only some of the workers read the dataset."""
    module: Any = sys.modules.get("datasets.iterable_dataset")
    worker = get_worker_info()
    if module is None or worker is None:
        return
    for dataset in _readers("datasets.iterable_dataset"):
        if isinstance(dataset, module.IterableDataset) and dataset.num_shards < worker.num_workers:
            raise ConfigError(
                f"only {dataset.num_shards} of {worker.num_workers} workers read a datasets.IterableDataset of "
                f"{dataset.num_shards} shards, so the rows of the other workers would be lost: set dataloader_num_workers=1, or "
                "give the stream without datasets"
            )


def _refuse_trainer(dataset: IterableDataset[Any], settings: StreamSettings, *, keyed: bool) -> None:
    """Refuse a ``Trainer`` of transformers whose model would shift labels again, or that would resume at a wrong position."""
    transformers: Any = sys.modules.get("transformers.trainer")
    readers = () if transformers is None else _readers("transformers.trainer")
    trainer = next((reader for reader in readers if isinstance(reader, transformers.Trainer)), None)
    if trainer is None:
        return
    callbacks, layout = trainer.callback_handler, settings.layout
    given = [trainer.train_dataset, trainer.eval_dataset, callbacks.train_dataloader, callbacks.eval_dataloader]
    around = [dataset, *_readers("datasets.iterable_dataset")]  # a dataset of Hugging Face may be around the stream
    read = [each for each in map(_innermost, _flat(given)) if any(each is one for one in around)]
    if not read:
        return
    if read[0] is not dataset:
        _refuse_cut(trainer, settings)
    _refuse_flash_attention(trainer, settings)
    if not keyed and layout is not None and not layout.same_labels:
        raise ConfigError(
            f"labels of this stream are shifted already, and models of transformers shift them again: give the Trainer {_ROWS}, "
            'or return stream.loader(keys="hf") from get_train_dataloader; for a model that does not shift, write keys=lambda '
            "batch: batch"
        )
    if (
        trainer.train_dataset is dataset
        and settings.epochs is not None
        and (settings.sequential or settings.epochs > 1)
    ):
        cure = "set epochs=1, and num_train_epochs of the Trainer"
        if settings.sequential:
            cure = "leave epochs out, and set max_steps of the Trainer"
        raise ConfigError(
            "a Trainer finds where to resume by the length of a single epoch; a stream with "
            f"epochs={settings.epochs} has no such length if it is sequential (text, filters, best fit) or epochs is above 1; "
            f"{cure}"
        )
    pads = trainer.data_collator is not transformers.default_data_collator
    pads = pads and not isinstance(trainer.data_collator, transformers.DataCollatorWithPadding)  # which pads no labels
    if settings.whole_rows and not pads and layout is not None and layout.kind == "documents":
        raise ConfigError(
            "rows of .documents() have several lengths, and the default collator of a Trainer does not pad their labels: set "
            "data_collator=transformers.DataCollatorForSeq2Seq(tokenizer), or use .pack(seq_len, best_fit=True)"
        )


def _refuse_cut(trainer: Any, settings: StreamSettings) -> None:
    """Refuse a trainer of TRL that would cut rows: it prepares datasets, by default for rows of 1,024 tokens."""
    arguments = trainer.args
    limit, longest = getattr(arguments, "max_length", None), settings.stated_layout().longest
    if limit is None or (getattr(arguments, "dataset_kwargs", None) or {}).get("skip_prepare_dataset"):
        return
    if longest is None or longest > limit:
        length = "any number of" if longest is None else f"{longest:,}"
        raise ConfigError(
            f"{type(trainer).__name__} cuts rows at {limit:,} tokens (max_length of {type(arguments).__name__}), but rows of "
            f"this stream have {length} tokens: set max_length=None, for the stream says how long rows are, and leave packing out"
        )


def _refuse_flash_attention(trainer: Any, settings: StreamSettings) -> None:
    """Refuse batches of several rows for flash attention, which keeps documents apart only in batches of one row."""
    sizes = [loader.batch_size or 1 for loader in _loaders()]
    size = max([1, *sizes] if settings.batch_size is None else [settings.batch_size])
    attention = str(getattr(getattr(trainer.model, "config", None), "_attn_implementation", ""))
    if _has_boundaries(settings) and "flash" in attention and size > 1:
        raise ConfigError(
            f"with attn_implementation={attention!r}, models of transformers keep the documents of a row apart only in batches "
            f"of one row, and these have {size}: make batches of 1 row (per_device_train_batch_size=1, or .batch(1)), and longer "
            "rows or gradient_accumulation_steps; or load the model with attn_implementation='sdpa' or 'flex_attention'"
        )


def _has_boundaries(settings: StreamSettings) -> bool:
    return bool(getattr(settings.layout, "boundaries", False))


def _refuse_collator(loaders: list[DataLoader[Any]], settings: StreamSettings) -> None:
    """Refuse a collator that loses the boundaries or the loss masks of rows with the keys of transformers.

    With an attention mask, even one of ones, models ignore where ``position_ids`` begin again. Many collators add such a mask,
    replace labels by the ids, or drop ``position_ids``. What a collator does with two rows that are made here shows it. A
    collator may pad rows, mask more labels and rename keys.
    """
    boundaries = _has_boundaries(settings)
    if settings.keyed != "hf" or not (boundaries or settings.document_maps):
        return
    row = {"input_ids": [11, 12, 13, 14, 15], "labels": [IGNORE, 12, 13, IGNORE, 15], "position_ids": [0, 1, 2, 0, 1]}
    so, cure = "masked tokens would count", "set data_collator=transformers.default_data_collator"
    if boundaries:
        so = "tokens would attend across documents in spite of boundaries=True"
        cure += " (SFTTrainer: also SFTConfig(max_length=None, remove_unused_columns=False)), or remove boundaries=True"
    else:
        del row["position_ids"]
    if settings.stated_layout().kind == "documents":
        cure = "set data_collator=transformers.DataCollatorForSeq2Seq(tokenizer)"
    for collate in [loader.collate_fn for loader in loaders if loader.batch_size is not None]:
        batch: Any = None
        with suppress(Exception), torch.random.fork_rng(devices=[]):  # a collator of the user may need other keys
            batch = collate([{key: torch.tensor(value, device="cpu") for key, value in row.items()} for _ in range(2)])
        if not isinstance(batch, Mapping):
            continue
        values = {key: _numbers(value) for key, value in batch.items()}
        labels, mask = values.get("labels", []), batch.get("attention_mask")
        on_purpose = getattr(getattr(collate, "data_collator", collate), "mlm", False)
        what = "" if on_purpose or not {11, 14} & {*labels} else "changes labels of the rows"
        if boundaries and getattr(mask, "ndim", 0) > 2:  # says itself which tokens attend to which
            what = "adds an attention_mask in which documents attend to each other" if _mixes_documents(batch) else what
        elif boundaries and getattr(mask, "ndim", 0) == 2:
            what = "adds an attention_mask, with which models ignore where position_ids begin again"
        elif boundaries and not any(str(value).count("0, 1, 2, 0, 1") > 1 for value in values.values()):
            what = "drops or changes position_ids of the rows"
            if "position_ids" not in (getattr(collate, "signature_columns", None) or row):
                what = "drops position_ids, which forward() of this model does not name"
                cure = "remove boundaries=True, or take a model that keeps documents apart by position_ids"
        if what:
            raise ConfigError(f"the collator of this loader {what}, so {so}: {cure}")


def _numbers(value: Any) -> list[Any]:
    """Return the numbers of an array of any shape, or nothing for another value."""
    with suppress(Exception):
        return list(torch.as_tensor(value, device="cpu").reshape(-1).tolist())
    return []


def _mixes_documents(batch: Mapping[Any, Any]) -> bool:
    """Say whether the mask of a batch treats a token of another document as one of the same document."""
    with suppress(Exception):
        ids, mask = (torch.as_tensor(batch[key], device="cpu") for key in ("input_ids", "attention_mask"))
        own, other = (
            mask.reshape(-1, *mask.shape[-2:])[0, ids[0].tolist().index(token), ids[0].tolist().index(11)]
            for token in (12, 14)
        )
        return bool(own == other)
    return False


def _refuse_read_ahead(stream: IterableDataset[Any], kind: type) -> None:
    """Refuse Lightning if it trains on a loader of this stream without a length: it would save a state one batch too late."""
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
    """Say whether a loader reads a stream, or may read it inside an iterable dataset of another ``kind``."""
    innermost = _innermost(loader)
    return innermost is stream or (isinstance(innermost, IterableDataset) and not isinstance(innermost, kind))


def _innermost(loader: Any) -> Any:
    """Return the dataset inside loaders and the wrappers of frameworks."""
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
