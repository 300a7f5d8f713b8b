"""Compare a build with datatrove under the same rules.

    python scripts/bench_build.py corpus/*.jsonl.zst --workers 2 --datatrove ~/datatrove/bin/python

``--datatrove`` names an interpreter that has ``datatrove[processing]`` and spaCy. Its local executor runs the same language
filter and Gopher's rules on a sample, and only writes the documents that are kept. Both take turns in each round, and the
median of the rounds counts, because on a shared machine only ratios are stable. Start-up (imports, models, compiled code,
worker processes) is the time of a build of one document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from filters.language.identifier import bundled_model
from scripts.bench.data import read_inputs
from scripts.bench.process import cpu_seconds, watch
from scripts.bench.report import median, table

LANGUAGE = "en"
ENGLISH = """What the language filter keeps reaches the other rules, and so this text loads all that they need to start. It has
to be long enough for Gopher: fifty words or more, with some of the most frequent words of English among them, and most of its
lines should end in a mark. Nothing else is asked of it here. A build of this one document takes as long as a build takes to
import its modules, to read the models of languages and tokens, and to begin the processes of its workers.
"""
PEER = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter, LanguageFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
if __name__ == "__main__":
    source, out, tasks, language, model = *sys.argv[1:3], int(sys.argv[3]), *sys.argv[4:]
    languages = LanguageFilter(language)
    languages.model.MODEL_URL = model
    steps = [JsonlReader(source), languages, GopherRepetitionFilter(), GopherQualityFilter(), JsonlWriter(out)]
    # Forked, because then the CPU time of its workers can be measured.
    LocalPipelineExecutor(steps, tasks=tasks, workers=tasks, logging_dir=out + "/logs", start_method="fork").run()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median counts (default: 5)")
    parser.add_argument("--rules", default="gopher", help="as for build_shards.py (default: gopher)")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="ids of the tokenizer that is trained first")
    parser.add_argument("--datatrove", metavar="PYTHON", help="interpreter that has datatrove, to compare with")
    parser.add_argument("--sample", type=int, default=2_000, help="documents for datatrove")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        bench(options, Path(folder))
    return 0


def bench(options: argparse.Namespace, folder: Path) -> None:
    """Measure rounds, and print their medians."""
    one, output = folder / "one.jsonl", folder / "timed"
    one.write_text(json.dumps({"id": "1", "text": ENGLISH}), encoding="utf-8")
    run([*command(options, f"train:{options.vocab_size}", folder / "first"), *options.inputs])
    script = command(options, str(folder / "first/tokenizer.json"), output)
    peak = watch([*script, *options.inputs])
    texts = [document.text for document in read_inputs(options.inputs)]
    peer = Datatrove(options, folder, texts) if options.datatrove else None
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        start_wall, start_cpu = run([*script, str(one)])
        wall, cpu = run([*script, *options.inputs])
        row: dict[str, float] = {}
        if peer:
            share = sum(map(len, texts)) / peer.characters
            peer_start, peer_sample = peer.measure()
            whole = [before + (after - before) * share for before, after in zip(peer_start, peer_sample, strict=True)]
            row = {"x datatrove's CPU": whole[1] / cpu, "x datatrove's seconds": whole[0] / wall}
        row |= {"documents/s": len(texts) / wall, "seconds": wall, "CPU seconds": cpu}
        rounds.append(row | {"seconds to start": start_wall, "CPU seconds to start": start_cpu})
    values = {name: [row[name] for row in rounds] for name in rounds[0]}
    rows = [
        (name, median(numbers, 2), f"{min(numbers):,.2f} to {max(numbers):,.2f}") for name, numbers in values.items()
    ]
    rows.append(("MB of all processes that the kernel cannot drop", f"{peak.memory / 1e6:,.0f}", ""))
    table(f"{len(texts):,} documents, {options.workers} workers", ("", "median", "of rounds"), rows)


def command(options: argparse.Namespace, tokenizer: str, output: Path) -> list[str]:
    """Return the command of a build, without the inputs."""
    flags = ["--language", LANGUAGE, "--rules", options.rules, "--quiet", "--workers", str(options.workers)]
    flags += ["--tokenizer", tokenizer, "--overwrite", "--output", str(output)]
    return [sys.executable, str(Path(__file__).resolve().with_name("build_shards.py")), *flags]


def run(command: Sequence[str], **options: Any) -> tuple[float, float]:
    """Run a command; return its seconds, and the CPU seconds of it and its children."""
    before, started = cpu_seconds(own=False), time.perf_counter()
    done = subprocess.run(command, text=True, **options)
    if done.returncode:
        sys.exit(f"{command[1]} failed: {(done.stderr or '')[-2000:]}")
    return time.perf_counter() - started, cpu_seconds(own=False) - before


class Datatrove:
    """Runs datatrove's local executor on every n-th document, and on one document a task: the difference has no start-up."""

    def __init__(self, options: argparse.Namespace, folder: Path, texts: list[str]) -> None:
        self._options, self._folder, self._runs = options, folder, 0
        sample = texts[:: max(1, len(texts) // options.sample)]
        self.characters = sum(map(len, sample))
        for name, used in (("sample", sample), ("start", [ENGLISH] * options.workers)):
            (folder / name).mkdir()
            for k in range(options.workers):
                lines = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(used[k :: options.workers])]
                (folder / name / f"{k}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        (folder / "peer.py").write_text(PEER, encoding="utf-8")
        self._run("start")  # this first run fills the cache of models

    def measure(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the seconds and CPU seconds of the start-up, and of start-up and sample together."""
        return self._run("start"), self._run("sample")

    def _run(self, name: str) -> tuple[float, float]:
        self._runs += 1
        out = str(self._folder / f"out{self._runs}")
        command = [self._options.datatrove, str(self._folder / "peer.py"), str(self._folder / name), out]
        command += [str(self._options.workers), LANGUAGE, f"file://{bundled_model()}"]
        environment = {"HF_HOME": str(self._folder / "cache"), "PATH": "/usr/bin:/bin"}
        return run(command, capture_output=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
