"""Measure the stream: speed beside other loaders on the same tokens, first batch, resume, shuffle, order alone.

    python scripts/bench_stream.py                 about three minutes; writes 1 GB below --directory
    python scripts/bench_stream.py speed shuffle   these parts only
    python scripts/bench_stream.py cold            from a disk, with 5.5 GB below --directory that no cache holds
    python scripts/bench_stream.py remote          from a server 30 ms away, with 3 GB below --directory
    python scripts/bench_stream.py --against REV   the streams of the commit REV and of this tree, in turn

Ratios are what holds on a shared machine: the loaders take turns, round by round, in one process with one thread, and
the median round counts. Tokens are drawn from a fixed seed; lengths of documents are log-normal, as in web text.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pipeline  # noqa: E402
from pipeline.shards.extents.table import ExtentTable, running_sums  # noqa: E402
from pipeline.stream.order import LANES, Blocks, Sequences, Shuffle, default_window  # noqa: E402
from scripts._bench_cold import cold  # noqa: E402
from scripts._bench_data import dataset, dataset_of_single_samples, flat_tokens  # noqa: E402
from scripts._bench_remote import remote  # noqa: E402
from scripts._bench_text import measure  # noqa: E402
from scripts._report import Report  # noqa: E402
from scripts._stream_against import compare_streams, print_comparisons  # noqa: E402

SEQ_LEN, BATCH = 2048, 32
TOKENS_PER_BATCH = SEQ_LEN * BATCH
ROUNDS, BATCHES = 12, 96
PLAIN, WEBDATASET = "shardwright", "webdataset, same documents"
Pair = tuple[torch.Tensor, torch.Tensor]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join((*PARTS, 'text'))} (default), cold, remote")
    parser.add_argument("--texts", help="glob of .jsonl.zst files for text (default: made of Python's own sources)")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "shardwright-bench")
    parser.add_argument("--against", metavar="REV", help="compare the streams with those of another commit")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each tree, with --against (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    peers = {WEBDATASET: webdataset_packed, **MEMMAPS}
    parts: dict[str, Callable[[Path, Report], None]] = {
        **PARTS,
        "cold": partial(cold, peers=peers),
        "remote": remote,
        "text": lambda directory, report: measure(directory, options.texts, report),
    }
    if unknown := [part for part in options.parts if part not in parts]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(parts)}")
    if options.against and options.parts:
        parser.error("--against takes no parts: it times all streams")
    if options.against:
        found = compare_streams(options.against, options.directory, options.texts, options.rounds)
        print_comparisons(found, as_json=options.json)
        return 0
    report = Report(as_json=options.json)
    for part in options.parts or [*PARTS, "text"]:
        parts[part](options.directory, report)
    report.end()
    return 0


# Loaders


def ours(path: Path, *, dtype: str = "int64", **options: Any) -> Iterator[Any]:
    return iter(pipeline.ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN, **options).batch(BATCH, dtype=dtype))


def mixed(paths: list[Path]) -> Iterator[Any]:
    sources = {path.name: pipeline.ShardDataset(path) for path in paths}
    weights = dict(zip(sources, (0.4, 0.3, 0.2, 0.1), strict=True))
    return iter(pipeline.mix(sources, weights).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH))


def memmap_windows(tokens: NDArray[np.uint16]) -> Iterator[Pair]:
    """Random windows as nanoGPT's train.py draws them, from a file mapped once."""
    generator = np.random.default_rng(0)
    while True:
        starts = generator.integers(0, len(tokens) - SEQ_LEN - 1, BATCH)
        x = torch.stack([torch.from_numpy(tokens[i : i + SEQ_LEN].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + SEQ_LEN].astype(np.int64)) for i in starts])
        yield x, y


def memmap_windows_tuned(tokens: NDArray[np.uint16]) -> Iterator[Pair]:
    """The same without its costs: a plain array, Python integers, rows cast straight into the batch."""
    tokens = np.asarray(tokens)
    generator = np.random.default_rng(0)
    while True:
        x, y = np.empty((BATCH, SEQ_LEN), np.int64), np.empty((BATCH, SEQ_LEN), np.int64)
        for row, i in enumerate(generator.integers(0, len(tokens) - SEQ_LEN - 1, BATCH).tolist()):
            x[row] = tokens[i : i + SEQ_LEN]
            y[row] = tokens[i + 1 : i + 1 + SEQ_LEN]
        yield torch.from_numpy(x), torch.from_numpy(y)


