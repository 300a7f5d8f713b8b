"""All streams of a process together keep to a budget of open files, in real processes that may open few."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.shards.ranges.handles import Handles
from pipeline.shards.ranges.open_files import OpenFiles
from pipeline.stream.sequential.layout import LaneLayout
from pipeline.stream.sequential.text.windows import TextWindows, WindowSize
from tests import interpreters
from tests.shard_samples import make_documents, write_dataset
from tests.text_samples import make_texts, write_texts

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


@pytest.mark.parametrize(("limit", "most"), [(3, 3), (99, 10)])
def test_scans_of_text_keep_to_the_budget_that_shards_share(tmp_path: Path, limit: int, most: int) -> None:
    files = [write_texts(tmp_path / f"{n:02}.jsonl.gz", make_texts(200, seed=n)) for n in range(12)]
    data = pipeline.TextDataset(files, "bytes")._data
    budget = OpenFiles(limit)
    places = dict.fromkeys(range(12), (0, 0, 0))
    windows = TextWindows(
        data,
        layout=LaneLayout(rows=12, lanes=12),
        places=places,
        seed=0,
        window=WindowSize(0),
        filters=(),
        epochs=None,
        budget=budget,
    )
    held = []
    for lane, place in places.items():
        assert windows.window(lane, place) is not None
        held.append(budget.held)
    assert max(held) == most
    windows.close()
    assert budget.held == 0


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = [tmp_path / str(number) for number in range(64)]
    for path in found:
        path.write_text(path.name)
    return [str(path) for path in found]


def test_files_of_all_streams_close_least_recently_used_first(paths: list[str]) -> None:
    budget = OpenFiles(limit=16)
    first, second = Handles(budget=budget), Handles(budget=budget)
    for path in paths[:8]:
        for handles in (first, second):
            with handles.opened(path) as handle:
                assert os.pread(handle, 9, 0).decode() == Path(path).name
    assert budget.held == 16
    with first.opened(paths[0]) as kept:  # used last of all, and in use
        with first.opened(paths[20]), first.opened(paths[21]):
            assert budget.held <= 16
        assert os.pread(kept, 9, 0) == b"0"
    assert second.held < first.held < 10
    del second, handles
    assert budget.held == first.held
    first.close()
    assert budget.held == 0


def test_a_limit_of_its_own_closes_what_nobody_uses(paths: list[str]) -> None:
    handles = Handles(limit=3, budget=OpenFiles(limit=50))
    for path in paths[:10]:
        with handles.opened(path):
            assert handles.held <= 4
    assert handles.held == 3


def test_files_that_are_collected_may_be_closed_afterwards(paths: list[str]) -> None:
    handles = Handles(budget=OpenFiles(limit=16))
    with handles.opened(paths[0]):
        pass
    handles.__del__()
    handles.close()
    assert handles.held == 0


def test_threads_share_the_budget_without_an_error(paths: list[str]) -> None:
    budget, errors = OpenFiles(limit=16), []
    shared, most = Handles(budget=budget), 0

    def work(seed: int) -> None:
        nonlocal most
        own, generator = Handles(budget=budget), np.random.default_rng(seed)
        try:
            for number in generator.integers(0, 64, 2000).tolist():
                with (shared if number % 2 else own).opened(paths[number]) as handle:
                    assert os.pread(handle, 9, 0).decode() == str(number)
                most = max(most, budget.held)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert most <= 16 + 4 + 3  # what other threads close and open while it is summed counts twice


def test_a_batch_of_documents_of_more_shards_than_may_be_open_holds_none_of_them(folder: Path) -> None:
    data = pipeline.ShardDataset(folder / "0", max_open_shards=4).shuffle(lanes=48)
    whole = pipeline.ShardDataset(folder / "0").shuffle(lanes=48)
    for some, all_ in zip(data.documents().batch(300).take(3), whole.documents().batch(300).take(3), strict=True):
        assert some["input_ids"].equal(all_["input_ids"])
