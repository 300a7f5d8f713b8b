"""Time a build against what it cannot do without, and against datatrove under the same rules.

    python scripts/bench_build.py corpus/*.jsonl.zst --workers 2 --datatrove ~/datatrove/bin/python

What it cannot do without is reading, identifying languages with fastText's own library, and encoding the kept text, one
after the other in one process. ``--datatrove`` names an interpreter that has ``datatrove[processing]`` and spaCy: there the same
language filter and Gopher's rules run in its local executor, which then only writes what is left, on a sample. All take
turns, round by round, and the median round counts: ratios are what holds on a shared machine. Start-up (imports, models,
compiled code, worker processes) is timed by a build of one document, and shown apart.

    python scripts/bench_build.py corpus/*.jsonl.zst --against REV

times the builds of the commit REV and of this tree in turn instead, and tells whether their shards have the same bytes.

    python scripts/bench_build.py corpus/*.jsonl.zst --parts

times no build, but what an empty transform of the user and a score of a fastText model cost a document.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from filters.language.language import LanguageIdentifier, bundled_model  # noqa: E402
from pipeline.shards.manifest import Manifest  # noqa: E402
from pipeline.shards.reader import Shard  # noqa: E402
from pipeline.text.tokenizer.tokenizer import Tokenizer, load_tokenizer  # noqa: E402
from scripts._against import compare, environment, show, worktree  # noqa: E402
from scripts._build_parts import measure as measure_parts  # noqa: E402
from scripts._inputs import read_inputs  # noqa: E402
from scripts._process import cpu_seconds  # noqa: E402

LANGUAGE = "en"
ENGLISH = "What the language filter keeps reaches the other rules, and so loads all that they need to start. "

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
    # By fork, so that the CPU time of its workers can be told.
    LocalPipelineExecutor(steps, tasks=tasks, workers=tasks, logging_dir=out + "/logs", start_method="fork").run()
"""


class Round(NamedTuple):
    """What one round took, in seconds of CPU and of the clock; the peer's are those that a million characters take."""

    cpu: float
    wall: float
    start_cpu: float
    start_wall: float
    alone: dict[str, float]
    stages: dict[str, float]
    peer_cpu: float
    peer_wall: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts (default: 5)")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="of the tokenizer that is trained first")
    parser.add_argument("--datatrove", metavar="PYTHON", help="interpreter that has datatrove, to compare with")
    parser.add_argument(
        "--sample", type=int, default=2_000, help="documents that datatrove and --parts are timed on (default: 2000)"
    )
    parser.add_argument("--against", metavar="REV", help="compare the build with that of another commit")
    parser.add_argument("--parts", action="store_true", help="time a transform and a score, and no build")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args(arguments)
    if sum(map(bool, (options.against, options.datatrove, options.parts))) > 1:
        parser.error(
            "--against compares with a commit, --datatrove with datatrove, --parts times no build: give one of them"
        )
    with tempfile.TemporaryDirectory() as folder:
        if options.against:
            found = compare_builds(options, Path(folder))
            show(found, [f"the same shards: {'yes' if found['same_shards'] else 'no'}"], as_json=options.json)
            return 0
        lines = bench_parts(options) if options.parts else bench(options, Path(folder))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads these lines may have seen enough
    print("\n".join(lines))
    return 0


def bench(options: argparse.Namespace, folder: Path) -> list[str]:
    timed = folder / "timed"
    one, tokenizer = prepare(options, folder)
    script = command(ROOT, options, tokenizer, timed)
    run([*script, *options.inputs])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    alone = Ingredients(options.inputs, timed)
    peer = Datatrove(options, folder, alone.texts) if options.datatrove else None
    rounds = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        start_wall, start_cpu = run([*script, str(one)])
        wall, cpu = run([*script, *options.inputs])
        stages = json.loads((timed / "run.json").read_text(encoding="utf-8"))["seconds"]
        peer_wall, peer_cpu = peer.measure() if peer else (0.0, 0.0)
        rounds.append(Round(cpu, wall, start_cpu, start_wall, alone.measure(), stages, peer_cpu, peer_wall))
    counts = Manifest.read(timed).counts
    if options.json:
        return [
            json.dumps({"counts": counts, "peak_mb": peak, "rounds": [each._asdict() for each in rounds]}, indent=2)
        ]
    return report(rounds, options, counts, peak)


