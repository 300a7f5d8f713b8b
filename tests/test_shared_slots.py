"""Batches of a loader's workers arrive through memory that is used again and again, and that ends with its worker."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
from collections.abc import Iterator
from itertools import islice
from multiprocessing import active_children
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.stream.loader.shared_slots import COUNT, SLOT_BYTES, Room, SharedSlots
from pipeline.stream.loader.worker_batch import WorkerBatch

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a system without anonymous files in memory")

ROWS, SEQ_LEN = 8, 256
IDS_BYTES = 2 * ROWS * SEQ_LEN
TOKENS = np.random.default_rng(0).integers(1, 60_000, 100_000).astype("<u2")


def _stream(epochs: int | None = None) -> pipeline.Stream:
    data = pipeline.ShardDataset.from_tokens(TOKENS, lengths=[100] * 1000, eos_id=0, epochs=epochs)
    return data.shuffle(seed=1).pack(SEQ_LEN).batch(ROWS)


def _message(batch: Any) -> bytes:
    """Return, in a worker, a batch as a queue would carry it."""
    return bytes(ForkingPickler.dumps(batch))


def _messages(stream: pipeline.Stream) -> Iterator[bytes]:
    return iter(DataLoader(stream, batch_size=None, num_workers=1, collate_fn=_message))


def _assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value


def _shared_memory() -> tuple[int, int, list[str]]:
    """Return how many workers' slots this process maps, how many descriptors it has, and what lies in /dev/shm."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("shardwright-batches")
    shared = [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]
    return maps, len(os.listdir("/proc/self/fd")), shared


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_batches_arrive_through_slots_of_each_worker(start: str, workers: int) -> None:
    before = _shared_memory()[0]
    loader = iter(DataLoader(_stream(), batch_size=None, num_workers=workers, multiprocessing_context=start))
    kept = []
    for found, wanted in zip(islice(loader, 40), _stream(), strict=False):
        _assert_equal(found, wanted)
        kept.append((found, wanted))
    assert _shared_memory()[0] == before + workers
    for found, wanted in kept:  # later batches were not written over earlier ones
        _assert_equal(found, wanted)


def test_messages_hold_no_arrays_once_the_receiver_has_accepted() -> None:
    sizes = []
    for message, wanted in zip(islice(_messages(_stream()), 12), _stream(), strict=False):
        sizes.append(len(message))
        _assert_equal(pickle.loads(message), wanted)
    assert sizes[0] > 2 * IDS_BYTES
    assert max(sizes[4:]) < 1000


def test_batches_that_wait_while_all_slots_are_taken_travel_in_messages() -> None:
    messages, batches = _messages(_stream()), iter(_stream())
    for message in islice(messages, 4):
        _assert_equal(pickle.loads(message), next(batches))
    waiting = list(islice(messages, COUNT + 5))
    assert [len(message) > 2 * IDS_BYTES for message in waiting] == [False] * COUNT + [True] * 5
    for message in waiting:
        _assert_equal(pickle.loads(message), next(batches))
    for message in islice(messages, 6):
        _assert_equal(pickle.loads(message), next(batches))
    assert len(message) < 1000


