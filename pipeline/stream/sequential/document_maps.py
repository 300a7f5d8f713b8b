"""The user's functions of documents: token ids and an optional loss mask in, the same out, before documents are packed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ..function_identity import DocumentMap
from .cursor import Chunk

Mask = NDArray[np.uint8]


def change_of(maps: tuple[DocumentMap, ...], dtype: np.dtype[Any]) -> Callable[[Chunk], Chunk] | None:
    """Return the function that applies ``maps`` to a chunk, None where there are none."""
    return partial(_change, maps, dtype) if maps else None


def _change(maps: tuple[DocumentMap, ...], dtype: np.dtype[Any], chunk: Chunk) -> Chunk:
    ids = np.asarray(chunk.ids).view()
    ids.flags.writeable = False
    stops = np.cumsum(chunk.lengths).tolist()
    documents = [mapped(maps, dtype, ids[begin:stop]) for begin, stop in zip([0, *stops[:-1]], stops, strict=True)]
    lengths = np.array([len(tokens) for tokens, _ in documents], np.int64)
    joined = np.concatenate([np.empty(0, dtype), *(tokens for tokens, _ in documents)])
    mask = None
    if any(one is not None for _, one in documents):
        mask = np.concatenate([np.ones(len(tokens), np.uint8) if one is None else one for tokens, one in documents])
    return chunk._replace(ids=joined, lengths=lengths, mask=mask)


def mapped(maps: tuple[DocumentMap, ...], dtype: np.dtype[Any], ids: NDArray[Any]) -> tuple[NDArray[Any], Mask | None]:
    """Return what ``maps`` make of the ids of a document, which are read-only, and its loss mask, None where all count."""
    mask: Mask | None = None
    for function, name, same_length in maps:
        length = len(ids)
        found = function(ids, mask)
        ids, mask = found if isinstance(found, tuple) and len(found) == 2 else (found, mask)
        ids = _ids_given(name, ids, dtype)
        if same_length and len(ids) != length:
            raise ConfigError(
                f"map_documents function {name} returned {len(ids)} ids for a document of {length}; return as many, or remove "
                "same_length=True"
            )
        mask = None if mask is None else _mask_given(name, mask, len(ids))
    return ids, mask


def _ids_given(name: str, given: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    ids = np.asarray(given)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise ConfigError(
            f"map_documents function {name} must return a 1-D array of token ids, or (ids, mask), got "
            f"{type(given).__name__} of shape {ids.shape} and dtype {ids.dtype}"
        )
    if len(ids) and ids.dtype != dtype:
        low, high, limits = int(ids.min()), int(ids.max()), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise ConfigError(
                f"map_documents function {name} returned the id {low if low < 0 else high}, which {dtype} cannot hold"
            )
    return ids.astype(dtype, copy=False)


def _mask_given(name: str, given: Any, length: int) -> Mask:
    mask = np.asarray(given)
    if mask.shape != (length,) or mask.dtype.kind not in "biu":
        raise ConfigError(
            f"map_documents function {name} must return a loss mask of one boolean or integer for each of its {length} ids, "
            f"got shape {mask.shape} and dtype {mask.dtype}"
        )
    counted: Mask = (mask != 0).astype(np.uint8)
    return counted
