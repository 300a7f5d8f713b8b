"""Checks token ids from other tools: a list or an array of a record -> ids of a vocabulary, or why not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import value_text

if TYPE_CHECKING:
    from .tokens.tokenizer import Tokenizer


class WrongIdsError(Exception):
    """Raised with a constant reason, which is counted, and details about the ids."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids that are valid: 0 to ``size`` - 1, stored as ``dtype``.

    >>> Vocabulary("uint16", 3).ids([1, 2])
    array([1, 2], dtype=uint16)
    """

    dtype: str = "<u4"
    size: int = 1 << 32
    name: str = "any vocabulary"

    @classmethod
    def of(cls, tokenizer: Tokenizer | None) -> Vocabulary:
        """Return the vocabulary of a tokenizer, or any 32-bit ids if the tokenizer is None."""
        if tokenizer is None:
            return cls()
        return cls(tokenizer.dtype.str, tokenizer.vocab_size, f"the vocabulary of {tokenizer.name}")

    def ids(self, value: Any) -> NDArray[np.unsignedinteger[Any]]:
        """Return a list or an array of ids as an array. Raises `WrongIdsError` if the value is anything else."""
        try:
            ids = np.asarray(value)
        except ValueError:  # inner lists of different lengths
            ids = np.empty((0, 0))
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "ui"):
            raise WrongIdsError("not a list of token ids", f"it is {value_text(value)}")
        if isinstance(value, list) and bool in set(map(type, value)):  # NumPy makes them 1 and 0 among numbers
            at = next(index for index, each in enumerate(value) if isinstance(each, bool))
            raise WrongIdsError("not a list of token ids", f"{json.dumps(value[at])} at position {at}")
        least, most = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
        if least < 0 or most >= self.size:
            wrong = least if least < 0 else most
            at = int(np.flatnonzero(ids == wrong)[0])
            raise WrongIdsError(
                "an id outside the vocabulary",
                f"id {wrong} at position {at}, but {self.name} ends at {self.size - 1}; name the tokenizer that made the ids",
            )
        return np.ascontiguousarray(ids, self.dtype)
