"""The end of a build: counts that add up, the manifest, and the files beside the shards."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import write_json
from ..errors import BuildError
from ..shards.extents.table_file import decode_table, write_table
from ..shards.manifest import (
    EXTENTS_NAME,
    MANIFEST_NAME,
    REDACTING_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    SIGNATURES_NAME,
    TEXTS_NAME,
    TOKENIZER_NAME,
    FileInfo,
    Manifest,
)
from ..shards.verify.balance import imbalances
from ..text.tokens.tokenizer_files import CONFIG_NAME
from ..version import PACKAGES, __version__
from .build_tokenizer import load_build_tokenizer
from .counts.attribution import ATTRIBUTION_NAME, attributed, merged
from .counts.build_stats import BuildStats
from .counts.sums import Counts
from .outcome import KEPT
from .partitions.checksums import whole_hashes
from .partitions.partition import partitions
from .report.html import write_report
from .report.rejected import take_samples, write_rejected
from .signature_store import FILES, save_signatures
from .stages.quotas import units_read
from .stages.registry import wanted_stages
from .stages.split import load_counts, load_outcome
from .stages.write import extents_path, read_entry, read_splits
from .work.workspace import Workspace

RUN_NAME = "run.json"
_BESIDE = (
    CONFIG_NAME,
    TOKENIZER_NAME,
    *(f"{SIGNATURES_NAME}/{name}" for name in FILES),
    REJECTED_NAME,
    REPORT_NAME,
    ATTRIBUTION_NAME,
)
RESULTS = (  # patterns of everything that a build or a redaction writes into a dataset's directory
    MANIFEST_NAME,
    REDACTING_NAME,
    "extents*.npz",
    "redaction-*",
    RUN_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    ATTRIBUTION_NAME,
    "tokenizer*.json",
    SIGNATURES_NAME,
    "train-[0-9]*.tar",
    "val-[0-9]*.tar",
    f"{TEXTS_NAME}/*-[0-9]*",
)


def gather_counts(workspace: Workspace) -> dict[str, Any]:
    """Return the counts of the manifest. Raises ``BuildError`` unless they add up: no document may disappear."""
    counts = Counts.sum(partition.counts for partition in partitions(workspace))
    counts.update(load_counts(workspace))
    stats, own = BuildStats.of(counts), dict[str, Any]()
    for stage in wanted_stages(workspace.plan.recipe):
        own |= stage.count(workspace, counts, stats)
    stats.samples = take_samples(workspace).shown()
    gathered = stats.to_json() | {name: count for name, count in own.items() if count}
    for imbalance in imbalances(gathered):
        raise BuildError(f"{imbalance}: this is a fault of the builder, not of the input; please report it")
    return gathered


def make_manifest(workspace: Workspace, counts: Mapping[str, Any]) -> Manifest:
    """Write the table of extents, and return the manifest that names it.

    Both are the same for any time, place, speed and number of workers.
    """
    plan, tokenizer, splits = workspace.plan, load_build_tokenizer(workspace), read_splits(workspace)
    documents = sum(split.documents for split in splits.values())
    tokens = sum(split.tokens for split in splits.values())
    if (documents, tokens) != (counts["kept"], counts["tokens"]):
        raise BuildError(
            f"shards hold {documents} documents of {tokens} tokens, but {counts['kept']} of {counts['tokens']} were counted: "
            "a fault of the builder"
        )
    dtype, hashes = np.dtype(tokenizer.dtype).str, whole_hashes(workspace, units_read(workspace))
    shards = [info.name for _, split in sorted(splits.items()) for info in split.shards]
    tables = (decode_table(extents_path(workspace, name).read_bytes(), name) for name in shards)
    return Manifest(
        dtype=dtype,
        tokenizer=tokenizer.described() | {"name": plan.settings["tokenizer"]},
        splits=splits,
        extents=write_table(workspace.output, tables, dtype),
        recipe={"settings": dict(plan.settings), "definitions": json.loads(json.dumps(plan.definitions))},
        inputs=[item.described() | {"sha256": digest} for item, digest in zip(plan.inputs, hashes, strict=True)],
        counts=dict(counts),
    )


def write_beside_shards(workspace: Workspace, manifest: Manifest) -> Manifest:
    """Write the files beside the shards, except the manifest. Return the manifest with these files."""
    recipe, output = workspace.plan.recipe, workspace.output
    load_build_tokenizer(workspace).save(output)
    if recipe.dedup and recipe.keep_signatures:
        save_signatures(workspace, lambda partition: load_outcome(partition) == KEPT)
    write_rejected(workspace)
    if attributed(recipe.keep_fields):
        counted = (read_entry(workspace, info.name)["attribution"] for info in manifest.shards)
        write_json(output / ATTRIBUTION_NAME, merged(counted))
    counts = Counts.sum(partition.counts for partition in partitions(workspace))
    write_report(output, manifest, counts.nearest)
    files = [FileInfo.of(output / name, name) for name in _BESIDE if (output / name).exists()]
    if recipe.keep_texts is not None:
        files += [FileInfo(**read_entry(workspace, info.name)["texts"]) for info in manifest.shards]
    return replace(manifest, files=tuple(files))


def write_run(
    workspace: Workspace, manifest: Manifest, seconds: Mapping[str, float], facts: Mapping[str, object]
) -> None:
    """Write run.json, the facts that differ from run to run and that no fingerprint covers: the date, versions, times."""
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    rate = manifest.counts["read"] / max(1e-9, seconds["total"])
    value = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "shardwright": __version__,
        "seconds": rounded,
        "documents_per_second": round(rate, 1),
        "encoder": load_build_tokenizer(workspace).encoder,
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in PACKAGES},
        **facts,
    }
    write_json(workspace.output / RUN_NAME, value)


def publish(workspace: Workspace, manifest: Manifest) -> None:
    """Write the manifest, last of all. To a bucket, the files beside the shards are uploaded before it."""
    if workspace.bucket is None:
        manifest.write(workspace.output)
    else:
        workspace.bucket.publish(workspace.output, workspace.root, (*_BESIDE, EXTENTS_NAME, RUN_NAME), manifest)


def result_files(output: Path) -> Iterator[Path]:
    """Yield the files that a build has written to its directory, the manifest first."""
    for pattern in RESULTS:
        yield from sorted(output.glob(pattern))
