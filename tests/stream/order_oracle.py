"""The definition of the order in plain Python: lists, loops and integers of any size.

Written from the definition alone, to check an implementation of it. Every part names its section; sections 8 and 9,
mixes and samples, are in `order_oracle_mixes`. `steps` says which rank takes which sequence indices.

>>> source = Source([memory_shard([[1, 2, 3], [4], [5, 6]], itemsize=2)], itemsize=2)
>>> first_rows(Stream(source, Options(seq_len=4, epochs=1)), 5)
[([1, 2, 3, 4], [2, 3, 4, 5]), ([5, 6, None, None], [6, None, None, None])]
>>> steps(0, 5, ranks=2, batch=2, lanes=1)
[[[0, 1], [2, 3]], [[], [4]]]
"""

import json
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from math import floor, gcd
from typing import Protocol

Document = list[int]  # its tokens
Token = int | None  # None: missing
Row = tuple[list[Token], list[Token]]  # inputs and labels

# Section 1. Hash

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def mix64(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % WORD
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def key(tag: str, *parts: int | str) -> int:
    text = json.dumps([tag, *parts]).encode("ascii")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def keyed_hash(x: int, salt: int) -> int:
    return mix64(mix64(x * GOLDEN % WORD) ^ salt)


@lru_cache(maxsize=256)
def permutation(n: int, salt: int) -> tuple[int, ...]:
    return tuple(sorted(range(n), key=lambda x: keyed_hash(x, salt)))


# The definition of extents

EXTENT_BYTES = 196_608


@dataclass
class Shard:
    documents: list[Document]
    starts: list[int]  # the byte at which each document begins
    payload_bytes: int  # S
    kept: list[bool] | None = None  # of a selection: which extents are kept; None: all
    given: list[bool] | None = None  # of a listing of an upsampled source: which documents it gives; None: all


@dataclass
class Source:
    shards: list[Shard]
    itemsize: int
    extent_bytes: int = EXTENT_BYTES  # t; a file of extents may hold smaller ones


def memory_shard(documents: list[Document], itemsize: int) -> Shard:
    """Return documents that lie in memory one after another."""
    starts, byte = [], 0
    for document in documents:
        starts.append(byte)
        byte += len(document) * itemsize
    return Shard(documents, starts, byte)


def cut_extents(
    starts: list[int], lengths: list[int], itemsize: int, payload_bytes: int, extent_bytes: int = EXTENT_BYTES
) -> list[int]:
    """Return the first document of each extent."""
    n = max(1, (2 * payload_bytes + extent_bytes) // (2 * extent_bytes))
    ends = [start + length * itemsize for start, length in zip(starts, lengths, strict=True)]
    firsts, first = [], 0
    for b in range(n):
        reaching = [j for j, end in enumerate(ends) if end * n >= (b + 1) * payload_bytes]
        last = reaching[0] if reaching and b < n - 1 else len(starts) - 1
        if first <= last:  # else the extent has no documents
            firsts.append(first)
            first = last + 1
    kept = firsts[:1]
    for before, first in pairwise(firsts):  # an extent begins at its first document, the first one at byte 0
        begin = 0 if before == 0 else starts[before]
        if begin < starts[first] < payload_bytes:
            kept.append(first)
    return kept


def extent_sizes(firsts: list[int], starts: list[int], payload_bytes: int) -> list[int]:
    """Return the bytes of each extent: they tile the shard before its index."""
    if not firsts:
        return []
    borders = [0, *(starts[first] for first in firsts[1:]), payload_bytes]
    return [end - begin for begin, end in pairwise(borders)]


# Section 2. Extents and blocks


def pieces(tokens: list[int]) -> list[Document]:
    """Return what stands for the documents of tokens that nothing divides."""
    return [tokens[at : at + 4096] for at in range(0, len(tokens), 4096)]


@dataclass
class Extent:
    size: int
    documents: list[Document]


def tokens_in(documents: list[Document]) -> int:
    return sum(len(document) for document in documents)


def shard_extents(shard: Shard, itemsize: int, extent_bytes: int = EXTENT_BYTES) -> list[Extent]:
    lengths = [len(document) for document in shard.documents]
    firsts = cut_extents(shard.starts, lengths, itemsize, shard.payload_bytes, extent_bytes)
    sizes = extent_sizes(firsts, shard.starts, shard.payload_bytes)
    given = shard.given or [True] * len(lengths)
    borders = pairwise([*firsts, len(shard.documents)])
    return [
        Extent(size, [shard.documents[j] for j in range(first, end) if given[j]])
        for (first, end), size in zip(borders, sizes, strict=True)
    ]


def source_runs(source: Source) -> list[list[Extent]]:
    """Return the extents of each shard; of a selection, each run of neighbours that are kept."""
    runs: list[list[Extent]] = []
    for shard in source.shards:
        extents = shard_extents(shard, source.itemsize, source.extent_bytes)
        kept = [True] * len(extents) if shard.kept is None else shard.kept
        if shard.given is not None:
            kept = [each and bool(extent.documents) for each, extent in zip(kept, extents, strict=True)]
        for n, extent in enumerate(extents):
            if kept[n] and (n == 0 or not kept[n - 1]):
                runs.append([])
            if kept[n]:
                runs[-1].append(extent)
    return runs


def kept_documents(source: Source) -> list[Document]:
    return [document for run in source_runs(source) for extent in run for document in extent.documents]


def extents_a_block(extent_count: int, y: int, in_mix: bool) -> int:
    return 1 if in_mix else max(1, min(4, 524_288 * extent_count // y))


def cut_blocks(runs: list[list[Extent]], g: int) -> list[list[Document]]:
    """Return the documents of each block."""
    blocks = []
    for run in runs:
        m = len(run)
        q = ceil_div(m, g)
        for k in range(q):
            block = run[k * m // q : (k + 1) * m // q]
            blocks.append([document for extent in block for document in extent.documents])
    return blocks


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def mark(n: int, shard_name: str) -> int:
    """Return what ``.split`` knows an extent or a document of a shard by."""
    return keyed_hash(n, key("split", shard_name))


def is_held_out(mark: int, val: Fraction, level: int = 0) -> bool:
    """Say whether split ``level`` (0: of a dataset, 1: of one of its halves, ...) holds out what has this mark."""
    return mix64(mark ^ key("share", level)) < floor(val * WORD)


# Section 3. Windows


@dataclass
class Options:
    seq_len: int = 1
    stride: int | None = None  # None: seq_len
    shift: int = 1  # the label of a token is the token so many places later
    seed: int | None = None  # None: without .shuffle()
    lanes: int | None = None  # as stated by .shuffle
    window: int | None = None  # as stated by .shuffle
    epochs: int | None = None
    take: int | None = None
    whole_documents: bool = False
    bucket: int | None = None
    max_length: int | None = None  # tokens of a whole document that make its row


def lane_count(options: Options, in_mix: bool) -> int:
    if options.seed is None:
        return 1
    return options.lanes or (16 if in_mix else 64)


def blocks_a_window(options: Options, K: int, y: int, C: int, sources: int = 0, sequential: bool = False) -> int:
    """``sources``: how many a mix has; 0: no mix."""
    if options.window:
        return options.window
    size = 4 * 2**20
    if sources:
        size = min(3 * 2**20, 2**28 // (C * sources))
    if sequential:  # section 10
        size = 2**28 // C
    return max(1, (2 * size * K + y) // (2 * y))


def window_count(K: int, C: int, W: int, y: int = 1) -> int:
    if K <= C * W and y <= 2**27:
        return 1
    M = max(1, K // W)
    while gcd(M, C) != 1:
        M -= 1
    return M


def windows(blocks: list[list[Document]], M: int, name: str, seed: int | None, e: int) -> list[list[Document]]:
    """Return the documents of each window of epoch ``e``, in the order of the stream."""
    K = len(blocks)
    P = range(K) if seed is None else permutation(K, key("blocks", name, seed, e))
    result = []
    for w in range(M):
        listed = [document for place in P[w * K // M : (w + 1) * K // M] for document in blocks[place]]
        d = len(listed)
        p = range(d) if seed is None else permutation(d, key("block documents", name, seed, e, w))
        result.append([listed[p[j]] for j in range(d)])
    return result


class Stream:
    """Sections 2 to 4, 6 and 7: a stream of one source, or with a ``name`` that of one of the ``sources`` of a mix."""

    def __init__(
        self, source: Source, options: Options, name: str | None = None, sources: int = 0, sequential: bool = False
    ) -> None:
        in_mix = name is not None
        runs = source_runs(source)
        sizes = [extent.size for run in runs for extent in run]
        y = max(1, sum(sizes))
        self.name = name or ""
        self.options = options
        self.blocks = cut_blocks(runs, extents_a_block(len(sizes), y, in_mix))
        self.lanes = lane_count(options, in_mix)
        self.window = blocks_a_window(options, len(self.blocks), y, self.lanes, sources, sequential)
        self.M = window_count(len(self.blocks), self.lanes, self.window, y)
        self.tokens = sum(tokens_in(block) for block in self.blocks)  # T
        self.T = sum(len(block) for block in self.blocks) if options.whole_documents else self.tokens
        self.stride = 1 if options.whole_documents else options.stride or options.seq_len
        if self.T == 0 or (not options.whole_documents and self.stride > options.seq_len):
            raise ValueError("no tokens or documents, or a stride above seq_len")
        self.epoch_documents = lru_cache(maxsize=16)(self._epoch_documents)
        self.epoch_tokens = lru_cache(maxsize=16)(self._epoch_tokens)
        self.group = lru_cache(maxsize=16)(self._group)

    def _epoch_documents(self, e: int) -> list[Document]:
        parts = windows(self.blocks, self.M, self.name, self.options.seed, e)
        return [document for window in parts for document in window]

    def _epoch_tokens(self, e: int) -> list[int]:
        return [token for document in self.epoch_documents(e) for token in document]

    # Section 4. Sequences and lanes

    def A(self, e: int) -> int:
        E = self.options.epochs
        if E is None:
            return ceil_div(e * self.T, self.stride)
        return e // E * self.S(E) + ceil_div(e % E * self.T, self.stride)  # section 6

    def S(self, E: int) -> int:
        return ceil_div(E * self.T, self.stride)

    def epoch(self, i: int) -> int:
        """Return the largest e with A(e) <= i."""
        E = self.options.epochs
        if E is None:
            return i * self.stride // self.T
        return i // self.S(E) * E + i % self.S(E) * self.stride // self.T

    def in_lanes(self, i: int) -> int:
        """Return the stream sequence of sequence index ``i``, before buckets."""
        E = self.options.epochs
        if E is not None:  # section 6
            end = i // self.S(E) * self.S(E) + self.labelled(E)
            if i < end and self.in_unbounded_lanes(i) >= end:
                own = range(self.A(self.epoch(i)), self.A(self.epoch(i) + 1))
                passed = [k for k in own if k < end and self.in_unbounded_lanes(k) >= end]
                instead = [k for k in own if k >= end and self.in_unbounded_lanes(k) < end]
                i = instead[passed.index(i)]
        return self.in_unbounded_lanes(i)

    def in_unbounded_lanes(self, i: int) -> int:
        e = self.epoch(i)
        C, N = self.lanes, self.A(e + 1) - self.A(e)
        row, lane = divmod(i - self.A(e), C)
        return self.A(e) + lane * (N // C) + min(lane, N % C) + row

    def stream_sequence(self, i: int) -> int:
        """Return the stream sequence of sequence index ``i``."""
        if self.options.bucket is None:
            return self.in_lanes(i)
        return self.group(self.epoch(i), i // (64 * self.options.bucket))[i]

    def token(self, position: int, number: int = 0) -> Token:
        """Return the token at a position of pass ``number``, or of the endless stream."""
        e, offset = divmod(position, self.T)
        if (E := self.options.epochs) is not None:  # section 6
            if e >= E:
                return None
            e += number * E
        return self.epoch_tokens(e)[offset]

    def document(self, n: int) -> Document:
        e, offset = divmod(n, self.T)
        return self.epoch_documents(e)[offset]

    def row(self, i: int) -> Row:
        """Return inputs and labels; of whole documents, the label of the last ``shift`` tokens is missing."""
        n, shift = self.stream_sequence(i), self.options.shift
        if self.options.whole_documents:
            inputs: list[Token] = [*self.document(n)[: self.options.max_length]]
            return inputs, [*inputs[shift:], *[None] * min(shift, len(inputs))]
        E, number = self.options.epochs, 0
        if E is not None:
            number, n = divmod(n, self.S(E))
        begin, end = n * self.stride, n * self.stride + self.options.seq_len
        inputs = [self.token(position, number) for position in range(begin, end)]
        labels = [self.token(position, number) for position in range(begin + shift, end + shift)]
        return inputs, labels

    # Section 6. Ends

    def labelled(self, E: int) -> int:
        """Return ``U``; labels with a shift of 0 are those that a model shifts."""
        d = 0 if self.options.whole_documents else max(1, self.options.shift)
        return max(0, ceil_div(E * self.T - d, self.stride))

    def end(self) -> int | None:
        """Return the end of pass 0."""
        return None if self.options.epochs is None else self.labelled(self.options.epochs)

    def count(self) -> int | None:
        return smaller_end(self.options.take, self.end())

    def pass_bounds(self, e: int) -> tuple[int, int | None]:
        """Return the first sequence index of pass ``e``, and the one after its last."""
        take, epochs = self.options.take, self.options.epochs
        if epochs is None:
            return (self.A(e), None) if take is None else (e * take, (e + 1) * take)
        begin = e * self.S(epochs)
        return begin, smaller_end(None if take is None else begin + take, begin + self.labelled(epochs))

    # Section 7. Buckets

    def _group(self, e: int, q: int) -> dict[int, int]:
        """Return the stream sequence of each sequence index of group ``q`` of epoch ``e``."""
        b, seed = self.options.bucket or 1, self.options.seed
        indices = range(max(self.A(e), 64 * b * q), min(self.A(e + 1), 64 * b * (q + 1)))
        buckets: list[list[int]] = []
        for i in indices:
            if i == indices[0] or i % b == 0:
                buckets.append([])
            buckets[-1].append(i)
        shortest_first = sorted(indices, key=lambda i: (len(self.document(self.in_lanes(i))), i))
        t = range(len(buckets)) if seed is None else permutation(len(buckets), key("buckets", seed, e, q))
        places = [i for bucket in t for i in buckets[bucket]]
        return {place: self.in_lanes(i) for place, i in zip(places, shortest_first, strict=True)}


def smaller_end(take: int | None, end: int | None) -> int | None:
    return take if end is None else end if take is None else min(take, end)


# Section 5. Ranks


def multiplier(C: int) -> int:
    """Return ``s``."""
    s = (39 * C + 50) // 100
    while gcd(s, C) != 1:
        s += 1
    return s


def step_of_ranks(a: int, n: int, R: int, C: int, b: int = 0) -> list[list[int]]:
    """Return the sequence indices that each rank takes of the step ``a`` to ``a + n`` of a pass from ``b`` on, in its order."""
    step = range(a, a + n)
    if C % R == 0:
        return [[i for i in step if (i - b) % R == r] for r in range(R)]
    s = multiplier(C)
    ordered = sorted(step, key=lambda i: ((i - b) * s % C, i))
    return [ordered[r * n // R : (r + 1) * n // R] for r in range(R)]


def steps(
    first: int, end: int, ranks: int, batch: int, lanes: int, last: str = "pad", b: int = 0
) -> list[list[list[int]]]:
    """Return for each step from ``first`` to the ``end`` of a pass from ``b`` on the sequence indices of each rank."""
    result = []
    for a in range(first, end, ranks * batch):
        n = min(ranks * batch, end - a)
        if n == ranks * batch or last == "pad":  # section 6
            result.append(step_of_ranks(a, n, ranks, lanes, b))
    return result


# Section 10. Sequential readers


def sequential_documents(source: Source, options: Options, e: int) -> list[list[Document]]:
    """Return the documents of epoch ``e`` that each lane of a sequential reader takes, in their order."""
    documents = Stream(source, options, sequential=True).epoch_documents(e)
    C, D = lane_count(options, in_mix=False), len(documents)
    return [documents[lane * D // C : (lane + 1) * D // C] for lane in range(C)]


# What a test compares


class Rows(Protocol):
    """What `Stream`, `Mix` and `Samples` have in common."""

    lanes: int  # C

    def count(self) -> int | None:
        """Return the number of sequences; None if it is endless."""

    def row(self, i: int) -> Row:
        """Return the inputs and labels of sequence index ``i``; None is a missing token."""


def first_rows(stream: Rows, number: int, first: int = 0) -> list[Row]:
    """Return the rows of ``number`` sequence indices from ``first`` on, fewer at the end of a bounded stream."""
    end = stream.count()
    return [stream.row(i) for i in range(first, first + number) if end is None or i < end]
