"""Compare the stream with LanceDB's ``StreamingDataset``, which packs while it reads: resume, damage, CPU and file sizes.

    pip install lancedb
    python scripts/bench_lancedb.py --documents 101063

Tokens of the documents for resume are running numbers, so each one that is lost or repeated is counted. A run is stopped after
half of its rows, when each split has given as many rows, since LanceDB refuses to save a state at other places. CPU seconds
are those of all threads of this process, for one epoch of each loader by turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from pipeline.progress import Progress
from scripts.bench.report import table

EOS, PAD, FIRST = 0, 1, 2  # ids; tokens are numbered from FIRST on
SEQ_LEN, BATCH, ROUNDS = 2048, 32, 3
Documents = list[NDArray[Any]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000, help="of about 990 tokens (default: 20,000)")
    parser.add_argument("--splits", type=int, nargs="+", default=[24, 96], help="of LanceDB (default: 24 96)")
    options = parser.parse_args(argv)
    import lancedb

    lengths = np.random.default_rng(0).lognormal(6.4, 1, options.documents).astype(np.int64) + 1
    numbers = np.split(np.arange(FIRST, FIRST + lengths.sum(), dtype=np.uint32), lengths.cumsum()[:-1])
    with tempfile.TemporaryDirectory() as name:
        database = lancedb.connect(name)
        numbered = written(database, "numbered", numbers)
        heads = ("", *(f"{splits} splits" for splits in options.splits))
        columns = [dict(resumes(numbered, numbers, splits)) for splits in options.splits]
        columns[0] |= dict(damage(Path(name), database, numbers, options.splits[0]))
        title = f"LanceDB {lancedb.__version__}: {options.documents:,} documents, {lengths.sum():,} tokens"
        table(title, heads, [(what, *(column.get(what, "") for column in columns)) for what in columns[0]])
        speed(Path(name), database, numbers, options.splits[0])
    return 0


def written(database: Any, name: str, documents: Documents) -> Any:
    """Return a new table with a document a row."""
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, documents)]).astype(np.int32)
    flat = np.concatenate(documents)
    return database.create_table(name, pa.table({"tokens": pa.ListArray.from_arrays(ends, flat)}))


def dataset(rows: Any, splits: int, rank: int = 0, ranks: int = 1, *, blocks: int | None = None, **options: Any) -> Any:
    """Return the loader of a rank, which packs ``blocks`` rows an epoch; without ``blocks``, it yields documents."""
    from lancedb.streaming import StreamingDataset

    if blocks is not None:
        options |= {"pack_sequences": SEQ_LEN, "eos_id": EOS, "pad_id": PAD, "blocks_per_epoch": blocks}
    return StreamingDataset(rows, num_splits=splits, rank=rank, world_size=ranks, columns=["tokens"], **options)


def read(loader: Any, count: int | None = None) -> list[NDArray[np.int64]]:
    return [row["input_ids"].numpy() for row in islice(loader, count)]


def budget(documents: Documents, splits: int, *, padded: bool) -> int:
    """Return the rows of an epoch that drop the last tokens, or pad the last rows, as a multiple of the splits."""
    tokens = sum(map(len, documents)) + len(documents)
    return (tokens // SEQ_LEN // splits + padded) * splits


def resumes(rows: Any, documents: Documents, splits: int) -> Iterator[tuple[str, str]]:
    """Yield what an epoch leaves out, and what a stop in its middle does on as many ranks, and on another number."""
    total = sum(map(len, documents))
    for padded, what in ((False, "tokens left out by the smaller number of rows"), (True, "by the larger")):
        ids = np.concatenate(read(dataset(rows, splits, blocks=budget(documents, splits, padded=padded))))
        lost, padding = total - len(np.unique(ids[ids >= FIRST])), int((ids == PAD).sum())
        yield what, f"{lost / total:.2%} left out, {padding / total:.2%} padding"
    blocks = budget(documents, splits, padded=True)
    ranks = [dataset(rows, splits, rank, 2, blocks=blocks) for rank in range(2)]
    whole = [read(rank) for rank in ranks]
    states, before = list[Any](), list[NDArray[np.int64]]()
    half = blocks // splits // 2 * splits // 2  # of each rank
    for rank in range(2):
        iterator = iter(own := dataset(rows, splits, rank, 2, blocks=blocks))
        before += read(iterator, half)
        states.append(own.state_dict())
    merged = type(ranks[0]).merge_state_dicts(states)
    for count in (2, 3):
        after = list[list[NDArray[np.int64]]]()
        for rank in range(count):
            (own := dataset(rows, splits, rank, count, blocks=blocks)).load_state_dict(merged)
            after.append(read(own))
        if count == 2:
            equal = all(np.array_equal(part, rest[half:]) for part, rest in zip(after, whole, strict=True))
            yield "rows after a resume on as many ranks", "the same" if equal else "others"
        yield f"2 -> {count} ranks", _difference(whole, [before, *after])
    yield "state", f"{len(repr(merged)):,} characters, of all ranks merged"


def _difference(whole: list[list[NDArray[np.int64]]], parts: list[list[NDArray[np.int64]]]) -> str:
    """Return how many tokens of a whole epoch a stopped one lost and repeated."""
    expected, found = (np.sort(np.concatenate([row for part in each for row in part])) for each in (whole, parts))
    expected, found = expected[expected >= FIRST], found[found >= FIRST]
    lost = len(np.setdiff1d(expected, found))
    return f"{lost:,} tokens lost, {len(found) - len(np.unique(found)):,} repeated"


def damage(folder: Path, database: Any, documents: Documents, splits: int) -> Iterator[tuple[str, str]]:
    """Yield what a resume does after a row was deleted, and what reading does after a bit was flipped."""
    rows = written(database, "damaged", documents)
    blocks = budget(documents, splits, padded=True)
    whole = [read(dataset(rows, splits, blocks=blocks))]
    iterator = iter(own := dataset(rows, splits, blocks=blocks))
    before, state = read(iterator, blocks // splits // 2 * splits), own.state_dict()
    rows.delete(f"array_contains(tokens, {FIRST})")
    (again := dataset(rows, splits, blocks=blocks)).load_state_dict(state)
    yield "a row deleted before the resume", _error_or(lambda: _difference(whole, [before, read(again)]))
    written(database, "flipped", documents)
    path = max((folder / "flipped.lance").rglob("*.lance"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    def compare() -> str:
        read_again = [read(dataset(database.open_table("flipped"), splits, blocks=blocks))]
        return _difference(whole, read_again)

    yield "a bit flipped in its file", _error_or(compare)


def _error_or(act: Callable[[], str]) -> str:
    try:
        return f"no error; {act()}"
    except Exception as error:  # of any kind, by whatever layer noticed
        return f"{type(error).__name__}: {str(error)[:60]}"


def speed(folder: Path, database: Any, documents: Documents, splits: int) -> None:
    """Print the CPU time of packed rows and of documents, and the sizes of the files, for ids of 16 bits."""
    small = [(document % 50_000 + FIRST).astype(np.uint16) for document in documents]
    rows = written(database, "small", small)
    pipeline.write_shards(small, folder / "shards", eos_id=EOS, val_fraction=0, progress=Progress(quiet=True))
    data = pipeline.ShardDataset(folder / "shards", epochs=1).shuffle(seed=0)
    flat = np.concatenate(small)
    ready = written(database, "ready", [*flat[: len(flat) // (SEQ_LEN + 1) * (SEQ_LEN + 1)].reshape(-1, SEQ_LEN + 1)])
    blocks = budget(small, splits, padded=False)
    packed = lambda: data.pack(SEQ_LEN).batch(BATCH)  # noqa: E731
    loaders: dict[str, tuple[int, Callable[[], Any], Callable[[], Any]]] = {
        "rows packed while they are read": (blocks, packed, lambda: dataset(rows, splits, blocks=blocks)),
        "rows that were packed before": (
            ready.count_rows(),
            packed,
            lambda: dataset(ready, splits, transform=_tensors),
        ),
        "documents": (len(small), lambda: data.documents().batch(BATCH), lambda: dataset(rows, splits)),
    }
    lines = []
    for what, (count, ours, theirs) in loaders.items():
        times = [[_cpu(loader) for loader in (ours, theirs)] for _ in range(ROUNDS)]
        each = [1e6 * median(of_loader) / count for of_loader in zip(*times, strict=True)]
        lines.append((what, f"{median(b / a for a, b in times):.1f}", f"{each[1]:,.0f}", f"{each[0]:,.0f}"))
    heads = ("CPU of one", "LanceDB / shardwright", "LanceDB, microseconds", "shardwright")
    table("ids of 16 bits", heads, lines)
    sizes = [
        sum(path.stat().st_size for path in (folder / name).rglob("*") if path.is_file())
        for name in ("small.lance", "shards")
    ]
    print("\nMB of files, LanceDB / shardwright:", " / ".join(f"{size / 1e6:,.1f}" for size in sizes))


def _tensors(batch: Any) -> list[Any]:
    """Return inputs and labels of rows that are ready."""
    rows = torch.from_numpy(batch.column(0).values.to_numpy().reshape(batch.num_rows, -1).astype(np.int64))
    return [(row[:-1], row[1:]) for row in rows]


def _cpu(make: Callable[[], Any]) -> float:
    begin = time.process_time()
    for _ in make():
        pass
    return time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main())
