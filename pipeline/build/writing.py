"""Token counts -> a layout of shards -> the write unit: one shard, whole or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from ..shards.manifest import ShardInfo
from ..shards.writer import write_shard
from .plan import load_plan
from .tokenizing import load_build_tokenizer, read_column, survivors, tokens_path, unit_slice

TOKENS_PER_SHARD = 64_000_000  # 128 MB of uint16: large enough for object stores, small enough to shuffle by
SHARDS_WANTED = 16  # a smaller dataset is still cut into so many, to shuffle well, while they hold this many documents:
DOCUMENTS_PER_SHARD = 1_000


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to write: survivors ``[first, last)`` of its split, counted in input order."""

    split: str
    number: int
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:06d}.tar"


def split_of(hashes: NDArray[np.uint8], val_fraction: float) -> NDArray[np.bool_]:
    """Return which documents belong to validation: those whose content's hash falls below the fraction.

    ``hashes``: uint8 ``[n, 16]``. The order of the input and what else it holds do not matter.
    """
    return hashes[:, :8].copy().view("<u8")[:, 0] < np.uint64(min(val_fraction * 2.0**64, 2.0**64 - 2048))


def lay_out(lengths: NDArray[np.int64], split: str, tokens_per_shard: int | None) -> list[ShardPlan]:
    """Cut the documents of a split into shards of balanced token counts, so that there is no runt.

    >>> [(s.first, s.last) for s in lay_out(np.full(10, 100), "train", 300)]
    [(0, 3), (3, 6), (6, 10)]
    """
    documents, tokens = len(lengths), int(lengths.sum())
    if documents == 0:
        return []
    wanted = max(1, round(tokens / (tokens_per_shard or TOKENS_PER_SHARD)))
    if tokens_per_shard is None:
        wanted = max(wanted, min(SHARDS_WANTED, documents // DOCUMENTS_PER_SHARD))
    ends = np.cumsum(lengths)
    targets = [tokens * k // wanted for k in range(1, wanted)]
    cuts = [0, *np.searchsorted(ends, targets, side="right").tolist(), documents]
    bounds = sorted(set(cuts))  # documents longer than a shard leave none between two cuts
    return [ShardPlan(split, k, a, b) for k, (a, b) in enumerate(itertools.pairwise(bounds))]


def write_unit(work: Path, output: Path, units: int, shard: ShardPlan) -> ShardInfo:
    """Write one shard and, beside the work, its entry for the manifest."""
    recipe = load_plan(work).recipe
    parts, table, keys = [], _Table(), []
    lengths: list[NDArray[np.int64]] = []
    dtype = load_build_tokenizer(work).dtype
    for unit, chosen, ordinals in _members(work, units, shard):
        sizes = np.load(tokens_path(work, unit) / "lengths.npy")
        tokens = np.fromfile(tokens_path(work, unit) / "tokens.bin", dtype=dtype)
        parts.append(tokens[np.repeat(chosen, sizes)])
        lengths.append(sizes[chosen])
        keys += [f"{ordinal:012d}" for ordinal in ordinals.tolist()]
        table.extend(work, unit, chosen)
    info = write_shard(
        output / shard.name,
        tokens=np.concatenate(parts).astype(dtype, copy=False),
        lengths=np.concatenate(lengths),
        keys=keys,
        table=table.columns,
        tokens_per_sample=recipe.tokens_per_sample,
    )
    write_json(work / "shards" / f"{shard.name}.json", {name: getattr(info, name) for name in info.__slots__})
    return info


def _members(work: Path, units: int, shard: ShardPlan) -> Iterable[tuple[int, NDArray[np.bool_], NDArray[np.int64]]]:
    """Yield, for each unit with documents of this shard, which of its survivors they are, and their ordinals."""
    in_val = np.load(work / "dedup" / "in_val.npy", mmap_mode="r")
    seen = kept_before = 0
    for unit in range(units):
        kept = survivors(work, unit)
        mine = np.asarray(in_val[unit_slice(work, unit)][kept]) == (shard.split == "val")
        count = int(mine.sum())
        if count and seen < shard.last and seen + count > shard.first:
            places = seen + np.cumsum(mine) - 1
            chosen = mine & (places >= shard.first) & (places < shard.last)
            yield unit, chosen, kept_before + np.flatnonzero(chosen)
        seen += count
        kept_before += len(mine)


class _Table:
    """Columns of provenance, gathered unit by unit."""

    def __init__(self) -> None:
        names = ("id", "file", "line", "source", "language", "score", "hash", "cluster_size")
        self.columns: dict[str, list[Any]] = {name: [] for name in names}

    def extend(self, work: Path, unit: int, chosen: NDArray[np.bool_]) -> None:
        from ..text.documents import made_id

        plan = load_plan(work)
        rows = np.flatnonzero(survivors(work, unit))[chosen]
        everywhere = rows + unit_slice(work, unit).start
        batches = [batch.to_pydict() for batch in read_column(work, unit, "id", "span", "line", "language", "score")]
        values = {name: [v for batch in batches for v in batch[name]] for name in (batches[0] if batches else {})}
        first_lines = np.load(work / "dedup" / "first_lines.npy", allow_pickle=False)
        spans = plan.units[unit]
        offset = sum(len(each) for each in plan.units[:unit])
        hashes = np.load(work / "dedup" / "hashes.npy", mmap_mode="r")[everywhere]
        sizes = np.load(work / "dedup" / "cluster_size.npy", mmap_mode="r")[everywhere]
        add = self.columns
        for row, digest, size in zip(rows.tolist(), hashes, sizes.tolist(), strict=True):
            item = plan.inputs[spans[values["span"][row]].input]
            line = values["line"][row] + int(first_lines[offset + values["span"][row]])
            add["id"].append(values["id"][row] or made_id(item.name, line))
            add["file"].append(item.name)
            add["line"].append(line)
            add["source"].append(item.source)
            add["language"].append(values["language"][row])
            add["score"].append(round(values["score"][row], 4))
            add["hash"].append(bytes(digest).hex())
            add["cluster_size"].append(size)


def shard_written(work: Path, output: Path, shard: ShardPlan) -> ShardInfo | None:
    """Return the entry of a shard that is there already, or None."""
    import json

    note = work / "shards" / f"{shard.name}.json"
    if not note.exists() or not (output / shard.name).exists():
        return None
    return ShardInfo(**json.loads(note.read_text(encoding="utf-8")))
