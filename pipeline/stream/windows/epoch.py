"""The documents of an epoch by their places in its shuffled order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..order import Shuffle
from .loaded import LoadedWindows


class EpochDocuments:
    """Reads runs of documents, whose windows are loaded when they are read."""

    def __init__(self, windows: LoadedWindows, order: Shuffle) -> None:
        self.windows = windows
        self.documents = order.documents
        self.tokens = order.tokens
        self._order = order

    def joined(self, epoch: int, first: int, stop: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the tokens of the documents ``first`` to before ``stop`` one after the other, and how many each has."""
        tokens, lengths = [], [np.zeros(0, np.int64)]
        starts = self._order.epoch(epoch).document_starts
        while first < stop:
            number = int(starts.searchsorted(first, side="right")) - 1
            window = self.windows.get((epoch, number))
            part = slice(first - int(starts[number]), min(stop, int(starts[number + 1])) - int(starts[number]) + 1)
            ends = window.ends[part]
            tokens.append(window.tokens[ends[0] : ends[-1]])
            lengths.append(np.diff(ends))
            first += len(ends) - 1
        joined = tokens[0] if len(tokens) == 1 else np.concatenate(tokens)
        joined.flags.writeable = False
        self.windows.bytes_read += joined.nbytes
        return joined, np.concatenate(lengths)