def bench_parts(options: argparse.Namespace) -> list[str]:
    texts = list(islice(read_texts(options.inputs), options.sample))
    found = measure_parts(texts)
    if options.json:
        return [json.dumps({"documents": len(texts), "parts": {what: figure for figure, what in found}}, indent=2)]
    return [f"{figure:12.2f}  {what}" for figure, what in found]


def command(tree: Path, options: argparse.Namespace, tokenizer: str, output: Path) -> list[str]:
    """Return the command that builds with the library of a tree; the inputs follow."""
    flags = ["--language", LANGUAGE, "--quiet", "--workers", str(options.workers), "--tokenizer", tokenizer]
    return [sys.executable, str(tree / "scripts/build_shards.py"), *flags, "--overwrite", "--output", str(output)]


def prepare(options: argparse.Namespace, folder: Path) -> tuple[Path, str]:
    """Write an input of one document, train the tokenizer on the others, and return the files of both."""
    one = folder / "one.jsonl"
    one.write_text(json.dumps({"id": "1", "text": ENGLISH}), encoding="utf-8")
    run([*command(ROOT, options, f"train:{options.vocab_size}", folder / "first"), *options.inputs])
    return one, str(folder / "first/tokenizer.json")


def compare_builds(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return comparisons of the build of a commit with that of the present tree, which take turns."""
    one, tokenizer = prepare(options, folder)
    with worktree(options.against) as before:
        trees = {before: folder / "before", ROOT: folder / "now"}
        for tree, output in trees.items():  # not counted: the first run compiles
            run([*command(tree, options, tokenizer, output), *options.inputs], env=environment(tree))
        shards = [shard_hashes(output) for output in trees.values()]
        rounds = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            found = [measure_build(tree, options, tokenizer, output, one) for tree, output in trees.items()]
            rounds.append((found[0], found[1]))
    units = {name: "s" for pair in rounds for found in pair for name in found}
    comparisons = compare(rounds, units)
    return {"against": options.against, "comparisons": comparisons, "same_shards": shards[0] == shards[1]}


def measure_build(tree: Path, options: argparse.Namespace, tokenizer: str, output: Path, one: Path) -> dict[str, float]:
    """Return the seconds of a build, of the clock and of the CPU, with start-up and without, and of its stages."""
    script = command(tree, options, tokenizer, output)
    start_wall, start_cpu = run([*script, str(one)], env=environment(tree))
    wall, cpu = run([*script, *options.inputs], env=environment(tree))
    stages = json.loads((output / "run.json").read_text(encoding="utf-8")).get("seconds", {})
    found = {"build, CPU": cpu, "build": wall, "start-up, CPU": start_cpu, "start-up": start_wall}
    found |= {"without start-up, CPU": cpu - start_cpu, "without start-up": wall - start_wall}
    return found | {f"stage {name}": seconds for name, seconds in stages.items()}


def shard_hashes(dataset: Path) -> list[str]:
    splits = Manifest.read(dataset).splits.values()
    return [info.sha256 for split in splits for info in split.shards]


def run(command: Sequence[str], **options: Any) -> tuple[float, float]:
    """Run a command; return the seconds it took, and the CPU seconds of it and its children."""
    before, started = cpu_seconds(own=False), time.perf_counter()
    done = subprocess.run(command, text=True, **options)
    if done.returncode:
        sys.exit(f"{command[1]} failed: {(done.stderr or '')[-2000:]}")
    return time.perf_counter() - started, cpu_seconds(own=False) - before


def report(rounds: list[Round], options: argparse.Namespace, counts: Any, peak: float) -> list[str]:
    documents, characters = counts["read"], counts["characters"]

    def line(what: str, unit: str, value: Callable[[Round], float]) -> str:
        values = [value(each) for each in rounds]
        spread = f"{min(values):,.{unit.count('0')}f} to {max(values):,.{unit.count('0')}f}"
        return f"{statistics.median(values):12,.{unit.count('0')}f}  {what}  ({spread})"

    least = {id(each): sum(each.alone.values()) for each in rounds}
    alone = "the CPU of reading + language identification + encoding alone"
    lines = [
        line(f"x {alone}, start-up left out", "00", lambda r: (r.cpu - r.start_cpu) / least[id(r)]),
        line("x the same, with start-up", "00", lambda r: r.cpu / least[id(r)]),
    ]
    if options.datatrove:
        peer = "datatrove's rate under the same rules"
        millions = characters / 1e6
        lines += [
            line(
                f"x {peer}, per CPU second, start-ups left out",
                "0",
                lambda r: millions * r.peer_cpu / (r.cpu - r.start_cpu),
            ),
            line("x the same, our start-up counted", "0", lambda r: millions * r.peer_cpu / r.cpu),
            line(
                f"x {peer}, per second, start-ups left out",
                "0",
                lambda r: millions * r.peer_wall / (r.wall - r.start_wall),
            ),
            line("x the same, our start-up counted", "0", lambda r: millions * r.peer_wall / r.wall),
            line("M characters per CPU second by datatrove", "000", lambda r: 1 / r.peer_cpu),
        ]
    lines += [
        line(f"documents/s, whole process, {options.workers} workers", "", lambda r: documents / r.wall),
        line("M characters/s", "00", lambda r: characters / r.wall / 1e6),
        line("CPU seconds", "00", lambda r: r.cpu),
        line("CPU seconds of these to start", "00", lambda r: r.start_cpu),
        line("seconds", "00", lambda r: r.wall),
        line("seconds of these to start", "00", lambda r: r.start_wall),
        f"{peak:12,.0f}  MB at most in one process",
    ]
    for name in rounds[0].alone:
        lines.append(line(f"CPU seconds: {name} alone", "00", lambda r, name=name: r.alone[name]))  # type: ignore[misc]
    for name in rounds[0].stages:
        lines.append(line(f"seconds: stage {name}", "00", lambda r, name=name: r.stages[name]))  # type: ignore[misc]
    return lines


class Ingredients:
    """The steps that no build can leave out."""

    def __init__(self, inputs: list[str], dataset: Path) -> None:
        self._inputs = inputs
        self._identifier, self._encoder = LanguageIdentifier(), load_tokenizer(str(dataset / "tokenizer.json"))
        self._kept = list(kept_texts(dataset, self._encoder))
        self.texts = list(read_texts(inputs))
        self._identifier.identify("to load the model")

    def measure(self) -> dict[str, float]:
        """Return the CPU seconds of each, one process."""
        marks = [time.process_time()]
        held = list(read_texts(self._inputs))
        marks.append(time.process_time())
        for text in held:
            self._identifier.identify(text)
        marks.append(time.process_time())
        for k in range(0, len(self._kept), 512):
            self._encoder.encode_batch(self._kept[k : k + 512])
        marks.append(time.process_time())
        names = ("reading", "languages", "encoding")
        return {name: marks[k + 1] - marks[k] for k, name in enumerate(names)}


def read_texts(inputs: list[str]) -> Iterator[str]:
    return (document.text for document in read_inputs(inputs))


def kept_texts(dataset: Path, encoder: Tokenizer) -> Iterator[str]:
    for split in Manifest.read(dataset).splits.values():
        for info in split.shards:
            shard = Shard(dataset / info.name, info)
            yield from (encoder.decode(shard.document(j)[:-1].tolist()) for j in range(len(shard)))


class Datatrove:
    """Its local executor on every n-th document, and on next to nothing: the difference is its rate without start-up."""

    def __init__(self, options: argparse.Namespace, folder: Path, texts: list[str]) -> None:
        self._options, self._folder, self._runs = options, folder, 0
        sample = texts[:: max(1, len(texts) // options.sample)]
        self._characters = sum(map(len, sample))
        for name, held in (("sample", sample), ("start", [ENGLISH] * options.workers)):
            (folder / name).mkdir()
            for k in range(options.workers):
                lines = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(held[k :: options.workers])]
                (folder / name / f"{k}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        (folder / "peer.py").write_text(PEER, encoding="utf-8")
        self._run("start")  # it copies its model to its cache

    def measure(self) -> tuple[float, float]:
        """Return the seconds, and the CPU seconds, that a million characters take."""
        start, sample = self._run("start"), self._run("sample")
        return tuple((b - a) / self._characters * 1e6 for a, b in zip(start, sample, strict=True))  # type: ignore[return-value]

    def _run(self, name: str) -> tuple[float, float]:
        self._runs += 1
        out = str(self._folder / f"out{self._runs}")
        command = [self._options.datatrove, str(self._folder / "peer.py"), str(self._folder / name), out]
        command += [str(self._options.workers), LANGUAGE, f"file://{bundled_model()}"]
        environment = {"HF_HOME": str(self._folder / "cache"), "PATH": "/usr/bin:/bin"}
        return run(command, capture_output=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
