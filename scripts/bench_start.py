"""Measure how soon a new process has its first batch: from shards on disk, and from a hub 30 ms away behind 100 MB/s.

    python scripts/bench_start.py --texts '/data/part-*.jsonl.zst' --rounds 5

The time goes from the start of the process to its first batch, less that of ``import torch``, which every training script
takes: by the clock, and of the processor, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
sys.path.insert(0, str(SCRIPTS.parent))
SEQ_LEN, BATCH = 2048, 8
LATENCY, RATE = 0.03, 100e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", help="glob of files of text (default: made ones)")
    parser.add_argument("--directory", type=Path, help="where made files are kept (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind, in turn (default: 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure(options.directory or Path(temporary), options.texts, options.rounds)


def measure(directory: Path, texts: str | None, rounds: int) -> None:
    """Print the medians of each way to start."""
    from scripts._bench_text import text_files, tokenizer_folder
    from scripts._report import Report

    files = text_files(directory, texts)
    tokenizer = tokenizer_folder(directory, files)
    shards = make_shards(directory, files, tokenizer)
    make_parquet(directory / "hub" / "parquet", files)
    copy_files(directory / "hub" / "lines", files)
    (directory / "hub" / "README.md").write_text(CARD)
    kinds: dict[str, dict[str, Any]] = {
        "ShardDataset, on disk": {"shards": str(shards)},
        "TextDataset, .jsonl.zst on disk": {"files": files},
        "TextDataset, .jsonl.zst of a hub": {"files": ["hf://datasets/org/name:lines"]},
        "TextDataset, Parquet of a hub": {"files": ["hf://datasets/org/name:parquet"]},
    }
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with hub(directory / "hub") as endpoint:
        for _ in range(rounds + 1):
            for kind, data in kinds.items():
                found[kind].append(start({**data, "tokenizer": str(tokenizer)}, endpoint))
    cells = []
    for kind, each in found.items():
        measured = each[1:]  # the first of each may compile
        medians = [
            statistics.median(one[name] for one in measured) for name in ("seconds", "cpu", "torch", "torch_cpu")
        ]
        cells.append((kind, *(f"{median:.2f}" for median in medians)))
    heads = ("process start to first batch", "seconds", "of the CPU", "import torch besides", "of the CPU")
    Report().table("First batch of a new process, less import torch; medians", heads, cells)


CARD = """---
configs:
- config_name: lines
  data_files: lines/*
- config_name: parquet
  data_files: parquet/*
---
"""


def make_shards(directory: Path, files: list[str], tokenizer: Path) -> Path:
    import pipeline

    pipeline.build(files, directory / "shards", tokenizer=str(tokenizer), rules=(), val_fraction=0)
    return directory / "shards"


def make_parquet(folder: Path, files: list[str]) -> None:
    """Write each file of lines as Parquet with row groups of 1,000, as datasets of the hub often have them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipeline.text.readers.reader import Document, read_documents

    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        documents = [each for each in read_documents(file) if isinstance(each, Document)]
        table = pa.table({"id": [each.id for each in documents], "text": [each.text for each in documents]})
        pq.write_table(table, folder / f"train-{number:05d}.parquet", row_group_size=1000)


def copy_files(folder: Path, files: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, folder / Path(file).name)


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Serve a folder as the dataset ``org/name`` of a hub."""
    command = [
        sys.executable,
        str(SCRIPTS / "_remote_server.py"),
        str(folder),
        f"--latency={LATENCY}",
        f"--rate={RATE}",
    ]
    server = subprocess.Popen([*command, "--hub"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.kill()
        server.wait()


def start(data: dict[str, Any], endpoint: str) -> dict[str, float]:
    """Start a process, and return what it measured until its first batch."""
    told = json.dumps({**data, "began": time.monotonic()})
    variables = {**os.environ, "HF_ENDPOINT": endpoint, "PYTHONPATH": str(SCRIPTS.parent)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    with tempfile.TemporaryDirectory() as kept:  # what an earlier process left there would be asked for by no other
        variables["SHARDWRIGHT_CACHE"] = kept
        command = [sys.executable, __file__, "--child", told]
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def child(data: dict[str, Any]) -> None:
    """Make a first batch, and print the seconds since the process began."""
    began, cpu = time.monotonic(), time.process_time()
    import torch  # noqa: F401

    torch_seconds, torch_cpu = time.monotonic() - began, time.process_time() - cpu
    import pipeline

    if "shards" in data:
        stream: Any = pipeline.ShardDataset(data["shards"])
    else:
        stream = pipeline.TextDataset(data["files"], data["tokenizer"])
    next(iter(stream.shuffle(seed=0).pack(SEQ_LEN).batch(BATCH)))
    seconds, spent = time.monotonic() - data["began"] - torch_seconds, time.process_time() - torch_cpu
    print(json.dumps({"seconds": seconds, "cpu": spent, "torch": torch_seconds, "torch_cpu": torch_cpu}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
    else:
        main()
