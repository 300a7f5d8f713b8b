"""Look into a dataset: at a glance, or at one document and where it came from.

python scripts/inspect_shards.py shards
python scripts/inspect_shards.py shards --document 12       # the 13th of the split
python scripts/inspect_shards.py shards --key 000000000040  # by its key in the tar
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.errors import ConfigError, ShardwrightError  # noqa: E402
from pipeline.shards.manifest import Manifest  # noqa: E402
from pipeline.shards.reader import Shard  # noqa: E402
from pipeline.shards.scan import scan_tar  # noqa: E402

console = Console(highlight=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", type=Path, help="directory of a dataset")
    parser.add_argument("--split", default="train", help="split to look into (default: train)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--document", type=int, help="number of a document in the split, from 0")
    which.add_argument("--key", help="key of a tar member")
    parser.add_argument("--tokens", action="store_true", help="show token ids beside the text")
    options = parser.parse_args(arguments)
    try:
        manifest = Manifest.read(options.dataset)
        if options.document is None and options.key is None:
            glance(options.dataset, manifest)
        else:
            show(options, manifest)
    except ShardwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def glance(directory: Path, manifest: Manifest) -> None:
    """Print splits, tokenizer, inputs, and what was dropped."""
    console.print(f"[bold]{directory}[/]  fingerprint {manifest.fingerprint[:16]}")
    tokenizer = manifest.tokenizer
    console.print(
        f"tokenizer {tokenizer['name']}, {tokenizer['vocab_size']:,} ids, end of text {tokenizer['eos_id']}, "
        f"stored as {manifest.token_dtype}"
    )
    table = Table("split", "documents", "tokens", "shards", "tokens/document", box=None)
    for name, split in manifest.splits.items():
        mean = split.tokens / max(1, split.documents)
        table.add_row(name, f"{split.documents:,}", f"{split.tokens:,}", f"{len(split.shards):,}", f"{mean:,.0f}")
    console.print(table)
    counts = manifest.counts
    for name in ("bad", "dropped", "duplicates"):
        for reason, number in sorted(counts.get(name, {}).items(), key=lambda item: -item[1]):
            console.print(f"{number:>12,}  {name}: {reason}", markup=False)
    for kind in ("lines", "paragraphs"):
        if number := counts.get("repeats", {}).get(kind):
            console.print(f"{number:>12,}  cut: {kind} that stood before", markup=False)
    console.print(
        f"{len(manifest.inputs):,} input files, {sum(item['bytes'] for item in manifest.inputs) / 1e6:,.1f} MB"
    )


def show(options: argparse.Namespace, manifest: Manifest) -> None:
    """Print one document: its provenance, then its text."""
    from pipeline.text.tokens import load_tokenizer

    path, shard, number = find(options, manifest)
    table: dict[str, list[Any]] = shard.table()
    tokens = shard.document(number)
    console.print(f"{path.name}, document {number} of {len(shard)}, {len(tokens):,} tokens", style="bold")
    for name, column in table.items():
        console.print(f"{name:>14}: {column[number]}", markup=False)
    if options.tokens:
        console.print(tokens.tolist())
    tokenizer = load_tokenizer(str(options.dataset))
    console.print(tokenizer.decode(tokens.tolist()), markup=False)


def find(options: argparse.Namespace, manifest: Manifest) -> tuple[Path, Shard, int]:
    """Return the shard that holds the document asked for, and its number there."""
    split = manifest.split(options.split)
    before = 0
    for info in split.shards:
        path = options.dataset / info.name
        if options.key is not None:
            starts = [m.data for m in scan_tar(path) if m.name == f"{options.key}.npy"]
            if starts:
                shard = Shard(path, info)
                begins = shard.starts * shard.dtype.itemsize
                return path, shard, int((begins < starts[0]).sum())
        elif before <= options.document < before + info.documents:
            return path, Shard(path, info), options.document - before
        before += info.documents
    asked = f"key {options.key!r}" if options.key is not None else f"document {options.document}"
    raise ConfigError(f"no {asked} in split {options.split!r} of {before:,} documents; keys look like 000000000040")


if __name__ == "__main__":
    sys.exit(main())
