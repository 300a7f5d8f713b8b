"""Rows of a batch as text, with marks around tokens that the loss ignores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, value_text
from .batch.collate import IGNORE

if TYPE_CHECKING:
    from ..text.tokens.tokenizer import Tokenizer


def decoded(batch: Any, tokenizer: Tokenizer, shift: int | None) -> list[str]:
    """Return each row as text; the label of a token is ``shift`` positions before it (None: as the batch says).

    Ids without labels have no marks.
    """
    if not isinstance(batch, Mapping) or "labels" not in batch:
        return [_spelled(row, tokenizer) for row in _rows_of_ids(batch)]
    arrays = {name: _array(value) for name, value in batch.items() if hasattr(value, "shape")}
    sample = arrays["labels"].ndim == 1
    counts = arrays["labels"] != IGNORE
    if "ignored" in arrays:
        counts.reshape(-1)[arrays["ignored"]] = False
    rows = 1 if sample else len(counts)
    ids, counts = arrays["input_ids"].reshape(rows, -1), counts.reshape(rows, -1)
    there = arrays.get("attention_mask", np.ones_like(ids)).reshape(rows, -1) != 0
    shift = batch["shift"] if shift is None else shift
    counted = np.ones_like(there)  # the first tokens of a row are no labels, and are not marked
    counted[:, shift:] = counts[:, : counts.shape[1] - shift]
    return [_text(*row, tokenizer) for row in zip(ids, there, counted, strict=True)]


def _rows_of_ids(value: Any) -> list[list[int]]:
    """Return the rows of ids alone: of a tensor, an array, a list, or a dict with ``input_ids``."""
    ids = value.get("input_ids", ()) if isinstance(value, Mapping) else value
    try:
        array = _array(ids)
    except (TypeError, ValueError):  # rows of several lengths
        array = np.empty(0)
    if array.ndim == 0 or array.dtype.kind not in "ui":
        raise ConfigError(f"decode needs a batch of this stream, a sample, or their input_ids, got {value_text(value)}")
    rows: list[list[int]] = (array.reshape(1, -1) if array.ndim == 1 else array.reshape(len(array), -1)).tolist()
    return rows


def _array(value: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    return array


def _text(ids: NDArray[Any], there: NDArray[np.bool_], counted: NDArray[np.bool_], tokenizer: Tokenizer) -> str:
    tokens = zip(ids[there].tolist(), counted[there].tolist(), strict=True)
    runs = [
        (counts, _spelled([id for id, _ in run], tokenizer))
        for counts, run in groupby(tokens, key=lambda token: token[1])
    ]
    return "".join(text if counts else f"⟦{text}⟧" for counts, text in runs)


def _spelled(ids: list[int], tokenizer: Tokenizer) -> str:
    """Return the text of ids; an id that the tokenizer lacks, such as a mark, is written as ``<384>``."""
    runs = groupby(ids, key=lambda id: 0 <= id < tokenizer.vocab_size)
    return "".join(tokenizer.decode(run) if known else "".join(f"<{id}>" for id in run) for known, run in runs)
