"""Windows of raw text: documents of files or of a live source, read, filtered, shuffled and tokenized by one call.

`pipeline.stream.sequential` defines windows. The start of a window of a live source is (epoch, records of the epoch before the
window, state of the source). A source may write one state in several ways, so only the two numbers shuffle documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ....text.document import Document, Record, RecordKeys, selected
from ....text.fields import merge_fields
from ...datasets.sources.live_source import LiveReading
from ...lanes import Lanes, TextWindowSize, WindowStart
from ...order import derive_key
from ..lane import SequentialWindow
from .assignment import BlockAssignment, cut_file_parts
from .block_scan import Block
from .documents import DocumentEncoder, Filters
from .scans import KEPT_BYTES, SharedScans

if TYPE_CHECKING:
    from ...datasets.sources.text_data import LiveData, TextData

_BLOCK_BYTES = 32 << 10
_BLOCKS_A_LANE = 8  # in an epoch, at least: small input has small blocks, so that every lane gets some


class TextWindows:
    """Makes the windows of those ``lanes`` that have a start in ``starts``.

    ``filters`` choose documents. The stream ends after ``epochs`` (None: never). ``sources`` of a mix share the memory and the
    open files. ``with_origins`` keeps the documents of a window beside their tokens.
    """

    shared = False

    def __init__(
        self,
        data: TextData,
        *,
        lanes: Lanes,
        starts: dict[int, WindowStart],
        seed: int | None,
        window: TextWindowSize,
        filters: Filters,
        epochs: int | None,
        kept_bytes: int = KEPT_BYTES,
        sources: int = 1,
        with_origins: bool = False,
    ) -> None:
        self._documents = DocumentEncoder(data, filters, with_origins=with_origins)
        self._lanes = lanes
        self._starts = dict(starts)
        self._seed = seed
        self._epochs = epochs
        self._window = window
        parts = cut_file_parts(data, lanes.count)
        self._assignment = BlockAssignment(parts, groups=lanes.groups, lanes=lanes.group_size, seed=seed)
        self._scans = SharedScans(
            data,
            self._assignment,
            self._starts,
            max(1, min(_BLOCK_BYTES, data.bytes // (lanes.count * _BLOCKS_A_LANE))),
            self._documents,
            kept_bytes=kept_bytes,
            sources=sources,
        )

    @property
    def counts(self) -> Counter[str]:
        """Numbers of documents read, rejected and bad, and of damaged files."""
        return self._documents.counts

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return self._scans.bytes_read

    def make(self, lane: int, start: WindowStart) -> Iterator[SequentialWindow] | None:
        """Return the window of ``lane`` that begins at ``start``, in one piece; None after the last epoch.

        A window ends with its epoch; if the lane has no block left in the epoch, the window is empty.
        """
        if self._epochs is not None and start[0] >= self._epochs:
            return None
        documents, following = self._read(lane, start)
        key = None if self._seed is None else derive_key("text window", self._seed, lane, *start)
        return iter([SequentialWindow(start, following, self._documents.window(documents, key))])

    def close(self) -> None:
        """Close the files."""
        self._scans.close()

    def _read(self, lane: int, start: WindowStart) -> tuple[list[Document | None], WindowStart]:
        """Return the documents of a window in the order of their blocks (None if not kept), and the next window's start."""
        epoch, cycle, round = start
        assignment, (number, group) = self._assignment.epoch(epoch), divmod(lane, self._lanes.groups)
        documents: list[Document | None] = []
        size = count = 0
        while parts := assignment.cycle(group, cycle):
            if round == 0:
                self._scans.begin(epoch, group, cycle)
            numbers = [(part, assignment.block(group, part, number, round)) for part in parts]
            blocks = [block for key in numbers if (block := self._scans.block(epoch, *key)) is not None]
            cycle, round = (cycle, round + 1) if blocks else (cycle + 1, 0)
            self._starts[lane] = epoch, cycle, round
            for block in blocks:
                self._documents.count(block)
                size, count = size + block.read_bytes, count + 1
                documents += block.documents
            if blocks and self._window.reached(start, size, count):
                break
        following = (epoch, cycle, round) if assignment.cycle(group, cycle) else (epoch + 1, 0, 0)
        self._starts[lane] = following
        return documents, following


_FIRST_DOCUMENTS = 8  # in the first window of an epoch


class LiveWindows:
    """Makes the windows that all lanes of ``rank`` share.

    A window ends with the document that reaches ``window.bytes`` of text, or with as many documents as the epoch had records
    before the window, at least 8. So the first batch of a slow source is ready soon.
    """

    shared = True

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
        self._reading: LiveReading | None = None  # at the start of the next window
        self._records: Iterator[tuple[int, Any]] = iter(())

    @property
    def counts(self) -> Counter[str]:
        """Numbers of documents read, rejected and bad."""
        return self._documents.counts

    def make(self, lane: int, start: WindowStart) -> Iterator[SequentialWindow] | None:
        """Return the window that begins at ``start``, in one piece; None after the last epoch."""
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
        return iter([SequentialWindow(start, following, window)])

    def close(self) -> None:
        """Drop the source."""
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
