"""Sections 8 and 9 of the definition of the order, mixes and samples, in plain Python: see `order_oracle`."""

from collections.abc import Iterator
from fractions import Fraction
from math import floor

from tests.stream.order_oracle import (
    Options,
    Row,
    Source,
    Stream,
    Token,
    ceil_div,
    kept_documents,
    key,
    keyed_hash,
    lane_count,
    permutation,
    smaller_end,
)

# Section 8. Mixes

PERIOD = 4096
Weights = dict[str, Fraction]


def quotas(weights: Weights) -> dict[str, int]:
    names = sorted(name for name in weights if weights[name] > 0)
    ideal = {name: weights[name] * PERIOD for name in names}
    quota = {name: max(1, floor(ideal[name])) for name in names}
    while sum(quota.values()) < PERIOD:
        quota[max(names, key=lambda name: ideal[name] - quota[name])] += 1  # max and min give the first of equals
    while sum(quota.values()) > PERIOD:
        above_one = [name for name in names if quota[name] > 1]
        quota[min(above_one, key=lambda name: ideal[name] - quota[name])] -= 1
    return {name: quota.get(name, 0) for name in sorted(weights)}


def served(names: list[str], weights: dict[int, Weights], seed: int, lane: int) -> Iterator[tuple[str, int]]:
    """Yield for each row of a lane its source and how many rows of the lane the source served before.

    ``weights`` are those from a row on.
    """
    before = dict.fromkeys(names, 0)
    f = 0
    while True:
        row_of_change = max(row for row in weights if row <= f)
        next_change = min((row for row in weights if row > f), default=f + PERIOD)
        quota = quotas(weights[row_of_change])
        dealt = [name for name in sorted(quota) for _ in range(quota[name])]
        p = permutation(PERIOD, key("mixture", seed, lane, f))
        rows = min(PERIOD, next_change - f)
        for j in range(rows):
            name = dealt[p[j]]
            yield name, before[name]
            before[name] += 1
        f += rows


class Mix:
    """Section 8. ``changes`` holds the weights and the sequence index of each change, in order; the first is 0."""

    def __init__(
        self, sources: dict[str, Source], changes: list[tuple[int, Weights]], options: Options, samples: bool = False
    ) -> None:
        self.options = options
        self.lanes = 1 if samples else lane_count(options, in_mix=True)
        self.streams: dict[str, Stream | Samples] = {
            name: Samples(source, options, name) if samples else Stream(source, options, name, len(sources))
            for name, source in sources.items()
        }
        self.weights = {ceil_div(x, self.lanes): weights for x, weights in changes}  # by row: the last of one row holds
        seed = 0 if options.seed is None else options.seed
        self._served = [served(list(sources), self.weights, seed, lane) for lane in range(self.lanes)]
        self._rows: list[list[tuple[str, int]]] = [[] for _ in range(self.lanes)]

    def source_index(self, i: int) -> tuple[str, int]:
        """Return the source that serves sequence index ``i``, and the sequence index in this source's own stream."""
        row, lane = divmod(i, self.lanes)
        while len(self._rows[lane]) <= row:
            self._rows[lane].append(next(self._served[lane]))
        name, k = self._rows[lane][row]
        return name, k * self.lanes + lane

    def row(self, i: int) -> Row:
        name, index = self.source_index(i)
        return self.streams[name].row(index)

    def count(self) -> int | None:
        return self.options.take

    def pass_bounds(self, e: int) -> tuple[int, int]:
        """Return the first sequence index of pass ``e``, and the one after its last."""
        assert self.options.take is not None, "a mix without .take has no passes"
        return e * self.options.take, (e + 1) * self.options.take


# Section 9. Samples


class Samples:
    lanes = 1

    def __init__(self, source: Source, options: Options, name: str | None = None) -> None:
        self.options = options
        self.names = [] if name is None else [name]
        self.ring = [token for document in kept_documents(source) for token in document]
        if not self.ring:
            raise ValueError("no tokens")

    def begin(self, i: int) -> int:
        seed = 0 if self.options.seed is None else self.options.seed
        return keyed_hash(i, key("sample", seed, *self.names)) * len(self.ring) >> 64

    def row(self, i: int) -> Row:
        begin, seq_len, shift = self.begin(i), self.options.seq_len, self.options.shift
        inputs: list[Token] = [self.ring[(begin + j) % len(self.ring)] for j in range(seq_len)]
        labels: list[Token] = [self.ring[(begin + shift + j) % len(self.ring)] for j in range(seq_len)]
        return inputs, labels

    def count(self) -> int | None:
        epochs = self.options.epochs
        end = None if epochs is None else ceil_div(epochs * len(self.ring), self.options.seq_len)
        return smaller_end(self.options.take, end)
