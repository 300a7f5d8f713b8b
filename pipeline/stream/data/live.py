"""A live source of text as the data of a stream: a dataset that streams, an object that saves itself, a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import ConfigError
from ..lanes import LaneLayout, TextWindowSize, best_fit_tokens
from .text import TextData

if TYPE_CHECKING:
    from ...text.storage.live import LiveSource
    from ...text.tokenizer.tokenizer import Tokenizer
    from ..config import StreamConfig

_BLOCK_BYTES = 32 << 10  # of ``.shuffle(window=)``
_SHUFFLED_BYTES = 16 << 20
_ORDERED_BYTES = 1 << 20


class RankLanes(LaneLayout):
    """One lane for each rank, which gives all rows of the rank."""

    def lane(self, number: int) -> int:
        return number % self.rows // (self.rows // self.lanes)

    def own(self, rank: int, world_size: int, step: int = 0, every: int = 1) -> list[int]:
        return [rank]

    def check(self, world_size: int, workers: int, *, is_shuffled: bool) -> None:
        if workers > 1:
            raise ConfigError(
                f"a live source has one lane on each rank, which {workers} workers of a DataLoader cannot share; use "
                "num_workers=0, and .prefetch(n) to read ahead, or num_workers=1"
            )


class LiveData(TextData):
    """A live source and the tokenizer that makes ids of its texts.

    Each rank has one lane, and a part of the source of its own, so that a state belongs to a number of ranks. What a source
    is, nothing tells: its fingerprint is that of the tokenizer and of the settings.
    """

    live = True

    def __init__(self, source: LiveSource, tokenizer: Tokenizer, **options: Any) -> None:
        super().__init__([], tokenizer, **options)
        self.source = source

    def __repr__(self) -> str:
        return f"TextDataset({self.source.name}, tokenizer={self.encoder.name!r})"

    def sizes(self) -> str:
        return "a live source of unknown size"

    def source_of_mix(self, name: str) -> NoReturn:
        raise ConfigError(
            f"source {name!r} is live, and a mix needs files: mix before, as datasets.interleave_datasets does, and give "
            "TextDataset the result"
        )

    def lane_layout(self, config: StreamConfig, rows: int) -> LaneLayout:
        if config.lanes is not None:
            raise ConfigError(
                f"lanes={config.lanes}: a live source has one lane on each rank; leave lanes out of .shuffle()"
            )
        return RankLanes(rows, rows // (config.batch_size or 1))

    def window_size(self, config: StreamConfig, lanes: int, sources: int = 1) -> TextWindowSize:
        size = _ORDERED_BYTES
        if config.seed is not None:
            size = _SHUFFLED_BYTES if config.window is None else config.window * _BLOCK_BYTES
        least = 4 * best_fit_tokens(config.stated_layout().sequence_stride, size // 4) if config.best_fit else 0
        return TextWindowSize(max(size, least), least)
