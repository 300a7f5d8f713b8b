"""Compare the stream with other loaders on the same tokens: memmap, webdataset; from afar MosaicML Streaming and litdata.

    python scripts/bench_stream.py                 speed, workers, start, shuffle: two minutes; writes 1 GB
    python scripts/bench_stream.py memory          of one stream, of a mix of 20, of train and val
    python scripts/bench_stream.py cold            from a disk, with 5.5 GB that no cache holds
    python scripts/bench_stream.py remote          from a server 30 ms away, with 3 GB
    python scripts/bench_stream.py --against REV   the streams of the commit REV and of this tree, in turn

Ratios are what holds on a shared machine: loaders take turns, round by round, with one thread, and the median round counts.
Tokens are drawn from a fixed seed; lengths of documents are log-normal, as in web text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pipeline  # noqa: E402
from scripts.bench import peers  # noqa: E402
from scripts.bench.child import STREAMS  # noqa: E402
from scripts.bench.cold import cold  # noqa: E402
from scripts.bench.commits import environment, worktree  # noqa: E402
from scripts.bench.data import (  # noqa: E402
    BATCH,
    SEQ_LEN,
    TOKENS_PER_BATCH,
    dataset,
    flat_tokens,
    text_files,
    tokenizer_folder,
)
from scripts.bench.remote import hub, remote, run_child  # noqa: E402
from scripts.bench.report import Report  # noqa: E402
from scripts.bench.shuffle import near_pairs  # noqa: E402

ROUNDS, BATCHES = 12, 96


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: {', '.join(DEFAULT)})")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "shardwright-bench")
    parser.add_argument("--against", metavar="REV", help="compare the streams with those of another commit")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each tree, with --against (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if options.against and options.parts:
        parser.error("--against takes no parts: it times all streams")
    report = Report(as_json=options.json)
    if options.against:
        against(options.against, options.directory, options.rounds, report)
    else:
        for part in options.parts or DEFAULT:
            PARTS[part](options.directory, report)
    report.end()
    return 0


def ours(path: Path, **options: Any) -> Iterator[Any]:
    dtype = options.pop("dtype", "int64")
    return iter(pipeline.ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN, **options).batch(BATCH, dtype=dtype))


def in_memory(path: Path) -> Iterator[Any]:
    return iter(pipeline.ShardDataset.from_tokens(flat_tokens(path)).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH))


def mixed(paths: list[Path]) -> Iterator[Any]:
    sources = {str(number): pipeline.ShardDataset(path) for number, path in enumerate(paths)}
    weights = dict.fromkeys(sources, 1.0)
    return iter(pipeline.mix(sources, weights).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH))


def halves(path: Path, val: float) -> list[Iterator[Any]]:
    """Return the batches of both halves of a split."""
    data = pipeline.ShardDataset(path)
    return [iter(half.shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)) for half in data.split(val=val)]


def speed(directory: Path, report: Report) -> None:
    """Steady speed of loaders that take turns."""
    path = dataset(directory, shards=16, documents=6_250, median=600)
    quarters = [dataset(directory, shards=16, documents=1_563 + number, median=600) for number in range(4)]
    others: dict[str, Iterator[Any]] = {
        "copy and cast, the limit": peers.copy_and_cast(),
        "memmap, hand-tuned": peers.memmap_tuned(path),
        "memmap, as nanoGPT writes it": peers.memmap_windows(path),
    }
    variants: dict[str, Iterator[Any]] = {
        "stored width": ours(path, dtype="stored"),
        "boundaries": ours(path, boundaries=True),
        "mix of 4 sources": mixed(quarters),
        "documents of 60 tokens": ours(dataset(directory, shards=16, documents=50_000, median=60)),
        "array of tokens": in_memory(path),
    }
    name = "shardwright"
    rates = take_turns({name: ours(path), **others, **variants}, ROUNDS, BATCHES)
    # A hundred times as long, so not between the others.
    singles = dataset(directory, shards=4, documents=5_000, median=600, group=0)
    rates |= take_turns({"webdataset, one document a member": peers.webdataset(singles)}, 5, 8)
    others["webdataset, one document a member"] = iter(())
    middle = statistics.median(rates[name])
    rows = [(other, ratio(rates[name], rates[other]), rate(rates[other])) for other in others]
    heads = (f"int64 batches of {BATCH} x {SEQ_LEN}, one thread, against", "times as fast", "its Mtokens/s")
    report.table(f"Speed: {middle:,.0f} Mtokens/s", heads, rows)
    rows = [(variant, ratio(rates[variant], rates[name]), rate(rates[variant])) for variant in variants]
    report.table("Variants", ("of that speed", "times as fast", "Mtokens/s"), rows)


def workers(directory: Path, report: Report) -> None:
    """Speed of batches that two workers of a DataLoader make, which needs two cores that nothing else uses."""
    path = dataset(directory, shards=16, documents=6_250, median=600)
    stream = pipeline.ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)
    windows = peers.MemmapDataset(path)
    loaders: dict[str, Callable[[], Any]] = {
        "shardwright": lambda: DataLoader(stream, batch_size=None, num_workers=2),
        "memmap Dataset": lambda: DataLoader(windows, batch_size=BATCH, shuffle=True, num_workers=2),
    }
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(3):  # not batch by batch in turn: workers of the one would fill their queues during the other
        for name, make in loaders.items():
            batches = forever(make)
            rates[name] += take_turns({name: batches}, 3, BATCHES)[name]
            batches.close()
    rows = [(name, ratio(rates["shardwright"], found), rate(found)) for name, found in rates.items()]
    report.table("DataLoader of two workers", ("", "shardwright is x", "Mtokens/s"), rows)


def forever(make: Callable[[], Any]) -> Any:
    while True:
        yield from make()


def start(directory: Path, report: Report) -> None:
    """First batch of a new process, less ``import torch``; of a resumed stream; of 10,000 shards; of a hub 30 ms away."""
    files = text_files(directory, None)
    tokenizer = str(tokenizer_folder(directory, files))
    path = dataset(directory, shards=16, documents=6_250, median=600)
    many = dataset(directory, shards=1, copies=10_000, documents=1_000, median=60)
    with hub(directory / "hub", files) as endpoint:
        kinds: dict[str, dict[str, Any]] = {
            "shards": {"data": str(path)},
            "shards, resumed in epoch 1000": {"data": str(path), "index": 40_000_000},
            "10,000 shards": {"data": str(many)},
            "text, .jsonl.zst": {"data": files, "tokenizer": tokenizer},
            "text, .jsonl.zst of a hub": {"data": "hf://datasets/org/name:lines", "tokenizer": tokenizer},
            "text, Parquet of a hub": {"data": "hf://datasets/org/name:parquet", "tokenizer": tokenizer},
        }
        times: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for _ in range(4):
            for kind, request in kinds.items():
                with (
                    tempfile.TemporaryDirectory() as cache
                ):  # what an earlier process left there would not be read again
                    variables = {"HF_ENDPOINT": endpoint, "SHARDWRIGHT_CACHE": cache}
                    times[kind].append(run_child(request, ROOT, **variables))
    rows = []
    for kind, measured in times.items():
        columns = [statistics.median(each[key] for each in measured[1:]) for key in ("start", "first", "first_cpu")]
        rows.append((kind, *(f"{seconds:.2f}" for seconds in columns)))
    heads = ("seconds", "process start to first batch, less torch", "from `import pipeline`", "of the CPU")
    report.table("First batch of a new process, medians", heads, rows)


def shuffle(directory: Path, report: Report) -> None:
    """Pairs of documents from 512 neighbours of the global stream that lie within 1% of the corpus: 2% is perfect."""
    rows = []
    for shards in (16, 100, 1000):
        for documents in (100_000, 1_000_000):
            parts = [near_pairs(shards, documents, epoch, tenth) for epoch, tenth in ((0, 0), (0, 5), (0, 9), (1, 0))]
            rows.append((f"{shards}", f"{documents:,}", *(f"{share:.2%}" for share in parts)))
    heads = ("shards", "documents", "first tenth", "middle", "last tenth", "next epoch")
    report.table("Shuffle at default settings", heads, rows)


def memory(directory: Path, report: Report) -> None:
    """Memory that the kernel cannot drop, of processes that read past the border of an epoch."""
    large = dataset(directory, shards=16, documents=20_000, median=800)
    small = dataset(directory, shards=4, documents=12_000, median=800)
    sources = [dataset(directory, shards=8, documents=8_000 + number, median=800) for number in range(20)]
    rows = []
    for name, paths in (("a stream of 650 MB", [large]), ("a mix of 20 sources of 130 MB", sources)):
        rows.append((name, f"{memory_of([paths]) / 1e6:,.0f}"))
    rows.append(("train and val, split of 100 MB", f"{memory_of([[small]], val=0.1) / 1e6:,.0f}"))
    report.table("Memory that the kernel cannot drop, torch included", ("of one process", "MB"), rows)


def memory_of(streams: list[list[Path]], val: float = 0) -> float:
    """Return the most bytes of a process that reads streams in turn, each of a dataset, a mix, or a half of a split."""
    code = """
