"""Packed rows, cut out of the windows of lanes: of stored documents, or of documents that the user's functions return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ..datasets.sources.selection import WITHHELD
from ..function_identity import DocumentMap
from .indexed_source import IndexedSource
from .row_buffer import RowBuffer, WindowOffset
from .window import Window, join_masks

Int = NDArray[np.int64]


Tokens = NDArray[Any]
Mask = NDArray[np.uint8]


class DocumentMaps:
    """Functions of the user, called one after another with the read-only ids of a document and its loss mask.

    The ids that the last function returns must be below ``vocab_size`` (None: unknown). No function gets a redacted document,
    which is one that its window masks whole.
    """

    def __init__(self, maps: tuple[DocumentMap, ...], dtype: np.dtype[Any], vocab_size: int | None) -> None:
        self._maps = maps
        self._dtype = dtype
        self._vocab_size = vocab_size

    def document(self, window: Window, number: int) -> tuple[Tokens, Mask | None]:
        """Return a document's ids and loss mask after all functions (None: all tokens count)."""
        ids, mask = window.document(number), window.mask_of(number)
        if mask is not None and len(mask) and not mask.any():
            return ids, mask
        is_withheld = mask is not None and WITHHELD in mask[:1]  # its length is that of the functions
        mask = None
        ids.flags.writeable = False
        for function, name, same_length, _ in self._maps:
            length = len(ids)
            made = function(ids, mask)
            ids, mask = made if isinstance(made, tuple) and len(made) == 2 else (made, mask)
            ids = self._checked_ids(name, ids)
            if same_length and len(ids) != length:
                raise ConfigError(
                    f"map_documents function {name} returned {len(ids)} ids for a document of {length}; return as many, or "
                    "remove same_length=True"
                )
            mask = None if mask is None else _checked_mask(name, mask, len(ids))
        if self._vocab_size is not None and len(ids) and (most := int(ids.max())) >= self._vocab_size:
            raise ConfigError(
                f"map_documents function {name} returned the id {most}, but the vocabulary has {self._vocab_size} ids, 0 to "
                f"{self._vocab_size - 1}; return ids of the tokenizer, or give map_documents vocab_size={most + 1} or more, if "
                "the model has as many"
            )
        return ids, np.full(len(ids), WITHHELD, np.uint8) if is_withheld else mask

    def window(self, window: Window) -> Window:
        """Return a window with all its documents mapped."""
        made = [self.document(window, number) for number in range(len(window.ends) - 1)]
        joined = np.concatenate([np.empty(0, self._dtype), *(tokens for tokens, _ in made)])
        lengths = [len(tokens) for tokens, _ in made]
        mask = join_masks([mask for _, mask in made], lengths)
        return Window(joined, np.cumsum([0, *lengths]), mask=mask, origins=window.origins)

    def window_of_one(self, window: Window, number: int) -> Window:
        """Return a window of one document, mapped."""
        ids, mask = self.document(window, number)
        sources = None if window.sources is None else window.sources[number : number + 1]
        return Window(ids, np.array([0, len(ids)]), has_empty=False, mask=mask, sources=sources)

    def _checked_ids(self, name: str, result: Any) -> Tokens:
        ids = np.asarray(result)
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise ConfigError(
                f"map_documents function {name} must return a 1-D array of token ids, or (ids, mask), got "
                f"{type(result).__name__} of shape {ids.shape} and dtype {ids.dtype}"
            )
        if len(ids) and ids.dtype != self._dtype:
            low, high, limits = int(ids.min()), int(ids.max()), np.iinfo(self._dtype)
            if low < limits.min or high > limits.max:
                raise ConfigError(
                    f"map_documents function {name} returned the id {low if low < 0 else high}, which {self._dtype} cannot "
                    "hold"
                )
        return ids.astype(self._dtype, copy=False)


def _checked_mask(name: str, result: Any, length: int) -> Mask:
    mask = np.asarray(result)
    if mask.shape != (length,) or (length and mask.dtype.kind not in "biu"):
        raise ConfigError(
            f"map_documents function {name} must return a loss mask of one boolean or integer for each of its {length} ids, "
            f"got shape {mask.shape} and dtype {mask.dtype}"
        )
    counted: Mask = (mask != 0).astype(np.uint8)
    return counted


class TokenRows:
    """Rows of ``source.width`` tokens. Tokens after the end of a pass are zeros.

    ``maps`` change documents, but not their lengths, so all counts hold. A document is mapped whole, even if a row begins inside
    it. The mapped documents of each lane's last row are kept for its next row.
    """

    def __init__(self, source: IndexedSource, maps: DocumentMaps | None) -> None:
        self._source, self._maps = source, maps
        self._mapped: dict[int, dict[int, Window]] = {}  # by lane, by position of the document

    def fill(self, buffer: RowBuffer, rows: list[int], indices: Int, positions: Int) -> Int | None:
        """Fill rows of a buffer with the sequences of these indices, which begin at these positions.

        Returns the number of tokens of each that exist (int64); None if all exist.
        """
        source, width, tokens = self._source, self._source.width, buffer.tokens
        mapped, bare = self._maps is not None, buffer.ends is None
        for number, (window, at) in enumerate(source.locations(indices, positions)):
            if mapped or at + width > len(window.tokens):
                position = int(positions[number])
                places = self._from(int(indices[number]), position)
                buffer.fill(rows[number], places, source.units_of_row(position))
            elif bare and window.mask is None and window.sources is None:
                tokens[rows[number]] = window.tokens[at : at + width]  # as `put` does, without the cost of a call
            else:
                buffer.put(rows[number], 0, window, at, width)
        source.windows.bytes_read += len(rows) * width * tokens.itemsize
        if (units := source.pass_units) is None:
            return None
        existing = np.minimum(units - positions % units, width)
        return existing if (existing < width).any() else None

    def _from(self, index: int, position: int) -> Iterator[WindowOffset]:
        """Yield where the row of a sequence index begins, then the beginnings of later windows, or of later mapped documents."""
        lane = index % self._source.sequences.lanes
        before, self._mapped[lane] = self._mapped.get(lane, {}), {}
        while True:
            window, at = self._source.location(position)
            if self._maps is not None:
                number = int(window.ends.searchsorted(at, side="right")) - 1
                at -= int(window.ends[number])
                window = before.get(position - at) or self._maps.window_of_one(window, number)
                self._mapped[lane][position - at] = window
            yield window, at
            position += len(window.tokens) - at
