"""The base class of data with counts known in advance, and the extents of its shards that are streamed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...shards.blocks.block_reader import BlockReader
from ...shards.extents.extent_table import ExtentTable, running_sums
from ..lanes import WINDOW_BYTES
from ..order import Blocks, default_window, mix_window, sequential_window

if TYPE_CHECKING:
    from ...text.tokenizer.tokenizer import Tokenizer


class CountedData:
    """One source of documents, whose counts are known without opening a shard.

    ``documents`` and ``tokens`` are the counts of each shard; `.split` hashes ``shard_names``. The data was split ``split_level``
    times; the splits kept the extents ``rows`` of its table (None: all). ``redacted`` are the numbers of redacted documents by
    shard. ``repeats`` says how often an epoch reads each document (None: once).
    """

    live = False
    split: str
    dtype: np.dtype[Any]
    eos_id: int
    vocab_size: int | None = None
    tokenizer_sha256: str | None
    tokenizer: Tokenizer | None = None
    documents: list[int]
    tokens: list[int]
    fingerprint: str
    label: str
    shard_names: Sequence[str]
    split_level = 0
    rows: NDArray[np.int64] | None = None
    redacted: Mapping[int, NDArray[np.int64]] = MappingProxyType({})
    # If documents were dropped from a dataset, the old dataset's fingerprint -> what to say about a state of the old dataset.
    former: Mapping[str, str] = MappingProxyType({})
    repeats: Repeats | None = None
    sources_of_shards: Sequence[str] = ()  # the source of each shard, if the build named sources

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of the sources that the build named, in the order of their first shards."""
        return tuple(dict.fromkeys(self.sources_of_shards))

    def __repr__(self) -> str:
        return self.label

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the ids; ``ConfigError`` if it is unknown."""
        if self.tokenizer is not None:
            return self.tokenizer
        raise ConfigError(
            f"{self.label} does not name its tokenizer: load it by pipeline.load_tokenizer(NAME), and decode a row's input_ids"
        )

    def table(self) -> ExtentTable:
        """Return the table of all extents of its shards."""
        raise NotImplementedError

    @cached_property
    def selected_extents(self) -> ExtentSelection:
        """The extents that are streamed."""
        return ExtentSelection(self.table(), self.rows, self.redacted, self.repeats)

    def select(self, rows: NDArray[np.int64]) -> CountedData:
        """Return the same data with only these rows of the table of extents."""
        data, table = copy.copy(self), self.selected_extents.table
        data.rows = rows
        data.selected_extents = ExtentSelection(table, rows, self.redacted)
        bounds = np.searchsorted(rows, table.shard_bounds)
        data.documents, data.tokens = (
            np.diff(running_sums(column[rows])[bounds]).tolist() for column in (table.documents, table.tokens)
        )
        return data

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "selected_extents"}

    def origin(self, document: tuple[int, int]) -> dict[str, Any]:
        """Return the origin of a document, which is a pair of a shard and the document's number in the shard."""
        return {"document": document[1]}

    def find(self, document: str) -> list[tuple[int, int]]:
        """Return shard and number of each document that ``document`` names: SHARD:NUMBER, or NUMBER of an array."""
        shard, _, number = document.rpartition(":")
        if not (number.isascii() and number.isdecimal()):
            return []
        named = [at for at, name in enumerate(self.shard_names) if name == shard]  # several datasets may have the name
        return [(at, int(number)) for at in named if int(number) < self.documents[at]]

    def document(self, shard: int, number: int) -> NDArray[Any]:
        """Return the tokens of a document."""
        raise NotImplementedError

    def ranges(self) -> BlockReader:
        """Return a reader of the extents, for the process that iterates."""
        raise NotImplementedError

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def total_documents(self) -> int:
        return sum(self.documents)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in memory."""
        return self.dtype.itemsize

    def records(self, most: int) -> int:
        """Return how many documents there are, at most ``most``."""
        return min(most, self.total_documents)

    def sizes(self) -> str:
        shards = "1 shard" if len(self.documents) == 1 else f"{len(self.documents):,} shards"
        return f"{shards}, {self.total_documents:,} documents, {self.total_tokens:,} tokens"

    def check_stage(self, method: str) -> None:
        if self.repeats is not None and method in ("split", "upsample"):
            raise ConfigError(
                f".{method}() comes before .upsample(), and once: {self.label} reads documents several times"
            )

    def check_rules(self, fields: Sequence[str]) -> NoReturn:
        raise ConfigError("rules and languages judge text, and shards hold tokens; filter when they are built")

    def window(self, lanes: int, mixed: int, stated: int | None, *, is_shuffled: bool, is_sequential: bool) -> int:
        if not is_shuffled:
            return 1
        if stated is not None:
            return stated
        blocks = self.selected_extents.blocks(in_mix=mixed > 0)
        if is_sequential:
            return sequential_window(blocks, WINDOW_BYTES // (lanes * max(1, mixed)))
        return mix_window(blocks, lanes, mixed) if mixed else default_window(blocks)

    def raise_if_empty(self, count: int, unit: str) -> None:
        """Raise ``ConfigError`` for a split that holds nothing."""
        if count == 0:
            raise ConfigError(
                f"split {self.split!r} holds no {unit}: there is nothing to stream; build it from more input"
            )


class Repeats(NamedTuple):
    """How often an epoch reads each document of an upsampled source (section 2 of the order).

    The table lists the shards several times. Listing ``k`` has the documents whose ``times`` (uint8, of one listing) are above
    ``k``. ``tokens`` and ``documents`` (int64) count the documents that each extent of the table has in its listing.
    """

    times: NDArray[np.uint8]
    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ExtentSelection:
    """The extents of a table that are streamed: those in ``rows``, ascending (None: all).

    ``redacted`` are the numbers of redacted documents by shard; more may be added while the extents are streamed. ``repeats``
    chooses the documents of an upsampled source.
    """

    table: ExtentTable
    rows: NDArray[np.int64] | None = None
    redacted: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    repeats: Repeats | None = None

    def blocks(self, *, in_mix: bool = False) -> Blocks:
        """Return these extents in blocks, cut at the first call."""
        if in_mix not in self._blocks:
            self._blocks[in_mix] = self._cut(in_mix)
        return self._blocks[in_mix]

    @cached_property
    def _blocks(self) -> dict[bool, Blocks]:
        return {}

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

    def table_rows(
        self, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of the table, as first and end, of the selected extents ``first`` to ``last`` (exclusive)."""
        return (first, last) if self.rows is None else (self.rows[first], self.rows[last - 1] + 1)

    def documents_of(self, first: int, last: int) -> NDArray[np.int64] | slice:
        """Return the documents to stream of a run of rows of one shard, by their numbers in the run."""
        if self.repeats is None:
            return slice(None)
        times, (begin, end) = self.repeats.times, self.table.document_sums[[first, last]].tolist()
        listing, at = divmod(begin, len(times))
        return np.flatnonzero(times[at : at + end - begin] > listing)
