"""Several sources as one, each by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from ...errors import ConfigError
from ..order import LANES_OF_MIX, mix_window
from ..order.mixture import Mixture
from .base import CountedData

if TYPE_CHECKING:
    from ..config import StreamConfig

_REFUSED = {
    "filter": "a mix counts the tokens of its sources in advance, so it cannot be filtered; build filtered shards",
    "map_documents": (
        "a mix counts the tokens of its sources in advance, so its documents cannot be mapped; build mapped shards, or pass "
        "same_length=True where every document keeps its number of tokens"
    ),
    "pack(best_fit=True)": "a mix counts the tokens of its sources in advance, so best_fit cannot pack it; remove best_fit",
    "sample": "a mix is packed; add .pack(seq_len) in place of .sample()",
    "documents": "a mix is packed; add .pack(seq_len) in place of .documents()",
}


class MixedData:
    """Several sources: what they share, and each by its name."""

    counted = True
    default_lanes = LANES_OF_MIX

    def __init__(self, sources: Mapping[str, CountedData]) -> None:
        self.sources = dict(sorted(sources.items()))
        first = next(iter(self.sources.values()))
        self.name = ""
        self.split = "+".join(f"{name}:{data.split}" for name, data in self.sources.items())
        self.dtype, self.eos_id, self.tokenizer = first.dtype, first.eos_id, first.tokenizer
        self.vocab_size = first.vocab_size
        for name, data in self.sources.items():
            if not sum(data.tokens):
                raise ConfigError(f"source {name!r} of the mix holds no tokens; remove it, or build it from more input")
            for field in ("dtype", "tokenizer", "eos_id"):
                expected, found = getattr(first, field), getattr(data, field)
                if expected != found:
                    raise ConfigError(
                        f"sources of a mix share one {field}, but {name!r} has {found}, others {expected}"
                    )

    def __repr__(self) -> str:
        return f"mix({self.sources!r})"

    def fingerprints(self) -> dict[str, str]:
        return {name: data.fingerprint for name, data in self.sources.items()}

    def sizes(self) -> str:
        return ", ".join(f"{name}: {data.sizes()}" for name, data in self.sources.items())

    def check_stage(self, method: str) -> None:
        if method in _REFUSED:
            raise ConfigError(_REFUSED[method])
        for data in self.sources.values():
            data.check_stage(method)

    def source_of_mix(self, name: str) -> NoReturn:
        raise ConfigError(f"source {name!r} must be a bare dataset; .shuffle(), .pack() and the rest follow the mix")

    def lane_layout(self, config: StreamConfig, rows: int) -> NoReturn:
        raise ConfigError("a mix counts the tokens of its sources in advance, so it is no sequential stream")

    def window(self, config: StreamConfig, lanes: int) -> dict[str, int]:
        if config.seed is None:
            return dict.fromkeys(self.sources, 1)
        return {
            name: config.window or mix_window(data.contents.blocks(in_mix=True), lanes, len(self.sources))
            for name, data in self.sources.items()
        }

    def sequences(self, config: StreamConfig) -> None:
        config.stated_layout()

    def mixture(self, config: StreamConfig) -> Mixture:
        """Return which source serves each row."""
        lanes = config.lane_count
        segments = [(-(-sequence // lanes), shares) for sequence, shares in config.weights]
        return Mixture(list(self.sources), config.seed or 0, lanes, segments)
