"""Training frameworks: what they take in place of a ``DataLoader``, batches under their keys, and what is refused.

`Loader` is left alone by Accelerate, and is not read ahead by Lightning. Models of frameworks shift labels by themselves or not,
as `key_map` knows. A stream is refused where a framework would lose a part of it without an error:

Accelerate: a stream gives each rank its own part. ``accelerator.prepare(DataLoader(stream))``, and so
``Trainer(train_dataset=stream)``, splits what it reads again: it dispatches the items of rank 0 to all ranks, or keeps
every n-th item of each rank. Either way a part of the data is never read. ``GradientState`` has the loader that is
iterated.

Lightning reads one batch ahead of the training step in loaders without a length, and then saves their state: each resume
loses that batch. A ``Trainer`` has its loaders, but no list holds the trainers: Python's collector of garbage finds what
refers to their class.

No framework is imported here: where one is not loaded, it reads no stream.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ..errors import ConfigError
from .batch.batch_keys import KEYS
from .batch.collate import IGNORE
from .config import StreamConfig
from .iteration.iterator import StreamIterator
from .iteration.stream_position import StreamPosition

ENDLESS_LENGTH = 2**31  # what frameworks take for a length where a stream has none

log = logging.getLogger("pipeline")


class Loader:
    """Iterates a stream under the keys and by the protocol of a training framework.

    ``len()`` is the stream's own if it is known, else ``length``, else 2**31 of an endless stream. The first pass begins where
    the stream stands. If the stream knows its length, each later ``iter()`` begins the next pass, even if the last one was
    left in its middle; else it goes on where the last one was left. With ``repeat``, each pass is the stream from its start
    to its end, for evaluation: ``set_epoch`` and ``load_state_dict`` change nothing, and the given stream stays where it is.

    Raises ``ConfigError`` where ``keys`` or ``length`` do not suit the stream, where it ends after a number of batches that is
    unknown in advance and no ``length`` is stated, and for ``repeat`` of an endless stream.
    """

    def __init__(
        self,
        config: StreamConfig,
        position: StreamPosition,
        keys: str | Callable[[Any], Any] | None,
        length: int | None,
        repeat: bool = False,
    ) -> None:
        self._config = config
        self._position = StreamPosition(config) if repeat else position
        self._map = key_map(keys, config)
        self._length = length
        self._repeat = repeat
        self._items: StreamIterator | None = None  # the stream's iterator in the latest pass
        known, endless = self._known_length(), position.passes.endless
        if known is not None and length is not None:
            raise ConfigError(f"the stream knows its length, {known} batches; remove length={length}")
        if repeat and endless:
            raise ConfigError(
                "repeat=True gives the same batches in each pass, but this stream is endless; bound it by epochs=1 or .take(n)"
            )
        if known is None and length is None and not endless and config.layout is not None:
            raise ConfigError(
                "frameworks ask a loader for its length, but after how many batches this stream ends is unknown in advance; "
                "state it, .loader(length=n), or leave epochs out and end the stream by .take(n)"
            )

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of a pass; it ends an earlier one."""
        if self._repeat:
            self.close()
            self._position = StreamPosition(self._config)
        elif self._leave_pass():
            self._position.next_pass()
        self._items = self._position.iterate()
        return map(self._map, chain.from_iterable(self._parts_of_pass(self._items)))

    def __len__(self) -> int:
        known = self._known_length()
        return (self._length or ENDLESS_LENGTH) if known is None else known

    def set_epoch(self, epoch: int) -> None:
        """Do what ``Stream.set_epoch`` does: the first call after a load keeps the position, others begin a pass."""
        if self._repeat:
            return
        ended = self._leave_pass()
        self._position.set_epoch(epoch)
        if ended and not self._position.passes.exist:
            self._position.next_pass()

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state after the batches handed out."""
        return self._position.save(None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; the next pass starts there, or is the one after where the state ended one."""
        self.close()
        if self._repeat:
            return
        self._position.load(state)

    def close(self) -> None:
        """End the running pass and stop its threads."""
        if self._items is not None:
            self._items.close()
            self._items = None

    def _parts_of_pass(self, items: StreamIterator) -> Iterator[StreamIterator]:
        """Yield the iterator of a pass, and where its state was saved at the end of a pass, that of the next one."""
        yield items
        if not items.progress.items and self._position.loaded and items is self._items:
            self._position.next_pass()
            self._items = self._position.iterate()
            yield self._items

    def _known_length(self) -> int | None:
        try:
            return self._position.length()
        except TypeError:
            return None

    def _leave_pass(self) -> bool:
        """End the latest pass; say whether the next one begins, unless somebody said already what is read next."""
        items, self._items = self._items, None
        if items is None:
            return False
        if items.live and self._known_length() is None:
            state = self._position.save(None)
            items.close()
            self._position.load(state)
            return False
        items.close()
        return bool(items.progress.items or items.progress.finished) and items.moved_by is None


KeyMap = Callable[[Any], Any]


def key_map(keys: str | KeyMap | None, config: StreamConfig) -> KeyMap:
    """Return the function that ``keys`` name, for the batches of ``config``; raises ``ConfigError`` where they do not suit."""
    if keys is None:
        return _unchanged
    if callable(keys):
        return keys
    if not isinstance(keys, str) or keys not in ("hf", "torchtitan"):
        raise ConfigError(f"keys must be 'hf', 'torchtitan' or a function of a batch, got {keys!r}")
    for unsuitable, what, cure in (
        (config.batch_size is None, "samples", "add .batch(size)"),
        (config.numpy, "NumPy arrays", "remove .numpy()"),
        (config.stored, "ids in their stored width", "remove dtype='stored'"),
        (config.layout is not None and config.layout.drawn_shift, "labels of drawn shifts", "set shift=1"),
    ):
        if unsuitable:
            raise ConfigError(f"keys={keys!r} needs batches of int64 tensors, but the stream gives {what}; {cure}")
    same = config.layout is not None and config.layout.same_labels
    if keys == "hf":
        return _hugging_face if same else partial(_hugging_face, shifted=True)
    if same:
        raise ConfigError("torchtitan takes labels that are shifted already; remove labels='same'")
    return _torchtitan


def _unchanged(batch: Any) -> Any:
    return batch


def _hugging_face(batch: dict[str, Any], shifted: bool = False) -> dict[str, torch.Tensor]:
    """Keep what models of ``transformers`` take; labels lie one position later, since these models shift them back.

    What is masked stays masked. The label of the last position of a row is lost: those models never use it.
    """
    kept = {key: batch[key] for key, declared in KEYS.items() if declared.hugging_face and key in batch}
    if shifted:
        labels = torch.full_like(kept["labels"], IGNORE)
        labels[..., 1:] = kept["labels"][..., :-1]
        kept["labels"] = labels
    return kept


def _torchtitan(batch: dict[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the batch flattened: ``input`` and ``positions``, and labels, each of batch size times length tokens."""
    ids = batch["input_ids"]
    positions = batch.get("position_ids")
    if positions is None:
        positions = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
    return {"input": ids.reshape(-1), "positions": positions.reshape(-1)}, batch["labels"].reshape(-1)


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
