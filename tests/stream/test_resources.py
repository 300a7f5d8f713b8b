"""Memory stays flat, and an interrupted process leaves nothing behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pipeline
from tests.helpers import interpreters
from tests.helpers.shard_samples import make_documents, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("limits") / "data"
    write_dataset(directory, [make_documents(200, seed=n) for n in range(12)])
    texts = "".join(json.dumps({"text": f"text {n} " * 9}) + "\n" for n in range(400))
    directory.with_suffix(".jsonl").write_text(texts)
    return directory


def run(code: str) -> str:
    done = interpreters.run("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_stays_flat_over_thousands_of_batches_and_their_epochs(dataset: Path) -> None:
    grown = run(
        f"""
import os, pipeline
from itertools import islice
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
stream = pipeline.ShardDataset({str(dataset)!r}).shuffle(window=2, lanes=6).pack(32).batch(8)
batches = iter(stream)
for _ in islice(batches, 6_000):  # until the allocator of each thread has its size
    stream.state_dict()
sizes = [resident()]
for _ in range(3):
    for _ in islice(batches, 6_000):
        pass
    sizes.append(resident())
assert stream.stats()["epoch"] > 5
print(min(after - before for before, after in zip(sizes, sizes[1:])))
"""
    )
    assert int(grown) < 1 << 20  # 175 bytes a batch, in each of three rounds: the allocator alone grows in fewer


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
# Torch's workers look for the process that started them every five seconds.
@pytest.mark.parametrize("stop", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGINT])
def test_a_signal_leaves_no_process_and_no_shared_memory(dataset: Path, stop: signal.Signals) -> None:
    code = f"""
import pipeline
from torch.utils.data import DataLoader
stream = pipeline.ShardDataset({str(dataset)!r}).shuffle().pack(16).batch(2).prefetch(2)
bare = iter(stream)
next(bare)
loader = DataLoader(stream, batch_size=None, num_workers=2)
for number, _ in enumerate(loader):
    if number == 5:
        print("running", flush=True)
"""
    reading, writing = os.pipe()
    with open(reading, "rb") as output, open(os.devnull, "wb") as nothing:
        process = interpreters.Interpreter("-c", code, stdout=writing, stderr=nothing.fileno())
        os.close(writing)
        assert output.readline() == b"running\n"
        children = children_of(process.pid)
        assert children
        process.kill(stop)
        process.wait()
    deadline = time.monotonic() + 40
    while any(Path(f"/proc/{child}").exists() and not is_zombie(child) for child in children):
        assert time.monotonic() < deadline, "worker processes outlive the one that started them"
        time.sleep(0.1)
    assert left_in_shared_memory(process.pid, *children) == []


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("documents", [500, 40])  # in 64 lanes: divided among them, or read by each whole
def test_all_lanes_of_a_mix_share_the_memory_of_a_small_source_in_every_epoch(documents: int) -> None:
    lengths = {"small": [2_000_000 // documents] * documents, "many": [8000] * 100}
    sources = {
        name: pipeline.ShardDataset.from_tokens(np.zeros(sum(each), np.uint16), lengths=each)
        for name, each in lengths.items()
    }
    mixed = pipeline.mix(sources, {"small": 9, "many": 1}).shuffle(seed=0, lanes=64)
    stream = mixed.filter(lambda ids: True, name="all").pack(16_384).batch(8)
    tracemalloc.start()
    # Two epochs of the small source, which has 4 MB. Windows are in memory of Arrow or of NumPy.
    of_arrow = max(pa.total_allocated_bytes() for _ in islice(stream, 40))
    of_numpy = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert of_arrow + of_numpy < 40e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_the_stages_of_a_chain_take_little_memory() -> None:
    code = """
import pipeline
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
data = pipeline.ShardDataset.from_tokens(range(64))
chains, before = [data.shuffle().pack(8).batch(2).take(3)], resident()
chains += [data.shuffle().pack(8).batch(2).take(3) for _ in range(50)]
print((resident() - before) / 200 / 1e6)
"""
    assert float(run(code)) < 1  # MB of a stage: each has memory that workers would share


def test_a_process_that_ends_in_the_middle_leaves_nothing(dataset: Path) -> None:
    code = f"""
import os, pipeline, torch
print(os.getpid())
for options in ({{}}, {{"count": 2}}):  # the thread that reads ahead is at work when the interpreter ends
    stream = pipeline.ShardDataset({str(dataset)!r}).shuffle(window=1).pack(16).batch(2)
    stream = stream.map(lambda batch: {{"x": torch.randn(300, 300) @ torch.randn(300, 300)}})
    kept = iter(stream.prefetch(**options) if options else stream)
    next(kept)
"""
    ended = interpreters.run("-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert left_in_shared_memory(int(ended.stdout)) == []


def left_in_shared_memory(*pids: int) -> list[str]:
    """Names in /dev/shm that belong to a process."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return [name for name in names if {str(pid) for pid in pids} & {*name.replace("-", "_").split("_")}]


def texts(path: Path) -> pipeline.Stream:
    return pipeline.TextDataset(path.with_suffix(".jsonl"), tokenizer="bytes")


KINDS: dict[str, Callable[[Path], pipeline.Stream]] = {
    "packed": lambda path: pipeline.ShardDataset(path).shuffle().pack(16).batch(4),
    "boundaries": lambda path: pipeline.ShardDataset(path).shuffle().pack(16, boundaries=True).batch(4),
    "buckets": lambda path: pipeline.ShardDataset(path).shuffle().documents(bucket=4).batch(4),
    "documents": lambda path: pipeline.ShardDataset(path).shuffle().documents().batch(4),
    "sampled": lambda path: pipeline.ShardDataset(path).sample(16).batch(4),
    "changed": lambda path: pipeline.ShardDataset(path).map_documents(lambda ids, mask: (ids, mask)).shuffle().pack(16).batch(4),
    "filtered": lambda path: pipeline.ShardDataset(path).filter(lambda key: True).shuffle().pack(16).batch(4),
    "best fit": lambda path: pipeline.ShardDataset(path).shuffle().pack(16, best_fit=True).batch(4),
    "text": lambda path: texts(path).filter(lambda record: True).shuffle().pack(16).batch(4),
    "ahead": lambda path: pipeline.ShardDataset(path).shuffle().pack(16).batch(4).map(dict).prefetch(2),
    "mixed": lambda path: pipeline.mix(
        {name: pipeline.ShardDataset(path) for name in "ab"}, {"a": 1, "b": 2}
    ).shuffle().pack(16).batch(4),
}  # fmt: skip


def test_an_iterator_that_is_dropped_frees_all_that_it_held(dataset: Path) -> None:
    def read(kind: str) -> None:
        batches = iter(KINDS[kind](dataset))
        assert len(list(islice(batches, 6))) == 6

    def held() -> list[str]:
        kinds = map(type, gc.get_objects())
        return [kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("pipeline")]

    for kind in KINDS:
        read(kind)
    gc.collect()
    gc.freeze()  # what is imported and cached stays, and is no more among the objects
    gc.disable()  # maps of hundreds of megabytes must not wait for it
    try:
        for kind in KINDS:
            deadline = time.monotonic() + 40
            read(kind)
            while (left := held()) and time.monotonic() < deadline:
                time.sleep(0.05)  # a thread may be at work still
            assert not left, kind
    finally:
        gc.enable()
        gc.unfreeze()
