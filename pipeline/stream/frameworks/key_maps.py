"""Batches under the keys of other frameworks, whose models shift labels by themselves or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...errors import ConfigError
from ..batch.collate import IGNORE
from ..config import StreamConfig

KeyMap = Callable[[Any], Any]
_HUGGING_FACE = ("input_ids", "labels", "attention_mask", "position_ids")


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
    """Keep what models of ``transformers`` take; labels lie one place later, since these models shift them back.

    What is masked stays masked. The label of the last place of a row is lost: those models never use it.
    """
    kept = {key: batch[key] for key in _HUGGING_FACE if key in batch}
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
