"""Windows of raw text: blocks of records, read, filtered, shuffled and tokenized by one call.

`deal` says which blocks a lane reads in an epoch, and in which order. A window is some rounds of these blocks, whose
documents are shuffled by (seed, lane and the window's place); without a seed everything stays as it is in the files.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import InputError
from ....text.document import BadRecord, Document
from ....text.judging import RuleFilter
from ....text.normalize import normalize
from ....text.readers.record_blocks import Block
from ....weak_methods import weakly
from ...lanes import LaneLayout, TextWindowSize
from ...order import derive_key, permutation
from ...windows.window import Window
from ..cursor import Place
from ..lane import REJECTED_BY, LaneWindow
from .deal import Deal, cut_pieces
from .scans import KEPT_BYTES, FilteredBlock, SharedScans

if TYPE_CHECKING:
    from ...data.text import TextData

_BLOCK_BYTES = 32 << 10
_BLOCKS_A_LANE = 8  # of an epoch, at least, so that little input has small blocks and all lanes some
_BLOCK_COST = 512  # bytes that an empty block takes
_DOCUMENT_COST = 300  # bytes that a document takes beside its text


class TextWindows:
    """Makes the windows of some lanes of a ``layout``; ``places`` says where each of these begins to read.

    ``filters`` say which documents stay; behind ``epochs`` (None: nowhere) the stream ends. As many ``sources`` as a mix has
    share the memory and the open files.
    """

    def __init__(
        self,
        data: TextData,
        *,
        layout: LaneLayout,
        places: dict[int, Place],
        seed: int | None,
        window: TextWindowSize,
        filters: tuple[Callable[[Any], Any], ...],
        epochs: int | None,
        kept_bytes: int = KEPT_BYTES,
        sources: int = 1,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._data = data
        self._layout = layout
        self._places = dict(places)
        self._seed = seed
        self._filters = filters
        self._epochs = epochs
        self._window = window
        pieces = cut_pieces(data, layout.lanes)
        self._deal = Deal(pieces, groups=layout.groups, lanes=layout.lanes_a_group, seed=seed)
        self._scans = SharedScans(
            data,
            self._deal,
            self._places,
            max(1, min(_BLOCK_BYTES, data.bytes // (layout.lanes * _BLOCKS_A_LANE))),
            weakly(self._filter),
            filtered=bool(filters or data.splits),
            counts=self.counts,
            kept_bytes=kept_bytes,
            sources=sources,
        )

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
        if self._seed is not None:
            key = derive_key("text window", self._seed, lane, *place)
            documents = [documents[index] for index in permutation(len(documents), key).tolist()]
        ids, lengths = self._encode([document for document in documents if document is not None])
        return LaneWindow(place, following, Window(ids, np.append(0, np.cumsum(lengths))))

    def close(self) -> None:
        """Close the files."""
        self._scans.close()

    def _read(self, lane: int, place: Place) -> tuple[list[Document | None], Place]:
        """Return the documents of a window in the order of their blocks, None for each that is not kept; and its end."""
        epoch, bundle, round = place
        deal, (number, group) = self._deal.epoch(epoch), divmod(lane, self._layout.groups)
        documents: list[Document | None] = []
        size = count = 0
        while pieces := deal.bundle(group, bundle):
            if round == 0:
                self._scans.begin(epoch, group, bundle)
            numbers = [(piece, deal.block(group, piece, number, round)) for piece in pieces]
            blocks = [block for each in numbers if (block := self._scans.block(epoch, *each)) is not None]
            bundle, round = (bundle, round + 1) if blocks else (bundle + 1, 0)
            self._places[lane] = epoch, bundle, round
            for block in blocks:
                self._count(block)
                size, count = size + block.read_bytes, count + 1
                documents += block.documents
            if blocks and self._window.reached(place, size, count):
                break
        following = (epoch, bundle, round) if deal.bundle(group, bundle) else (epoch + 1, 0, 0)
        self._places[lane] = following
        return documents, following

    def _encode(self, documents: list[Document]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the ids of documents, and how many each has; an error names the document's place."""
        encode, marks = self._data.encoder.encode_flat, self._data.marks
        try:
            return encode([document.text for document in documents], **marks)
        except InputError:
            for document in documents:
                try:
                    encode([document.text], **marks)
                except InputError as error:
                    raise InputError(f"{_where(document)}: {error}") from None
            raise

    def _filter(self, block: Block) -> FilteredBlock:
        """Parse a block and leave those of its documents that are selected and pass the filters."""
        records = block.records()
        bad = [record for record in records if isinstance(record, BadRecord)]
        documents = [record for record in records if isinstance(record, Document)]
        selected = self._data.selects(documents)
        kept = [document if is_selected else None for document, is_selected in zip(documents, selected, strict=True)]
        if self._data.normalize:
            for document in kept:
                if document is not None:
                    document.text = normalize(document.text)
        rejected: Counter[str] = Counter()
        for predicate in self._filters:
            left = [index for index, document in enumerate(kept) if document is not None]
            for index, reason in zip(left, self._rejects([documents[index] for index in left], predicate), strict=True):
                if reason is not None:
                    rejected[reason] += 1
                    kept[index] = None
        size = sum(sys.getsizeof(document.text) + _DOCUMENT_COST for document in kept if document is not None)
        return FilteredBlock(size + _BLOCK_COST, block.size, kept, int(selected.sum()), rejected, bad)

    def _rejects(self, documents: list[Document], predicate: Callable[[Any], Any]) -> Iterator[str | None]:
        """Yield the reason why a filter leaves out each document, None for one that it keeps."""
        if isinstance(predicate, RuleFilter):
            for drop in predicate(documents, normalized=self._data.normalize):
                yield None if drop is None else drop.rule
            return
        for document in documents:
            try:
                is_kept = predicate(document)
            except Exception as error:
                error.add_note(f"in a filter, of the document of {_where(document)}, id {document.id!r}")
                raise
            yield None if is_kept else "filter"

    def _count(self, filtered: FilteredBlock) -> None:
        for record in filtered.bad:
            if self._data.on_error == "stop":
                where = f"line {record.line}" if record.byte is None else f"byte {record.byte}"
                detail = f" ({record.detail})" if record.detail else ""
                raise InputError(
                    f"{record.file}, {where}: {record.reason}{detail}; mend it, or count and skip such records with "
                    "on_error='records'"
                )
        self.counts["documents"] += filtered.read
        self.counts["rejected"] += filtered.rejected.total()
        self.counts.update({REJECTED_BY + reason: count for reason, count in filtered.rejected.items()})
        self.counts["bad_records"] += len(filtered.bad)


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


def _where(document: Document) -> str:
    """Name the place of a document for an error."""
    at = f"line {document.line}" if document.byte is None else f"byte {document.byte}"
    return f"{document.file}, {at}"
