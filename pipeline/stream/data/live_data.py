"""A live source of text as the data of a stream: a dataset that streams, an object that saves itself, a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lanes import TextWindowSize, best_fit_tokens
from .text_data import TextData

if TYPE_CHECKING:
    from ...text.tokenizer.tokenizer import Tokenizer
    from .live_source import LiveSource

_BLOCK_BYTES = 32 << 10  # of ``.shuffle(window=)``
_SHUFFLED_BYTES = 16 << 20
_ORDERED_BYTES = 1 << 20


class LiveData(TextData):
    """A live source and the tokenizer that makes ids of its texts.

    Each rank reads a part of the source, as one lane that all its rows share, so that a state belongs to a number of ranks.
    What a source is, nothing tells: its fingerprint is that of the tokenizer and of the settings.
    """

    live = True

    def __init__(self, source: LiveSource, tokenizer: Tokenizer, **options: Any) -> None:
        super().__init__([], tokenizer, **options)
        self.source = source

    def __repr__(self) -> str:
        return f"TextDataset({self.source.name}, tokenizer={self.encoder.name!r})"

    def sizes(self) -> str:
        return "a live source of unknown size"

    def records(self, most: int) -> int:
        """Return ``most``: how many there are is unknown, and every lane of a mix gets some."""
        return most

    def window_size(
        self, lanes: int, sources: int, *, is_shuffled: bool, window: int | None, best_fit: int | None
    ) -> TextWindowSize:
        size = _ORDERED_BYTES
        if is_shuffled:
            size = _SHUFFLED_BYTES if window is None else window * _BLOCK_BYTES
        least = 0 if best_fit is None else 4 * best_fit_tokens(best_fit, size // 4)
        return TextWindowSize(max(size, least), least)
