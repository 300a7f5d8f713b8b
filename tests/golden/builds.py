"""Ten builds, and the digests of the shards that they write: what any change of the builder must keep."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline
from pipeline.progress import Progress
from tests.helpers.builds import write_jsonl
from tests.helpers.corpus import english, write_inputs

SETTINGS: dict[str, Any] = {
    "tokenizer": "bytes",
    "rules": "gopher,fineweb,c4",
    "transforms": "normalize,clean,rules",  # without languages, whose scores may differ in a last bit between machines
    "val_fraction": 0.1,
    "tokens_per_shard": 20_000,
    "seed": 3,
}

FORMATS = {
    "jsonl": "a.jsonl",
    "gz": "b.jsonl.gz",
    "zst": "c.jsonl.zst",
    "parquet": "d.parquet",
    "csv": "e.csv",
    "txt": "f.txt",
}

Build = Callable[[Path, Path], pipeline.Manifest]


def run(inputs: Any, output: Path, **settings: Any) -> pipeline.Manifest:
    return pipeline.build(inputs, output, workers=1, progress=Progress(quiet=True), **{**SETTINGS, **settings})


def of_format(name: str) -> Build:
    return lambda folder, output: run(folder / FORMATS[name], output)


def beside_an_earlier_dataset(folder: Path, output: Path) -> pipeline.Manifest:
    earlier = output.with_name("earlier")
    if not earlier.exists():
        run([folder / "a.jsonl", folder / "b.jsonl.gz"], earlier)
    return run(folder, output, against=str(earlier), limit=450)


def with_repeated_passages(_: Path, output: Path) -> pipeline.Manifest:
    texts = [f"{english(k, 12)} {k}. {english(k // 5 + 900, 3)} {k}: {english(k, 2)}" for k in range(200)]
    inputs = write_jsonl(output.with_name("passages.jsonl"), texts)
    return run(inputs, output, dedup_passages=12, words_left=20)


BUILDS: dict[str, Build] = {
    **{name: of_format(name) for name in FORMATS},
    "line dedup": lambda folder, output: run(folder, output, dedup_lines=True, shortest_passage=20, words_left=20),
    "passages": with_repeated_passages,
    "quotas": lambda folder, output: run(
        [f"a={folder / 'a.jsonl'}", f"b={folder / 'b.jsonl.gz'}"], output, max_tokens="a=30000,b=20000"
    ),
    "against": beside_an_earlier_dataset,
}


def write_data(folder: Path) -> None:
    write_inputs(folder, 600)


def digest(build: Build, folder: Path, output: Path) -> str:
    """Return a hash of the shards that a build writes, with their names, and of its counts."""
    manifest = build(folder, output)
    made = hashlib.sha256(json.dumps(manifest.counts, sort_keys=True).encode())
    for path in sorted(output.glob("*.tar")):
        made.update(path.name.encode() + path.read_bytes())
    return made.hexdigest()[:32]


def write_digests(path: Path) -> None:
    """Write the digests of the builds of this checkout."""
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        write_data(folder / "in")
        digests = {name: digest(build, folder / "in", folder / name) for name, build in BUILDS.items()}
    path.write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    write_digests(Path(__file__).parent / "builds.json")