def _refuse_large_files(worker: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_worker_that_may_not_make_the_memory_sends_messages() -> None:
    options = {"num_workers": 1, "collate_fn": _message, "worker_init_fn": _refuse_large_files}
    sizes = []
    for message, wanted in zip(islice(DataLoader(_stream(), batch_size=None, **options), 8), _stream(), strict=False):
        sizes.append(len(message))
        _assert_equal(pickle.loads(message), wanted)
    assert min(sizes) > 2 * IDS_BYTES


def test_a_message_that_is_received_twice_is_refused() -> None:
    messages = _messages(_stream())
    for message in islice(messages, 6):
        pickle.loads(message)
    with pytest.raises(pipeline.ConfigError, match="received twice"):
        pickle.loads(message)


def test_a_message_whose_memory_cannot_be_read_is_refused() -> None:
    messages = _messages(_stream())
    for message in islice(messages, 6):
        pickle.loads(message)
    last = next(messages)
    del messages
    gc.collect()
    with pytest.raises(pipeline.ConfigError, match="which this process cannot read"):
        pickle.loads(last)


def test_a_batch_that_fits_no_slot_arrives_all_the_same() -> None:
    def with_mask(batch: dict[str, Any]) -> dict[str, Any]:
        return {"mask": torch.ones(SLOT_BYTES + 1, dtype=torch.uint8), **batch}

    loader = DataLoader(_stream(1).take(4 * ROWS).map(with_mask), batch_size=None, num_workers=1)
    for found, wanted in zip(loader, _stream(1).take(4 * ROWS), strict=True):
        mask = found.pop("mask").numpy()
        assert (mask.size, mask.min()) == (SLOT_BYTES + 1, 1)
        _assert_equal(found, wanted)


def test_arrays_lie_side_by_side_in_a_slot_until_it_is_full() -> None:
    room = Room(((0, 0, 0, 0), 0, 1), np.zeros(256, np.uint8))
    begins = []
    for dtype, count in ((np.uint16, 3), (np.int64, 4), (np.uint8, 100)):
        begin, array = room.take(count, dtype) or (None, None)
        assert array is not None
        assert (array.dtype, array.size) == (dtype, count)
        begins.append(begin)
    assert begins == [0, 64, 128]
    assert room.take(1, np.uint8) is None


def test_a_slot_serves_one_message_at_a_time() -> None:
    descriptor = os.memfd_create("slots")
    os.ftruncate(descriptor, SharedSlots.SIZE)
    worker, receiver = SharedSlots(descriptor), SharedSlots(descriptor)
    os.close(descriptor)
    assert [worker.claim(message) for message in range(1, COUNT + 2)] == [*range(COUNT), None]
    worker.bytes_of(3)[:] = 7
    assert receiver.bytes_of(3).min() == 7
    assert receiver.bytes_of(2).max() == receiver.bytes_of(4).max() == 0
    assert not receiver.free(3, 9)
    assert receiver.free(3, 4)
    assert not receiver.free(3, 4)
    assert worker.claim(9) == 3


def test_a_process_accepts_no_slots_but_those_of_its_children() -> None:
    batch = WorkerBatch(ids=torch.arange(1000))
    for _ in range(2):
        message = _message(batch)
        assert len(message) > 2000
        _assert_equal(pickle.loads(message), batch)


@pytest.mark.parametrize("persistent", [False, True])
def test_no_memory_or_descriptor_is_left_of_epochs_and_iterators_that_were_dropped(persistent: bool) -> None:
    maps = _shared_memory()[0]
    loader = DataLoader(_stream(1), batch_size=None, num_workers=2, persistent_workers=persistent)
    wanted = list(_stream(1))
    list(loader)  # what torch opens once in a process
    before = _shared_memory()
    assert before[0] == maps + (2 if persistent else 0)
    for _ in range(3):
        assert len(list(islice(loader, 7))) == 7
        for found, batch in zip(loader, wanted, strict=True):
            _assert_equal(found, batch)
    assert _shared_memory() == before


def test_slots_of_workers_that_ended_are_given_up_where_something_holds_on_to_their_processes() -> None:
    before, held = _shared_memory()[0], []
    for _ in range(3):
        batches = iter(DataLoader(_stream(), batch_size=None, num_workers=1))
        for _ in islice(batches, 8):
            pass
        held += active_children()
        assert _shared_memory()[0] == before + 1
        del batches
    assert len(held) == 3


def test_a_worker_that_is_killed_leaves_nothing_and_the_next_iterator_goes_on() -> None:
    list(DataLoader(_stream(1), batch_size=None, num_workers=2))
    before = _shared_memory()
    batches = iter(DataLoader(_stream(), batch_size=None, num_workers=2))
    for _ in islice(batches, 10):
        pass
    worker = active_children()[0].pid
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        for _ in batches:
            pass
    del batches
    assert _shared_memory() == before
    for found, wanted in zip(DataLoader(_stream(1), batch_size=None, num_workers=2), _stream(1), strict=True):
        _assert_equal(found, wanted)