def copy_and_cast() -> Iterator[Pair]:
    """The limit: one batch of stored ids, cast to ids and labels again and again."""
    tokens = np.random.default_rng(0).integers(1, 60_000, (BATCH, SEQ_LEN + 1)).astype("<u2")
    while True:
        x, y = np.empty((BATCH, SEQ_LEN), np.int64), np.empty((BATCH, SEQ_LEN), np.int64)
        x[:] = tokens[:, :-1]
        y[:] = tokens[:, 1:]
        yield torch.from_numpy(x), torch.from_numpy(y)


def webdataset_packed(path: Path) -> Iterator[Pair]:
    """The same shards through webdataset: shards and samples shuffled, decoded, joined and cut."""
    import webdataset

    shards = sorted(str(file) for file in path.glob("train-*.tar"))
    samples = webdataset.WebDataset(shards, shardshuffle=len(shards), resampled=True).shuffle(1000).decode()
    need, parts, held = TOKENS_PER_BATCH + 1, [], 0
    for sample in samples:
        parts.append(sample["npy"])
        held += len(parts[-1])
        while held >= need:
            joined = np.concatenate(parts)
            batch = torch.from_numpy(joined[:need].astype(np.int64))
            yield batch[:-1].view(BATCH, SEQ_LEN), batch[1:].view(BATCH, SEQ_LEN)
            parts, held = [joined[need - 1 :]], len(joined) - need + 1


MEMMAPS = {
    "memmap, hand-tuned": lambda path: memmap_windows_tuned(flat_tokens(path)),
    "memmap, as nanoGPT writes it": lambda path: memmap_windows(flat_tokens(path)),
}


# Parts


def speed(directory: Path, report: Report) -> None:
    """Steady speed of loaders that take turns."""
    path = dataset(directory, shards=16, documents=100_000, median=600)
    singles = dataset_of_single_samples(directory)
    short = dataset(directory, shards=16, documents=800_000, median=60)
    quarters = [dataset(directory, shards=16, documents=25_000 + n, median=600) for n in range(4)]
    tokens = flat_tokens(path)
    others: dict[str, Iterator[Any]] = {
        "copy and cast, the limit": copy_and_cast(),
        "memmap, hand-tuned": memmap_windows_tuned(tokens),
        "memmap, as nanoGPT writes it": memmap_windows(tokens),
    }
    variants: dict[str, Iterator[Any]] = {
        "stored width": ours(path, dtype="stored"),
        "boundaries": ours(path, boundaries=True),
        "mix of 4 sources": mixed(quarters),
        "documents of 60 tokens": ours(short),
    }
    rates = take_turns({PLAIN: ours(path), **others, **variants}, ROUNDS, BATCHES)
    try:
        # A hundred times as long, so not between the others.
        slow = take_turns({WEBDATASET: webdataset_packed(singles)}, 5, 8)[WEBDATASET]
    except ImportError:
        report.note("webdataset is not installed: left out")
        slow = []
    rows = [(name, ratio(rates[PLAIN], rates[name]), rate(rates[name])) for name in others]
    if slow:
        rows.append((WEBDATASET, f"{statistics.median(rates[PLAIN]) / statistics.median(slow):.0f}", rate(slow)))
    heads = (f"int64 batches of {BATCH} x {SEQ_LEN}, one thread, against", "times as fast", "its Mtokens/s")
    report.table(f"Speed: {rate(rates[PLAIN])} Mtokens/s", heads, rows)
    rows = [(name, ratio(rates[name], rates[PLAIN]), rate(rates[name])) for name in variants]
    report.table("Variants", ("of that speed", "times as fast", "Mtokens/s"), rows)


class _OneBatch(IterableDataset[Any]):
    """Ready ids and labels, again and again: what handing them over costs alone."""

    def __iter__(self) -> Iterator[Any]:
        batch = {key: torch.zeros(BATCH, SEQ_LEN, dtype=torch.int64) for key in ("input_ids", "labels")}
        while True:
            yield batch


