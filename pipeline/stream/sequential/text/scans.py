"""The blocks of file parts, read by scans that the lanes of one process share.

A scan keeps each block that it passes for the lane that needs the block. If too much is kept already, that lane reads the part
again. Filters judge a block before it is kept. So if filters keep little, a lane may be far ahead of others.
"""

from __future__ import annotations

import logging
import math
import os
import resource
from typing import TYPE_CHECKING, NamedTuple

from ....errors import DamagedInputError, InputError
from ....text.formats import format_of, is_named_compressed
from ....text.readers.format_reader import load_reader
from ...lanes import WindowStart
from .assignment import BlockAssignment, FilePart
from .block_scan import Block, BlockScan, begin_together
from .documents import DocumentEncoder, FilteredBlock

if TYPE_CHECKING:
    from ...datasets.sources.text_data import TextData

KEPT_BYTES = 256 << 20
_WHOLE_BYTES = 128 << 20
_SMALL_BYTES = 256 << 10
_SCANS = 8  # open scans in addition to one for each lane

BlockKey = tuple[int, int, int]  # epoch, number of the file part in its order, number of the block

log = logging.getLogger("pipeline")


class SharedScans:
    """Reads blocks of about ``block_bytes`` of file parts.

    ``starts`` is the window start from which each lane reads next; the lanes update it. ``documents`` filters blocks before they
    are kept, so that they take less memory.
    """

    def __init__(
        self,
        data: TextData,
        assignment: BlockAssignment,
        starts: dict[int, WindowStart],
        block_bytes: int,
        documents: DocumentEncoder,
        *,
        kept_bytes: int,
        sources: int,
    ) -> None:
        self._bytes_read = 0  # by scans that have ended
        self._data = data
        self._assignment = assignment
        self._starts = starts
        self._block_bytes = block_bytes
        self._documents = documents
        self._kept: dict[BlockKey, FilteredBlock] = {}
        self._kept_bytes = 0
        self._most_kept = kept_bytes // sources
        self._is_remote = any(file.stored for file in data.files)
        self._begun: set[tuple[int, int]] = set()  # epochs and remote parts whose first blocks were read ahead
        self._scans: list[_Scan] = []  # the most recently used last
        # One for each part that a lane reads; for remote files, another for the part that it reads next.
        self._most_scans = min(
            (2 if self._is_remote else 1) * len(starts) + _SCANS, max(1, _allowed_files() // sources)
        )
        # All blocks of a small text, since opening its files takes longer than an epoch in memory.
        self._small: dict[tuple[FilePart, int], FilteredBlock | None] | None = (
            {} if data.bytes <= _SMALL_BYTES else None
        )
        self._ends: dict[FilePart, int] = {}  # how many blocks a part has, if a scan has reached its end
        self._whole = _whole_files(data, _WHOLE_BYTES // sources)

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return self._bytes_read + sum(scan.blocks.bytes_read for scan in self._scans)

    def block(self, epoch: int, at: int, number: int) -> FilteredBlock | None:
        """Return a block of file part ``at`` of an epoch; None after the end of the part."""
        if self._small is None:
            return self._block(epoch, at, number)
        key = self._assignment.epoch(epoch).parts[at], number
        if key not in self._small:
            self._small[key] = self._block(epoch, at, number)
        return self._small[key]

    def _block(self, epoch: int, at: int, number: int) -> FilteredBlock | None:
        kept = self._kept.pop((epoch, at, number), None)
        if kept is not None:
            self._kept_bytes -= kept.size
            return kept
        block = self._scan(epoch, at, number)
        return None if block is None else self._documents.filter(block)

    def begin(self, epoch: int, group: int, cycle: int) -> None:
        """Read the first blocks of the remote parts of a cycle and the next at the same time; at first, of all lanes' cycles."""
        if not self._is_remote:
            return
        cycles = [(epoch, group, cycle), (epoch, group, cycle + 1)]
        if not self._begun:
            cycles = (
                sorted({(e, lane % self._assignment.groups, b) for lane, (e, b, _) in self._starts.items()}) + cycles
            )
        begun = []
        for epoch, group, cycle in cycles:
            assignment = self._assignment.epoch(epoch)
            for at in assignment.cycle(group, cycle):
                if len(self._scans) >= self._most_scans:
                    break  # so that no scan that a lane uses now is closed
                if self._data.files[assignment.parts[at].file].stored is not None and (epoch, at) not in self._begun:
                    self._begun.add((epoch, at))
                    begun.append(self._open_scan(epoch, at))
        begin_together([scan.blocks for scan in begun])
        oldest = min(epoch for epoch, _, _ in self._starts.values())
        self._begun = {key for key in self._begun if key[0] >= oldest}

    def close(self) -> None:
        """Close the files."""
        while self._scans:
            self._drop(self._scans[0])

    def _scan(self, epoch: int, at: int, number: int) -> Block | None:
        """Scan to a block and return it, keeping the blocks before it for other lanes; None after the end of the part."""
        part = self._assignment.epoch(epoch).parts[at]
        scans = [scan for scan in self._scans if scan.part == (epoch, at) and scan.blocks.number <= number]
        if scans:  # a scan goes on after this lane's last block, since other lanes need its blocks
            scan = max(scans, key=lambda scan: scan.blocks.number)
            self._scans.remove(scan)
            self._scans.append(scan)
        elif number < self._ends.get(part, math.inf):
            scan = self._open_scan(epoch, at)
        else:
            return None
        try:
            for passed, block in scan.blocks:
                if passed == number:
                    return block
                self._keep((epoch, at, passed), block)
        except InputError as error:
            is_remote = self._data.files[part.file].stored is not None
            if self._data.on_error != "skip" or (is_remote and not isinstance(error, DamagedInputError)):
                raise  # a remote file that changed is not damaged, and other ranks may have read it before
            self._documents.counts["damaged_files"] += part not in self._ends
            log.warning("%s; the rest of this file is skipped", error)
        self._ends[part] = scan.blocks.number
        self._drop(scan)
        return None

    def _open_scan(self, epoch: int, at: int) -> _Scan:
        while len(self._scans) >= self._most_scans:
            self._drop(self._scans[0])
        data, assignment, starts = self._data, self._assignment.epoch(epoch), self._starts
        part = assignment.parts[at]
        file = data.files[part.file]
        if data.on_error != "skip" or os.path.exists(file):  # a missing file is skipped like a damaged file
            data.check(file)

        def wanted(number: int) -> bool:
            lane, cycle, round = assignment.lane_of(at, number)
            start = starts.get(lane)
            return start is not None and (epoch, cycle, round) >= start

        blocks = BlockScan(
            file,
            self._block_bytes,
            wanted,
            span=part.span,
            rows_before=part.lines,
            whole=part.file in self._whole,
            **data.reading,
        )
        self._scans.append(_Scan((epoch, at), blocks))
        return self._scans[-1]

    def _keep(self, key: BlockKey, block: Block) -> None:
        """Keep a block that another lane reads, unless too much is kept already."""
        if key not in self._kept and self._kept_bytes < self._most_kept:
            self._kept[key] = kept = self._documents.filter(block)
            self._kept_bytes += kept.size

    def _drop(self, scan: _Scan) -> None:
        self._scans.remove(scan)
        self._bytes_read += scan.blocks.bytes_read
        scan.blocks.close()


class _Scan(NamedTuple):
    part: tuple[int, int]  # epoch, number of the file part in its order
    blocks: BlockScan


def _allowed_files() -> int:
    """Return how many files the streams of this process may open: half of the process's limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(allowed // 2, 1 << 14)) if allowed > 0 else 1 << 14


def _whole_files(data: TextData, most: int) -> set[int]:
    """Return the remote files of plain lines, to download whole, if they have at most ``most`` bytes together.

    This saves a request for each piece of a few KB of a small input.
    """
    plain = [
        number
        for number, file in enumerate(data.files)
        if file.stored and load_reader(format_of(file)).cut_anywhere and not is_named_compressed(file)
    ]
    return set(plain) if sum(data.files[number].size for number in plain) <= most else set()
