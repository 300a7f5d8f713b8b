"""Compare the stream with other loaders on the same tokens: memmap and webdataset, warm, cold and from the network.

    python scripts/bench_stream.py           speed, workers, start, shuffle: two minutes; writes 1 GB
    python scripts/bench_stream.py memory    memory of one stream, of a mix of 20, of train and val
    python scripts/bench_stream.py cold      5.5 GB from a disk, not in the page cache
    python scripts/bench_stream.py remote    from a server 30 ms away, 10 MB to 20 GB (3 GB of disk)
    python scripts/bench_stream.py trace     traces a step of 10,000 shards, and documents of a mix of four
    python scripts/bench_stream.py ranks     which blocks up to 4,096 ranks read; needs no data

On a shared machine only ratios are stable: loaders with one thread take turns in each round, and the median round counts.
Tokens are drawn with a fixed seed. Lengths of documents are log-normal, as in web text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from scripts.bench import peers
from scripts.bench.child import run_child
from scripts.bench.cold import cold
from scripts.bench.data import (
    BATCH,
    SEQ_LEN,
    TOKENS_PER_BATCH,
    dataset,
    flat_tokens,
    text_files,
    tokenizer_folder,
)
from scripts.bench.ranks import ranks
from scripts.bench.remote import remote
from scripts.bench.report import median, ratio, table
from scripts.bench.shuffle import near_pairs

ROUNDS, BATCHES = 12, 96


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"parts to run: {', '.join(PARTS)} (default: {', '.join(DEFAULT)})")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "shardwright-bench")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for part in options.parts or DEFAULT:
        PARTS[part](options.directory)
    return 0


def speed(directory: Path) -> None:
    """Print the steady speed of loaders that take turns."""
    path = dataset(directory, shards=16, documents=6_250, median=600)
    short = dataset(directory, shards=16, documents=50_000, median=60)
    singles = dataset(directory, shards=4, documents=5_000, median=600, group=0)
    quarters = [dataset(directory, shards=16, documents=1_563 + number, median=600) for number in range(4)]
    sources = {str(number): pipeline.ShardDataset(quarter) for number, quarter in enumerate(quarters)}
    others: dict[str, Iterator[Any]] = {
        "copy and cast, the limit": peers.copy_and_cast(),
        "memmap, hand-tuned": peers.memmap_tuned(path),
        "memmap, as nanoGPT writes it": peers.memmap_windows(path),
    }
    variants: dict[str, Iterator[Any]] = {
        "stored width": packed(pipeline.ShardDataset(path), dtype="stored"),
        "boundaries": packed(pipeline.ShardDataset(path), boundaries=True),
        "mix of 4 sources": packed(pipeline.mix(sources, dict.fromkeys(sources, 1.0))),
        "documents of 60 tokens": packed(pipeline.ShardDataset(short)),
        "array of tokens": packed(pipeline.ShardDataset.from_tokens(flat_tokens(path))),
    }
    name, webdataset = "shardwright", "webdataset, one document a member"
    rates = take_turns({name: packed(pipeline.ShardDataset(path)), **others, **variants}, ROUNDS, BATCHES)
    # webdataset takes a hundred times as long, so it runs after the others.
    rates |= take_turns({webdataset: peers.webdataset(singles)}, ROUNDS, 8)
    rows = [(other, ratio(rates[name], rates[other]), median(rates[other])) for other in (*others, webdataset)]
    heads = (f"int64 batches of {BATCH} x {SEQ_LEN}, one thread, against", "times as fast", "its Mtokens/s")
    table(f"Speed: {median(rates[name])} Mtokens/s", heads, rows)
    rows = [(variant, ratio(rates[variant], rates[name]), median(rates[variant])) for variant in variants]
    table("Variants", ("of that speed", "times as fast", "Mtokens/s"), rows)


def packed(source: pipeline.Stream, dtype: str = "int64", **options: Any) -> Iterator[Any]:
    return iter(source.shuffle(seed=0).pack(SEQ_LEN, **options).batch(BATCH, dtype=dtype))


def workers(directory: Path) -> None:
    """Print the speed of two workers of a DataLoader. It needs two idle cores."""
    path = dataset(directory, shards=16, documents=6_250, median=600)
    stream = pipeline.ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
    windows = peers.MemmapDataset(path)
    loaders: dict[str, Callable[[], Any]] = {
        "shardwright": lambda: DataLoader(stream, batch_size=None, num_workers=2),
        "memmap Dataset": lambda: DataLoader(windows, batch_size=BATCH, shuffle=True, num_workers=2),
    }
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(3):  # loaders do not alternate by batch: workers of one would fill their queues while the other runs
        for name, make in loaders.items():
            batches = forever(make)
            rates[name] += take_turns({name: batches}, 3, BATCHES)[name]
            batches.close()
    rows = [(name, ratio(rates["shardwright"], measured), median(measured)) for name, measured in rates.items()]
    table("DataLoader of two workers", ("", "shardwright is x", "Mtokens/s"), rows)


def forever(make: Callable[[], Any]) -> Any:
    while True:
        yield from make()


def start(directory: Path) -> None:
    """Print the seconds to the first batch of a new process, less ``import torch``, for several kinds of data."""
    files = text_files(directory, None)
    tokenizer = str(tokenizer_folder(directory, files))
    path = str(dataset(directory, shards=16, documents=6_250, median=600))
    many = str(dataset(directory, shards=1, copies=10_000, documents=1_000, median=60))
    kinds: dict[str, dict[str, Any]] = {
        "shards": {"data": path},
        "shards, resumed in epoch 1000": {"data": path, "index": 40_000_000},
        "10,000 shards": {"data": many},
        "text, .jsonl.zst": {"data": files, "tokenizer": tokenizer},
    }
    rows = []
    for kind, request in kinds.items():
        measured = [run_child(request) for _ in range(4)][1:]
        rows.append((kind, *(median([run[key] for run in measured], 2) for key in ("start", "first", "first_cpu"))))
    heads = ("seconds", "process start to first batch, less torch", "from `import pipeline`", "of the CPU")
    table("First batch of a new process, medians", heads, rows)


def trace(directory: Path) -> None:
    """Print the seconds to trace steps of 10,000 shards with new streams, and the speed of documents of a mix."""
    many = dataset(directory, shards=1, copies=10_000, documents=1_000, median=60)
    seconds, cpu = list[float](), list[float]()
    for step in range(5_000, 5_008):
        stream = pipeline.ShardDataset(many).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        stream.trace(step)
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - begin_cpu)
    rows = [("trace", median(seconds, 2), median(cpu, 2))]
    seconds, cpu = list[float](), list[float]()
    for shard in range(5_000, 5_008):
        stream = pipeline.ShardDataset(many).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        stream.seen(f"train-{shard:06d}.tar:500", steps=846_300_000 // (SEQ_LEN * BATCH))  # an epoch
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - begin_cpu)
    rows.append(("seen", median(seconds, 2), median(cpu, 2)))
    table("A step or a document of 10,000 shards, medians", ("", "seconds", "of the CPU"), rows)
    whole = dataset(directory, shards=16, documents=6_250, median=600)
    quarters = [dataset(directory, shards=16, documents=1_563 + number, median=600) for number in range(4)]
    sources = {str(number): pipeline.ShardDataset(quarter) for number, quarter in enumerate(quarters)}
    streams = {"one": pipeline.ShardDataset(whole), "four": pipeline.mix(sources, dict.fromkeys(sources, 1.0))}
    rates = take_turns(
        {name: iter(one.shuffle(seed=0).documents().batch(BATCH)) for name, one in streams.items()}, 8, 150
    )
    table("Whole documents of a mix of four", ("", "of one source"), [("four", ratio(rates["four"], rates["one"]))])


def shuffle(directory: Path) -> None:
    """Print the share of pairs among 512 neighbours in the stream that are within 1% of the corpus: 2% is perfect."""
    rows = []
    for shards in (16, 100, 1000):
        for documents in (100_000, 1_000_000):
            parts = [near_pairs(shards, documents, epoch, tenth) for epoch, tenth in ((0, 0), (0, 5), (0, 9), (1, 0))]
            rows.append((f"{shards}", f"{documents:,}", *(f"{share:.2%}" for share in parts)))
    heads = ("shards", "documents", "first tenth", "middle", "last tenth", "next epoch")
    table("Shuffle at default settings", heads, rows)


def memory(directory: Path) -> None:
    """Print the memory that the kernel cannot drop, of processes that read across the end of an epoch."""
    large = dataset(directory, shards=16, documents=20_000, median=800)
    small = dataset(directory, shards=4, documents=12_000, median=800)
    sources = [dataset(directory, shards=8, documents=8_000 + number, median=800) for number in range(20)]
    kinds: dict[str, dict[str, Any]] = {
        "a stream of 650 MB": {"data": str(large), "seconds": 10.0},
        "  lanes=32": {"data": str(large), "seconds": 10.0, "shuffle": {"lanes": 32}},
        "  window=4": {"data": str(large), "seconds": 10.0, "shuffle": {"window": 4}},
        "  lanes=16": {"data": str(large), "seconds": 10.0, "shuffle": {"lanes": 16}},
        "  lanes=16, window=4": {"data": str(large), "seconds": 10.0, "shuffle": {"lanes": 16, "window": 4}},
        "a mix of 20 sources of 130 MB": {"data": [str(source) for source in sources], "seconds": 30.0},
        "train and val, split of 100 MB": {"data": str(small), "val": 0.1, "seconds": 10.0},
    }
    rows = [(kind, f"{run_child(request)['memory'] / 1e6:,.0f}") for kind, request in kinds.items()]
    table("Memory that the kernel cannot drop, torch included", ("of one process", "MB"), rows)


def take_turns(loaders: dict[str, Iterator[Any]], rounds: int, batches: int) -> dict[str, list[float]]:
    """Return the speed of each loader in each round, in Mtokens/s, without the first round."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name, loader in loaders.items():
            begin = time.perf_counter()
            for _ in islice(loader, batches):
                pass
            if number:
                rates[name].append(batches * TOKENS_PER_BATCH / (time.perf_counter() - begin) / 1e6)
    return rates


PARTS: dict[str, Callable[[Path], None]] = {
    "speed": speed,
    "workers": workers,
    "start": start,
    "shuffle": shuffle,
    "trace": trace,
    "memory": memory,
    "cold": cold,
    "remote": remote,
    "ranks": lambda directory: ranks(),
}
DEFAULT = ("speed", "workers", "start", "shuffle")

if __name__ == "__main__":
    sys.exit(main())
