"""Sequential streams of text by the letter of their definition: pieces, lanes and windows, with lists and loops."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, pairwise
from math import ceil, floor, gcd
from pathlib import Path
from typing import Any

import pipeline
from pipeline.stream.order import derive_key, permutation
from pipeline.text.tokens.tokenizer import load_tokenizer

EOS = 1
BYTES = load_tokenizer("bytes")

Tokens = list[int]
Place = tuple[int, int, int]


@dataclass
class Case:
    """A corpus and every option of a stream over it."""

    corpus: list[tuple[str, list[str]]]  # kind and texts of each file
    seed: int | None
    lanes_a_row: int  # of a global batch
    window: int | None
    eos: bool
    modulus: int  # of texts by their length: a filter leaves out those that it divides, 0 none
    kind: str  # "pack", "best_fit" or "documents"
    seq_len: int
    stride: int
    shift: int
    rows: int  # of a global batch
    epochs: int | None
    take: int | None
    last: str
    files: list[Path] = field(default_factory=list)
    pieces: list[Any] = field(default_factory=list)
    of_mix: tuple[int, int] | None = None  # seed of the mix and lane there, by which best fit orders its sequences

    @property
    def lanes(self) -> int:
        return 1 if self.seed is None else self.lanes_a_row * self.rows

    def stream(self, ranks: int = 1) -> pipeline.Stream:
        stream: Any = pipeline.TextDataset(self.files, BYTES, eos=self.eos, epochs=self.epochs)
        if self.seed is not None:
            stream = stream.shuffle(seed=self.seed, window=self.window, lanes=self.lanes)
        if self.modulus:
            stream = stream.filter(self.keeps, name="keeps")
        if self.kind == "documents":
            stream = stream.documents()
        elif self.kind == "pack":
            stream = stream.pack(self.seq_len, stride=self.stride, shift=self.shift)
        else:
            stream = stream.pack(self.seq_len, shift=self.shift, best_fit=True)
        if self.take is not None:
            stream = stream.take(self.take)
        return stream.batch(self.rows // ranks, last=self.last)

    def keeps(self, record: Any) -> bool:
        return len(record.text) % self.modulus != 0


# The definition.

Block = tuple[int, list[str]]  # bytes, texts


def pieces_of(case: Case) -> list[tuple[int, list[Block]]]:
    """Return weight and blocks of each piece of the files."""
    if not case.pieces:
        case.pieces = cut(case)
    return case.pieces


def cut(case: Case) -> list[tuple[int, list[Block]]]:
    sizes = [path.stat().st_size for path in case.files]
    packed = [kind in ("jsonl.gz", "parquet") for kind, _ in case.corpus]
    total = sum(size * (3 if each else 1) for size, each in zip(sizes, packed, strict=True))
    block = max(1, min(32 * 1024, total // (8 * case.lanes)))
    plain = sum(size for size, (kind, _) in zip(sizes, case.corpus, strict=True) if kind == "jsonl")
    step = max(1, min(256 * 1024, plain // (4 * case.lanes)), plain // 2**17)
    pieces = []
    for path, (kind, texts), size, each in zip(case.files, case.corpus, sizes, packed, strict=True):
        records = [(len(text) + 1, text) for text in texts]
        if kind in ("jsonl", "jsonl.gz"):
            raw = path.read_bytes() if kind == "jsonl" else gzip.decompress(path.read_bytes())
            lines = [len(line) for line in raw.splitlines(keepends=True)]
            records = list(zip(lines, texts, strict=True))
        parts = -(-size // step) if kind == "jsonl" and case.lanes > 1 and size > step else 1
        cuts = [size * k // parts for k in range(parts + 1)]
        begins = [sum(length for length, _ in records[:n]) for n in range(len(records))]
        for begin, end in pairwise(cuts):
            weight = end - begin if parts > 1 else max(1, size * (3 if each else 1))
            inside = [r for at, r in zip(begins, records, strict=True) if parts == 1 or begin <= at < end]
            if inside:  # the next record says where a line ends, and after the last one there is none
                text = inside[-1][1]
                inside[-1] = len(text) + 1, text
            pieces.append((weight, blocks_of(inside, block)))
    return pieces


def blocks_of(records: list[tuple[int, str]], size: int) -> list[Block]:
    blocks: list[Block] = []
    held: list[tuple[int, str]] = []
    for number, record in enumerate(records):
        held.append(record)
        if sum(length for length, _ in held) >= size or number == len(records) - 1:
            blocks.append((sum(length for length, _ in held), [text for _, text in held]))
            held = []
    return blocks


def cycles_of(case: Case, epoch: int, group: int) -> list[list[list[Block]]]:
    """Return the cycles of a group in an epoch: lists of pieces, of each the blocks that belong to the group."""
    groups, pieces = min(case.rows, case.lanes), pieces_of(case)
    order = range(len(pieces))
    if case.seed is not None:
        order = permutation(len(pieces), derive_key("text pieces", case.seed, epoch)).tolist()
    turn = turn_of(case, epoch)
    part = Fraction(sum(weight for weight, _ in pieces), groups)  # of the line
    begin, own = 0, []
    for number in order:
        weight, blocks = pieces[number]
        first, last = floor(begin / part), ceil((begin + weight) / part) - 1
        if first == last == group:
            own.append(blocks)
        elif first <= group <= last and first < last:
            slots = 8 * (last - first + 1)
            spread = next(s for s in range(slots * 5 // 8, 2 * slots) if gcd(s, slots) == 1)
            owners = [floor((begin + Fraction(weight * (2 * k + 1), 2 * slots)) / part) for k in range(slots)]
            if group in owners:
                own.append([block for b, block in enumerate(blocks) if owners[(b + turn) * spread % slots] == group])
        begin += weight
    width = max(1, min(case.lanes // groups, 128 // groups))
    return [own[at : at + width] for at in range(0, len(own), width)]


def turn_of(case: Case, epoch: int) -> int:
    return 0 if case.seed is None else derive_key("text turns", case.seed, epoch)


def rounds_of(case: Case, epoch: int, lane: int) -> list[tuple[int, int, list[Block]]]:
    """Return cycle, round and blocks of each round of a lane in an epoch."""
    groups = min(case.rows, case.lanes)
    lanes, (number, group) = case.lanes // groups, divmod(lane, groups)
    rounds = []
    for cycle, pieces in enumerate(cycles_of(case, epoch, group)):
        for round in range(max(map(len, pieces)) + 1):
            first = number - (turn_of(case, epoch) >> 32)
            turns = [round * lanes + (first - q) % lanes for q in range(len(pieces))]
            found = [blocks[turn] for blocks, turn in zip(pieces, turns, strict=True) if turn < len(blocks)]
            if found:
                rounds.append((cycle, round, found))
    return rounds


def ends_here(case: Case, place: Place, blocks: list[Block]) -> bool:
    """Say whether a window that begins at ``place`` ends with these blocks."""
    size = 2**28 // case.lanes // 2 if case.seed is not None else 0
    least = 4 * case.seq_len * max(32, min(256, size // 4 // case.seq_len)) if case.kind == "best_fit" else 0
    have = sum(length for length, _ in blocks)
    if case.window is not None and case.seed is not None:
        return len(blocks) >= max(1, case.window // case.lanes) and have >= least
    first = have >= least and len(blocks) >= max(4, 4 * (place[1] + place[2]))
    return have >= max(size, least) or first


def windows_of(case: Case, lane: int) -> Iterator[tuple[Place, list[Tokens]]]:
    """Yield place and kept documents of each window of a lane."""
    epoch = 0
    while case.epochs is None or epoch < case.epochs:
        rounds = rounds_of(case, epoch, lane)
        place, held = (epoch, 0, 0), list[Block]()
        for number, (cycle, round, blocks) in enumerate(rounds):
            held += blocks
            if number < len(rounds) - 1 and not ends_here(case, place, held):
                continue
            found = [text for _, texts in held for text in texts]
            if case.seed is not None:
                key = derive_key("text window", case.seed, lane, *place)
                found = [found[index] for index in permutation(len(found), key).tolist()]
            kept = [text for text in found if not case.modulus or len(text) % case.modulus]
            yield place, [[byte + 3 for byte in text.encode()] + [EOS] * case.eos for text in kept]
            place, held = (epoch, cycle, round + 1), []
        epoch += 1


def sequences_of(case: Case, lane: int) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield ids and labels of each sequence of a lane."""
    length, shift = case.seq_len, case.shift
    if case.kind == "documents":
        for _, documents in windows_of(case, lane):
            for document in documents:
                yield document, document[1:]
    elif case.kind == "pack":
        tokens: Tokens = []
        parts = chain.from_iterable(documents for _, documents in windows_of(case, lane))
        begin, more = 0, True
        while True:
            while more and len(tokens) < begin + length + shift:
                part = next(parts, None)
                more = part is not None
                tokens += part or []
            if begin >= len(tokens) - shift:  # what is left has no label
                return
            yield tokens[begin : begin + length], tokens[begin + shift : begin + length + shift]
            begin += case.stride
    else:
        for place, documents in windows_of(case, lane):
            pieces = []
            for document in documents:
                cuts = range(0, len(document), length)
                pieces += [(document[at : at + length], document[at : at + length + shift]) for at in cuts]
            bins = plain_best_fit([len(ids) for ids, _ in pieces], length)
            if case.seed is not None:
                key = derive_key("best fit", *(case.of_mix or (case.seed, lane)), *place)
                bins = [bins[index] for index in permutation(len(bins), key).tolist()]
            for items in bins:
                ids = [token for item in items for token in pieces[item][0]]
                ahead = pieces[items[0]][1] if len(pieces[items[0]][0]) == length else ids
                if len(ahead) > shift:
                    yield ids, ahead[shift : length + shift]


def batches_of(case: Case) -> Iterator[list[tuple[Tokens, Tokens]]]:
    """Yield the global batches as lists of rows: row i is of lane i % lanes, or of those after it that have not ended."""
    lanes = [sequences_of(case, lane) for lane in range(case.lanes)]
    left = case.take
    for step in range(10**9):
        size = case.rows if left is None else min(left, case.rows)
        if size == 0 or (case.last == "drop" and size < case.rows):
            return
        batch: list[tuple[Tokens, Tokens]] = []
        for i in range(step * case.rows, step * case.rows + size):
            for lane in range(i, i + case.lanes):
                row = next(lanes[lane % case.lanes], None)
                if row is not None:
                    batch.append(row)
                    break
        if left is not None:
            left -= len(batch)
        if not batch or (case.last == "drop" and len(batch) < case.rows):
            return
        yield batch


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
