"""All streams of a process together keep to a budget of open files, in real processes that may open few."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipeline
from tests import interpreters
from tests.shard_samples import make_documents, write_dataset

SHARDS = 150
START = """
import hashlib, os, resource, sys
from itertools import islice
import numpy, torch, pipeline, pipeline.stream.datasets, pipeline.text.tokenizer.tokenizer
import pipeline.stream.sequential.text.windows
from torch.utils.data import DataLoader

def digest(batches, count):
    found = hashlib.sha256()
    for batch in islice(batches, count):
        found.update(batch["input_ids"].numpy().tobytes())
    return found.hexdigest()

def source(number):
    return pipeline.ShardDataset(f"{folder}/{number}")

folder, limit = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
"""
MIX = """
mixed = pipeline.mix({str(n): source(n) for n in range(4)}, {str(n): 1 for n in range(4)}).shuffle(lanes=8)
print(digest(mixed.pack(64).batch(16), 150))
"""
SIDE_BY_SIDE = """
streams = [source(n).shuffle(seed=n, lanes=8).pack(64).batch(8).prefetch(n) for n in range(2)]
streams.append(source(2).shuffle(lanes=48).documents().batch(200))
iterators = [iter(stream) for stream in streams]
for turn in range(40):
    print(*(digest(iterator, 1) for iterator in iterators))
"""
FORKED = """
here = iter(source(0).shuffle(lanes=8).pack(64).batch(8))
print(digest(here, 60))
loaders = [DataLoader(source(n).shuffle(lanes=8).pack(64).batch(8).take(60), batch_size=None, num_workers=2) for n in (1, 2)]
for loader in loaders:
    print(digest(loader, 60))
print(digest(here, 60))
"""
GREEDY = """
kept = [open(os.devnull) for _ in range(166)]
print(digest(source(0).shuffle(lanes=8).pack(64).batch(16), 100))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("open_files")
    for number in range(4):
        write_dataset(directory / str(number), [make_documents(6, seed=1000 * number + k) for k in range(SHARDS)])
    return directory


def run(code: str, folder: Path, limit: int) -> str:
    done = interpreters.run("-c", START + code, folder, limit, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


CASES = {"mix": MIX, "side": SIDE_BY_SIDE, "fork": FORKED, "greedy": GREEDY}


@pytest.fixture(scope="module")
def unlimited(folder: Path) -> dict[str, str]:
    """What each case prints where it may open many files."""
    parts = run("print('---')".join(CASES.values()), folder, 4096).split("---\n")
    return dict(zip(CASES, parts, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_streams_give_under_a_limit_of_256_files_what_they_give_without(
    folder: Path, unlimited: dict[str, str], case: str
) -> None:
    assert run(CASES[case], folder, 256) == unlimited[case]


def test_a_batch_of_documents_of_more_shards_than_may_be_open_holds_none_of_them(folder: Path) -> None:
    data = pipeline.ShardDataset(folder / "0", max_open_shards=4).shuffle(lanes=48)
    whole = pipeline.ShardDataset(folder / "0").shuffle(lanes=48)
    for some, all_ in zip(data.documents().batch(300).take(3), whole.documents().batch(300).take(3), strict=True):
        assert some["input_ids"].equal(all_["input_ids"])
