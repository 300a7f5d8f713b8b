"""Raw text as a source of lanes: blocks of records dealt to lanes in turn, read, shuffled and tokenized on the fly.

Epoch ``e`` permutes the files by (seed, e). Block ``b`` of the file at position ``p`` belongs to lane ``(p + b) % lanes``,
so a lane's records follow from the files alone. A lane shuffles a window of its blocks at a time, by (seed, e, lane and
the window's first block); without a seed everything stays as it is in the files.

The lanes of one process share each file's scan: what one lane passes on its way is held for the others, up to a bound
beyond which a lane that lags reads the file again. Filters are asked before anything is held, so that a lane may run far
ahead where they leave little.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import InputError
from ...shards.ranges.open_files import OPEN_FILES, OpenFiles
from ...text.document import BadRecord, Document, made_id
from ...text.readers.record_blocks import Block, BlockScan
from ..data.holdout import held_out
from ..order import derive_key, permutation
from .cursor import Chunk, Place

if TYPE_CHECKING:
    from ..data.text import TextData

Predicate = Callable[[Any], Any]

_BLOCK_RECORDS = 32
_BLOCK_BYTES = 32 << 10  # of text for each record of a block, so that little input has small ones and all lanes some
_HELD_BYTES = 128 << 20
_BLOCK_COST = 512  # bytes that a block of nothing takes
_OPEN_SCANS = 8
_BYTES_PER_TOKEN = 3  # of text; only how much is encoded at a time depends on it

log = logging.getLogger("pipeline")


class TextWindows:
    """The windows of some of ``lanes`` lanes, those of which ``places`` says where they begin to read.

    ``window`` documents of all lanes are shuffled at once, and filtered by ``filters``.
    """

    def __init__(
        self,
        data: TextData,
        *,
        lanes: int,
        places: dict[int, Place],
        seed: int | None,
        window: int,
        filters: tuple[Predicate, ...],
        epochs: int | None,
        budget: OpenFiles = OPEN_FILES,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._budget = budget
        self._data = data
        self._lanes = lanes
        self._places = dict(places)
        self._seed = seed
        self._filters = filters
        self._epochs = epochs
        self._records = max(1, min(_BLOCK_RECORDS, data.bytes // (lanes * _BLOCK_BYTES)))
        self._blocks = max(1, -(-window // (lanes * self._records)))
        self._held: dict[Place, Block | _Sifted] = {}
        self._held_bytes = 0
        self._scans: list[_Scan] = []
        self._ends: dict[int, int] = {}  # how many blocks a file has, once a scan came to its end
        self.order = lru_cache(maxsize=4)(self._order)
        budget.join(self)

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return self.counts["bytes"] + sum(scan.blocks.bytes_read for scan in self._scans)

    def window(self, lane: int, place: Place) -> TextWindow | None:
        """Return the window of ``lane`` that begins at ``place``, or None behind the last epoch.

        A window ends with its epoch; where the lane has no block left in it, the window is empty.
        """
        epoch, position, block = place
        if self._epochs is not None and epoch >= self._epochs:
            return None
        found: list[_Sifted] = []
        while len(found) < self._blocks and position < len(self._data.files):
            number = block + (lane - position - block) % self._lanes
            if (one := self._block((epoch, position, number))) is None:
                position, block = position + 1, 0
            else:
                found.append(one if isinstance(one, _Sifted) else self._sift(one))
                block = number + 1
            self._places[lane] = epoch, position, block
        following = (epoch, position, block) if position < len(self._data.files) else (epoch + 1, 0, 0)
        self._places[lane] = following
        documents: list[Document | None] = []
        for sifted in found:
            self._count(sifted)
            documents += sifted.documents
        if self._seed is not None:
            key = derive_key("text window", self._seed, lane, *place)
            documents = [documents[index] for index in permutation(len(documents), key).tolist()]
        return TextWindow(place, following, documents, self._data)

    # As a holder of the budget of open files: each scan holds one, and only its own thread may close it.

    @property
    def held(self) -> int:
        return len(self._scans)

    def closable(self) -> list[tuple[int, int, int]]:
        return []

    def close_files(self, numbers: list[int]) -> None:
        assert not numbers

    def forget(self) -> None:
        self._scans.clear()

    def close(self) -> None:
        """Close the files."""
        while self._scans:
            self._drop(self._scans[0])

    def _sift(self, block: Block) -> _Sifted:
        """Parse a block and leave those of its documents that are ours and pass the filters."""
        records = block.records()
        bad = [record for record in records if isinstance(record, BadRecord)]
        found: list[Document | None] = [record for record in records if isinstance(record, Document)]
        ours = np.ones(len(found), bool)
        if self._data.splits and found:
            keys = [_key(document) for document in found if document]
            for level, (share, held) in enumerate(self._data.splits):
                ours &= held_out(keys, share, level) == held
        size = rejected = 0
        for index, (document, our) in enumerate(zip(found, ours.tolist(), strict=True)):
            assert document is not None
            if our and self._keeps(document):
                size += len(document.text)
            else:
                rejected += our
                found[index] = None
        return _Sifted(size + _BLOCK_COST, found, int(ours.sum()), rejected, bad)

    def _keeps(self, document: Document) -> bool:
        try:
            return all(predicate(document) for predicate in self._filters)
        except Exception as error:
            error.add_note(f"in a filter, of the document of {document.file}, line {document.line}, id {document.id!r}")
            raise

    def _count(self, sifted: _Sifted) -> None:
        for record in sifted.bad:
            if not self._data.skip:
                where = f"line {record.line}" if record.byte is None else f"byte {record.byte}"
                detail = f" ({record.detail})" if record.detail else ""
                raise InputError(
                    f"{record.file}, {where}: {record.reason}{detail}; mend it, or pass over such records with "
                    "on_error='skip'"
                )
        self.counts["documents"] += sifted.read
        self.counts["rejected"] += sifted.rejected
        self.counts["bad_records"] += len(sifted.bad)

    def _block(self, place: Place) -> Block | _Sifted | None:
        """Return one block, held since a scan came by or scanned for now; None behind the end of its file."""
        epoch, position, number = place
        if (held := self._held.pop(place, None)) is not None:
            self._held_bytes -= held.size
            return held
        file = int(self.order(epoch)[position])
        # A scan that is under way goes to its end even if this lane has no more: others have blocks there.
        if number >= self._ends.get(file, number + 1) and all(each.place != (epoch, position) for each in self._scans):
            return None
        scan = self._scan_before(epoch, position, file, number)
        try:
            for passed, block in scan.blocks:
                if passed == number:
                    return block
                self._hold((epoch, position, passed), block)
        except InputError as error:
            if not self._data.skip:
                raise
            self.counts["damaged_files"] += file not in self._ends
            log.warning("%s; the rest of this file is passed over", error)
        self._ends[file] = scan.blocks.number
        self._drop(scan)
        return None

    def _scan_before(self, epoch: int, position: int, file: int, number: int) -> _Scan:
        """Return the scan of a file that has come nearest to block ``number``, or a new one."""
        scans = [scan for scan in self._scans if scan.place == (epoch, position) and scan.blocks.number <= number]
        if scans:
            scan = max(scans, key=lambda scan: scan.blocks.number)
            self._scans.remove(scan)
        else:
            self._budget.make_room(1)
            while self._scans and (len(self._scans) >= _OPEN_SCANS or self._budget.held >= self._budget.limit):
                self._drop(self._scans[0])
            data = self._data
            if not data.skip or os.path.exists(data.files[file]):  # what is gone is passed over like what is damaged
                data.check(data.files[file])
            wanted = self._wanted(epoch, position)
            blocks = BlockScan(data.files[file], self._records, number, wanted, data.text_key, data.id_key, data.fields)
            scan = _Scan((epoch, position), blocks)
        self._scans.append(scan)
        return scan

    def _wanted(self, epoch: int, position: int) -> Callable[[int], bool]:
        places, lanes = self._places, self._lanes

        def wanted(number: int) -> bool:
            place = places.get((position + number) % lanes)
            return place is not None and (epoch, position, number) >= place

        return wanted

    def _hold(self, place: Place, block: Block) -> None:
        """Keep a block that another lane will ask for, sifted where that leaves less; unless too much is kept already."""
        if place in self._held or self._held_bytes >= _HELD_BYTES:
            return
        held = self._sift(block) if self._filters or self._data.splits else block
        self._held_bytes += held.size
        self._held[place] = held

    def _drop(self, scan: _Scan) -> None:
        self._scans.remove(scan)
        self.counts["bytes"] += scan.blocks.bytes_read
        scan.blocks.close()

    def _order(self, epoch: int) -> np.ndarray[Any, Any]:
        count = len(self._data.files)
        return np.arange(count) if self._seed is None else permutation(count, derive_key("files", self._seed, epoch))


class _Sifted(NamedTuple):
    """A parsed block: None for each document that is not kept; ``read`` of them were ours, ``rejected`` by filters."""

    size: int
    documents: list[Document | None]
    read: int
    rejected: int
    bad: list[BadRecord]


class _Scan(NamedTuple):
    place: tuple[int, int]  # epoch, file position
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
        encode, eos = self._data.encoder.encode_flat, self._data.eos
        try:
            return encode([document.text for document in documents], eos=eos)
        except InputError:
            for document in documents:
                try:
                    encode([document.text], eos=eos)
                except InputError as error:
                    raise InputError(f"{document.file}, line {document.line}: {error}") from None
            raise


def _key(document: Document) -> str:
    """Return what a document is split by: its id, or where its record has none a hash of its text."""
    if document.id and document.id != made_id(document.file, document.line):
        return document.id
    return hashlib.blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
