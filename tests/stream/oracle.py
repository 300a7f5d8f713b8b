"""The order of a stream by the letter of its definition, with lists and loops, for tests to hold the real one to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.stream.order import derive_key, permutation


@dataclass
class Oracle:
    """``shards``: documents of each shard, each a list of ids."""

    shards: list[list[list[int]]]
    seed: int | None
    window: int
    lanes: int

    def documents(self, epoch: int) -> list[list[int]]:
        """All documents of an epoch in stream order; shards are so small that each is one block."""
        blocks = [shard for shard in self.shards if shard]
        count, windows = len(blocks), 1
        if count > self.lanes * self.window:
            windows = next(m for m in range(count // self.window, 0, -1) if math.gcd(m, self.lanes) == 1)
        order = range(count) if self.seed is None else permutation(count, derive_key("blocks", "", self.seed, epoch))
        found: list[list[int]] = []
        for w in range(windows):
            members = [blocks[b] for b in order[w * count // windows : (w + 1) * count // windows]]
            pool = [document for block in members for document in block]
            if self.seed is not None:
                key = derive_key("block documents", "", self.seed, epoch, w)
                pool = [pool[j] for j in permutation(len(pool), key)]
            found += pool
        return found

    def tokens(self, epochs: int) -> list[int]:
        return [token for e in range(epochs) for document in self.documents(e) for token in document]

    def global_order(self, per_epoch: int, stride: int, epochs: int) -> list[int]:
        """Stream sequences (or documents) ``n`` in global order, for whole epochs of ``per_epoch`` tokens."""
        order: list[int] = []
        for e in range(epochs):
            first, after = math.ceil(e * per_epoch / stride), math.ceil((e + 1) * per_epoch / stride)
            count = after - first
            sizes = [count // self.lanes + (lane < count % self.lanes) for lane in range(self.lanes)]
            starts = [first + sum(sizes[:lane]) for lane in range(self.lanes)]
            for row in range(max(sizes, default=0)):
                order += [starts[lane] + row for lane in range(self.lanes) if row < sizes[lane]]
        return order

    def sequences(self, seq_len: int, stride: int, epochs: int) -> list[list[int]]:
        """Inputs and the one label after them, of every global sequence, cut at the last token of the last epoch."""
        tokens = self.tokens(epochs)
        per_epoch = len(tokens) // epochs
        order = self.global_order(per_epoch, stride, epochs)
        return [tokens[n * stride : n * stride + seq_len + 1] for n in order]


def plain_best_fit(sizes: list[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing in the plainest words: every item looks at every bin, of equal rooms it takes the newest."""
    bins: list[list[int]] = []
    since: list[int] = []  # when each bin came to the room that it has
    for turn, item in enumerate(sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))):
        rooms = [capacity - sum(sizes[other] for other in one) for one in bins]
        fitting = [number for number, room in enumerate(rooms) if room >= sizes[item]]
        if fitting:
            best = min(fitting, key=lambda number: (rooms[number], -since[number]))
            bins[best].append(item)
            since[best] = turn
        else:
            bins.append([item])
            since.append(turn)
    return sorted(sorted(items) for items in bins)
