"""Fill in the middle: a function for `Stream.map_documents` that moves the middle of a document to its end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..draws import drawn, draws
from ..errors import ConfigError
from ..integers import as_integer
from .arguments import check_integer

if TYPE_CHECKING:
    from ..text.tokens.tokenizer import Tokenizer

KNOWN_MARKS = (  # of the prefix, the suffix and the middle
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
Ids = NDArray[Any]


def fim(
    tokenizer: Any,
    *,
    rate: float = 0.5,
    spm: float = 0.5,
    marks: Sequence[str | int] | None = None,
    seed: int = 0,
) -> FillInTheMiddle:
    """Return a function for `Stream.map_documents` that trains a model to fill in the middle (arXiv 2207.14255).

    A share ``rate`` of the documents is cut at two random characters, and the middle moves to the end. A share ``spm`` of
    these has the order suffix, prefix, middle (``PREFIX SUFFIX suffix MIDDLE prefix middle``). The others have prefix,
    suffix, middle (``PREFIX prefix SUFFIX suffix MIDDLE middle``). Each part is tokenized by itself. Begin-of-text and
    end-of-text ids stay where they are.

    ``tokenizer`` is the tokenizer of the stream: ``data.tokenizer`` or a name. ``marks`` are the three tokens PREFIX, SUFFIX
    and MIDDLE, by name or id. By default, they are the marks of Qwen, StarCoder, DeepSeek or Code Llama, whichever the tokenizer
    has. The form of a document is drawn by a hash of its ids and ``seed``, so it is the same in every epoch and after a resume.

    A document with a loss mask is cut between tokens instead of characters. So is a document whose parts, tokenized, would
    decode to another text: one with bytes that are not UTF-8 or with special tokens, and any document if the tokenizer puts a
    space before each text. The mask moves with the ids, and is 0 for the marks.

    Raises ``ConfigError`` for a rate outside 0 to 1, and for marks that the tokenizer lacks.

    >>> import pipeline
    >>> data = pipeline.ShardDataset.from_texts(["one two three"], "bytes")
    >>> filled = data.map_documents(pipeline.fim("bytes", rate=1, spm=0, marks=[381, 382, 383], seed=1))
    >>> stream = filled.documents().batch(1)
    >>> stream.decode(next(iter(stream)))
    ['<extra_id_122>o<extra_id_123>three<extra_id_124>ne two </s>']
    """
    from ..text.tokens.tokenizer import load_tokenizer
    from ..text.tokens.tokenizer_files import read_vocabulary

    for name, share in (("rate", rate), ("spm", spm)):
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"{name} must be a share from 0 to 1, got {share!r}")
    seed = check_integer("seed", seed, least=0)
    loaded = load_tokenizer(tokenizer)
    known = read_vocabulary(loaded.definition).ids
    if marks is None:
        marks = next((names for names in KNOWN_MARKS if known.keys() >= set(names)), ())
        if not marks:
            raise ConfigError(
                f"{loaded.name}: has none of the usual marks, as {', '.join(KNOWN_MARKS[0])}; give marks=[PREFIX, SUFFIX, "
                "MIDDLE] by name or id, or build with --special-tokens"
            )
    found = [known.get(mark) if isinstance(mark, str) else as_integer(mark) for mark in marks]
    ids = tuple(id for id in found if id is not None and id >= 0)
    if len(found) != 3 or len(set(ids)) != 3:
        raise ConfigError(f"marks must be three tokens of {loaded.name}, by name or id, got {list(marks)!r}")
    return FillInTheMiddle(loaded, ids, float(rate), float(spm), seed)


@dataclass(frozen=True)
class FillInTheMiddle:
    """The function that `fim` returns. ``name`` identifies it in states."""

    tokenizer: Tokenizer
    marks: tuple[int, ...]
    rate: float
    spm: float
    seed: int

    @property
    def name(self) -> str:
        """The settings, and the first digits of the tokenizer's hash."""
        options = f"rate={self.rate}, spm={self.spm}, marks={list(self.marks)}, seed={self.seed}"
        return f"fim({self.tokenizer.sha256[:8]}, {options})"

    def check(self, vocab_size: int | None) -> None:
        """Raise ``ConfigError`` unless the marks are below ``vocab_size`` (None: unknown)."""
        if vocab_size is not None and (most := max(self.marks)) >= vocab_size:
            raise ConfigError(
                f"fim: the mark {most} is outside the vocabulary of {vocab_size} ids; give map_documents "
                f"vocab_size={most + 1} or more, if the model has as many"
            )

    def __call__(self, ids: Ids, mask: Ids | None) -> Any:
        begin = int(ids[:1].tolist() == [self.tokenizer.bos_id])
        end = len(ids) - int(ids[begin:][-1:].tolist() == [self.tokenizer.eos_id])
        digest = hashlib.blake2b(ids[begin:end].astype("<u4").tobytes(), digest_size=16).digest()
        key = np.frombuffer(digest, np.uint8).reshape(1, 16)
        if begin == end or not drawn(key, self.seed, "fim", self.rate)[0]:
            return ids, mask
        parts = self._text_parts(ids[begin:end], key) if mask is None else None
        if parts is None:
            parts = self._cut(ids[begin:end], key)
        marks = list(np.array(self.marks).reshape(3, 1))
        suffix_first = bool(drawn(key, self.seed, "fim spm", self.spm)[0])
        moved = [ids[:begin], *_ordered(parts, marks, suffix_first), ids[end:]]
        if mask is not None:
            unmarked = list(np.zeros((3, 1), mask.dtype))
            parts = self._cut(mask[begin:end], key)
            mask = np.concatenate([mask[:begin], *_ordered(parts, unmarked, suffix_first), mask[end:]])
        return np.concatenate(moved), mask

    def _cut(self, whole: Any, key: NDArray[np.uint8]) -> list[Any]:
        """Return three parts of a text or an array. Both cuts are uniform from 0 to its length."""
        numbers = (int(draws(key, self.seed, f"fim cut {cut}")[0]) for cut in (0, 1))
        first, second = sorted(number * (len(whole) + 1) >> 64 for number in numbers)
        return [whole[:first], whole[first:second], whole[second:]]

    def _text_parts(self, ids: Ids, key: NDArray[np.uint8]) -> list[Ids] | None:
        """Return the ids of three parts of the text, each tokenized by itself; None if they decode to another text."""
        text = self.tokenizer.decode(ids)
        if not np.array_equal(self.tokenizer.encode(text), ids):
            return None
        parts = [self.tokenizer.encode(part) for part in self._cut(text, key)]
        return parts if self.tokenizer.decode(np.concatenate(parts)) == text else None


def _ordered(parts: list[Ids], marks: list[Ids], suffix_first: bool) -> list[Ids]:
    """Return the parts and marks in the order of SPM, or of PSM."""
    (prefix, middle, suffix), (before_prefix, before_suffix, before_middle) = parts, marks
    if suffix_first:
        return [before_prefix, before_suffix, suffix, before_middle, prefix, middle]
    return [before_prefix, prefix, before_suffix, suffix, before_middle, middle]
