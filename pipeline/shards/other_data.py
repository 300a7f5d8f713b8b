"""What a file or folder holds in place of shards, and the call that reads it, for errors."""

from __future__ import annotations

import os
import re

from ..paths import is_hidden, natural_key, shortened

_AT, _MAGIC = 257, b"ustar"  # where a tar says that it is one
_TEXT = re.compile(r"\.(jsonl|ndjson|json|csv|tsv|txt|parquet|arrow|warc|wet)(\.(gz|zst|bz2|xz))?$", re.IGNORECASE)
_INDEX = "index.json"  # of other tools
_NO_TEXT = (_INDEX, "manifest.json", "tokenizer.json")
_PATTERN = re.compile(r"[*?\[{]")
_COLUMNS = re.compile(r"\.(parquet|arrow)$", re.IGNORECASE)
_OTHER_TOOL = "read it by that package, and give its rows of ids to pipeline.write_shards (docs/migrate.md)"


def other_file(path: str) -> str:
    """Return what a file holds and how to read it; '' for a tar, and for an unknown kind. The file may be missing or remote.

    >>> other_file("a/train.npy")
    "an array of token ids, not a shard; open it by pipeline.open_dataset('a/train.npy'), or give a memory map of it to \
pipeline.ShardDataset.from_tokens"
    >>> other_file("a/train-000000.tar")
    ''
    """
    folder, name = os.path.split(path)
    stem, ending = os.path.splitext(name)
    ending = ending.lower()
    if _is_tar(path):
        return ""
    if ending == ".mds":
        return f"a file of MosaicML Streaming; {_OTHER_TOOL}"
    if ending == ".bin" and os.path.exists(os.path.join(folder, _INDEX)):
        return f"a file of litdata; {_OTHER_TOOL}"
    if ending == ".idx" or (ending == ".bin" and os.path.exists(os.path.join(folder, f"{stem}.idx"))):
        ids = os.path.join(folder, f"{stem}.bin")
        return f"a file of Megatron; make shards of the pair: shardwright import {ids} --output shards"
    if ending in (".bin", ".npy") and _PATTERN.search(path):
        return f"arrays of token ids, not shards; make shards of them: shardwright import {path} --output shards"
    if ending in (".bin", ".npy"):
        dtype = ", dtype='uint16'" if ending == ".bin" else ""
        return (
            f"an array of token ids, not a shard; open it by pipeline.open_dataset({path!r}{dtype}), or give a memory map of it "
            "to pipeline.ShardDataset.from_tokens"
        )
    if is_text(name):
        ids = "; if a column holds token ids: shardwright import" if _COLUMNS.search(name) else ""
        return (
            "this is text, not a shard of tokens; stream it with pipeline.TextDataset, or make shards of it: shardwright build"
            f"{ids}"
        )
    return f"a file beside shards; give its directory, {folder or '.'}" if name in _NO_TEXT else ""


def is_text(path: str) -> bool:
    """Whether the name of a file is that of text."""
    return bool(_TEXT.search(path)) and os.path.basename(path) not in _NO_TEXT


def other_folder(folder: str, manifest: str) -> str:
    """Return what a folder without a file named ``manifest`` holds, and how to read it; '' if that is unknown."""
    try:
        names = sorted((name for name in os.listdir(folder) if not is_hidden(name)), key=natural_key)
    except OSError:
        return ""
    inside = [os.path.join(folder, name) for name in names if name not in _NO_TEXT]
    if datasets := [path for path in inside if os.path.exists(os.path.join(path, manifest))]:
        found = f"{len(datasets)} datasets are" if len(datasets) > 1 else "a dataset is"
        return f"{found} inside: give {shortened(datasets, 3)}"
    kinds = [(path, kind) for path in inside if os.path.isfile(path) and (kind := other_file(path))]
    path, kind = min(kinds, key=lambda found: is_text(found[0]), default=("", ""))
    return f"it holds {os.path.basename(path)}: {kind}" if kind else ""


def _is_tar(path: str) -> bool:
    if path.endswith(".tar"):
        return True
    try:
        with open(path, "rb") as file:
            file.seek(_AT)
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False
