"""Read batches in a new process, and print the measured times, bytes and memory as one JSON object.

    python scripts/bench/child.py '{"data": DIRECTORY_OR_URL, "seconds": 10}'

Keys of the request (all but ``data`` may be left out):

    data       a dataset; a list of datasets to mix; with ``tokenizer``, files of text
    tokenizer  the tokenizer of raw text
    peer       whether webdataset reads
    rows       "packed" (default), "best fit" or "documents"
    shuffle    arguments of `.shuffle` except its seed
    val        the share of a validation split; both splits are read in turn
    index      the sequence index to resume at
    warm       seconds of batches before the measured ones
    seconds    seconds of measured batches
    busy       whether another Python thread is always busy
    counts     url of a server whose counts are read
    began      when the parent started this process, by ``time.monotonic``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEQ_LEN, BATCH = 2048, 32


def run_child(request: dict[str, Any], **variables: str) -> dict[str, Any]:
    """Return the measurements of a new process. Raises ``RuntimeError`` with its error if it fails."""
    argument = json.dumps({**request, "began": time.monotonic()})
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, __file__, argument], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Return the measurements."""
    began = time.monotonic()
    import torch
    import torch.utils.data

    from scripts.bench.process import memory

    torch.set_num_threads(1)
    imported, imported_cpu = time.monotonic(), time.process_time()
    batches = loader(request)
    next(batches)
    now = time.monotonic()
    answer: dict[str, Any] = {"first": now - imported, "first_cpu": time.process_time() - imported_cpu}
    answer["start"] = now - request.get("began", began) - (imported - began)
    if "counts" in request:
        answer["before_first"] = counts(request["counts"])
    if "seconds" not in request:
        return answer
    if request.get("busy"):
        threading.Thread(target=spin, daemon=True).start()
    for _ in timed(batches, request.get("warm", 1.0)):
        pass
    if "counts" in request:
        counts(request["counts"])
    began, count, most = time.perf_counter(), 0, memory()
    for number in timed(batches, request["seconds"]):
        count = number
        if number % 256 == 0:
            most = max(most, memory())
    answer |= {"seconds": time.perf_counter() - began, "batches": count, "memory": max(most, memory())}
    if "counts" in request:
        answer["after"] = counts(request["counts"])
    return answer


def loader(request: dict[str, Any]) -> Iterator[Any]:
    """Return the batches that a request asks for."""
    data, shuffle = request["data"], request.get("shuffle", {})
    if request.get("peer"):
        from scripts.bench import peers

        return peers.webdataset(data)
    import pipeline

    if "tokenizer" in request:
        source: Any = pipeline.TextDataset(data, request["tokenizer"])
    elif isinstance(data, list):
        options: dict[str, Any] = {"cache_dir": None} if "counts" in request else {}
        sources = {str(number): pipeline.ShardDataset(path, **options) for number, path in enumerate(data)}
        source = pipeline.mix(sources, dict.fromkeys(sources, 1.0))
    else:
        source = pipeline.ShardDataset(data, cache_dir=None)
    if "val" in request:
        splits = [packed(split, shuffle) for split in source.split(val=request["val"])]
        return chain.from_iterable(zip(*splits, strict=False))
    stream = packed(source, shuffle, request.get("rows", "packed"))
    if "index" in request:
        stream.load_state_dict({**stream.state_dict(), "sequence_index": request["index"]})
    return iter(stream)


def packed(source: Any, shuffle: dict[str, int], rows: str = "packed") -> Any:
    shuffled = source.shuffle(seed=0, **shuffle)
    if rows == "documents":
        return shuffled.documents(max_length=SEQ_LEN).batch(BATCH)
    return shuffled.pack(SEQ_LEN, best_fit=rows == "best fit").batch(BATCH)


def timed(batches: Iterator[Any], seconds: float) -> Iterator[int]:
    """Take batches for some seconds; yield their number so far."""
    end = time.perf_counter() + seconds
    for number, _ in enumerate(batches, start=1):
        yield number
        if time.perf_counter() > end:
            return


def spin() -> None:
    """Hold the interpreter's lock as often as possible."""
    while True:
        sum(range(1000))


def counts(url: str) -> dict[str, int]:
    """Return the counts of the server since the last such request."""
    with urllib.request.urlopen(f"{url.rsplit('/', 1)[0]}/__counts__") as answer:
        counted: dict[str, int] = json.load(answer)
    return counted


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
