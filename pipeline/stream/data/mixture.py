"""Several sources as one, each by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, TypeVar

from ...errors import ConfigError
from ..lanes import Lanes, best_fit_lanes_a_row, make_lanes
from ..order import LANES_OF_MIX, mix_window
from ..order.mixture import Mixture
from .base import CountedData
from .text import TOKEN_BYTES, TextData

if TYPE_CHECKING:
    from ...text.tokenizer.tokenizer import Tokenizer
    from ..config import Data, StreamConfig

_REFUSED = {
    "filter": "a mix of shards counts the tokens of its sources in advance, so it cannot be filtered; build filtered shards",
    "map_documents": (
        "a mix of shards counts the tokens of its sources in advance, so its documents cannot be mapped; build mapped "
        "shards, or pass same_length=True where every document keeps its number of tokens"
    ),
    "pack(best_fit=True)": (
        "a mix of shards counts the tokens of its sources in advance, so best_fit cannot pack it; remove best_fit, or mix "
        "texts (TextDataset)"
    ),
    "documents(bucket)": "a bucket holds documents of one source; leave bucket out of the .documents() of a mix",
}
_Source = TypeVar("_Source", bound="Data")


class _Mix(Generic[_Source]):
    """Several sources: what they share, and each by its name."""

    refused: ClassVar[Mapping[str, str]]

    def __init__(self, sources: Mapping[str, _Source]) -> None:
        self.sources = dict(sorted(sources.items()))
        self.live = tuple(is_live for data in self.sources.values() for is_live in data.live)
        first = next(iter(self.sources.values()))
        self.split = "+".join(f"{name}:{data.split}" for name, data in self.sources.items())
        self.dtype, self.eos_id, self.tokenizer = first.dtype, first.eos_id, first.tokenizer
        self.vocab_size = first.vocab_size
        for name, data in self.sources.items():
            for field in ("dtype", "tokenizer", "eos_id"):
                expected, actual = getattr(first, field), getattr(data, field)
                if expected != actual:
                    raise ConfigError(
                        f"sources of a mix share one {field}, but {name!r} has {actual}, others {expected}; build them alike"
                    )

    def __repr__(self) -> str:
        return f"mix({self.sources!r})"

    def fingerprints(self) -> dict[str, str]:
        return {name: next(iter(data.fingerprints().values())) for name, data in self.sources.items()}

    def load_tokenizer(self) -> Tokenizer:
        return next(iter(self.sources.values())).load_tokenizer()

    def sizes(self) -> str:
        return ", ".join(f"{name}: {data.sizes()}" for name, data in self.sources.items())

    def check_stage(self, method: str) -> None:
        if method in self.refused:
            raise ConfigError(self.refused[method])
        for data in self.sources.values():
            data.check_stage(method)

    def check_rules(self, fields: Sequence[str]) -> None:
        for data in self.sources.values():
            data.check_rules(fields)

    def source_of_mix(self, name: str) -> NoReturn:
        raise ConfigError(f"source {name!r} must be a bare dataset; .shuffle(), .pack() and the rest follow the mix")

    def sequences(self, config: StreamConfig) -> None:
        config.stated_layout()

    def mixture(self, config: StreamConfig, lanes: int) -> Mixture:
        """Return which source serves each row of so many lanes."""
        segments = [(-(-sequence // lanes), shares) for sequence, shares in config.weights]
        return Mixture(list(self.sources), config.seed or 0, lanes, segments)


class MixedData(_Mix[CountedData]):
    """Sources whose tokens are counted in advance."""

    counted = True
    default_lanes = LANES_OF_MIX
    refused = _REFUSED

    def __init__(self, sources: Mapping[str, CountedData]) -> None:
        super().__init__(sources)
        for name, data in self.sources.items():
            if not sum(data.tokens):
                raise ConfigError(f"source {name!r} of the mix holds no tokens; remove it, or build it from more input")

    def make_lanes(self, config: StreamConfig, rows: int) -> NoReturn:
        raise ConfigError("a mix of shards counts the tokens of its sources in advance, so it is no sequential stream")

    def window(self, config: StreamConfig, lanes: int) -> dict[str, int]:
        if config.seed is None:
            return dict.fromkeys(self.sources, 1)
        return {
            name: config.window or mix_window(data.extents.blocks(in_mix=True), lanes, len(self.sources))
            for name, data in self.sources.items()
        }


class MixedTexts(_Mix[TextData]):
    """Sources of raw text, files or live. All have the same lanes, and each lane has a cursor in each."""

    counted = False
    default_lanes = 1
    refused: ClassVar[Mapping[str, str]] = {}

    def make_lanes(self, config: StreamConfig, rows: int) -> Lanes:
        """Return as many lanes as the source of the most records has; a lane without any in an epoch goes on to the next."""

        def records(most: int) -> int:
            return max(data.records(most) for data in self.sources.values())

        most = None
        if config.best_fit:  # each lane holds a window of each source
            tokens = max(data.tokens for data in self.sources.values())
            item = TOKEN_BYTES * len(self.sources)
            most = best_fit_lanes_a_row(config.stated_layout().sequence_stride, rows, tokens, item)
        return make_lanes(rows, config.lanes, records, most, is_shuffled=config.seed is not None)

    def window(self, config: StreamConfig, lanes: int) -> str | None:
        return next(iter(self.sources.values())).window(config, lanes)
