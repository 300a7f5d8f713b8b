"""Windows of a live source: runs of its records, filtered, shuffled and tokenized by one call.

A start is (epoch, records of the epoch that were read before it, the source's own state there). Only its first two numbers
say how the documents of a window are shuffled, so that a source may write its state in several ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ....text.document import Document, Record, RecordKeys, selected
from ....text.fields import merge_fields
from ...data.live_source import LiveReading
from ...lanes import TextWindowSize
from ...order import derive_key
from ..cursor import WindowStart
from ..lane import SequentialWindow
from .block_scan import Block
from .documents import DocumentEncoder, Filters

if TYPE_CHECKING:
    from ...data.live_data import LiveData

_FIRST_DOCUMENTS = 8  # of the first window of an epoch


class LiveWindows:
    """Makes the windows that all lanes of ``rank`` share.

    A window ends with the document that reaches ``window.bytes`` of text, or as many documents as the epoch had records before
    it, but at least 8: so the first batch of a slow source comes soon.
    """

    def __init__(
        self,
        data: LiveData,
        *,
        rank: int,
        ranks: int,
        seed: int | None,
        window: TextWindowSize,
        filters: Filters,
        epochs: int | None,
    ) -> None:
        self.bytes_read = 0  # characters of text
        self._documents = DocumentEncoder(data, filters)
        self._source = data.source
        self._where = data.where
        self._rank, self._ranks = rank, ranks
        self._seed, self._epochs, self._window = seed, epochs, window
        kept = merge_fields([data.fields, data.where.fields if data.where else ()])
        names = data.text_key, data.id_key, data.source.name, data.source.label
        self._keys = RecordKeys(*names, kept=kept, record="dict", vocabulary=data.vocabulary)
        self._reading: LiveReading | None = None  # stands where the next window begins
        self._records: Iterator[tuple[int, Any]] = iter(())

    @property
    def counts(self) -> Counter[str]:
        """How many documents were read, rejected and bad."""
        return self._documents.counts

    def make(self, lane: int, start: WindowStart) -> SequentialWindow | None:
        """Return the window that begins at ``start``, or None behind the last epoch."""
        epoch, number, state = start
        if self._epochs is not None and epoch >= self._epochs:
            return None
        if self._reading is None:
            self._reading = self._source.read(epoch, number, state or "", self._rank, self._ranks)
            self._records = iter(self._reading)
        block, has_ended = self._take(number)
        filtered = self._documents.filter(block)
        self._documents.count(filtered)
        key = None if self._seed is None else derive_key("live window", self._seed, self._rank, epoch, number)
        window = self._documents.window(filtered.documents, key)
        following: WindowStart = (
            (epoch + 1, 0, 0) if has_ended else (epoch, self._reading.number, self._reading.state())
        )
        if has_ended:
            self.close()
        return SequentialWindow(start, following, window)

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
            size += record.size if isinstance(record, Document) else 0
            is_long = size >= self._window.bytes or len(records) >= max(_FIRST_DOCUMENTS, before)
            if is_long and size >= self._window.least:
                has_ended = False
                break
        self.bytes_read += size
        if self._where is not None:
            records = list(selected(records, self._where))
        return Block(size, records), has_ended
