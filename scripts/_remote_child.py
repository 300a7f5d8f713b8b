"""Read a remote dataset in a process of its own, for ``bench_stream.py remote``.

    python scripts/_remote_child.py '{"loader": "ours", "url": URL, "seconds": 10, ...}'

Prints one JSON object. ``imports`` are no part of any time.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts import _remote_peers
from scripts._remote_peers import BATCH, SEQ_LEN


def ours(request: dict[str, Any]) -> Any:
    """Return a loader of ours: of this rank, with workers if they are asked for."""
    import pipeline

    epochs = request.get("epochs")
    url = _remote_peers.bucket(request["url"]) if request.get("s3") else request["url"]
    data = pipeline.ShardDataset(url, epochs=epochs, cache_dir=request.get("cache"))
    stream = data.shuffle(seed=0).pack(SEQ_LEN).batch(BATCH, dtype="stored")
    if "rank" in request:
        stream = stream.shard(request["rank"], request["ranks"])
    if request.get("index"):
        stream.load_state_dict({**stream.state_dict(), "sequence_index": request["index"]})
    if request.get("workers"):
        from torch.utils.data import DataLoader

        return DataLoader(stream, batch_size=None, num_workers=request["workers"])
    return stream


def webdataset(request: dict[str, Any]) -> Iterator[Any]:
    """Yield batches of the same shards through webdataset: shards and samples shuffled, decoded, joined and cut."""
    import numpy as np
    import webdataset as wds

    with urllib.request.urlopen(f"{request['url']}/manifest.json") as answer:
        names = [info["name"] for info in json.load(answer)["splits"]["train"]["shards"]]
    urls = [f"pipe:curl -s {request['url']}/{name}" for name in names]
    samples = wds.WebDataset(urls, shardshuffle=len(urls), resampled=True).shuffle(1000).decode()
    need, parts, held = SEQ_LEN * BATCH + 1, [], 0
    for sample in samples:
        parts.append(sample["npy"])
        held += len(parts[-1])
        while held >= need:
            joined = np.concatenate(parts)
            yield joined[:need]
            parts, held = [joined[need - 1 :]], len(joined) - need + 1


LOADERS = {"ours": ours, "webdataset": webdataset, "mosaicml": _remote_peers.mosaicml, "litdata": _remote_peers.litdata}


def counts(url: str, until: float | None = None) -> dict[str, int]:
    """Return what the server counted since it was asked last, up to a time of `time.monotonic`."""
    limit = "" if until is None else f"?until={until}"
    with urllib.request.urlopen(f"{url.rsplit('/', 1)[0]}/__counts__{limit}") as answer:
        found: dict[str, int] = json.load(answer)
    return found


def memory() -> float:
    """Return the proportional set size of this process, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def main(request: dict[str, Any]) -> dict[str, Any]:
    import torch

    import pipeline

    torch.set_num_threads(1)
    _ = pipeline.ShardDataset, urllib.request.getproxies()
    url, before = request["url"], memory()
    # Ranks would take the counts of each other, and only the bench's own server counts.
    alone = "rank" not in request and request.get("counted", True)
    if alone:
        counts(url)
    began, cpu = time.perf_counter(), time.process_time()
    batches = iter(LOADERS[request["loader"]](request))
    next(batches)
    now = time.monotonic()
    found: dict[str, Any] = {"first": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    found |= {"before_first": counts(url, now) if alone else {}}
    for _ in timed(batches, request.get("warm", 0.0)):
        pass
    if alone:
        counts(url)
    began, done, most = time.perf_counter(), 0, memory()
    for number in timed(batches, request.get("seconds", 0.0)):
        done = number
        if number % 64 == 0:
            most = max(most, memory())
    found |= {"seconds": time.perf_counter() - began, "batches": done, "memory": max(most, memory()) - before}
    if alone:
        found["after"] = counts(url)
    return found


def timed(batches: Iterator[Any], seconds: float) -> Iterator[int]:
    """Take batches for so long, and count them; all of them where seconds are below 0."""
    end = time.perf_counter() + seconds
    for number, _ in enumerate(batches, start=1):
        yield number
        if seconds >= 0 and time.perf_counter() > end:
            return


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
