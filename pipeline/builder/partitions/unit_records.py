"""The records of a unit of input as the filter stage takes them: up to a limit, in pieces, partitions and batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import DamagedInputError
from ...text.fields import Field
from ...text.readers.reader import BadRecord, Document, Reader, Record, Unselected
from ...text.readers.record_blocks import FIRST_BYTES
from ...text.storage.input_file import NO_CREDENTIALS, Credentials
from ..engine.base import report_progress
from ..inputs import check_same
from ..limits import Limits
from ..plan import Plan, Span

UNREADABLE = "file that cannot be read further"

PlacedRecord = tuple[int, Record]  # with the place of its span in the unit
Batches = Iterator[list[PlacedRecord]]


class UnitRecords:
    """Iterates once over the records of a unit, each with the place of its span, up to ``most`` that are selected.

    A file that counts in pieces is read up to ``pieces`` of them, by default all; ``piece`` is the one in which the last
    record lies. ``selected`` counts records, and ``spans`` has the lines, the hash and the damage of each span that
    was read to its end.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        fields: Sequence[Field] = (),
        credentials: Credentials = NO_CREDENTIALS,
        most: int | None = None,
        pieces: int | None = None,
    ) -> None:
        self.piece = 0
        self.selected = 0
        self.spans: list[dict[str, Any]] = []
        self._plan = plan
        self._unit = plan.units[number]
        self._fields = fields
        self._credentials = credentials
        self._most = math.inf if most is None else most
        self._pieces = self._unit[0].pieces if pieces is None else pieces

    def __iter__(self) -> Iterator[PlacedRecord]:
        for pair in self._records() if self._most else ():
            yield pair
            self.selected += not isinstance(pair[1], Unselected)
            if self.selected == self._most:
                return

    def partitions(self, limits: Limits) -> Iterator[tuple[int, Batches]]:
        """Yield partitions, each as its piece and its batches. Each must be used up before the next is asked for."""
        in_pieces = itertools.groupby(self, lambda pair: self.piece) if self._unit[0].pieces > 1 else [(0, iter(self))]
        for piece, records in in_pieces:
            for partition in _partitions(_batches(records, limits), limits.partition_characters):
                yield piece, partition

    def _records(self) -> Iterator[PlacedRecord]:
        for place, span in enumerate(self._unit):
            for record in self._span_records(span):
                yield place, record

    def _span_records(self, span: Span) -> Iterator[Record]:
        """Yield the records of a span; note in ``spans`` what reading it found."""
        recipe, item = self._plan.recipe, self._plan.inputs[span.input]
        keys: dict[str, Any] = {"text_key": recipe.text_key, "id_key": recipe.id_key}
        keys |= {"keep": self._fields, "where": recipe.condition, "until": span.pieces_end(self._pieces, item.size)}
        keys["warns"] = False
        sample = self._plan.limits.file_records
        keys |= {"first_bytes": FIRST_BYTES, "until": FIRST_BYTES} if sample else {}
        reader = Reader(item.file(self._credentials, recipe.format), (span.start, span.stop), **keys)
        digest, damage = None, None
        try:
            for record in itertools.islice(_with_progress(reader, span.lanes), sample):
                if span.pieces > 1 and self._is_beyond(span, reader, item.size):
                    return
                yield record
            digest = None if sample else reader.sha256
        except DamagedInputError as error:
            if self._is_beyond(span, reader, item.size):
                return
            check_same(item, self._credentials)  # or it may have been read while it was written
            if recipe.on_error != "skip":
                cure = "mend it, or keep what can be read of it and count the fault with --on-error skip"
                raise DamagedInputError(f"{error}; {cure}") from error
            damage = {"line": reader.lines + 1, "fault": reader.fault, "unconfirmed": reader.unconfirmed}
            yield BadRecord(item.name, reader.lines + 1, None, UNREADABLE, reader.fault, item.source)
        check_same(item, self._credentials)
        told = {"lines": reader.lines, "sha256": digest, "damage": damage, "left_out": reader.left_out}
        self.spans.append(told)

    def _is_beyond(self, span: Span, reader: Reader, size: int) -> bool:
        """Note the piece that has been reached; return whether it is beyond those that are read.

        The bytes of a file come in blocks that no setting changes, so each record belongs to the same piece however many
        are read.
        """
        self.piece = span.piece_of(reader.bytes_read, size)
        return self.piece >= self._pieces


def _with_progress(reader: Reader, lanes: int) -> Iterator[Record]:
    """Yield the records of a reader, and report the bytes of the file that are read; lanes share the bytes."""
    reported = 0
    for records in reader.batches():
        read = reader.bytes_read // lanes
        if read > reported:
            report_progress(read - reported)
            reported = read
        yield from records


def _batches(records: Iterator[PlacedRecord], limits: Limits) -> Batches:
    """Join records to batches of bounded text."""
    batch: list[PlacedRecord] = []
    size = 0
    for pair in records:
        batch.append(pair)
        size += len(pair[1].text) if isinstance(pair[1], Document) else 0
        if len(batch) >= limits.batch_records or size >= limits.batch_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _partitions(batches: Batches, most: int) -> Iterator[Batches]:
    """Cut batches into partitions of about ``most`` characters. Each must be used up before the next is asked for."""

    def partition(batch: list[PlacedRecord]) -> Batches:
        size = 0
        for each in itertools.chain([batch], batches):
            size += sum(len(record.text) for _, record in each if isinstance(record, Document))
            yield each
            if size >= most:
                return

    return (partition(batch) for batch in batches)
