"""A dataset of two splits, and its table of extents as tests load and edit it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.objects.request_options import RequestOptions
from pipeline.shards.extents.extent_table import CHECKSUMS, COUNTS, PER_SHARD, ExtentTable
from pipeline.shards.extents.table_file import decode_table, load_extent_table, write_table
from pipeline.shards.manifest import EXTENTS_NAME, Manifest
from pipeline.shards.shard_access import ShardAccess
from pipeline.shards.shard_list import resolve
from tests.helpers.shard_samples import make_documents, write_documents, write_manifest

QUICK = RequestOptions(tries=3, first_delay=0.001, timeout=10)


def write_two_splits(folder: Path) -> Path:
    """Write a dataset of two splits: an empty shard, shards of one extent and of several, grouped members."""
    folder.mkdir()
    long = {"longest": 30_000}
    grouped = {**long, "seed": 1}
    train = [
        write_documents(folder / "train-000000.tar", make_documents(40, seed=0, **long), 0),
        write_documents(folder / "train-000001.tar", [], 40),
        write_documents(folder / "train-000002.tar", make_documents(30, **grouped), 40, tokens_per_sample=60_000),
    ]
    val = [write_documents(folder / "val-000000.tar", make_documents(25, seed=2, longest=9), 90)]
    write_manifest(folder, {"train": train, "a-val": val})
    return folder


def load(source: Any, cache: Path, split: str | None = "train") -> ExtentTable:
    access = ShardAccess(cache, requests=QUICK)
    return load_extent_table(resolve(source, split, access), access)


def columns(table: ExtentTable, *without: str) -> dict[str, Any]:
    names = [name for name in (*PER_SHARD, *COUNTS, *CHECKSUMS) if name not in without]
    return {name: None if getattr(table, name) is None else getattr(table, name).tolist() for name in names}


def replace_table(folder: Path, table: ExtentTable) -> None:
    """Give a dataset another table, with the hash that covers it."""
    replace(Manifest.read(folder), extents=write_table(folder, [table], "<u2")).write(folder)


def edit_table(folder: Path, column: str, at: int, value: int) -> None:
    """Change one value of a dataset's table, and every hash that covers it."""
    table = decode_table((folder / EXTENTS_NAME).read_bytes())
    changed = getattr(table, column).copy()
    changed[at] = value
    replace_table(folder, replace(table, **{column: changed}))
