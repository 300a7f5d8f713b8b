"""Twelve streams, one of each kind, and the digests of their first batches: what any change below them must keep."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

import pipeline
from pipeline.progress import Progress
from tests.helpers.corpus import english

BATCHES = 200
STOPPED = 77  # batches before the state that resumes
ROWS = 6  # of a global batch, on one rank or three
SOURCES = {"books": 150, "code": 60, "web": 420}  # documents of each

Make = Callable[[Path], pipeline.Stream]


def write_data(folder: Path) -> None:
    """Write what the streams read: shards of three named sources, tars of another tool, JSON Lines."""
    for number, (source, count) in enumerate(SOURCES.items()):
        (folder / source).mkdir(parents=True)
        for part in range(3):
            texts = (english(1000 * number + k, 1 + (k * k) % 40) for k in range(part, count, 3))
            lines = [json.dumps({"id": f"{source}-{part}-{k}", "text": text}) + "\n" for k, text in enumerate(texts)]
            (folder / source / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    pipeline.build(
        [f"{source}={folder / source}" for source in SOURCES],
        folder / "shards",
        tokenizer="bytes",
        rules=(),
        language=(),
        tokens_per_shard=12_000,
        val_fraction=0,
        workers=1,
        progress=Progress(quiet=True),
    )
    (folder / "tars").mkdir()
    generator = np.random.default_rng(0)
    for number in range(9):
        with tarfile.open(folder / "tars" / f"{number}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for k in range(50):
                file = io.BytesIO()
                np.save(file, generator.integers(0, 60_000, size=int(generator.integers(1, 300)), dtype="<u2"))
                member = tarfile.TarInfo(f"{number:02d}-{k:04d}.npy")
                member.size = file.tell()
                file.seek(0)
                tar.addfile(member, file)


def shards(folder: Path, lanes: int = 4) -> pipeline.Stream:
    """Shards in more than one window of two blocks."""
    return pipeline.ShardDataset(folder / "shards").shuffle(seed=5, lanes=lanes, window=2)


WEIGHTS = {"books": 0.2, "code": 0.3, "web": 0.5}
POINTS = [(0, WEIGHTS), (30_000, WEIGHTS), (120_000, {"books": 0.9, "code": 0.1, "web": 0})]


def mixed(folder: Path, weights: Any = WEIGHTS) -> pipeline.Stream:
    sources = pipeline.ShardDataset(folder / "shards").sources()
    return pipeline.mix(sources, weights=weights).shuffle(seed=5, lanes=4, window=2)


def starts_low(tokens: Any) -> bool:
    return bool(len(tokens) and tokens[0] < ord("P"))


STREAMS: dict[str, Make] = {
    "packed": lambda folder: shards(folder).pack(640),
    "sliding": lambda folder: shards(folder).pack(128, stride=50),
    "shift": lambda folder: shards(folder).pack(96, shift="divisors"),
    "boundaries": lambda folder: shards(folder).pack(256, boundaries=True),
    "best fit": lambda folder: shards(folder, lanes=12).pack(700, best_fit=True),
    "documents": lambda folder: shards(folder).documents(max_length=400, pad_to_multiple_of=8),
    "bucket": lambda folder: shards(folder).documents(bucket=12),
    "sample": lambda folder: pipeline.ShardDataset(folder / "shards").shuffle(seed=5).sample(128),
    "mix": lambda folder: mixed(folder).pack(128),
    "scheduled mix": lambda folder: mixed(folder, pipeline.Schedule(POINTS, unit="tokens", linear=True)).pack(128),
    "foreign tars": lambda folder: (
        pipeline.ShardDataset(folder / "tars").shuffle(seed=5, lanes=4, window=2).pack(64, labels="same")
    ),
    "filter": lambda folder: shards(folder, lanes=12).filter(starts_low).pack(128),
    "text": lambda folder: pipeline.TextDataset(folder / "web", tokenizer="bytes").shuffle(seed=5).pack(256),
}


def digest(batches: Iterable[dict[str, Any]]) -> str:
    """Return a hash of all keys of all batches: names, dtypes, shapes and values."""
    made = hashlib.sha256()
    for batch in batches:
        for name, value in sorted(batch.items()):
            array = np.asarray(value)
            made.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return made.hexdigest()[:32]


def first_batches(stream: pipeline.Stream) -> Iterator[dict[str, Any]]:
    return islice(iter(stream), BATCHES)


def from_the_start(make: Make, folder: Path) -> str:
    return digest(first_batches(make(folder).batch(ROWS)))


def on_three_ranks(make: Make, folder: Path) -> str:
    ranks = [first_batches(make(folder).batch(ROWS // 3).shard(rank, 3)) for rank in range(3)]
    return digest(chain.from_iterable(zip(*ranks, strict=True)))


def resumed(make: Make, folder: Path) -> str:
    stream = make(folder).batch(ROWS)
    before = [copy.deepcopy(batch) for batch in islice(iter(stream), STOPPED)]
    state = json.loads(json.dumps(stream.state_dict()))
    again = make(folder).batch(ROWS)
    again.load_state_dict(state)
    return digest(chain(before, islice(iter(again), BATCHES - STOPPED)))


def with_two_workers(make: Make, folder: Path) -> str:
    loader = DataLoader(make(folder).batch(ROWS), batch_size=None, num_workers=2, multiprocessing_context="fork")
    return digest(islice(iter(loader), BATCHES))


def write_digests(path: Path) -> None:
    """Write the digests of the streams of this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        digests = {
            kind: {
                "one rank": from_the_start(make, Path(folder)),
                "three ranks": on_three_ranks(make, Path(folder)),
            }
            for kind, make in STREAMS.items()
        }
    path.write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    write_digests(Path(__file__).parent / "streams.json")
