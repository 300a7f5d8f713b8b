"""Rows of a batch as text, with marks around tokens that the loss ignores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, value_text
from .batch.collate import IGNORE
from .layout import Layout

if TYPE_CHECKING:
    from ..text.tokens.tokenizer import Tokenizer


def decoded(batch: Any, tokenizer: Tokenizer, layout: Layout) -> list[str]:
    """Return each row of a stream of ``layout`` as text. Ids without labels have no marks."""
    if not isinstance(batch, Mapping) or "labels" not in batch:
        return [spelled(tokenizer, row) for row in _rows_of_ids(batch)]
    return [_text(*row, tokenizer) for row in zip(*marked(batch, layout), strict=True)]


def marked(batch: Mapping[str, Any], layout: Layout) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the ids of each row, which of them are no padding, and which count in the loss."""
    arrays = {name: _array(value) for name, value in batch.items() if hasattr(value, "shape")}
    sample = arrays["labels"].ndim == 1
    counts = arrays["labels"] != IGNORE
    if "ignored" in arrays:
        counts.reshape(-1)[arrays["ignored"]] = False
    rows = 1 if sample else len(counts)
    ids, counts = arrays["input_ids"].reshape(rows, -1), counts.reshape(rows, -1)
    there = arrays.get("attention_mask", np.ones_like(ids)).reshape(rows, -1) != 0
    # The label of a token is ``shift`` positions before it.
    shift = 0 if layout.same_labels else getattr(layout, "shift", 1)
    shift = batch["shift"] if shift is None else shift
    counted = np.ones_like(there)  # the first tokens of a row are no labels, and are not marked
    counted[:, shift:] = counts[:, : counts.shape[1] - shift]
    return ids, there, counted


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
    parts = text_runs(ids[there], counted[there], partial(spelled, tokenizer))
    return "".join(text if counts else f"⟦{text}⟧" for counts, _, text in parts if text)


def text_runs(
    ids: NDArray[Any], kinds: NDArray[Any], spell: Callable[[list[int]], str]
) -> Iterator[tuple[int, int, str]]:
    """Yield kind, number of tokens and text of each run of equal ``kinds``. A character is in the run of its first token."""
    at, numbers = 0, ids.tolist()
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(ids)] if numbers else ()):
        end = max(at, last)
        text = spell(numbers[at:end])
        if text.endswith("\ufffd"):  # if the next tokens complete the character, it loses this mark
            longer = ((stop, spell(numbers[at:stop])) for stop in range(end + 1, min(end + 4, len(ids) + 1)))
            lost = text.count("\ufffd")
            end, text = next((pair for pair in longer if pair[1].count("\ufffd") < lost), (end, text))
        yield int(kinds[first]), last - first, text
        at = end


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the text of ids; an id that the tokenizer lacks, such as a mark, is written as ``<384>``."""
    runs = groupby(ids, key=lambda id: 0 <= id < tokenizer.vocab_size)
    return "".join(tokenizer.decode(run) if known else "".join(f"<{id}>" for id in run) for known, run in runs)
