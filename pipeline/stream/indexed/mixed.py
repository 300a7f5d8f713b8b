"""Packed sequences of several sources, row by row as a mixture says."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..batch.rows import Out, RowBuffer, Rows
from ..order import Sequences, Step
from ..order.mixture import PERIOD, Mixture
from .lookahead import FoundSteps, StepCounts, StepsAhead, only_rows, sequences_ahead
from .token_stream import Piece, TokenStream

_Parts = list[tuple[int, Piece]]  # the number of a source, and the rows that it serves


def source_shares(mixture: Mixture, orders: Sequence[Sequences], i: int) -> dict[str, dict[str, Any]]:
    """Return, of the first ``i`` sequences, each source's ``sequences``, ``asked`` and ``served`` shares, and ``epoch``."""
    lanes = mixture.lanes
    counts = np.zeros(len(orders), np.int64)
    for lane in range(min(i, lanes)):
        counts += mixture.counts(-(-(i - lane) // lanes), lane)
    asked = mixture.asked(max(0, i - 1) // lanes)
    return {
        name: {
            "sequences": int(count),
            "asked": int(quota) / PERIOD,
            "served": int(count) / max(1, i),
            "epoch": order.epoch(int(count)),
        }
        for name, count, quota, order in zip(mixture.names, counts, asked, orders, strict=True)
    }


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
        self.rank_period = mixture.lanes
        self.width = width
        self._streams = [streams[name][0] for name in mixture.names]
        self._orders = [streams[name][1] for name in mixture.names]
        self._hints = np.zeros((len(self._streams), mixture.lanes), np.int64)
        self.buffer = RowBuffer(self.width, self._streams[0].dtype, boundaries, self._streams[0].masks)
        self._counts = StepCounts()
        self._ahead: StepsAhead[_Parts] = StepsAhead()

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return the bytes read, the epoch of the source that has come least far, and what each source served."""
        shares = source_shares(self.mixture, self._orders, sequence_index)
        read = sum(stream.bytes_read for stream in self._streams)
        return {"bytes_read": read, "epoch": min(each["epoch"] for each in shares.values()), "sources": shares}

    def read(self, step: Step, out: Out | None = None) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        parts = self._ahead.rows(step, self._look)
        if step.first > 0 or step.last is not None:
            parts = [(source, only_rows(piece, step.first, step.first + len(step))) for source, piece in parts]
        found = self.buffer.rows(sum([len(piece.rows) for _, piece in parts]), out)
        for source, piece in parts:
            self._streams[source].fill(self.buffer, [piece], self._hints[source])
        return found

    def _look(self, step: Step, last: int) -> FoundSteps[_Parts]:
        """Find where the rows of a step lie, and those of the steps behind it."""
        step = step.rows(0, None)
        distance, count = self._counts.next(step, last, self._sequences_ahead(step.begin))
        offsets = step.offsets_ahead(distance, count)
        count, size = offsets.shape
        ahead = (offsets + (np.arange(count) * distance)[:, None] + step.begin).ravel()
        lanes = ahead % self.lanes
        sources, draws = np.empty((2, len(ahead)), np.int64)
        by_lane = np.lexsort((ahead, lanes))
        cuts = np.searchsorted(lanes[by_lane], np.arange(self.lanes + 1)).tolist()
        for lane, (begin, stop) in enumerate(itertools.pairwise(cuts)):
            mine = by_lane[begin:stop]
            if begin < stop:
                sources[mine], draws[mine] = self.mixture.draw(ahead[mine] // self.lanes, lane)
        # Of each source and epoch all rows, and how many of them come before each step.
        served: list[tuple[int, Piece, list[int]]] = []
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
                served.append((source, pieces[-1], cuts))
            self._streams[source].prepare(pieces)
        return FoundSteps(step.begin, distance, count, lambda k: _parts_of(served, k))

    def _sequences_ahead(self, i: int) -> int:
        """Return how many sequences from ``i`` on are looked for together, at most, by what each source serves of them.

        A source of one window sets no bound: it is small, and its epochs are worth being loaded once for many steps.
        """
        sources = zip(self.mixture.asked(i // self.lanes).tolist(), self._streams, self._orders, strict=True)
        bounds = (
            PERIOD * sequences_ahead(order, stream.window) // quota
            for quota, stream, order in sources
            if quota and stream.order.windows > 1
        )
        return min(bounds, default=sys.maxsize)

    def close(self) -> None:
        """Stop threads and give back files."""
        for stream in self._streams:
            stream.close()


def _parts_of(served: list[tuple[int, Piece, list[int]]], k: int) -> _Parts:
    """Return the rows of the k-th step."""
    parts = []
    for source, piece, cuts in served:
        if cuts[k] < cuts[k + 1]:
            part = slice(cuts[k], cuts[k + 1])
            parts.append((source, Piece(piece.epoch, piece.rows[part], piece.places[part], piece.lanes[part])))
    return parts
