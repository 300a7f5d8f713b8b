"""Reads the records of a unit of input for the ingest stage: up to a limit, in partitions and batches."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import DamagedInputError
from ...text.extract import Extract
from ...text.fields import Field
from ...text.readers.document_reader import BadRecord, Document, DocumentReader, Record, Unselected, field_finder
from ...text.storage.input_file import Credentials, InputFile
from ...text.storage.remote_file import FIRST_BYTES
from ..engines.local import report_progress
from ..inputs import check_same
from ..limits import Limits
from ..plan import Plan, Span

_FILES_AHEAD = 8  # small remote files of a unit that are fetched while one is read
UNREADABLE = "file that cannot be read further"

NumberedRecord = tuple[int, Record]  # with the number of its span in the unit
Batches = Iterator[list[NumberedRecord]]


class UnitRecords:
    """Iterates once over the records of a unit, each with the number of its span, up to ``most`` selected records.

    ``selected`` counts the selected records, ``bytes_read`` the bytes of input. ``spans`` has the lines, the hash and the damage
    of each span that was read to its end. ``until`` is the bytes after which the caller stops: no more is fetched ahead.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        fields: Sequence[Field],
        extract: Extract | None,
        credentials: Credentials,
        most: int | None,
        until: int | None = None,
    ) -> None:
        self.bytes_read = 0
        self.selected = 0
        self.spans: list[dict[str, Any]] = []
        self._plan = plan
        self._unit = plan.units[number]
        self._fields = fields
        self._extract = extract
        self._credentials = credentials
        self._most = math.inf if most is None else most
        self._until = until

    def __iter__(self) -> Iterator[NumberedRecord]:
        for pair in self._records() if self._most else ():
            yield pair
            self.selected += not isinstance(pair[1], Unselected)
            if self.selected == self._most:
                return

    def partitions(self, limits: Limits) -> Iterator[Batches]:
        """Yield the batches of each partition. Each must be used up before the next is asked for."""
        return _partitions(_batches(iter(self), limits), limits)

    def _records(self) -> Iterator[NumberedRecord]:
        readers: deque[DocumentReader] = deque()
        for number, span in enumerate(self._unit):
            for later in self._unit[number + len(readers) : number + 1 + _FILES_AHEAD]:
                readers.append(self._reader(later))
                if self._until is None and self._most == math.inf:
                    readers[-1].fetch_ahead()
            for record in self._span_records(span, readers.popleft()):
                yield number, record

    def _reader(self, span: Span) -> DocumentReader:
        recipe, item = self._plan.recipe, self._plan.inputs[span.input]
        keys: dict[str, Any] = {"text_key": recipe.text_key, "id_key": recipe.id_key, "extract": self._extract}
        keys |= {"keep": self._fields, "where": recipe.condition, "until": self._until, "warns": False}
        keys["elsewhere"] = field_finder(self._files, self._plan.known_fields)
        sample = self._plan.limits.file_records
        keys |= {"first_bytes": FIRST_BYTES, "until": FIRST_BYTES} if sample else {}
        return DocumentReader(item.file(self._credentials, recipe.format), (span.start, span.stop), **keys)

    def _files(self) -> Iterator[InputFile]:
        return (item.file(self._credentials, self._plan.recipe.format) for item in self._plan.inputs)

    def _span_records(self, span: Span, reader: DocumentReader) -> Iterator[Record]:
        """Yield the records of a span; note in ``spans`` its lines, hash and damage."""
        recipe, item, sample = self._plan.recipe, self._plan.inputs[span.input], self._plan.limits.file_records
        digest, damage = None, None
        try:
            yield from itertools.islice(self._with_progress(reader, span.lanes), sample)
            digest = None if sample else reader.sha256
        except DamagedInputError as error:
            check_same(item, self._credentials)  # if the input has changed, the damage is another program's writing
            if recipe.on_error != "skip":
                cure = "mend it, or keep its readable part and count the fault with --on-error skip"
                raise DamagedInputError(f"{error}; {cure}") from error
            damage = {"line": reader.lines + 1, "fault": reader.fault, "unconfirmed": reader.unconfirmed}
            yield BadRecord(item.name, reader.lines + 1, None, UNREADABLE, reader.fault, item.source)
        check_same(item, self._credentials, was_read=True)
        summary = {"lines": reader.lines, "sha256": digest, "damage": damage, "left_out": reader.left_out}
        self.spans.append(summary)

    def _with_progress(self, reader: DocumentReader, lanes: int) -> Iterator[Record]:
        """Yield the records of a reader, and report the bytes it has read. Each lane reports its share of the bytes."""
        before, reported = self.bytes_read, 0
        for records in reader.batches():
            self.bytes_read = before + reader.bytes_read
            read = reader.bytes_read // lanes
            if read > reported:
                report_progress(read - reported)
                reported = read
            yield from records


def _batches(records: Iterator[NumberedRecord], limits: Limits) -> Batches:
    """Group records into batches of bounded text."""
    batch: list[NumberedRecord] = []
    size = 0
    for pair in records:
        batch.append(pair)
        size += len(pair[1].text) if isinstance(pair[1], Document) else 0
        if len(batch) >= limits.batch_records or size >= limits.batch_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _partitions(batches: Batches, limits: Limits) -> Iterator[Batches]:
    """Cut batches into partitions of bounded text and records. Each must be used up before the next is asked for."""

    def partition(batch: list[NumberedRecord]) -> Batches:
        size = records = 0
        for next_batch in itertools.chain([batch], batches):
            size += sum(len(record.text) for _, record in next_batch if isinstance(record, Document))
            records += sum(1 if isinstance(record, Document) else record.count for _, record in next_batch)
            yield next_batch
            if size >= limits.partition_characters or records >= limits.partition_records:
                return

    return (partition(batch) for batch in batches)
