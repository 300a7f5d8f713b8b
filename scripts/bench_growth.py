"""Compare builds of more and more documents: the cost of a document, and the growth of memory. Linux only.

    python scripts/bench_growth.py corpus/*.jsonl.zst --scales 1,4,16     whole builds of edited copies of a corpus
    python scripts/bench_growth.py corpus/*.jsonl.zst --tokens 1e8,1e9     the same by tokens in the dataset, stage by stage
    python scripts/bench_growth.py --synthetic 1000000,10000000           dedup alone, of made-up documents

Every copy has the duplicates of the corpus, but no duplicates in other copies. CPU is the time of all processes, without the
start of a build. Memory is the peak of all processes, without bytes that the kernel can drop.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.bench import synthetic, tokens
from scripts.bench.data import read_inputs
from scripts.bench.process import Peak, watch
from scripts.bench.report import table

BUILD = str(Path(__file__).resolve().with_name("build_shards.py"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="raw text, as for build_shards.py")
    parser.add_argument("--scales", default="1,4,16", metavar="N,N", help="copies to build from (default: 1,4,16)")
    parser.add_argument("--synthetic", metavar="N,N", help="measure only dedup, on N made-up documents")
    parser.add_argument("--tokens", metavar="N,N", help="build datasets of N tokens, such as 1e7,1e8,1e9")
    parser.add_argument(
        "--kills", type=int, default=0, help="with --tokens: kill the largest build N times, and compare its bytes"
    )
    parser.add_argument(
        "--folder", type=Path, help="with --tokens: folder for work and copies, which stay (default: a temporary one)"
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--rules", default="gopher", help="as for build_shards.py (default: gopher)")
    parser.add_argument("--dedup-passages", metavar="N", help="as for build_shards.py (default: none)")
    options = parser.parse_args(arguments)
    if not options.synthetic and not options.inputs:
        parser.error("give inputs, or --synthetic")
    if options.tokens:
        with tempfile.TemporaryDirectory() as folder:
            measure_tokens(options, options.folder or Path(folder))
        return 0
    sizes = sorted(map(int, (options.synthetic or options.scales).split(",")))
    measured = synthetic.measure(sizes, options.workers) if options.synthetic else measure_builds(sizes, options)
    rows = [
        (f"{documents:,}", f"{kept / documents:.1%}", f"{peak.cpu / documents * 1e6:.1f}", f"{peak.memory / 1e6:,.0f}")
        for documents, kept, peak in measured
    ]
    table("Growth", ("documents", "stay", "CPU a document, µs", "memory, MB"), rows)
    return 0


def common_settings(options: argparse.Namespace) -> list[str]:
    passages = ["--dedup-passages", options.dedup_passages] if options.dedup_passages else []
    return ["--workers", str(options.workers), "--rules", options.rules, *passages]


def measure_builds(scales: Sequence[int], options: argparse.Namespace) -> Iterator[tuple[int, int, Peak]]:
    """Build from copies of the corpus; yield the documents read, the documents kept, and the time and memory."""
    settings = [*common_settings(options), "--tokenizer", "bytes"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = folder / "first.jsonl"
        first.write_bytes(orjson.dumps({"text": next(read_inputs(options.inputs)).text}))
        for _ in range(2):  # the first run compiles
            start = build([first], folder / "start", settings)[0]
        files: list[Path] = []
        for number in range(max(scales)):
            files.append(write_copy(options.inputs, number, folder / f"{number:03d}.jsonl"))
            if len(files) in scales:
                peak, counts = build(files, folder / "out", settings)
                yield counts["read"], counts["kept"], peak._replace(cpu=peak.cpu - start.cpu)


def measure_tokens(options: argparse.Namespace, folder: Path) -> None:
    """Build datasets of the numbers of tokens in ``--tokens``, with a tokenizer that is first trained on the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = common_settings(options)

    def copies(count: int) -> list[Path]:
        paths = [folder / f"{number:04d}.jsonl.zst" for number in range(count)]
        with ProcessPoolExecutor(options.workers) as pool:
            list(pool.map(partial(write_copy, options.inputs), range(count), paths))
        return paths

    manifest = folder / "first/manifest.json"
    if not manifest.exists():
        build(copies(2), manifest.parent, [*settings, "--tokenizer", "train:32000"], keep=True)
    splits = json.loads(manifest.read_text(encoding="utf-8"))["splits"].values()
    per_copy = sum(split["tokens"] for split in splits) // 2
    settings += ["--tokenizer", str(manifest.with_name("tokenizer.json"))]
    tokens.measure(
        sorted(int(float(size)) for size in options.tokens.split(",")), copies, per_copy, options.kills, settings
    )


def write_copy(inputs: Sequence[str], number: int, path: Path) -> Path:
    """Write a copy of the corpus unless it exists."""
    if path.exists():
        return path
    edited, partial_path = edit(number), path.with_suffix(".part")
    compressed = zstandard.ZstdCompressor(level=1).stream_writer if path.suffix == ".zst" else nullcontext
    with open(partial_path, "wb") as file, compressed(file) as out:
        for document in read_inputs(inputs):
            line = {"id": f"{number}-{document.id}", "text": edited(document.text)}
            out.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    return partial_path.rename(path)


def edit(number: int) -> Callable[[str], str]:
    """Return the function that edits texts for a copy of the corpus: it doubles about every fourth word.

    The words and the number alone decide which are doubled. So duplicates in the corpus are duplicates in the copy, and no
    text is a near duplicate of itself in another copy. Copy 0 is the corpus.
    """
    if number == 0:
        return lambda text: text
    generator = random.Random(number)
    twice = [generator.random() < 0.25 for _ in range(1024)]

    def edited(text: str) -> str:
        kinds = ((word, (31 * ord(word[0]) + 7 * ord(word[-1]) + len(word)) % 1024) for word in text.split())
        return " ".join(f"{word} {word}" if twice[kind] else word for word, kind in kinds)

    return edited


def build(
    files: Sequence[Path], output: Path, settings: Sequence[str], *, keep: bool = False
) -> tuple[Peak, dict[str, Any]]:
    """Build in a new process; return its time and memory, and the counts."""
    peak = watch([sys.executable, BUILD, *map(str, files), "--output", str(output), "--quiet", *settings])
    counts = json.loads((output / "manifest.json").read_text(encoding="utf-8"))["counts"]
    if not keep:
        shutil.rmtree(output)
    return peak, counts


if __name__ == "__main__":
    sys.exit(main())
