"""Windows of raw text: blocks of records, read, filtered, shuffled and tokenized by one call.

`deal` says which blocks a lane reads in an epoch, and in which order. A window is some rounds of these blocks, whose
documents are shuffled by (seed, lane and the window's place); without a seed everything stays as it is in the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....text.document import Document
from ...lanes import Lanes, TextWindowSize
from ...order import derive_key
from ..cursor import Place
from ..lane import LaneWindow
from .deal import Deal, cut_pieces
from .documents import DocumentEncoder, Filters
from .scans import KEPT_BYTES, SharedScans

if TYPE_CHECKING:
    from ...data.text import TextData

_BLOCK_BYTES = 32 << 10
_BLOCKS_A_LANE = 8  # of an epoch, at least, so that little input has small blocks and all lanes some


class TextWindows:
    """Makes the windows of some of the ``lanes``; ``places`` says where each of these begins to read.

    ``filters`` say which documents stay; behind ``epochs`` (None: nowhere) the stream ends. As many ``sources`` as a mix has
    share the memory and the open files.
    """

    def __init__(
        self,
        data: TextData,
        *,
        lanes: Lanes,
        places: dict[int, Place],
        seed: int | None,
        window: TextWindowSize,
        filters: Filters,
        epochs: int | None,
        kept_bytes: int = KEPT_BYTES,
        sources: int = 1,
    ) -> None:
        self._documents = DocumentEncoder(data, filters)
        self._lanes = lanes
        self._places = dict(places)
        self._seed = seed
        self._epochs = epochs
        self._window = window
        pieces = cut_pieces(data, lanes.count)
        self._deal = Deal(pieces, groups=lanes.groups, lanes=lanes.group_size, seed=seed)
        self._scans = SharedScans(
            data,
            self._deal,
            self._places,
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

    def make(self, lane: int, place: Place) -> LaneWindow | None:
        """Return the window of ``lane`` that begins at ``place``, or None behind the last epoch.

        A window ends with its epoch; where the lane has no block left in it, the window is empty.
        """
        if self._epochs is not None and place[0] >= self._epochs:
            return None
        documents, following = self._read(lane, place)
        key = None if self._seed is None else derive_key("text window", self._seed, lane, *place)
        return LaneWindow(place, following, self._documents.window(documents, key))

    def close(self) -> None:
        """Close the files."""
        self._scans.close()

    def _read(self, lane: int, place: Place) -> tuple[list[Document | None], Place]:
        """Return the documents of a window in the order of their blocks, None for each that is not kept; and its end."""
        epoch, bundle, round = place
        deal, (number, group) = self._deal.epoch(epoch), divmod(lane, self._lanes.groups)
        documents: list[Document | None] = []
        size = count = 0
        while pieces := deal.bundle(group, bundle):
            if round == 0:
                self._scans.begin(epoch, group, bundle)
            numbers = [(piece, deal.block(group, piece, number, round)) for piece in pieces]
            blocks = [block for key in numbers if (block := self._scans.block(epoch, *key)) is not None]
            bundle, round = (bundle, round + 1) if blocks else (bundle + 1, 0)
            self._places[lane] = epoch, bundle, round
            for block in blocks:
                self._documents.count(block)
                size, count = size + block.read_bytes, count + 1
                documents += block.documents
            if blocks and self._window.reached(place, size, count):
                break
        following = (epoch, bundle, round) if deal.bundle(group, bundle) else (epoch + 1, 0, 0)
        self._places[lane] = following
        return documents, following


class SmallTextWindows:
    """Windows of a source of a mix that has fewer documents than there are lanes: each lane reads all of them.

    ``make_own(lane, place)`` makes the windows of a lane, which begins at ``places[lane]``, as those of a stream of one lane.
    """

    def __init__(self, make_own: Callable[[int, Place], TextWindows], places: dict[int, Place]) -> None:
        self._make_own = make_own
        self._places = places
        self._own: dict[int, TextWindows] = {}

    @property
    def counts(self) -> Counter[str]:
        """How many documents were read, rejected and bad, and how many files damaged."""
        return sum((own.counts for own in self._own.values()), Counter[str]())

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return sum(own.bytes_read for own in self._own.values())

    def make(self, lane: int, place: Place) -> LaneWindow | None:
        """Return the window of ``lane`` that begins at ``place``."""
        if lane not in self._own:
            self._own[lane] = self._make_own(lane, self._places[lane])
        return self._own[lane].make(0, place)

    def close(self) -> None:
        """Close the files."""
        for own in self._own.values():
            own.close()
