"""Windows of raw text: blocks of records, read, filtered, shuffled and tokenized by one call.

`assignment` says which blocks a lane reads in an epoch, and in which order. A window is some rounds of these blocks, whose
documents are shuffled by (seed, lane and the window's start); without a seed everything stays as it is in the files.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ....text.document import Document
from ...lanes import Lanes, TextWindowSize
from ...order import derive_key
from ..cursor import WindowStart
from ..lane import SequentialWindow
from .assignment import BlockAssignment, cut_file_parts
from .documents import DocumentEncoder, Filters
from .scans import KEPT_BYTES, SharedScans

if TYPE_CHECKING:
    from ...data.text_data import TextData

_BLOCK_BYTES = 32 << 10
_BLOCKS_A_LANE = 8  # of an epoch, at least, so that little input has small blocks and all lanes some


class TextWindows:
    """Makes the windows of some of the ``lanes``; ``starts`` says where each of these begins to read.

    ``filters`` say which documents stay; behind ``epochs`` (None: nowhere) the stream ends. As many ``sources`` as a mix has
    share the memory and the open files. ``with_origins`` gives the documents of a window beside their tokens.
    """

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
        """How many documents were read, rejected and bad, and how many files damaged."""
        return self._documents.counts

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return self._scans.bytes_read

    def make(self, lane: int, start: WindowStart) -> SequentialWindow | None:
        """Return the window of ``lane`` that begins at ``start``, or None behind the last epoch.

        A window ends with its epoch; where the lane has no block left in it, the window is empty.
        """
        if self._epochs is not None and start[0] >= self._epochs:
            return None
        documents, following = self._read(lane, start)
        key = None if self._seed is None else derive_key("text window", self._seed, lane, *start)
        return SequentialWindow(start, following, self._documents.window(documents, key))

    def close(self) -> None:
        """Close the files."""
        self._scans.close()

    def _read(self, lane: int, start: WindowStart) -> tuple[list[Document | None], WindowStart]:
        """Return the documents of a window in the order of their blocks, None for each that is not kept; and its end."""
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