import json, sys, itertools, pipeline
from pathlib import Path
from scripts.bench.process import memory
from scripts.bench_stream import halves, mixed, ours
streams, val = json.loads(sys.argv[1]), float(sys.argv[2])
if val:
    loaders = halves(Path(streams[0][0]), val)
else:
    loaders = [mixed(list(map(Path, paths))) if len(paths) > 1 else ours(Path(paths[0])) for paths in streams]
most = 0
for number in range(6000 // len(loaders)):
    for batches in loaders:
        next(batches)
    if number % 16 == 0:
        most = max(most, memory().own)
print(most)
"""
    request = json.dumps([list(map(str, paths)) for paths in streams])
    done = subprocess.run(
        [sys.executable, "-c", code, request, str(val)],
        env=environment(ROOT),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def against(revision: str, directory: Path, rounds: int, report: Report) -> None:
    """Time the streams of a commit and of this tree in turn, each in a process of its own, on shards that it built itself."""
    files = text_files(directory, None)
    with worktree(revision) as before, tempfile.TemporaryDirectory(dir=directory) as folder:
        trees = {before: str(Path(folder, "before")), ROOT: str(Path(folder, "now"))}
        for tree, data in trees.items():
            run_child({"build": files, "data": data}, tree)
        rows = []
        for name in STREAMS:
            measured: dict[Path, list[dict[str, Any]]] = {tree: [] for tree in trees}
            for _ in range(rounds):
                for tree, data in trees.items():
                    measured[tree].append(run_child({"stream": name, "data": data, "seconds": 2.0}, tree))
            rates = [
                [each["batches"] / each["seconds"] * TOKENS_PER_BATCH / 1e6 for each in measured[t]] for t in trees
            ]
            firsts = [[each["first"] for each in measured[tree]] for tree in trees]
            same = len({each["digest"] for tree in trees for each in measured[tree]}) == 1
            middle = [f"{statistics.median(seconds):.2f}" for seconds in firsts]
            rows.append((name, ratio(rates[1], rates[0]), *map(rate, rates), *middle, "yes" if same else "no"))
    heads = ("stream", "times as fast", "Mtokens/s before", "now", "first batch before, s", "now", "the same batches")
    report.table(f"This tree against {revision}", heads, rows)


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Return how many times as fast the first is, in the median round."""
    if len(ours) != len(theirs):
        return f"{statistics.median(ours) / statistics.median(theirs):.2f}"
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


def rate(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f}"


def take_turns(loaders: dict[str, Iterator[Any]], rounds: int, batches: int) -> dict[str, list[float]]:
    """Return the speed of each loader in each round, in Mtokens/s; a first round is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name, loader in loaders.items():
            begin = time.perf_counter()
            for _ in islice(loader, batches):
                pass
            if number:
                rates[name].append(batches * TOKENS_PER_BATCH / (time.perf_counter() - begin) / 1e6)
    return rates


PARTS: dict[str, Callable[[Path, Report], None]] = {
    "speed": speed,
    "workers": workers,
    "start": start,
    "shuffle": shuffle,
    "memory": memory,
    "cold": cold,
    "remote": remote,
}
DEFAULT = ("speed", "workers", "start", "shuffle")

if __name__ == "__main__":
    sys.exit(main())
