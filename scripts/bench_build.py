"""Time a build against what it cannot do without: reading, identifying languages and encoding the kept text.

    python scripts/bench_build.py corpus/*.jsonl.zst --workers 2

Prints the ratio of the build's CPU seconds to those of the bare ingredients, then documents/s, MB/s, and each stage.
With ``--datatrove PYTHON`` (an interpreter of an environment that has ``datatrove[processing]``) the same rules run in
datatrove's local executor on a sample, and their rate is set against ours.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PEER = """
import json, sys, time
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter, LanguageFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
if __name__ == "__main__":
    source, out, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    steps = [JsonlReader(source), GopherRepetitionFilter(), GopherQualityFilter(), JsonlWriter(out)]
    started = time.perf_counter()
    LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=tasks, logging_dir=out + "/logs").run()
    print(json.dumps({"seconds": time.perf_counter() - started}))
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="of the tokenizer that is trained first")
    parser.add_argument("--datatrove", metavar="PYTHON", help="interpreter that has datatrove, to compare with")
    parser.add_argument(
        "--sample", type=int, default=2_000, help="documents that datatrove is timed on (default: 2000)"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return bench(options, Path(folder))


def bench(options: argparse.Namespace, folder: Path) -> int:
    script = [sys.executable, str(ROOT / "scripts/build_shards.py"), *options.inputs, "--language", "en", "--quiet"]
    script += ["--workers", str(options.workers)]
    subprocess.run(
        [*script, "--output", str(folder / "first"), "--tokenizer", f"train:{options.vocab_size}"], check=True
    )
    tokenizer = str(folder / "first" / "tokenizer.json")
    before, started = children_seconds(), time.perf_counter()
    subprocess.run([*script, "--output", str(folder / "timed"), "--tokenizer", tokenizer], check=True)
    wall, cpu = time.perf_counter() - started, children_seconds() - before
    manifest = json.loads((folder / "timed" / "manifest.json").read_text(encoding="utf-8"))
    run = json.loads((folder / "timed" / "run.json").read_text(encoding="utf-8"))
    parts = ingredients(options.inputs, folder / "timed", tokenizer)
    least = sum(parts.values())
    read, characters = manifest["counts"]["read"], manifest["counts"]["characters"]
    print(f"{cpu / least:6.2f}  x the CPU of reading + language identification + encoding alone")
    if options.datatrove:
        peer = datatrove_rate(options, folder)
        print(f"{read / wall / peer:6.1f}  x datatrove, whole build against its Gopher filters alone")
    print(f"{read / wall:10,.0f}  documents/s, whole process, {options.workers} workers")
    print(f"{characters / wall / 1e6:10.2f}  M characters/s")
    print(f"{cpu:10.2f}  CPU seconds, {wall:.2f} s in all, peak {peak_megabytes():,.0f} MB in one process")
    for name, seconds in parts.items():
        print(f"{seconds:10.2f}  CPU seconds: {name} alone")
    for name, seconds in run["seconds"].items():
        print(f"{seconds:10.2f}  seconds: stage {name}")
    return 0


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def ingredients(inputs: list[str], dataset: Path, tokenizer: str) -> dict[str, float]:
    """Return the CPU seconds of the steps that no build can leave out, one process."""
    from filters.language import LanguageIdentifier
    from pipeline.text.documents import Document, find_inputs, read_documents
    from pipeline.text.tokens import load_tokenizer

    def texts() -> Iterator[str]:
        for file in find_inputs(inputs):
            yield from (record.text for record in read_documents(file) if isinstance(record, Document))

    identifier, encoder = LanguageIdentifier(), load_tokenizer(tokenizer)
    identifier.identify("to load the model")
    started = time.process_time()
    held = list(texts())
    read = time.process_time()
    for text in held:
        identifier.identify(text)
    identified = time.process_time()
    kept = kept_texts(dataset, encoder)
    begun = time.process_time()
    for k in range(0, len(kept), 512):
        encoder.encode_batch(kept[k : k + 512])
    return {"reading": read - started, "languages": identified - read, "encoding": time.process_time() - begun}


def kept_texts(dataset: Path, encoder: object) -> list[str]:
    from pipeline.shards.manifest import Manifest
    from pipeline.shards.reader import Shard
    from pipeline.text.tokens import Tokenizer

    assert isinstance(encoder, Tokenizer)
    found = []
    for split in Manifest.read(dataset).splits.values():
        for info in split.shards:
            shard = Shard(dataset / info.name, info)
            found += [encoder.decode(shard.document(j)[:-1].tolist()) for j in range(len(shard))]
    return found


def datatrove_rate(options: argparse.Namespace, folder: Path) -> float:
    """Return the documents/s of datatrove's Gopher filters on a sample, with as many workers."""
    import orjson

    from pipeline.text.documents import Document, find_inputs, read_documents

    sample: list[bytes] = []
    for file in find_inputs(options.inputs):
        for record in read_documents(file):
            if isinstance(record, Document) and len(sample) < options.sample:
                sample.append(orjson.dumps({"id": record.id, "text": record.text}))
    (folder / "peer").mkdir()
    for k in range(options.workers):
        (folder / "peer" / f"{k}.jsonl").write_bytes(b"\n".join(sample[k :: options.workers]))
    (folder / "peer.py").write_text(PEER)
    command = [
        options.datatrove,
        str(folder / "peer.py"),
        str(folder / "peer"),
        str(folder / "out"),
        str(options.workers),
    ]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return len(sample) / json.loads(answer.splitlines()[-1])["seconds"]


if __name__ == "__main__":
    sys.exit(main())