def workers(directory: Path, report: Report) -> None:
    """Speed of batches that two workers of a DataLoader make, which needs two cores that nothing else uses."""
    path = dataset(directory, shards=16, documents=100_000, median=600)
    stream = pipeline.ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
    sources: dict[str, IterableDataset[Any]] = {PLAIN: stream, "one batch in torch's own way": _OneBatch()}
    rates: dict[str, list[float]] = {}
    for name, source in sources.items():  # not in turn: workers of the one would fill their queues during the other
        loader = iter(DataLoader(source, batch_size=None, num_workers=2))
        rates |= take_turns({name: loader}, ROUNDS, 4 * BATCHES)
        del loader
    rows = [(name, rate(found), f"{max(found):,.0f}") for name, found in rates.items()]
    heads = ("int64 ids and labels in the process that trains", "Mtokens/s", "in the best round")
    report.table("DataLoader of two workers", heads, rows)


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Return how many times as fast the first is, in the median round."""
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


def rate(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f}"


def take_turns(loaders: dict[str, Iterator[Any]], rounds: int, batches: int) -> dict[str, list[float]]:
    """Return the speed of each loader in each round, in Mtokens/s."""
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for loader in loaders.values():
        for _ in islice(loader, batches):
            pass
    for _ in range(rounds):
        for name, loader in loaders.items():
            begin = time.perf_counter()
            for _ in islice(loader, batches):
                pass
            found[name].append(batches * TOKENS_PER_BATCH / (time.perf_counter() - begin) / 1e6)
    return found


def start(directory: Path, report: Report) -> None:
    """First batch of a new stream, and of a resumed one, at any position and epoch."""
    rows = []
    for shards, copies, documents in ((16, 1, 100_000), (1, 10_000, 1_000)):
        path = dataset(directory, shards=shards, documents=documents, median=600 if copies == 1 else 60, copies=copies)
        opened = timed(partial(pipeline.ShardDataset, path))
        both = timed(partial(from_construction, path))
        source = pipeline.ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN)
        first = timed(partial(first_batch, source))
        length = len(pipeline.ShardDataset(path, epochs=1).pack(SEQ_LEN))
        places = (length // 3, length * 9 // 10, length * 1000 + length // 2)
        resumed = [timed(partial(first_batch, source, place), times=3) for place in places]
        name = f"{shards * copies:,} shards, {documents * copies:,} documents"
        rows.append((name, *(f"{seconds * 1e3:,.0f}" for seconds in (both, opened, first, *resumed))))
    imports = [timed(partial(imported, name), times=3) for name in ("torch.utils.data", "pipeline.stream.datasets")]
    report.note(f"Imports, apart: {imports[1]:.1f} s, {imports[0]:.1f} s of them torch")
    heads = ("ms", "from construction", "construction", "first batch", "resumed at 1/3", "at 9/10", "in epoch 1000")
    report.table("Time to the first batch, medians", heads, rows)


def imported(name: str) -> None:
    """Import a module in a process of its own."""
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True, cwd=ROOT)


def first_batch(source: pipeline.Stream, place: int = 0) -> None:
    """Make the first batch from a place on."""
    stream = source.batch(BATCH)
    stream.load_state_dict({**stream.state_dict(), "sequence_index": place})
    next(iter(stream))


def from_construction(path: Path) -> None:
    """Open a dataset and make its first batch."""
    first_batch(pipeline.ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN))


def shuffle(directory: Path, report: Report) -> None:
    """Pairs of documents from 512 neighbours of the global stream that lie within 1% of the corpus: 2% is perfect."""
    rows = []
    for shards in (16, 100, 1000):
        for documents in (100_000, 1_000_000):
            tenths = [near_pairs(shards, documents, epoch, part) for epoch, part in ((0, 0), (0, 5), (0, 9), (1, 0))]
            rows.append((f"{shards}", f"{documents:,}", *(f"{share:.2%}" for share in tenths)))
    heads = ("shards", "documents", "first tenth", "middle", "last tenth", "next epoch")
    report.table("Shuffle at default settings", heads, rows)


def near_pairs(
    shards: int, documents: int, epoch: int, tenth: int, *, draws: int = 40, per_document: int = 1000
) -> float:
    """Return the share of near pairs among neighbours in one tenth of an epoch, for documents of equal length."""
    order = equal_documents(shards, documents // shards, per_document)
    sequences = Sequences(order.tokens, SEQ_LEN, LANES)
    documents = order.documents
    firsts = np.cumsum(order.blocks.documents) - order.blocks.documents
    first, after = sequences.first(epoch), sequences.first(epoch + 1)
    begin = first + (after - first) * tenth // 10

    @lru_cache(maxsize=2 * LANES)
    def permuted(epoch: int, window: int) -> list[int]:
        """Return where the documents of a window lie in the files' order, in the order of the stream."""
        blocks = order.epoch(epoch).window_blocks(window)
        listed = np.concatenate([np.arange(order.blocks.documents[block]) + firsts[block] for block in blocks])
        inside = order.document_order(epoch, window, len(listed))
        assert inside is not None  # a seed was given
        found: list[int] = listed[inside].tolist()
        return found

    def corpus_place(document: int) -> int:
        epoch, inside = divmod(document, documents)
        starts = order.epoch(epoch).document_starts
        number = int(np.searchsorted(starts, inside, side="right")) - 1
        return permuted(epoch, number)[inside - int(starts[number])]

    generator = np.random.default_rng(tenth)
    shares = []
    for _ in range(draws):
        i = begin + int(generator.integers(0, max(1, (after - first) // 10 - 400)))
        places: dict[int, None] = {}
        while len(places) < 512:
            _, n = sequences.locate(i)
            span = range(n * SEQ_LEN // per_document, (n * SEQ_LEN + SEQ_LEN - 1) // per_document + 1)
            places |= dict.fromkeys(map(corpus_place, span))
            i += 1
        at = np.array(list(places)[:512])
        gaps = np.abs(at[:, None] - at[None, :])[np.triu_indices(512, 1)]
        shares.append(float((gaps <= documents // 100).mean()))
    return statistics.mean(shares)


def equal_documents(shards: int, documents: int, tokens: int) -> Shuffle:
    """Return the default order of shards that hold so many documents of so many tokens each."""
    table = ExtentTable.of_documents(np.full(documents, tokens), "<u2")
    columns = (np.tile(column, shards) for column in (table.sizes, table.tokens, table.documents))
    blocks = Blocks.of_extents(np.full(shards, len(table)), *map(running_sums, columns))
    return Shuffle(blocks, LANES, default_window(blocks), seed=0)


def order(directory: Path, report: Report) -> None:
    """The order alone, with no data: from seed and position to block, for very many shards and late epochs."""
    rows = []
    for shards in (10, 1_000, 10_000):
        cells = []
        for epoch in (0, 1_000_000):
            shuffle = equal_documents(shards, 12_000, 1_000)
            sequences = Sequences(shuffle.tokens, SEQ_LEN, LANES)
            begin = time.perf_counter()
            index = sequences.first(epoch) + 12_345
            found, n = sequences.locate(index)
            parts = shuffle.epoch(found)
            number = int(np.searchsorted(parts.starts, n * SEQ_LEN - found * shuffle.tokens, side="right")) - 1
            shuffle.document_order(found, number, int(shuffle.blocks.documents[parts.window_blocks(number)].sum()))
            cells.append(f"{(time.perf_counter() - begin) * 1e3:.2f}")
            begin = time.perf_counter()
            inside = np.arange(BATCH) + index - sequences.first(found)
            tokens_before, _ = sequences.places(found, inside[: sequences.first(found + 1) - index])
            np.searchsorted(parts.starts, tokens_before, side="right")
            cells.append(f"{(time.perf_counter() - begin) / (len(tokens_before) / BATCH) * 1e6:.1f}")
        rows.append((f"{shards:,}", f"{len(shuffle.blocks):,}", f"{shuffle.windows:,}", *cells))
    heads = ("shards", "blocks", "windows", "start, ms", "batch, us", "start in epoch 1M, ms", "batch, us")
    report.table("The order alone", heads, rows)


def timed(action: Callable[[], Any], times: int = 5) -> float:
    """Return the median seconds that ``action`` takes."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


PARTS: dict[str, Callable[[Path, Report], None]] = {
    "speed": speed,
    "workers": workers,
    "start": start,
    "shuffle": shuffle,
    "order": order,
}

if __name__ == "__main__":
    sys.exit(main())
