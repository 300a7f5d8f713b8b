"""A dataset of version 1, and its table of extents as tests load, compare and edit it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.shards.extents.file import EXTENTS_NAME, decode_table
from pipeline.shards.extents.indexing import write_table
from pipeline.shards.extents.loading import Limits, load_extent_table
from pipeline.shards.extents.table import CHECKSUMS, COUNTS, PER_SHARD, ExtentTable
from pipeline.shards.manifest import Manifest, Split
from pipeline.shards.remote.store import Store
from pipeline.shards.remote.transport import Access
from pipeline.shards.resolve import resolve
from tests.shard_samples import EOS, make_documents, write_documents

QUICK = Access(tries=3, first_delay=0.001, timeout=10, least_patience=10)


def write_without_table(folder: Path) -> Path:
    """Write a dataset of version 1: two splits, an empty shard, shards of one extent and of several, grouped members."""
    folder.mkdir()
    long = {"longest": 30_000}
    infos = {
        "train": (
            write_documents(folder / "train-000000.tar", make_documents(40, seed=0, **long), 0),
            write_documents(folder / "train-000001.tar", [], 40),
            write_documents(
                folder / "train-000002.tar", make_documents(30, seed=1, **long), 40, tokens_per_sample=60_000
            ),
        ),
        "a-val": (write_documents(folder / "val-000000.tar", make_documents(25, seed=2, longest=9), 90),),
    }
    tokenizer = {"name": "test", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": EOS, "bos_id": None}
    Manifest("<u2", tokenizer, {name: Split(shards) for name, shards in infos.items()}).write(folder)
    return folder


def load(source: Any, cache: Path, split: str | None = "train") -> ExtentTable:
    store = Store(cache, access=QUICK)
    return load_extent_table(resolve(source, split, store), store, Limits(keep_bytes=0))


def columns(table: ExtentTable, *without: str) -> dict[str, Any]:
    names = [name for name in (*PER_SHARD, *COUNTS, *CHECKSUMS) if name not in without]
    return {name: getattr(table, name).tolist() for name in names}


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "extents").glob("*.bin"))


def edit_table(folder: Path, column: str, at: int, value: int) -> None:
    """Change one value of a dataset's table, and every hash that covers it."""
    table = decode_table((folder / EXTENTS_NAME).read_bytes())
    changed = getattr(table, column).copy()
    changed[at] = value
    manifest = Manifest.read(folder)
    replace(manifest, extents=write_table(folder, [replace(table, **{column: changed})], "<u2")).write(folder)
