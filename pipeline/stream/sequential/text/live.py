"""Windows of a live source: runs of its records, filtered, shuffled and tokenized by one call.

A place is (epoch, records of the epoch that were read before it, the source's own state there). Only its first two numbers
say how the documents of a window are shuffled, so that a source may write its state in several ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ....text.document import Document, Record, RecordKeys, selected
from ....text.fields import merge_fields
from ....text.readers.record_blocks import Block
from ....text.storage.live import LiveReading
from ...lanes import TextWindowSize
from ...order import derive_key, permutation
from ...windows.window import Window
from ..cursor import Place
from ..lane import LaneWindow
from .windows import TextWindows

if TYPE_CHECKING:
    from ...data.live import LiveData

_FIRST_DOCUMENTS = 8  # of the first window of an epoch


class LiveWindows(TextWindows):
    """Makes the windows of the lane of ``rank``.

    A window ends with the document that reaches ``window.bytes`` of text, or as many documents as the epoch had records before
    it, but at least 8: so the first batch of a slow source comes soon.
    """

    bytes_read = 0  # characters of text

    def __init__(
        self,
        data: LiveData,
        *,
        rank: int,
        ranks: int,
        seed: int | None,
        window: TextWindowSize,
        filters: tuple[Callable[[Any], Any], ...],
        epochs: int | None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._data: LiveData = data
        self._share = rank, ranks
        self._seed, self._filters, self._epochs, self._window = seed, filters, epochs, window
        kept = merge_fields([data.fields, data.where.fields if data.where else ()])
        names = data.text_key, data.id_key, data.source.name, data.source.label
        self._keys = RecordKeys(*names, kept=kept, record="dict")
        self._reading: LiveReading | None = None  # stands where the next window begins
        self._records: Iterator[tuple[int, Any]] = iter(())

    def make(self, lane: int, place: Place) -> LaneWindow | None:
        """Return the window that begins at ``place``, or None behind the last epoch."""
        epoch, number, state = place
        if self._epochs is not None and epoch >= self._epochs:
            return None
        if self._reading is None:
            self._reading = self._data.source.read(epoch, number, state or "", *self._share)
            self._records = iter(self._reading)
        block, has_ended = self._take(number)
        filtered = self._filter(block)
        self._count(filtered)
        documents = [document for document in filtered.documents if document is not None]
        if self._seed is not None:
            key = derive_key("live window", self._seed, lane, epoch, number)
            documents = [documents[index] for index in permutation(len(documents), key).tolist()]
        ids, lengths = self._encode(documents)
        following: Place = (epoch + 1, 0, 0) if has_ended else (epoch, self._reading.number, self._reading.state())
        if has_ended:
            self.close()
        return LaneWindow(place, following, Window(ids, np.append(0, np.cumsum(lengths))))

    def close(self) -> None:
        """Let go of the source."""
        self._reading, self._records = None, iter(())

    def _take(self, before: int) -> tuple[Block, bool]:
        """Return the records of a window, and whether the epoch ends with it."""
        records: list[Record] = []
        size, has_ended = 0, True
        for number, value in self._records:
            record = self._keys.judge(value, number, None)
            records.append(record)
            size += len(record.text) if isinstance(record, Document) else 0
            is_long = size >= self._window.bytes or len(records) >= max(_FIRST_DOCUMENTS, before)
            if is_long and size >= self._window.least:
                has_ended = False
                break
        self.bytes_read += size
        if self._data.where is not None:
            records = list(selected(records, self._data.where))
        return Block(size, lambda: records), has_ended
