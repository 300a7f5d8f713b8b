"""Time the streams of the ``pipeline`` that comes first in PYTHONPATH; run by ``bench_stream.py --against``.

    python scripts/_stream_child.py '{"shards": DIRECTORY, ..., "began": time.monotonic()}'

Prints one JSON object. ``seq_len``, ``rounds`` and ``batches``, the number of batches of a round, may be given to measure
less. Only public names are used. Where a commit has other names, add a line with them: the first line
of a stream that gives a batch is timed, and a stream without one is left out, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

SEQ_LEN, BATCH = 2048, 32
ROUNDS, WARM, DIGESTED = 9, 16, 8
Make = Callable[[Any, dict[str, Any]], Any]

# Each: how many batches make a round, and how the stream is made, in the words of one commit or another.
STREAMS: dict[str, tuple[int, list[Make]]] = {
    "packed": (256, [lambda p, d: shuffled(p, d).pack(length(d)).batch(BATCH)]),
    "stored width": (256, [lambda p, d: shuffled(p, d).pack(length(d)).batch(BATCH, dtype="stored")]),
    "boundaries": (256, [lambda p, d: shuffled(p, d).pack(length(d), boundaries=True).batch(BATCH)]),
    "documents of 60 tokens": (256, [lambda p, d: shuffled(p, d, "short").pack(length(d)).batch(BATCH)]),
    "mix of 4 sources": (256, [lambda p, d: mixed(p, d).shuffle(seed=0).pack(length(d)).batch(BATCH)]),
    "sampled": (128, [lambda p, d: shuffled(p, d).sample(length(d)).batch(BATCH)]),
    "padded documents": (128, [lambda p, d: shuffled(p, d).documents(max_length=512, bucket=64).batch(BATCH)]),
    "best fit": (64, [lambda p, d: shuffled(p, d).pack(length(d), best_fit=True).batch(BATCH)]),
    "raw text": (
        16,
        [lambda p, d: p.TextDataset(d["texts"], d["tokenizer"]).shuffle(seed=0).pack(length(d)).batch(BATCH)],
    ),
}


def length(data: dict[str, Any]) -> int:
    return int(data.get("seq_len", SEQ_LEN))


def shuffled(pipeline: Any, data: dict[str, Any], name: str = "shards") -> Any:
    return pipeline.ShardDataset(data[name]).shuffle(seed=0)


def mixed(pipeline: Any, data: dict[str, Any]) -> Any:
    sources = {str(number): pipeline.ShardDataset(path) for number, path in enumerate(data["sources"])}
    return pipeline.mix(sources, dict(zip(sources, (0.4, 0.3, 0.2, 0.1), strict=True)))


def time_streams(data: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of the clock and of the CPU for a batch of each stream, and for the first batch of one."""
    import torch

    import pipeline

    torch.set_num_threads(1)
    found: dict[str, Any] = {"seconds": {}, "cpu": {}, "digests": {}, "missing": {}}
    running: dict[str, Any] = {}
    for name in STREAMS:
        try:
            running[name] = iter(working(name, pipeline, data)())
        except Exception as error:  # anything may be missing in another commit
            found["missing"][name] = f"{type(error).__name__}: {error}"
            continue
        found["digests"][name] = digest(islice(running[name], DIGESTED))
        exhaust(running[name], WARM)
    counts = {name: data.get("batches", STREAMS[name][0]) for name in running}
    actions: dict[str, Callable[[], tuple[float, float]]] = {
        name: partial(timed, partial(exhaust, batches, counts[name])) for name, batches in running.items()
    }
    if "packed" in running:
        make = working("packed", pipeline, data)
        actions["first batch"] = lambda: timed(lambda: next(iter(make())))
        actions["first batch after a resume"] = partial(time_resume, make)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for _ in range(data.get("rounds", ROUNDS)):
        for name, action in actions.items():
            taken[name].append(action())
    for name, pairs in taken.items():
        for kind, column in zip(("seconds", "cpu"), zip(*pairs, strict=True), strict=True):
            found[kind][name] = min(column) / counts.get(name, 1)  # other work on the machine only slows
    return found


def working(name: str, pipeline: Any, data: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that makes the stream: the first that gives a batch with this ``pipeline``, after one batch."""
    makers = STREAMS[name][1]
    for make in makers[:-1]:
        try:
            next(iter(make(pipeline, data)))
        except Exception:
            continue
        return partial(make, pipeline, data)
    next(iter(makers[-1](pipeline, data)))
    return partial(makers[-1], pipeline, data)


def time_resume(make: Callable[[], Any]) -> tuple[float, float]:
    stream, resumed = make(), make()
    exhaust(iter(stream), 20)
    state = stream.state_dict()

    def resume() -> None:
        resumed.load_state_dict(state)
        next(iter(resumed))

    return timed(resume)


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that an action takes, of the clock and of this process's CPU."""
    began, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - began, time.process_time() - cpu


def exhaust(batches: Any, count: int) -> None:
    for _ in islice(batches, count):
        pass


def digest(batches: Any) -> str:
    """Return a hash of the ids of batches, to see whether two commits give the same ones."""
    found = hashlib.sha256()
    for batch in batches:
        found.update(batch["input_ids"].numpy().tobytes())
    return found.hexdigest()


def time_start(data: dict[str, Any]) -> dict[str, Any]:
    """Return seconds from the start of this process to its first batch, less those of ``import torch``.

    The parent gives when it started this process, by the monotonic clock, which all processes of a machine share.
    """
    began, cpu = time.monotonic(), time.process_time()
    import torch  # noqa: F401

    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    import pipeline

    try:
        working("packed", pipeline, data)
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}"}
    return {"seconds": time.monotonic() - data["began"] - seconds, "cpu": time.process_time() - cpu}


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    start = time_start(request)  # first, while the process is fresh
    print(json.dumps({**time_streams(request), "start": start}))
