"""Read batches in a process of its own, by the library that comes first in PYTHONPATH; print one JSON object.

    python scripts/bench/child.py '{"stream": "packed", "data": DIRECTORY_OR_URL, "seconds": 10}'

Keys of the request (all but ``data`` may be left out):

    stream     a name of `STREAMS`, or of a loader of another library (default: packed)
    tokenizer  of raw text
    cache      a directory for what is read from afar
    s3         whether the url is read over the S3 protocol
    index      the sequence index to resume at
    epochs     of the dataset
    rank, ranks, workers
    warm       seconds of batches that are not measured
    seconds    that are measured; below 0: all batches
    busy       whether a Python thread is always busy beside
    counts     url of a server whose counts are read
    began      when the parent started this process, by ``time.monotonic``
    build      files of text from which a dataset is built at ``data`` instead
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

SEQ_LEN, BATCH, DIGESTED = 2048, 32, 8
STREAMS: dict[str, Callable[[Any], Any]] = {
    "packed": lambda shuffled: shuffled.pack(SEQ_LEN).batch(BATCH),
    "stored width": lambda shuffled: shuffled.pack(SEQ_LEN).batch(BATCH, dtype="stored"),
    "boundaries": lambda shuffled: shuffled.pack(SEQ_LEN, boundaries=True).batch(BATCH),
    "documents": lambda shuffled: shuffled.documents(max_length=512, bucket=64).batch(BATCH),
    "best fit": lambda shuffled: shuffled.pack(SEQ_LEN, best_fit=True).batch(BATCH),
}


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured."""
    if "build" in request:
        import pipeline

        pipeline.build(request["build"], request["data"], tokenizer="bytes", rules=(), val_fraction=0, workers=1)
        return {}
    began, cpu = time.monotonic(), time.process_time()
    import torch
    import torch.utils.data

    answer: dict[str, Any] = {"torch": time.monotonic() - began, "torch_cpu": time.process_time() - cpu}
    torch.set_num_threads(1)
    imported, imported_cpu = time.monotonic(), time.process_time()
    batches = loader(request)
    digest, first = hashlib.sha256(), next(batches)
    now = time.monotonic()
    answer |= {"first": now - imported, "first_cpu": time.process_time() - imported_cpu}
    if "began" in request:
        answer["start"] = now - request["began"] - answer["torch"]
    if "counts" in request:
        answer["before_first"] = counts(request["counts"], now)
    if "seconds" not in request:
        return answer
    if hasattr(first, "keys"):
        for batch in [first, *islice(batches, DIGESTED - 1)]:
            digest.update(batch["input_ids"].numpy().tobytes())
        answer["digest"] = digest.hexdigest()
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
    name, data = request.get("stream", "packed"), request["data"]
    if name not in STREAMS:
        from scripts.bench import peers

        made = peers.webdataset(data) if name == "webdataset" else getattr(peers, name)(data, request["cache"])
        return iter(made)
    import pipeline

    if request.get("s3"):
        from scripts.bench import peers

        data = peers.bucket(data)
    options: dict[str, Any] = {"epochs": request["epochs"]} if "epochs" in request else {}
    if "tokenizer" in request:
        source: Any = pipeline.TextDataset(data, request["tokenizer"], **options)
    else:
        if "://" in str(data):
            options["cache_dir"] = request.get("cache")
        source = pipeline.ShardDataset(data, **options)
    stream = STREAMS[name](source.shuffle(seed=0))
    if "rank" in request:
        stream = stream.shard(request["rank"], request["ranks"])
    if "index" in request:
        stream.load_state_dict({**stream.state_dict(), "sequence_index": request["index"]})
    if request.get("workers"):
        from torch.utils.data import DataLoader

        stream = DataLoader(stream, batch_size=None, num_workers=request["workers"])
    return iter(stream)


def timed(batches: Iterator[Any], seconds: float) -> Iterator[int]:
    """Take batches for so long, and count them; all of them where seconds are below 0."""
    end = time.perf_counter() + seconds
    for number, _ in enumerate(batches, start=1):
        yield number
        if seconds >= 0 and time.perf_counter() > end:
            return


def spin() -> None:
    """Hold the interpreter's lock as often as it can be had."""
    while True:
        sum(range(1000))


def counts(url: str, until: float | None = None) -> dict[str, int]:
    """Return what the server counted since the last such request, up to a time of `time.monotonic`."""
    limit = "" if until is None else f"?until={until}"
    with urllib.request.urlopen(f"{url.rsplit('/', 1)[0]}/__counts__{limit}") as answer:
        counted: dict[str, int] = json.load(answer)
    return counted


def memory() -> float:
    """Return the bytes of this process and its workers that the kernel cannot drop."""
    from scripts.bench.process import memory_with_workers

    return memory_with_workers().own


if __name__ == "__main__":
    # The library of another commit may come first in PYTHONPATH; the benches are always those beside this file.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    print(json.dumps(main(json.loads(sys.argv[1]))))
