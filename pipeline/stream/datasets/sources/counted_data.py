"""The base class of data with counts known in advance."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError
from ....shards.blocks.block_reader import BlockReader
from ...lanes import lane_bytes
from ...order import default_window, mix_window, sequential_window
from .selection import Selection

if TYPE_CHECKING:
    from ....text.tokens.tokenizer import Tokenizer


class CountedData:
    """One source of documents, whose counts are known without opening a shard.

    ``documents`` and ``tokens`` are the counts of each shard; `.split` hashes ``shard_names``. The data was split ``split_level``
    times. ``selection`` says which of its extents are streamed.
    """

    live = False
    split: str
    dtype: np.dtype[Any]
    eos_id: int
    vocab_size: int | None = None
    tokenizer_sha256: str | None
    tokenizer_name: str | None = None
    tokenizer: Tokenizer | None = None
    documents: list[int]
    tokens: list[int]
    fingerprint: str
    label: str
    shard_names: Sequence[str]
    split_level = 0
    selection: Selection
    # If documents were dropped from a dataset, the old dataset's fingerprint -> what to say about a state of the old dataset.
    former: Mapping[str, str] = MappingProxyType({})
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

    @property
    def extents(self) -> Selection:
        """The selection now, with its table loaded."""
        _ = self.selection.table
        return self.selection

    def part(self, selection: Selection, *, split: str, label: str, fingerprint: str) -> Self:
        """Return the same data with another selection of extents, and another identity."""
        data = copy.copy(self)
        data.selection, data.split, data.label, data.fingerprint = selection, split, label, fingerprint
        data.count()
        return data

    def count(self) -> None:
        """Set ``documents`` and ``tokens`` to those of the selected extents of each shard."""
        self.documents, self.tokens = self.extents.counts()

    def without(self, documents: Iterable[tuple[int, int]], reason: str) -> Self:
        """Return the same data with documents masked, given by shard and number."""
        data = copy.copy(self)
        data.selection = self.selection.without(documents, reason)
        data.label = f"{self.label}.without({len(data.withheld_names()) - len(self.withheld_names()):,} documents)"
        return data

    def withheld_names(self) -> list[str]:
        """Return the documents that `without` masks, in an order of their own; states hold a hash of them."""
        return self.selection.withheld_names()

    def origin(self, document: tuple[int, int]) -> dict[str, Any]:
        """Return the origin of a document, which is a pair of a shard and the document's number in the shard."""
        reason = self.selection.reason(*document)
        return self._origin(document) | ({} if reason is None else {"withheld": reason})

    def _origin(self, document: tuple[int, int]) -> dict[str, Any]:
        return {"document": document[1]}

    def find(self, documents: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        """Return shard and number of each document that is named, by its name: SHARD:NUMBER, or NUMBER of an array.

        A name that no document has is missing. A document of another part of a split is listed, but its list may be empty.
        """
        shards: dict[str, list[int]] = {}
        for at, name in enumerate(self.shard_names):  # several datasets may have the name
            shards.setdefault(name, []).append(at)
        found: dict[str, list[tuple[int, int]]] = {}
        counts: NDArray[np.int64] | None = None
        for document in documents:
            shard, _, number = document.rpartition(":")
            if number.isascii() and number.isdecimal() and len(number) < 19 and shard in shards:
                if counts is None:
                    table = self.extents.table
                    counts = table.per_shard(table.document_sums)
                if places := [(at, int(number)) for at in shards[shard] if int(number) < counts[at]]:
                    found[document] = places
        return found

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
        count = len(self.documents) // self.selection.listings
        shards = "1 shard" if count == 1 else f"{count:,} shards"
        return f"{shards}, {self.total_documents:,} documents, {self.total_tokens:,} tokens"

    def check_stage(self, method: str) -> None:
        if self.selection.repeats is not None and method in ("split", "subset", "upsample"):
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
        blocks = self.extents.blocks(in_mix=mixed > 0)
        if is_sequential:
            return sequential_window(blocks, lane_bytes(lanes, mixed))
        return mix_window(blocks, lanes, mixed) if mixed else default_window(blocks)

    def raise_if_empty(self, count: int, unit: str) -> None:
        """Raise ``ConfigError`` for a split that holds nothing."""
        if count == 0:
            raise ConfigError(
                f"split {self.split!r} holds no {unit}: there is nothing to stream; build it from more input"
            )
