"""Context parallelism: several peers read the same rows, and each keeps its slice of every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..shards.extents.extent_table import runs
from .batch.batch_keys import KEYS, Batch
from .batch.collate import IGNORE
from .batch.rows import Collator
from .layout import DocumentLayout, Layout


@dataclass(frozen=True, slots=True)
class ContextPeer:
    """Peer ``rank`` of the ``size`` peers that share each row, and how rows are cut into ``slices``.

    - ``"zigzag"``: a row is cut into ``2 * size`` chunks. Peer r gets chunks r and ``2 * size - 1 - r``, so that all peers
      compute equally much causal attention.
    - ``"documents"``: each document of a row is cut in the way of ``"zigzag"``.
    - ``"contiguous"``: a row is cut into ``size`` chunks, and peer r gets chunk r.
    - ``"rows"``: ``batch(cut=)`` makes several rows of one, and each peer gets an equal number of these, side by side.
    """

    rank: int
    size: int
    slices: str = "zigzag"

    @property
    def chunks(self) -> int:
        """The number of equal chunks of a row or a document."""
        return self.size if self.slices == "contiguous" or self.size == 1 else 2 * self.size

    def check(self, layout: Layout, pieces: int) -> None:
        """Raise ``ConfigError`` if peers cannot share rows of a layout, each cut into ``pieces`` rows."""
        if self.slices == "rows":
            if pieces % self.size:
                raise ConfigError(
                    f"slices='rows': {self.size} context ranks cannot share {pieces} rows equally; cut each row into a multiple "
                    f"of {self.size} by .batch(size, cut=...), before .shard(), or use slices='zigzag'"
                )
            return
        if layout.same_labels:
            raise ConfigError(
                "context parallelism with labels='same': the model would shift labels within its slice, and the last token of "
                "the slice would lose its label; remove labels='same', and use labels that are shifted already (models of "
                "transformers take them by .loader(keys='hf'))"
            )
        if layout.drawn_shift:
            raise ConfigError("context parallelism cannot cut rows of shift='divisors'; set shift=1")
        multiple, name = layout.pad_to_multiple_of, "pad_to_multiple_of"
        if self.slices == "documents" and (isinstance(layout, DocumentLayout) or multiple == 1):
            raise ConfigError(
                "slices='documents' cuts each document of packed rows into equal chunks; pad documents by "
                f".pack(..., boundaries=True, pad_to_multiple_of={self.chunks}), or use slices='zigzag'"
            )
        if not isinstance(layout, DocumentLayout) and multiple == 1:
            multiple, name = layout.seq_len, "seq_len"
        if multiple % self.chunks:
            raise ConfigError(
                f"{name}={multiple}: {self.size} context ranks with slices={self.slices!r} cut rows into {self.chunks} equal "
                f"chunks; give {name} a multiple of {self.chunks}, as {-(-multiple // self.chunks) * self.chunks}"
            )

    def rows(self, count: int) -> range:
        """Return the numbers of this peer's rows if one row is cut into ``count``."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def tokens(self, begins: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the flat indices of this peer's tokens, ascending in each row or document that is cut.

        ``begins`` is where each row or document begins in the flattened batch, and the size of the batch.

        >>> ContextPeer(0, 2).tokens(np.array([0, 8])).tolist(), ContextPeer(1, 2).tokens(np.array([0, 8])).tolist()
        ([0, 1, 6, 7], [2, 3, 4, 5])
        >>> ContextPeer(1, 2, "contiguous").tokens(np.array([0, 4, 8])).tolist()
        [2, 3, 6, 7]
        """
        chunk = np.diff(begins) // self.chunks
        numbers = [self.rank] if self.chunks == self.size else [self.rank, self.chunks - 1 - self.rank]
        first = begins[:-1, None] + chunk[:, None] * np.array(numbers)
        return runs(first.reshape(-1), np.repeat(chunk, len(numbers)))


@dataclass(frozen=True, slots=True)
class ContextCollator:
    """Makes batches by ``collate``, and keeps the slices of ``peer``.

    All keys of tokens are sliced. Labels are shifted before: the label of a slice's last token is the row's next token.
    ``position_ids`` count from the start of the row, or with boundaries of the document. ``valid_tokens`` counts labels of
    the slices; ``cu_seqlens``, ``cu_seqlens_unpadded`` and ``max_seqlen`` describe whole rows.
    """

    collate: Collator[Any]
    peer: ContextPeer

    def __call__(self, rows: Any, begin: int) -> Batch:
        """Collate the rows of a step."""
        batch = self.collate(rows, begin)
        count, length = batch["input_ids"].shape
        if "position_ids" not in batch:
            batch["position_ids"] = np.broadcast_to(np.arange(length), (count, length))
        by_document = self.peer.slices == "documents"
        own = self.peer.tokens(batch["cu_seqlens"].astype(np.int64) if by_document else np.arange(count + 1) * length)
        for key in [key for key in batch if KEYS[key].of_tokens]:
            batch[key] = batch[key].reshape(-1)[own].reshape(count, -1)
        # A stored dtype cannot hold -100, so `ignored` lists these labels.
        ignored = np.flatnonzero(np.isin(own, batch.pop("ignored", ())))
        batch["valid_tokens"] = int(np.count_nonzero(batch["labels"] != IGNORE)) - len(ignored)
        return batch | {"ignored": ignored} if len(ignored) else batch
