"""Which extents of a dataset are streamed: those of some shards, of a part of a split, or of some listings of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ....shards.extents.extent_table import ExtentTable, running_sums, runs
from ...order import Blocks

T = TypeVar("T")
Int = NDArray[np.int64]
Places = Mapping[int, Int]  # numbers of documents, by shard of the dataset


class Repeats(NamedTuple):
    """How often an epoch reads each document of an upsampled source (section 2 of the order).

    The table lists the shards ``listings`` times. Listing ``k`` has the documents whose ``times`` (uint8, of one listing) are
    above ``k``. ``tokens`` and ``documents`` (int64) count the documents that each extent of the table has in its listing.
    """

    times: NDArray[np.uint8]
    tokens: Int
    documents: Int
    listings: int


REDACTED, WITHHELD = 0, 2  # in a mask, which is 1 for tokens that count


class Withheld(NamedTuple):
    """Documents that ``.without`` masks, and why."""

    reason: str
    places: Places


@dataclass(frozen=True, eq=False)
class Selection:
    """Which extents of a dataset are streamed, which of their documents, and which of these are masked.

    Splits, listings of shards, upsampling, redactions and ``.without`` replace it. ``load`` returns the table of all shards; each
    process calls it when the table is first needed. ``shards`` are the numbers of the shards that are listed; a number may repeat
    (None: each shard once). ``rows`` are the extents of the listed shards that are streamed, ascending (None: all). ``repeats``
    chooses the documents of an upsampled source. ``redacted`` documents and those of ``withheld`` are masked.
    """

    load: Callable[[], ExtentTable]
    shards: Sequence[int] | None = None
    rows: Int | None = None
    repeats: Repeats | None = None
    redacted: Places = field(default_factory=dict)
    withheld: tuple[Withheld, ...] = ()

    @cached_property
    def table(self) -> ExtentTable:
        """The table of the listed shards."""
        return self.load() if self.shards is None else self.load().select(self.shards)

    @property
    def listings(self) -> int:
        """How often each shard is listed."""
        return 1 if self.repeats is None else self.repeats.listings

    def of_shards(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items of the listed shards, from one item for each shard of the dataset."""
        return items if self.shards is None else [items[shard] for shard in self.shards]

    def documents(self) -> tuple[Int, Int]:
        """Return the listed shard of each document of the selected extents, and its number there; of no upsampled source."""
        table = self.table
        rows = np.arange(len(table)) if self.rows is None else self.rows
        counts = table.documents[rows].astype(np.int64)
        return np.repeat(table.shard_of(rows), counts), runs(table.first_document_of(rows), counts)

    def among(self, places: Places, shards: Int, numbers: Int) -> NDArray[np.bool_]:
        """Say for each document, by its listed shard and its number there, whether ``places`` has it."""
        found = np.zeros(len(shards), np.bool_)
        for listed in np.unique(shards).tolist() if places else ():
            shard, own = listed if self.shards is None else self.shards[listed], shards == listed
            if shard in places:
                found[own] = np.isin(numbers[own], places[shard])
        return found

    def mask(self, shards: Int, numbers: Int) -> NDArray[np.uint8] | None:
        """Return for each document the value of its tokens in a mask; None if all count."""
        if not self.redacted and not self.withheld:
            return None
        values = np.ones(len(shards), np.uint8)
        for each in self.withheld:
            values[self.among(each.places, shards, numbers)] = WITHHELD
        values[self.among(self.redacted, shards, numbers)] = REDACTED
        return None if (values == 1).all() else values

    def reason(self, shard: int, number: int) -> str | None:
        """Return why a document is withheld; None if it is not."""
        at = shard if self.shards is None else self.shards[shard]
        return next((each.reason for each in self.withheld if number in each.places.get(at, ())), None)

    def without(self, documents: Iterable[tuple[int, int]], reason: str) -> Selection:
        """Return the selection with documents withheld, given by listed shard and number."""
        numbers: dict[int, list[int]] = {}
        for shard, number in documents:
            numbers.setdefault(shard if self.shards is None else self.shards[shard], []).append(number)
        places = {shard: np.unique(np.array(own, np.int64)) for shard, own in sorted(numbers.items())}
        return replace(self, withheld=(*self.withheld, Withheld(reason, places))) if places else self

    def withheld_names(self) -> list[str]:
        """Return the withheld documents, each once and ascending, by shard of the dataset and number."""
        places = {(shard, n) for each in self.withheld for shard, own in each.places.items() for n in own.tolist()}
        return [f"{shard}:{number}" for shard, number in sorted(places)]

    def masks_of(self, shards: Int, numbers: Int) -> dict[str, Any]:
        """Return the fields of a selection that mask the same of these documents, if they become a shard of their own."""
        redacted = np.flatnonzero(self.among(self.redacted, shards, numbers))
        withheld = [(each.reason, np.flatnonzero(self.among(each.places, shards, numbers))) for each in self.withheld]
        return {
            "redacted": {0: redacted} if len(redacted) else {},
            "withheld": tuple(Withheld(reason, {0: own}) for reason, own in withheld if len(own)),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # another process loads the table again

    def counts(self) -> tuple[list[int], list[int]]:
        """Return the documents and the tokens of the selected extents of each shard."""
        given = self.repeats or self.table
        rows = np.arange(len(self.table)) if self.rows is None else self.rows
        bounds = rows.searchsorted(self.table.shard_bounds)
        documents, tokens = (np.diff(running_sums(column[rows])[bounds]) for column in (given.documents, given.tokens))
        return documents.tolist(), tokens.tolist()

    def blocks(self, *, in_mix: bool = False) -> Blocks:
        """Return these extents in blocks, cut at the first call."""
        return self._blocks_of_mix if in_mix else self._blocks

    @cached_property
    def _blocks(self) -> Blocks:
        return self._cut(in_mix=False)

    @cached_property
    def _blocks_of_mix(self) -> Blocks:
        return self._cut(in_mix=True)

    def _cut(self, in_mix: bool) -> Blocks:
        table, rows = self.table, self.rows
        if rows is None:
            return Blocks.of_extents(
                table.extents, table.size_sums, table.token_sums, table.document_sums, in_mix=in_mix
            )
        # A run of neighbours counts as a shard, so that a block is one range of a file.
        begins = np.flatnonzero((np.diff(rows, prepend=-2) != 1) | (np.diff(table.shard_of(rows), prepend=-1) != 0))
        runs = np.diff(begins, append=len(rows))
        given = self.repeats or table
        sums = (running_sums(column[rows]) for column in (table.sizes, given.tokens, given.documents))
        return Blocks.of_extents(runs, *sums, in_mix=in_mix)

    def extent_of(self, shard: int, document: int) -> int | None:
        """Return the number, in this selection, of the extent that holds a document; None if it is not selected."""
        table = self.table
        before = int(table.document_sums[table.shard_bounds[shard]]) + document
        row = int(table.document_sums.searchsorted(before, side="right")) - 1
        if self.rows is None:
            return row
        extent = int(self.rows.searchsorted(row))
        return extent if extent < len(self.rows) and self.rows[extent] == row else None

    def table_rows(self, first: Int, last: Int) -> tuple[Int, Int]:
        """Return the rows of the table, as first and end, of the selected extents ``first`` to ``last`` (exclusive)."""
        return (first, last) if self.rows is None else (self.rows[first], self.rows[last - 1] + 1)

    def documents_of(self, first: int, last: int) -> Int | slice:
        """Return the documents to stream of a run of rows of one shard, by their numbers in the run."""
        if (repeats := self.repeats) is None:
            return slice(None)
        times, (begin, end) = repeats.times, self.table.document_sums[[first, last]].tolist()
        listing, at = divmod(begin, len(times))
        return np.flatnonzero(times[at : at + end - begin] > listing)
