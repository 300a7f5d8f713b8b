"""The end of a build: counts that add up, the manifest, and what outlives the work directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import write_json
from ..errors import BuildError
from ..shards.extents.file import EXTENTS_NAME, decode_table
from ..shards.extents.indexing import write_table
from ..shards.manifest import MANIFEST_NAME, Manifest, Split
from .dedup.signature_store import save_signatures
from .plan import Plan
from .report.rejected import REJECTED_NAME, take_samples
from .report.stats import Flow, by_group, sum_filter_counts
from .stages.checksums import whole_hashes
from .stages.partition import all_parts, listed, part_path, read_json
from .stages.tokenize import load_build_tokenizer
from .stages.write import extents_path

RUN_NAME = "run.json"
_PACKAGES = ("numpy", "tokenizers", "pyarrow", "numba", "orjson")


def gather_counts(work: Path, plan: Plan) -> dict[str, Any]:
    """Return the counts of all stages; ``BuildError`` unless they add up: nothing may disappear."""
    parts = range(len(all_parts(work)))
    counts, filtered = sum_filter_counts(read_json(part_path(work, part) / "counts.json") for part in parts)
    deduped, settled = read_json(work / "dedup" / "counts.json"), read_json(work / "settled" / "counts.json")
    final = Flow(settled["flow"])
    outcomes = final.by("outcome")
    if "max_tokens" in outcomes:
        counts["dropped"]["max_tokens"], counts["dropped_characters"]["max_tokens"] = outcomes["max_tokens"]
    kept = outcomes.get("kept", [0, 0])
    counts |= {
        "damaged": listed(work)["damaged"],
        "duplicates": deduped["duplicates"],
        "duplicate_characters": {kind: outcomes.get(kind, [0, 0])[1] for kind in ("exact", "near")},
        "cluster_sizes": deduped["cluster_sizes"],
        "kept": kept[0],
        "kept_characters": kept[1],
        "tokens": sum(settled["tokens_by_source"].values()),
        "token_lengths": settled["token_lengths"],
        "by_source": by_group("source", filtered, final, settled["tokens_by_source"]),
        "by_language": by_group("language", filtered, final, settled["tokens_by_language"]),
        "samples": take_samples(work, plan).shown(),
    }
    _check_sums(counts)
    return counts


def _check_sums(counts: Mapping[str, Any]) -> None:
    groups = [("", counts)] + [
        (f" of {name} {group!r}", held)
        for name in ("source", "language")
        for group, held in counts[f"by_{name}"].items()
    ]
    for of, held in groups:
        dropped, duplicates = sum(held["dropped"].values()), sum(held.get("duplicates", {}).values())
        if held["read"] != dropped + duplicates + held["kept"]:
            raise BuildError(
                f"{held['read']} documents{of} were read, but {dropped} dropped, {duplicates} duplicates and "
                f"{held['kept']} kept make {dropped + duplicates + held['kept']}: this is a fault of the builder, not of "
                "the input; please report it"
            )


def make_manifest(work: Path, output: Path, plan: Plan, counts: dict[str, Any], splits: dict[str, Split]) -> Manifest:
    """Write the table of extents, and return the manifest that names it.

    Nothing in either tells when, where, how fast or by how many workers it was made.
    """
    tokenizer = load_build_tokenizer(work)
    for name in ("documents", "tokens"):
        held, counted = sum(getattr(s, name) for s in splits.values()), counts["kept" if name == "documents" else name]
        if held != counted:
            raise BuildError(f"shards hold {held} {name}, but {counted} were counted: a fault of the builder")
    manifest = Manifest(
        dtype=np.dtype(tokenizer.dtype).str,
        tokenizer={
            "name": plan.settings["tokenizer"],
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "eos_id": tokenizer.eos_id,
            "bos_id": tokenizer.bos_id,
            "special_ids": dict(tokenizer.special_ids),
        },
        splits=splits,
        recipe={"settings": dict(plan.settings), "definitions": json.loads(json.dumps(plan.definitions))},
        inputs=_inputs(work, plan),
        counts=counts,
    )
    tables = (decode_table(extents_path(work, info.name).read_bytes(), info.name) for info in manifest.shards)
    return replace(manifest, extents=write_table(output, tables, manifest.dtype))


def _inputs(work: Path, plan: Plan) -> list[dict[str, Any]]:
    """Describe the inputs, with the sha256 of each; null for one that was not read to its end."""
    return [
        {"name": item.name, "source": item.source, "bytes": item.size, "ends": item.ends, "sha256": digest}
        for item, digest in zip(plan.inputs, whole_hashes(work, plan), strict=True)
    ]


def keep_signatures(work: Path, output: Path, plan: Plan) -> None:
    """Carry over signatures for later builds."""
    stays = np.load(work / "settled" / "outcome.npy", mmap_mode="r") == 0
    save_signatures(work, output, plan.recipe, stays)


def write_run(work: Path, output: Path, manifest: Manifest, seconds: dict[str, float], facts: dict[str, Any]) -> None:
    """Write what differs from run to run, and is covered by no fingerprint."""
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    rate = manifest.counts["read"] / max(1e-9, seconds["total"])
    value = {
        "seconds": rounded,
        "documents_per_second": round(rate, 1),
        "encoder": load_build_tokenizer(work).encoder,
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in _PACKAGES},
        **facts,
    }
    write_json(output / RUN_NAME, value)


def result_files(output: Path) -> Iterator[Path]:
    """Yield the files that a build leaves in its directory, the manifest first."""
    yield from (
        path for name in (MANIFEST_NAME, EXTENTS_NAME, RUN_NAME, REJECTED_NAME) if (path := output / name).exists()
    )
    for pattern in ("report.html", "tokenizer*.json", "train-[0-9]*.tar", "val-[0-9]*.tar"):
        yield from sorted(output.glob(pattern))
