"""Compare builds of more and more documents: what one costs, and how memory grows with their number. Linux only.

    python scripts/bench_growth.py corpus/*.jsonl.zst --scales 1,4,16     whole builds of edited copies of a corpus
    python scripts/bench_growth.py --synthetic 1000000,10000000           dedup alone, of made-up documents

Every copy has the duplicates that the corpus has, and none in another copy. CPU is that of the stages and of all processes,
without the start; memory is that of all processes at one moment.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.bench import synthetic  # noqa: E402
from scripts.bench.data import read_inputs  # noqa: E402
from scripts.bench.growth import Growth, Peak, edit, watch  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="raw text, as for build_shards.py")
    parser.add_argument("--scales", default="1,4,16", metavar="N,N", help="copies to build from (default: 1,4,16)")
    parser.add_argument("--synthetic", metavar="N,N", help="measure dedup alone, on so many made-up documents")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--tokenizer", default="bytes", help="as for build_shards.py (default: bytes)")
    parser.add_argument("--rules", default="gopher", help="as for build_shards.py (default: gopher)")
    options = parser.parse_args(arguments)
    if options.synthetic:
        synthetic.measure(numbers(options.synthetic), options.workers)
        return 0
    if not options.inputs:
        parser.error("give inputs, or --synthetic")
    settings = ["--workers", str(options.workers), "--tokenizer", options.tokenizer, "--rules", options.rules]
    scales, growth = numbers(options.scales), Growth()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"{number:03d}.jsonl" for number in range(max(scales))]
        build([write_copy(options.inputs, 0, folder / "first.jsonl", 1)], folder / "warm", settings)  # compiles
        start = build([folder / "first.jsonl"], folder / "start", settings)[0]
        print(f"{start.cpu:12.1f}  seconds of CPU to start, {start.own / 1e6:,.0f} MB; the CPU is left out below")
        for number, file in enumerate(files):
            write_copy(options.inputs, number, file)
            if number + 1 in scales:
                peak, counts = build(files[: number + 1], folder / "out", settings)
                growth.show(counts["read"], counts["kept"], peak._replace(cpu=peak.cpu - start.cpu))
    return 0


def numbers(text: str) -> list[int]:
    """Return the numbers of a list as ``1,4,16``."""
    return sorted(map(int, text.split(",")))


def write_copy(inputs: Sequence[str], number: int, path: Path, most: int | None = None) -> Path:
    """Write an edited copy of the corpus, or of its first documents."""
    edited = edit(number)
    with open(path, "wb") as out:
        for document in itertools.islice(read_inputs(inputs), most):
            line = {"id": f"{number}-{document.id}", "text": edited(document.text)}
            out.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    return path


def build(files: Sequence[Path], output: Path, settings: Sequence[str]) -> tuple[Peak, dict[str, Any]]:
    """Build in processes of its own; return what that took and the counts."""
    script = str(ROOT / "scripts" / "build_shards.py")
    peak = watch([sys.executable, script, *map(str, files), "--output", str(output), "--quiet", *settings])
    counts = json.loads((output / "manifest.json").read_text(encoding="utf-8"))["counts"]
    shutil.rmtree(output)
    return peak, counts


if __name__ == "__main__":
    sys.exit(main())
