"""Raw text as a source of lanes: blocks of records, read, shuffled by windows and tokenized on the fly.

``deal.py`` says which blocks a lane reads in an epoch, and in which order. A lane's window is some rounds of these blocks,
whose documents are shuffled by (seed, lane and the window's place); without a seed everything stays as it is in the files.

The lanes of one process share the scan of each piece of a file: what one lane passes on its way is held for the others, up
to a bound beyond which a lane that lags reads the piece again. Filters are asked before anything is held, so that a lane may
run far ahead where they leave little.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....errors import DamagedInputError, InputError
from ....shards.ranges.open_files import allowed_files
from ....text.document import BadRecord, Document
from ....text.formats import format_of, is_named_compressed
from ....text.readers.byte_stream import is_compressed
from ....text.readers.format_reader import load_reader
from ....text.readers.record_blocks import Block, BlockScan, begin_together
from ....text.storage.opening import open_object
from ....text.storage.shared_ranges import SharedRanges
from ...order import derive_key, permutation
from ..cursor import Chunk, Place
from ..layout import LaneLayout
from .deal import Deal, cut_pieces

if TYPE_CHECKING:
    from ...data.text import TextData

Predicate = Callable[[Any], Any]

_BLOCK_BYTES = 32 << 10
_BLOCKS_A_LANE = 8  # of an epoch, at least, so that little input has small blocks and all lanes some
_FIRST_BLOCKS = 4  # of a lane's first window
_HELD_BYTES = 384 << 20
_SHARED_BYTES = 128 << 20
_BLOCK_COST = 512  # bytes that an empty block takes
_EPOCHS_BEGUN = 4
_SCANS = 8  # that are open beyond one for each lane
_BYTES_PER_TOKEN = 3  # of text; only how much is encoded at a time depends on it

log = logging.getLogger("pipeline")


@dataclass(frozen=True, slots=True)
class WindowSize:
    """How long a lane's window is, in whole rounds.

    It ends with the round that reaches ``bytes`` of blocks, or so many ``blocks`` where these are stated. The first windows of an
    epoch are shorter, so that the first batch comes soon: at bundle ``b``, round ``r``, one ends with the round that reaches
    max(4, 4 * (b + r)) blocks, but not below ``least`` bytes.
    """

    bytes: int
    least: int = 0
    blocks: int | None = None

    def reached(self, place: Place, size: int, blocks: int) -> bool:
        """Say whether a window that begins at ``place`` ends here."""
        if self.blocks is not None:
            return blocks >= self.blocks and size >= self.least
        if size >= self.bytes:
            return True
        return size >= self.least and blocks >= _FIRST_BLOCKS * max(1, place[1] + place[2])


class TextWindows:
    """The windows of some lanes of a ``layout``; ``places`` says where each of these begins to read.

    ``filters`` say which documents stay.
    """

    def __init__(
        self,
        data: TextData,
        *,
        layout: LaneLayout,
        places: dict[int, Place],
        seed: int | None,
        window: WindowSize,
        filters: tuple[Predicate, ...],
        epochs: int | None,
        block_bytes: int = _BLOCK_BYTES,
        held_bytes: int = _HELD_BYTES,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._data = data
        self._layout = layout
        self._places = dict(places)
        self._seed = seed
        self._filters = filters
        self._epochs = epochs
        self._window = window
        self._block_bytes = max(1, min(block_bytes, data.bytes // (layout.lanes * _BLOCKS_A_LANE)))
        pieces = cut_pieces(data, layout.lanes)
        self._deal = Deal(pieces, groups=layout.groups, lanes=layout.lanes_a_group, seed=seed)
        self._held: dict[Place, Block | _FilteredBlock] = {}
        self._held_bytes = 0
        self._most_held = held_bytes
        self._begun: dict[
            int, set[int]
        ] = {}  # by epoch, the places of pieces that were asked for before a lane needed them
        self._is_begun = False
        self._is_remote = any(file.stored for file in data.files)
        self._scans: list[_Scan] = []
        # Those of the pieces that lanes read, and where files are remote of those that they read next.
        self._most_scans = (2 if self._is_remote else 1) * len(places) + _SCANS
        self._ends: dict[int, int] = {}  # how many blocks a piece has, once a scan came to its end
        self._compressed: dict[int, bool] = {}  # files
        self._shared = _shared(data)

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return self.counts["bytes"] + sum(scan.blocks.bytes_read for scan in self._scans)

    def window(self, lane: int, place: Place) -> TextWindow | None:
        """Return the window of ``lane`` that begins at ``place``, or None behind the last epoch.

        A window ends with its epoch; where the lane has no block left in it, the window is empty.
        """
        epoch, bundle, round = place
        if self._epochs is not None and epoch >= self._epochs:
            return None
        if self._is_remote and not self._is_begun:
            self._is_begun = True
            self._begin_first()
        deal, number, group = self._deal.epoch(epoch), *divmod(lane, self._layout.groups)
        documents: list[Document | None] = []
        size = blocks = 0
        while pieces := deal.bundle(group, bundle):
            if self._is_remote and round == 0:
                self._begin([(epoch, at) for at in (*pieces, *deal.bundle(group, bundle + 1))])
            blocks_of_round = [self._block((epoch, piece, deal.block(group, piece, number, round))) for piece in pieces]
            found = [one if isinstance(one, _FilteredBlock) else self._filter(one) for one in blocks_of_round if one]
            bundle, round = (bundle, round + 1) if found else (bundle + 1, 0)
            self._places[lane] = epoch, bundle, round
            for filtered in found:
                self._count(filtered)
                size, blocks = size + filtered.read_bytes, blocks + 1
                documents += filtered.documents
            if found and self._window.reached(place, size, blocks):
                break
        following = (epoch, bundle, round) if deal.bundle(group, bundle) else (epoch + 1, 0, 0)
        self._places[lane] = following
        if self._seed is not None:
            key = derive_key("text window", self._seed, lane, *place)
            documents = [documents[index] for index in permutation(len(documents), key).tolist()]
        return TextWindow(place, following, documents, self._data)

    def close(self) -> None:
        """Close the files."""
        while self._scans:
            self._drop(self._scans[0])

    def _filter(self, block: Block) -> _FilteredBlock:
        """Parse a block and leave those of its documents that are selected and pass the filters."""
        records = block.records()
        bad = [record for record in records if isinstance(record, BadRecord)]
        found: list[Document | None] = [record for record in records if isinstance(record, Document)]
        selected = self._data.selects([document for document in found if document])
        size = rejected = 0
        for index, (document, is_selected) in enumerate(zip(found, selected.tolist(), strict=True)):
            assert document is not None
            if is_selected and self._keeps(document):
                size += len(document.text)
            else:
                rejected += is_selected
                found[index] = None
        return _FilteredBlock(size + _BLOCK_COST, block.size, found, int(selected.sum()), rejected, bad)

    def _keeps(self, document: Document) -> bool:
        try:
            return all(predicate(document) for predicate in self._filters)
        except Exception as error:
            error.add_note(f"in a filter, of the document of {_where(document)}, id {document.id!r}")
            raise

    def _count(self, filtered: _FilteredBlock) -> None:
        for record in filtered.bad:
            if self._data.on_error == "stop":
                where = f"line {record.line}" if record.byte is None else f"byte {record.byte}"
                detail = f" ({record.detail})" if record.detail else ""
                raise InputError(
                    f"{record.file}, {where}: {record.reason}{detail}; mend it, or count and skip such records with "
                    "on_error='records'"
                )
        self.counts["documents"] += filtered.read
        self.counts["rejected"] += filtered.rejected
        self.counts["bad_records"] += len(filtered.bad)

    def _block(self, place: Place) -> Block | _FilteredBlock | None:
        """Return one block (epoch, piece, number), held since a scan came by or scanned for now; None behind the end."""
        epoch, at, number = place
        if (held := self._held.pop(place, None)) is not None:
            self._held_bytes -= held.size
            return held
        piece = int(self._deal.epoch(epoch).order[at])
        # A scan that is under way goes to its end even if this lane has no more: others have blocks there.
        end = self._ends[piece] if piece in self._ends else self._most_blocks(piece)
        if number >= end and all(each.place != (epoch, at) for each in self._scans):
            return None
        scan = self._scan_before(epoch, at, piece, number)
        try:
            for passed, block in scan.blocks:
                if passed == number:
                    return block
                self._hold((epoch, at, passed), block)
        except InputError as error:
            far = self._data.files[self._deal.pieces[piece].file].stored is not None
            if self._data.on_error != "skip" or (far and not isinstance(error, DamagedInputError)):
                raise  # a remote file that changed is not damaged: other ranks may have read it before
            self.counts["damaged_files"] += piece not in self._ends
            log.warning("%s; the rest of this file is passed over", error)
        self._ends[piece] = scan.blocks.number
        self._drop(scan)
        return None

    def _most_blocks(self, piece: int) -> float:
        """Return how many blocks a piece may have: of plain lines as many as begin in its bytes, else unknown."""
        number, span, _, _ = self._deal.pieces[piece]
        file = self._data.files[number]
        if not load_reader(format_of(file)).cut_anywhere:
            return math.inf
        if number not in self._compressed:  # whatever its name says
            try:
                self._compressed[number] = is_compressed(file)
            except OSError:
                return math.inf  # reading it raises the error
        if self._compressed[number]:
            return math.inf
        stop = self._data.size_of(file) if span.stop is None else span.stop
        return -(-(stop - span.start) // self._block_bytes)

    def _scan_before(self, epoch: int, at: int, piece: int, number: int) -> _Scan:
        """Return the scan of a piece that has come nearest to block ``number``, or a new one."""
        scans = [scan for scan in self._scans if scan.place == (epoch, at) and scan.blocks.number <= number]
        if scans:
            scan = max(scans, key=lambda scan: scan.blocks.number)
            self._scans.remove(scan)
        else:
            scan = self._open_scan(epoch, at, piece)
        self._scans.append(scan)
        return scan

    def _open_scan(self, epoch: int, at: int, piece: int) -> _Scan:
        while self._scans and (len(self._scans) >= min(self._most_scans, allowed_files())):
            self._drop(self._scans[0])
        data, (number_of_file, span, _, lines) = self._data, self._deal.pieces[piece]
        file = data.files[number_of_file]
        if data.on_error != "skip" or os.path.exists(file):  # what is gone is passed over like what is damaged
            data.check(file)
        blocks = BlockScan(
            file,
            self._block_bytes,
            self._wanted(epoch, at),
            span=span,
            lines=lines,
            text_key=data.text_key,
            id_key=data.id_key,
            keep=data.fields,
            where=data.where,
            shared=self._shared.get(number_of_file),
        )
        return _Scan((epoch, at), blocks)

    def _begin_first(self) -> None:
        """Begin the scans with which the lanes start, so that their files are waited for together."""
        first = dict.fromkeys(
            (epoch, at)
            for lane, (epoch, bundle, _) in self._places.items()
            if self._epochs is None or epoch < self._epochs
            for at in self._deal.epoch(epoch).bundle(lane % self._layout.groups, bundle)
        )
        self._begin(list(first))

    def _begin(self, places: list[tuple[int, int]]) -> None:
        """Begin the scans of remote pieces together, so that the bytes are here when lanes need them."""
        scans = []
        for epoch, at in places:
            if len(self._scans) >= min(self._most_scans, allowed_files()):
                break  # what lanes read now is not closed for what they read next
            piece = int(self._deal.epoch(epoch).order[at])
            begun = self._begun.setdefault(epoch, set())
            if self._data.files[self._deal.pieces[piece].file].stored is not None and at not in begun:
                begun.add(at)
                scans.append(self._open_scan(epoch, at, piece))
                self._scans.append(scans[-1])
        begin_together([scan.blocks for scan in scans])
        while len(self._begun) > _EPOCHS_BEGUN:
            del self._begun[min(self._begun)]

    def _wanted(self, epoch: int, at: int) -> Callable[[int], bool]:
        places, deal = self._places, self._deal.epoch(epoch)

        def wanted(number: int) -> bool:
            lane, bundle, round = deal.reader_of(at, number)
            place = places.get(lane)
            return place is not None and (epoch, bundle, round) >= place

        return wanted

    def _hold(self, place: Place, block: Block) -> None:
        """Keep a block that another lane will ask for, filtered where that makes it smaller, unless too much is kept already."""
        if place in self._held or self._held_bytes >= self._most_held:
            return
        held = self._filter(block) if self._filters or self._data.splits else block
        self._held_bytes += held.size
        self._held[place] = held

    def _drop(self, scan: _Scan) -> None:
        self._scans.remove(scan)
        self.counts["bytes"] += scan.blocks.bytes_read
        scan.blocks.close()


def _shared(data: TextData) -> dict[int, SharedRanges]:
    """Return the bytes of remote files of plain lines, by their numbers, if all of them fit into memory.

    Pieces of little input are small: to ask for each alone takes a request for some KB.
    """
    plain = [
        (number, file)
        for number, file in enumerate(data.files)
        if file.stored and load_reader(format_of(file)).read_lines and not is_named_compressed(file)
    ]
    if sum(file.size for _, file in plain) > _SHARED_BYTES:
        return {}
    return {number: SharedRanges(open_object(file.stored, file.credentials)) for number, file in plain if file.stored}


class _FilteredBlock(NamedTuple):
    """A parsed block of ``read_bytes``: None for each document that is not kept; ``rejected`` of ``read`` by filters.

    ``size`` is about what it takes in memory.
    """

    size: int
    read_bytes: int
    documents: list[Document | None]
    read: int
    rejected: int
    bad: list[BadRecord]


class _Scan(NamedTuple):
    place: tuple[int, int]  # epoch, piece
    blocks: BlockScan


class TextWindow:
    """Some documents of one lane in their shuffled order, tokenized when they are taken; None for one that is not kept."""

    def __init__(self, place: Place, following: Place, documents: list[Document | None], data: TextData) -> None:
        self.place = place
        self.following = following
        self._documents = documents
        self._data = data

    def __len__(self) -> int:
        return len(self._documents)

    def take(self, index: int, tokens: int | None) -> Chunk:
        """Return the kept documents from ``index`` on: enough for ``tokens`` tokens, or all."""
        kept, numbers, size = [], [], 0
        enough = math.inf if tokens is None else tokens * _BYTES_PER_TOKEN
        while index < len(self._documents) and size < enough:
            if (document := self._documents[index]) is not None:
                self._documents[index] = None  # its text is needed once
                kept.append(document)
                numbers.append(index)
                size += len(document.text)
            index += 1
        ids, lengths = self._encoded(kept)
        return Chunk(ids, lengths, numbers, index)

    def _encoded(self, documents: list[Document]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
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


def _where(document: Document) -> str:
    """Name the place of a document for an error."""
    at = f"line {document.line}" if document.byte is None else f"byte {document.byte}"
    return f"{document.file}, {at}"
