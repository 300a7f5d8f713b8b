"""Compare a build with datatrove under the same rules, and with what no build can do without.

    python scripts/bench_build.py corpus/*.jsonl.zst --workers 2 --datatrove ~/datatrove/bin/python

What no build can do without is reading, identifying languages with fastText's own library, and encoding the kept text, one
after the other in one process. ``--datatrove`` names an interpreter that has ``datatrove[processing]`` and spaCy: there the
same language filter and Gopher's rules run in its local executor on a sample, which then only writes what is left. All take
turns, round by round, and the median round counts: ratios are what holds on a shared machine. Start-up (imports, models,
compiled code, worker processes) is timed by a build of one document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from filters.language.language import LanguageIdentifier, bundled_model  # noqa: E402
from pipeline.shards.manifest import Manifest  # noqa: E402
from pipeline.shards.reader import Shard  # noqa: E402
from pipeline.text.tokenizer.tokenizer import Tokenizer, load_tokenizer  # noqa: E402
from scripts.bench.data import read_inputs  # noqa: E402
from scripts.bench.growth import watch  # noqa: E402
from scripts.bench.process import cpu_seconds  # noqa: E402
from scripts.bench.report import Report  # noqa: E402

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
    # By fork, so that the CPU time of its workers can be measured.
    LocalPipelineExecutor(steps, tasks=tasks, workers=tasks, logging_dir=out + "/logs", start_method="fork").run()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts (default: 5)")
    parser.add_argument("--rules", default="gopher", help="as for build_shards.py (default: gopher)")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="of the tokenizer that is trained first")
    parser.add_argument("--datatrove", metavar="PYTHON", help="interpreter that has datatrove, to compare with")
    parser.add_argument("--sample", type=int, default=2_000, help="documents that datatrove is timed on")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
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
    ingredients = Ingredients(options.inputs, output)
    peer = Datatrove(options, folder, texts) if options.datatrove else None
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        start_wall, start_cpu = run([*script, str(one)])
        wall, cpu = run([*script, *options.inputs])
        stages = json.loads((output / "run.json").read_text(encoding="utf-8"))["seconds"]
        parts = ingredients.measure()
        row = {"x the CPU of reading, languages and encoding alone": cpu / sum(parts.values())}
        if peer:
            share = sum(map(len, texts)) / peer.characters
            peer_start, peer_sample = peer.measure()
            whole = [before + (after - before) * share for before, after in zip(peer_start, peer_sample, strict=True)]
            row |= {"x datatrove's CPU": whole[1] / cpu, "x datatrove's seconds": whole[0] / wall}
        row |= {"documents/s": len(texts) / wall, "seconds": wall, "CPU seconds": cpu}
        row |= {"seconds to start": start_wall, "CPU seconds to start": start_cpu}
        row |= {f"CPU seconds: {name} alone": seconds for name, seconds in parts.items()}
        rounds.append(row | {f"seconds: stage {name}": seconds for name, seconds in stages.items()})
    report = Report(as_json=options.json)
    values = {name: [each[name] for each in rounds] for name in rounds[0]}
    rows = [
        (name, f"{statistics.median(found):,.2f}", f"{min(found):,.2f} to {max(found):,.2f}")
        for name, found in values.items()
    ]
    rows.append(("MB of all processes that the kernel cannot drop", f"{peak.own / 1e6:,.0f}", ""))
    report.table(f"{len(texts):,} documents, {options.workers} workers", ("", "median", "of rounds"), rows)
    report.end()


def command(options: argparse.Namespace, tokenizer: str, output: Path) -> list[str]:
    """Return the command that builds; the inputs follow."""
    flags = ["--language", LANGUAGE, "--rules", options.rules, "--quiet", "--workers", str(options.workers)]
    flags += ["--tokenizer", tokenizer, "--overwrite", "--output", str(output)]
    return [sys.executable, str(ROOT / "scripts/build_shards.py"), *flags]


def run(command: Sequence[str], **options: Any) -> tuple[float, float]:
    """Run a command; return the seconds it took, and the CPU seconds of it and its children."""
    before, started = cpu_seconds(own=False), time.perf_counter()
    done = subprocess.run(command, text=True, **options)
    if done.returncode:
        sys.exit(f"{command[1]} failed: {(done.stderr or '')[-2000:]}")
    return time.perf_counter() - started, cpu_seconds(own=False) - before


class Ingredients:
    """The steps that no build can leave out, in one process."""

    def __init__(self, inputs: list[str], dataset: Path) -> None:
        self._inputs = inputs
        self._identifier, self._encoder = LanguageIdentifier(), load_tokenizer(str(dataset / "tokenizer.json"))
        self._kept = list(kept_texts(dataset, self._encoder))
        self._identifier.identify("to load the model")

    def measure(self) -> dict[str, float]:
        """Return the CPU seconds of each."""
        times = [time.process_time()]
        texts = [document.text for document in read_inputs(self._inputs)]
        times.append(time.process_time())
        for text in texts:
            self._identifier.identify(text)
        times.append(time.process_time())
        for k in range(0, len(self._kept), 512):
            self._encoder.encode_batch(self._kept[k : k + 512])
        times.append(time.process_time())
        return {name: times[k + 1] - times[k] for k, name in enumerate(("reading", "languages", "encoding"))}


def kept_texts(dataset: Path, encoder: Tokenizer) -> Iterator[str]:
    for split in Manifest.read(dataset).splits.values():
        for info in split.shards:
            shard = Shard(dataset / info.name, info)
            yield from (encoder.decode(shard.document(j)[:-1].tolist()) for j in range(len(shard)))


class Datatrove:
    """Its local executor on every n-th document, and on one a task: the difference is its rate without start-up."""

    def __init__(self, options: argparse.Namespace, folder: Path, texts: list[str]) -> None:
        self._options, self._folder, self._runs = options, folder, 0
        sample = texts[:: max(1, len(texts) // options.sample)]
        self.characters = sum(map(len, sample))
        for name, taken in (("sample", sample), ("start", [ENGLISH] * options.workers)):
            (folder / name).mkdir()
            for k in range(options.workers):
                lines = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(taken[k :: options.workers])]
                (folder / name / f"{k}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        (folder / "peer.py").write_text(PEER, encoding="utf-8")
        self._run("start")  # it copies its model to its cache

    def measure(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the seconds and CPU seconds of its start, and of the sample with the start."""
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
