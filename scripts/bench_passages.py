"""Measure the search of repeated passages: its speed, the share of words in them, and datatrove's dedup of sentences.

    python scripts/bench_passages.py corpus/*.jsonl.zst --words 50 --datatrove ~/datatrove/bin/python

``--datatrove`` names an interpreter that has ``datatrove[processing]`` and spaCy. Its sentence dedup removes runs of three
sentences that occur earlier. Its dedup of suffixes (``ESRangeRemover``) needs a tool in Rust that no package has. Both read
the same documents in one process, and CPU seconds are compared. A build counts only with the stage that cuts passages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from scripts.bench.data import read_inputs
from scripts.bench.process import cpu_seconds

PEER = """
import sys
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import SentDedupConfig, SentenceDedupFilter, SentenceDedupSignature, SentenceFindDedups
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
if __name__ == "__main__":
    folder, config = sys.argv[1], SentDedupConfig()
    first = [JsonlReader(folder + "/in"), JsonlWriter(folder + "/b"), SentenceDedupSignature(folder + "/s", config=config)]
    last = [JsonlReader(folder + "/b"), SentenceDedupFilter(folder + "/d", config=config), JsonlWriter(folder + "/out")]
    for steps in (first, [SentenceFindDedups(folder + "/s", folder + "/d", config=config)], last):
        LocalPipelineExecutor(steps, tasks=1, logging_dir=None, skip_completed=False).run()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--words", type=int, default=50, help="words of the shortest passage (default: 50)")
    parser.add_argument("--no-dedup", action="store_true", help="search all documents, not those that dedup keeps")
    parser.add_argument("--datatrove", metavar="PYTHON", help="interpreter that has datatrove, to compare with")
    parser.add_argument("--sample", type=int, default=2_000, help="documents for datatrove (default: 2000)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = [document.text for document in read_inputs(options.inputs)]
        megabytes = sum(map(len, texts)) / 1e6
        search(write(texts[:10], folder / "first.jsonl"), folder / "first", options)  # compiles
        seconds, counts = search(write(texts, folder / "all.jsonl"), folder / "all", options)
        found, characters = counts["passages"], counts["kept_characters"] + counts["passages"]["characters"]
        print(f"{megabytes / seconds:10,.1f}  million characters a second of CPU, of {megabytes:,.1f}")
        print(
            f"{found['passages']:10,d}  passages of {options.words} words or more occur earlier, of {found['words']:,d} words"
        )
        print(f"{found['characters'] / characters:10.2%}  of the characters that other steps left are cut")
        print(
            f"{counts['dropped'].get('passage_dedup', 0):10,d}  documents are dropped, because too little of them is left"
        )
        if options.datatrove:
            sample = texts[: options.sample]
            ours, _ = search(write(sample, folder / "sample.jsonl"), folder / "sample", options)
            ratio = datatrove(sample, folder, options.datatrove) / ours
            print(f"{ratio:10.1f}  x datatrove's sentence dedup, on {len(sample):,d} documents")
    return 0


def write(texts: Sequence[str], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps({"id": str(k), "text": text}) + b"\n" for k, text in enumerate(texts)))
    return path


def search(path: Path, output: Path, options: argparse.Namespace) -> tuple[float, dict[str, Any]]:
    """Build in this process; return the CPU seconds of the stage that finds and cuts passages, and the counts."""
    ended: dict[str, float] = {}
    manifest = pipeline.build(
        path,
        output,
        tokenizer="bytes",
        rules="none",
        dedup=not options.no_dedup,
        dedup_passages=options.words,
        workers=1,
        progress=pipeline.Progress(quiet=True),
        after_stage=lambda name: ended.__setitem__(name, time.process_time()),
    )
    return ended["passage_dedup"] - ended["dedup"], manifest.counts


def datatrove(texts: Sequence[str], folder: Path, python: str) -> float:
    """Return the CPU seconds of datatrove beyond those for ten documents."""
    (folder / "peer.py").write_text(PEER, encoding="utf-8")
    took = []
    for name, some in ("warm", texts[:10]), ("start", texts[:10]), ("whole", texts):
        write(some, folder / name / "in/0.jsonl")
        before = cpu_seconds(own=False)
        subprocess.run([python, folder / "peer.py", folder / name], check=True, capture_output=True, cwd=folder)
        took.append(cpu_seconds(own=False) - before)
    return took[2] - took[1]


if __name__ == "__main__":
    sys.exit(main())
