"""Packed sequences of several sources, row by row as a mixture says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..batch.rows import Out, RowBuffer, Rows
from ..order import Sequences, Step
from ..order.mixture import PERIOD, Mixture
from .lookahead import SEQUENCES_AHEAD, only_rows
from .token_stream import Piece, TokenStream

_Parts = list[tuple[int, Piece]]  # the number of a source, and the rows that it serves


class MixedSequences:
    """Packed sequences of several sources, each with its own ``stream`` and order of sequences. Endless.

    A sequence has ``width`` tokens, those of the labels included.
    """

    alignment = 1
    cursors: None = None

    def __init__(
        self,
        streams: Mapping[str, tuple[TokenStream, Sequences]],
        mixture: Mixture,
        *,
        width: int,
        boundaries: bool,
    ) -> None:
        self.mixture = mixture
        self.lanes = mixture.lanes
        self.width = width
        self._streams = [streams[name][0] for name in mixture.names]
        self._orders = [streams[name][1] for name in mixture.names]
        self._hints = np.zeros((len(self._streams), mixture.lanes), np.int64)
        self.buffer = RowBuffer(self.width, self._streams[0].dtype, boundaries)
        self._steps: dict[int, _Parts] = {}
        self._shape: tuple[int, ...] = ()
        self._last = -1

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return the bytes read, the epoch of the source that has come least far, and what each source served."""
        shares = self.shares(sequence_index)
        read = sum(stream.bytes_read for stream in self._streams)
        return {"bytes_read": read, "epoch": min(each["epoch"] for each in shares.values()), "sources": shares}

    def shares(self, i: int) -> dict[str, dict[str, Any]]:
        """Return, of the first ``i`` sequences, each source's ``sequences``, ``served`` share and ``epoch``."""
        lanes = self.mixture.lanes
        counts = np.zeros(len(self._streams), np.int64)
        for lane in range(min(i, lanes)):
            counts += self.mixture.counts(-(-(i - lane) // lanes), lane)
        asked = self.mixture.asked(max(0, i - 1) // lanes)
        return {
            name: {
                "sequences": int(count),
                "asked": int(quota) / PERIOD,
                "served": int(count) / max(1, i),
                "epoch": order.epoch(int(count)),
            }
            for name, count, quota, order in zip(self.mixture.names, counts, asked, self._orders, strict=True)
        }

    def read(self, step: Step, out: Out | None = None) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        parts = self._parts(step.rows(0, None))
        if step.first > 0 or step.last is not None:
            parts = [(source, only_rows(piece, step.first, step.first + len(step))) for source, piece in parts]
        found = self.buffer.rows(sum([len(piece.rows) for _, piece in parts]), out)
        for source, piece in parts:
            self._streams[source].fill(self.buffer, [piece], self._hints[source])
        return found

    def _parts(self, step: Step) -> _Parts:
        shape = step.size, step.rank, step.ranks
        if step.begin not in self._steps or shape != self._shape:
            self._shape = shape
            self._steps = self._look(step)
        if step.begin != self._last:
            self._steps.pop(self._last, None)
            self._last = step.begin
        return self._steps[step.begin]

    def _look(self, step: Step) -> dict[int, _Parts]:
        """Find where the rows of a step lie, and those of the steps behind it."""
        distance = step.begin - self._last if self._last >= 0 and step.begin > self._last else step.size
        distance = distance if distance % step.size == 0 else step.size
        offsets = step.offsets_ahead(distance, max(1, SEQUENCES_AHEAD // max(1, len(step))))
        count, size = offsets.shape
        ahead = (offsets + (np.arange(count) * distance)[:, None] + step.begin).ravel()
        lanes = ahead % self.lanes
        sources, draws = np.empty((2, len(ahead)), np.int64)
        for lane in np.unique(lanes).tolist():
            mine = np.flatnonzero(lanes == lane)
            mine = mine[np.argsort(ahead[mine], kind="stable")]
            sources[mine], draws[mine] = self.mixture.draw(ahead[mine] // self.lanes, lane)
        steps: list[_Parts] = [[] for _ in range(count)]
        for source, order in enumerate(self._orders):
            left, pieces = np.flatnonzero(sources == source), []
            while len(left):
                own = draws[left] * order.lanes + lanes[left]
                epoch = order.epoch(int(own.min()))
                inside = own < order.first(epoch + 1)
                here, left = left[inside], left[~inside]
                tokens, _ = order.places(epoch, own[inside] - order.first(epoch))
                pieces.append(Piece(epoch, here % size, tokens, lanes[here]))
                cuts = here.searchsorted(np.arange(count + 1) * size).tolist()
                for parts, begin, stop in zip(steps, cuts[:-1], cuts[1:], strict=True):
                    if begin < stop:
                        part = slice(begin, stop)
                        piece = pieces[-1]
                        parts.append((source, Piece(epoch, piece.rows[part], piece.places[part], piece.lanes[part])))
            self._streams[source].prepare(pieces)
        return {step.begin + k * distance: parts for k, parts in enumerate(steps)}

    def close(self) -> None:
        """Stop threads and give back files."""
        for stream in self._streams:
            stream.close()
