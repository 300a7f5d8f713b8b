"""The sources of a stream: one source of any kind, or the sources of a mix by their names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ....errors import ConfigError, first_few
from ....notices import say_once
from ...order import LANES, LANES_OF_MIX
from .counted_data import CountedData

if TYPE_CHECKING:
    from ....text.tokens.tokenizer import Tokenizer


class Source(Protocol):
    """Documents of shards, of an array, or of texts. A stream uses only these members."""

    split: str  # the name of the split, in words
    dtype: np.dtype[Any]  # of the token ids
    eos_id: int  # ends documents, and fills padding
    vocab_size: int | None  # None if unknown
    tokenizer_sha256: str | None  # None if the tokenizer is unknown
    tokenizer_name: str | None
    live: bool  # whether each rank reads its own part

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in memory; for texts, about."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the order and the ids depend on. A state loads only if it is the same."""

    @property
    def total_tokens(self) -> int:
        """The number of tokens; for texts, about."""

    def records(self, most: int) -> int:
        """Return how many documents there are, at most ``most``. Some texts are read, and the rest is estimated."""

    def window(self, lanes: int, mixed: int, stated: int | None, *, is_shuffled: bool, is_sequential: bool) -> Any:
        """Return how many blocks are shuffled together, as in a state; for texts, the ``stated`` number.

        ``mixed`` is the number of sources of the mix, or 0 if this source is not mixed.
        """

    def without(self, documents: Any, reason: str) -> Source:
        """Return the source with documents masked, by shard and number, or in texts by their ids."""

    def withheld_names(self) -> list[str]:
        """Return the documents that `without` masks, in an order of their own; states hold a hash of them."""

    def origin(self, document: Any) -> dict[str, Any]:
        """Return the origin of a document: its shard and number, or its file and line."""

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the ids; ``ConfigError`` if it is unknown."""

    def sizes(self) -> str:
        """Return how much data there is, in words."""

    def check_stage(self, method: str) -> None:
        """Raise ``ConfigError`` for a method of a stream that does not work with this source."""

    def check_rules(self, fields: Sequence[str]) -> None:
        """Raise ``ConfigError`` if rules cannot judge this source, or if it lacks ``fields`` that the rules read."""


@dataclass(frozen=True)
class Sources:
    """The sources of a stream by their names: one source, named '', or those of a mix, sorted by name.

    All sources have the same tokenizer, dtype and end-of-text id.
    """

    by_name: Mapping[str, Source]
    is_mix: bool = False

    @classmethod
    def of_mix(cls, sources: Mapping[str, Source]) -> Sources:
        """Return the sources of a mix; ``ConfigError`` if they cannot be mixed."""
        by_name = dict(sorted(sources.items()))
        (first_name, first), *others = by_name.items()
        nouns = {"tokenizer_sha256": "tokenizer", "dtype": "dtype", "eos_id": "end-of-text id"}
        for name, source in others:
            for field, noun in nouns.items():
                if getattr(first, field) != getattr(source, field):
                    actual, expected = (
                        _tokenizer_text(each) if noun == "tokenizer" else getattr(each, field)
                        for each in (source, first)
                    )
                    raise ConfigError(
                        f"sources of a mix share one {noun}, but {name!r} has {actual}, and {first_name!r} has {expected}; "
                        "build them the same way"
                    )
        mix = cls(by_name, is_mix=True)
        for name, counted in mix.counted.items():
            if not counted.total_tokens:
                raise ConfigError(f"source {name!r} of the mix holds no tokens; remove it, or build it from more input")
        return mix

    def __repr__(self) -> str:
        return f"mix({self.by_name!r})" if self.is_mix else repr(self._first)

    @property
    def _first(self) -> Source:
        return next(iter(self.by_name.values()))

    @property
    def mixed(self) -> int:
        """The number of sources of a mix; 0 if this is no mix."""
        return len(self.by_name) if self.is_mix else 0

    @cached_property
    def counted(self) -> dict[str, CountedData]:
        """The sources whose tokens and documents are counted in advance. The others are texts."""
        return {name: source for name, source in self.by_name.items() if isinstance(source, CountedData)}

    @property
    def all_counted(self) -> bool:
        """Whether tokens and documents of every source are counted in advance."""
        return len(self.counted) == len(self.by_name)

    @property
    def live(self) -> tuple[bool, ...]:
        """Whether each source is live. Each rank reads a part of a live source, so a state loads only on as many ranks."""
        return tuple(source.live for source in self.by_name.values())

    @property
    def default_lanes(self) -> int:
        """The number of lanes of a shuffled indexed stream by default."""
        return LANES_OF_MIX if self.is_mix else LANES

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources of a mix, or of those within one dataset; empty if there is only one source."""
        first = self._first
        within = first.source_names if isinstance(first, CountedData) and not self.is_mix else tuple(self.by_name)
        return within if self.is_mix or len(within) > 1 else ()

    @property
    def split(self) -> str:
        if not self.is_mix:
            return self._first.split
        return "+".join(f"{name}:{source.split}" for name, source in self.by_name.items())

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._first.dtype

    @property
    def eos_id(self) -> int:
        return self._first.eos_id

    @property
    def vocab_size(self) -> int | None:
        return self._first.vocab_size

    def find(self, documents: Collection[str]) -> dict[str, dict[str, list[tuple[int, int]]]]:
        """Return, for each counted source, shard and number of each document by its name; ``ConfigError`` for unknown names.

        A name that no counted source has may be the id of a text.
        """
        found = {name: source.find(documents) for name, source in self.counted.items()}
        unknown = [document for document in documents if not any(document in places for places in found.values())]
        if unknown and self.all_counted:
            count = "" if len(documents) == 1 else f" ({len(unknown):,} of {len(documents):,} names)"
            raise ConfigError(
                f"no document {first_few(unknown)}{count} in {self!r}: give its key, as 000000000040, its id, or SHARD:NUMBER, "
                "as train-000000.tar:40"
            )
        return found

    def without(self, documents: Collection[str], reason: str) -> Sources:
        """Return the sources with documents masked; ``ConfigError`` for unknown names, unless they may be ids of texts."""
        self.check_stage("without")
        found = self.find(documents)
        masked: dict[str, Source] = {}
        for name, source in self.by_name.items():
            places: Collection[Any] = documents
            if isinstance(source, CountedData):  # a document of another part of a split is not here
                listed, selected = found[name].values(), source.extents
                places = [at for of_name in listed for at in of_name if selected.extent_of(*at) is not None]
            masked[name] = source.without(places, reason) if places else source
        if masked == self.by_name:
            say_once(
                f".without() masks nothing: all {len(documents):,} documents are in other parts of a split of {self!r}"
            )
        return Sources(masked, self.is_mix)

    @cached_property
    def withheld_hash(self) -> str | None:
        """A hash of all documents that `without` masks; None if it masks none."""
        names = {name: withheld for name, source in self.by_name.items() if (withheld := source.withheld_names())}
        return hashlib.sha256(json.dumps(names).encode()).hexdigest() if names else None

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the ids; ``ConfigError`` if it is unknown."""
        return self._first.load_tokenizer()

    def fingerprints(self) -> dict[str, str]:
        return {name: source.fingerprint for name, source in self.by_name.items()}

    def sizes(self) -> str:
        """Return how much data there is, in words."""
        return ", ".join(
            f"{name}: {source.sizes()}" if name else source.sizes() for name, source in self.by_name.items()
        )

    def check_stage(self, method: str) -> None:
        """Raise ``ConfigError`` for a method of a stream that does not work with these sources."""
        if method == "filter" and self.counted and not self.all_counted:
            raise ConfigError(
                "a filter gets the records of texts and the ids of shards, and this mix holds both: filter the shards when "
                "they are built, or mix texts alone"
            )
        for source in self.by_name.values():
            source.check_stage(method)

    def check_rules(self, fields: Sequence[str]) -> None:
        """Raise ``ConfigError`` if rules cannot judge a source, or if it lacks ``fields`` that the rules read."""
        for source in self.by_name.values():
            source.check_rules(fields)


def _tokenizer_text(source: Source) -> str:
    """Return the name of a source's tokenizer, with the start of its hash: two tokenizers may have one name."""
    if source.tokenizer_sha256 is None:
        return "an unknown one"
    return f"{source.tokenizer_name or 'one without a name'} (SHA-256 {source.tokenizer_sha256[:8]}...)"
