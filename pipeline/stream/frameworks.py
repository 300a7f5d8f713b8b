"""Training frameworks: the loader that they take in place of a ``DataLoader``, and the keys of their batches and rows.

Accelerate does not change a `Loader`, and Lightning does not read ahead in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ..errors import ConfigError
from .batch.batch_keys import KEYS
from .batch.collate import IGNORE
from .framework_checks import check_frameworks_of_loader
from .iteration.iterator import StreamIterator
from .iteration.stream_position import StreamPosition
from .settings import StreamSettings

ENDLESS_LENGTH = 2**31  # the ``len()`` of a loader of an endless stream


class Loader(IterableDataset[Any]):
    """Iterates a stream with the keys and the protocol of a training framework.

    ``len()`` is the stream's if it is known, else ``length``, else 2**31 for an endless stream. The first pass begins at the
    stream's position. If the stream knows its length, each later ``iter()`` begins the next pass, even if the last pass was
    broken off; otherwise it continues a pass that was broken off. With ``repeat``, for evaluation, each pass is the stream
    from its start to its end: ``set_epoch`` and ``load_state_dict`` change nothing, and the given stream does not move.

    Raises ``ConfigError`` if ``keys`` or ``length`` do not suit the stream, or if ``repeat`` is given for an endless stream.
    A stream whose number of batches is unknown in advance needs ``length``.
    """

    # This is an IterableDataset so that a framework that takes it for a dataset iterates it, and is refused. It would draw a
    # permutation of the length otherwise.

    def __init__(
        self,
        settings: StreamSettings,
        position: StreamPosition,
        keys: str | Callable[[Any], Any] | None,
        length: int | None,
        repeat: bool = False,
    ) -> None:
        self._settings = settings
        self._position = StreamPosition(settings) if repeat else position
        self._map = key_map(keys, settings)
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
        if known is None and length is None and not endless and settings.layout is not None:
            raise ConfigError(
                "frameworks ask a loader for its length, but the number of batches of this stream is unknown in advance; "
                "state it, .loader(length=n), or leave epochs out and end the stream by .take(n)"
            )

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of a pass; the call ends an earlier iterator."""
        check_frameworks_of_loader(self, self._settings, keyed=self._map is not _unchanged)
        if self._repeat:
            self.close()
            self._position = StreamPosition(self._settings)
        elif self._leave_pass():
            self._position.next_pass()
        self._items = self._position.iterate(follows=True)
        return map(self._map, self._items)

    def __len__(self) -> int:
        known = self._known_length()
        return (self._length or ENDLESS_LENGTH) if known is None else known

    def set_epoch(self, epoch: int) -> None:
        """Move as ``Stream.set_epoch`` does: the first call after a load keeps the position, others begin a pass."""
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
        """Continue from ``state``: the next pass begins there, or is the following pass if the state is at a pass's end."""
        self.close()
        if self._repeat:
            return
        self._position.load(state)

    @property
    def dataset(self) -> Any:
        """Raise ``AttributeError``. Accelerate asks for a dataset to skip batches, so the error says how to skip."""
        raise AttributeError(
            "stream.loader() has no dataset; in place of accelerate.skip_first_batches(loader, n), call stream.skip(n) before "
            "the loop (an indexed stream skips without reading), or load a state: loader.load_state_dict(...)"
        )

    def close(self) -> None:
        """End the running pass and stop its threads."""
        if self._items is not None:
            self._items.close()
            self._items = None

    def _known_length(self) -> int | None:
        try:
            return self._position.length()
        except TypeError:
            return None

    def _leave_pass(self) -> bool:
        """End the latest pass, and say whether to begin the next: not if a call has already set the position."""
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


def key_map(keys: str | KeyMap | None, settings: StreamSettings, *, rows: bool = False) -> KeyMap:
    """Return the function that ``keys`` name, for batches or ``rows``; ``ConfigError`` if they do not suit the stream."""
    if keys is None:
        return _unchanged
    if callable(keys):
        return keys
    known = ("hf",) if rows else ("hf", "torchtitan")
    if not isinstance(keys, str) or keys not in known:
        raise ConfigError(
            f"keys must be {', '.join(map(repr, known))} or a function of a {'row' if rows else 'batch'}, got {keys!r}"
        )
    for unsuitable, what, cure in (
        (not rows and settings.batch_size is None, "samples", "add .batch(size)"),
        (settings.numpy, "NumPy arrays", "remove .numpy()"),
        (settings.stored, "ids in their stored width", "remove dtype='stored'"),
        (settings.layout is not None and settings.layout.drawn_shift, "labels of drawn shifts", "set shift=1"),
    ):
        if unsuitable:
            wanted = "rows" if rows else "batches"
            raise ConfigError(f"keys={keys!r} needs {wanted} of int64 tensors, but the stream gives {what}; {cure}")
    same = settings.layout is not None and settings.layout.same_labels
    if keys == "hf" and settings.sliced:
        return _slices_of_hugging_face
    if keys == "hf":
        return _hugging_face if same else partial(_hugging_face, shifted=True)
    if same:
        raise ConfigError("torchtitan takes labels that are shifted already; remove labels='same'")
    return _torchtitan


def _unchanged(batch: Any) -> Any:
    return batch


def _hugging_face(batch: dict[str, Any], shifted: bool = False) -> dict[str, torch.Tensor]:
    """Return the keys that models of ``transformers`` take. ``shifted`` labels move one position back, as the models expect.

    Masked labels stay masked. The label of a row's last position is lost; these models never use it.
    """
    kept = {key: batch[key] for key, declared in KEYS.items() if declared.hugging_face and key in batch}
    if shifted:
        labels = torch.full_like(kept["labels"], IGNORE)
        labels[..., 1:] = kept["labels"][..., :-1]
        kept["labels"] = labels
    return kept


def _slices_of_hugging_face(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the keys that models of ``transformers`` take for slices. They do not shift ``shift_labels``."""
    kept = _hugging_face(batch)
    return kept | {"shift_labels": kept["labels"]}


def _torchtitan(batch: dict[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return ``({"input", "positions"}, labels)``, each flattened to batch size times length tokens."""
    ids = batch["input_ids"]
    positions = batch.get("position_ids")
    if positions is None:
        positions = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
    return {"input": ids.reshape(-1), "positions": positions.reshape(-1)}, batch["labels"].reshape(-1)
