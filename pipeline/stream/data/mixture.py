"""Several sources under one plan."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import ConfigError
from .shards import Data


class MixedData:
    """Several sources under one plan: what they share, and each by its name."""

    def __init__(self, sources: Mapping[str, Data]) -> None:
        self.sources = dict(sorted(sources.items()))
        first = next(iter(self.sources.values()))
        self.name = ""
        self.split = "+".join(f"{name}:{data.split}" for name, data in self.sources.items())
        self.dtype, self.eos_id, self.tokenizer = first.dtype, first.eos_id, first.tokenizer
        for name, data in self.sources.items():
            if not sum(data.tokens):
                raise ConfigError(f"source {name!r} of the mix holds no tokens; remove it, or build it from more input")
            for field in ("dtype", "tokenizer", "eos_id"):
                ours, theirs = getattr(first, field), getattr(data, field)
                if ours != theirs:
                    raise ConfigError(f"sources of a mix share one {field}, but {name!r} has {theirs}, others {ours}")

    def __repr__(self) -> str:
        return f"mix({self.sources!r})"
