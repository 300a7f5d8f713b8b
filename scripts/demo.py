"""The whole line on text that every Python installation carries: build, verify, stream, stop, resume elsewhere.

    python scripts/demo.py [DIRECTORY]

The text: docstrings and comments of the standard library, and the licences, READMEs and metadata of the installed
packages, which hold natural duplicates. Nothing is downloaded. DIRECTORY (default: demo) is made again each time.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import shutil
import subprocess
import sys
import sysconfig
import time
import tokenize
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import zstandard
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SEQ_LEN = 512
BATCH = 8
WORLD_SIZE = 3  # of the resumed run; the first one is alone
TEXT_FILES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS", "README", "METADATA", "CHANGELOG")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=Path("demo"), help="where to work (default: demo)")
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)  # how the fresh process is started
    options = parser.parse_args(arguments)
    if options.resume:
        print(json.dumps(resumed_digests(options.directory / "shards", json.loads(options.resume.read_text()))))
        return 0

    others = sorted({path.name for path in options.directory.glob("*")} - {"raw", "shards", "state.json"})
    if others or options.directory.is_file():
        parser.error(
            f"{options.directory} holds {', '.join(others[:5]) or 'a file'}: give a new directory, or a demo's own"
        )
    console = Console(highlight=False)
    shutil.rmtree(options.directory, ignore_errors=True)
    console.rule("[bold]1  collect")
    documents, size = write_corpus(options.directory / "raw")
    console.print(f"{documents:,} documents, {size / 1e6:.1f} MB of text from this Python installation")

    console.rule("[bold]2  build")
    shards = options.directory / "shards"
    build = ["build_shards.py", str(options.directory / "raw"), "--output", str(shards), "--tokenizer", "train:16000"]
    started = time.perf_counter()
    run_script([*build, "--rules", "gopher", "--language", "en=0.3", "--val-fraction", "0.01", "--workers", "2"])
    build_seconds = time.perf_counter() - started

    console.rule("[bold]3  verify")
    run_script(["verify_shards.py", str(shards)])

    console.rule("[bold]4  stream, stop, resume")
    report = stream_and_resume(options.directory)
    console.print(
        f"stopped rank 0 of 1 after {report['before']:,} of {report['sequences']:,} sequences "
        f"(state: {report['state_bytes']} bytes of JSON)"
    )
    console.print(f"resumed in a fresh process as {WORLD_SIZE} ranks: {report['after']:,} sequences")

    console.rule("[bold]summary")
    console.print(summary(shards, report, build_seconds))
    if not report["same"]:
        console.print("[bold red]the resumed sequences differ from the uninterrupted ones")
        return 1
    console.print("[bold green]every sequence after the resume equals the uninterrupted run's, in the same steps")
    return 0


def collect_documents() -> Iterator[dict[str, str]]:
    """Yield the documents, in an order that does not depend on the file system."""
    library = Path(sysconfig.get_path("stdlib"))
    elsewhere = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    sources = [path for path in library.rglob("*.py") if not elsewhere & set(path.relative_to(library).parts)]
    for path in sorted(sources):
        name = path.relative_to(library).as_posix()
        for number, text in enumerate(prose_of(path)):
            yield {"id": f"stdlib/{name}#{number}", "text": text}
    for distribution in sorted(metadata.distributions(), key=lambda d: d.metadata["Name"].lower()):
        for file in sorted(map(str, distribution.files or [])):
            stem = Path(file).stem.upper()
            if any(stem.startswith(name) for name in TEXT_FILES) and not file.endswith((".py", ".pyc", ".so")):
                text = read_text(Path(str(distribution.locate_file(file))))
                if text:
                    yield {"id": f"packages/{file}", "text": text}


def prose_of(path: Path) -> list[str]:
    """Return the docstrings of a module, and its comments joined, as documents."""
    source = read_text(path)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # the library's tests hold broken modules on purpose
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, nodes)]
    try:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = [token.string.lstrip("#! ") for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError):
        comments = []
    return [text for text in [*texts, "\n".join(comments)] if text]


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def write_corpus(directory: Path, files: int = 4) -> tuple[int, int]:
    """Deal the documents to ``files`` compressed JSON-lines files; return their number and bytes of text."""
    directory.mkdir(parents=True)
    lines: list[list[bytes]] = [[] for _ in range(files)]
    size = 0
    for number, document in enumerate(collect_documents()):
        lines[number % files].append(orjson.dumps(document) + b"\n")
        size += len(document["text"].encode())
    for number, part in enumerate(lines):
        (directory / f"part-{number}.jsonl.zst").write_bytes(zstandard.compress(b"".join(part), 3))
    return sum(map(len, lines)), size


def run_script(arguments: list[str]) -> None:
    """Run one of the scripts beside this one; its failure ends the demo with its exit status."""
    print("$ python scripts/" + " ".join(arguments), flush=True)
    status = subprocess.run([sys.executable, str(ROOT / "scripts" / arguments[0]), *arguments[1:]]).returncode
    if status:
        raise SystemExit(status)


def make_stream(shards: Path) -> Any:
    import pipeline

    return pipeline.ShardDataset(shards, split="train", epochs=1).shuffle(seed=0).pack(SEQ_LEN)


def digests_of(batch: dict[str, Any]) -> list[str]:
    """Return a hash of each row, but of those that only fill the last batch."""
    real = (row for row, labels in zip(batch["input_ids"], batch["labels"], strict=True) if (labels >= 0).any())
    return [hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16] for row in real]


def stream_and_resume(directory: Path) -> dict[str, Any]:
    """Stream an epoch, saving the state half-way; let a fresh process with other ranks continue; compare."""
    stream = make_stream(directory / "shards").batch(BATCH)
    digests: list[str] = []
    tokens, states = 0, []
    started = time.perf_counter()
    for batch in stream:
        digests += digests_of(batch)
        tokens += batch["input_ids"].numel()
        states.append(stream.state_dict())
    seconds = time.perf_counter() - started
    half = len(states) // 2
    state = directory / "state.json"
    state.write_text(json.dumps(states[half - 1]))

    command = [sys.executable, __file__, str(directory), "--resume", str(state)]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    before = half * BATCH
    # Ranks share out the rows of a step in an order of their own, so steps are compared as sets.
    at, same = before, True
    for step in answer["steps"]:
        same = same and step == sorted(digests[at : at + len(step)])
        at += len(step)
    return {
        "same": same and before < at == len(digests),
        "before": before,
        "after": at - before,
        "sequences": len(digests),
        "tokens_per_second": tokens / seconds,
        "resume_seconds": answer["seconds"],
        "state_bytes": state.stat().st_size,
    }


def resumed_digests(shards: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Go on from ``state`` as ``WORLD_SIZE`` ranks; return the digests of each step and seconds to the first batch."""
    ranks = []
    make_stream(shards)  # imports are no part of the time below
    started = time.perf_counter()
    for rank in range(WORLD_SIZE):
        stream = make_stream(shards).shard(rank, WORLD_SIZE).batch(BATCH)
        stream.load_state_dict(state)
        ranks.append(iter(stream))
    first = [next(rank) for rank in ranks]
    seconds = (time.perf_counter() - started) / WORLD_SIZE
    steps = [first, *zip(*ranks, strict=True)]
    return {"seconds": seconds, "steps": [sorted(row for batch in step for row in digests_of(batch)) for step in steps]}


def summary(shards: Path, report: dict[str, Any], build_seconds: float) -> Table:
    """Return the table a reader ends on."""
    manifest = json.loads((shards / "manifest.json").read_text())
    counts = manifest["counts"]
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    kept = sum(split["documents"] for split in manifest["splits"].values())
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    table.add_row(f"{counts['read']:,}", "documents read")
    for reason, number in sorted(counts["dropped"].items(), key=lambda item: -item[1]):
        table.add_row(f"-{number:,}", f"dropped: {reason}")
    for kind, number in counts["duplicates"].items():
        table.add_row(f"-{number:,}", f"duplicates: {kind}")
    names = ", ".join(f"{split['documents']:,} {name}" for name, split in manifest["splits"].items())
    table.add_row(f"{kept:,}", f"documents kept ({names})")
    table.add_row(f"{tokens:,}", f"tokens, built in {build_seconds:.1f} s")
    table.add_row(f"{report['tokens_per_second'] / 1e6:,.1f} M", "tokens/s streamed, shuffled and packed, hashing each")
    table.add_row(f"{report['resume_seconds'] * 1e3:.0f} ms", "from a saved state to the next batch, per rank")
    return table


if __name__ == "__main__":
    sys.exit(main())
