"""Why a document is in a dataset or not, from its shards, ``rejected.jsonl`` and the samples of the build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..builder.counts.build_stats import BuildStats
from ..builder.counts.samples import ID_CHARACTERS
from ..builder.counts.sums import descending
from ..builder.outcome import DUPLICATES
from ..shards.dataset_folder import DatasetFolder
from ..shards.manifest import REJECTED_NAME, Manifest
from ..shards.shard_access import ShardAccess


def why(folder: DatasetFolder, manifest: Manifest, name: str) -> tuple[list[str], bool]:
    """Return what is known of a document, as lines, and whether that says if it is in the dataset.

    ``name`` is its key, its id in the input, or FILE:LINE of a record of ``rejected.jsonl``.
    """
    lines, as_json = list[str](), json.dumps(name, ensure_ascii=False)
    access = ShardAccess(requests=folder.requests)
    for split, shards in sorted(manifest.splits.items()):
        for info in shards.shards:
            table = access.table(folder.path(info.name), info)
            columns = [table.get(column, []) for column in ("key", "id")]
            for at in sorted({at for column in columns for at, value in enumerate(column) if value == name}):
                names = ", ".join(f"{column} {table[column][at]}" for column in ("key", "id") if column in table)
                lines.append(f"kept: split {split}, {info.name}, document {at}, {names}")
    stats, copies = BuildStats.from_json(manifest.counts), 0
    for record in _records(folder, manifest, stats):
        place = f"{record.get('file')}:{record.get('line')}"
        if record.get("kept_id") == name:
            copies += 1
        if name not in (record.get("id"), place) and (
            len(name) < ID_CHARACTERS or name[:ID_CHARACTERS] != record.get("id")
        ):
            continue
        kind, reason = str(record.get("kind")), record.get("reason")
        if kind.startswith("cut_"):
            lines.append(f"cut from it: {reason}, {place}")
        elif reason:
            lines.append(f"dropped: {reason}; {place}")
            if kind in DUPLICATES and ":" not in record["kept_id"]:
                lines.append(
                    f"  to see the text that is kept: shardwright inspect {folder.base} --id {record['kept_id']}"
                )
    if copies:
        lines.append(f"documents that were dropped as its duplicates: {copies:,}")
    if lines:
        return lines, True
    dropped = descending({**stats.dropped, **stats.duplicates})
    most = ", ".join(f"{number:,} by {reason}" for reason, number in dropped[:5] if number)
    lines.append(f"no document of {folder.base} has the key or id {as_json}")
    lines.append(
        f"the build dropped {sum(number for _, number in dropped):,} documents{most and ', most of them: '}{most}"
    )
    if manifest.recipe.get("settings", {}).get("keep_rejected"):
        lines.append(
            f"{REJECTED_NAME} does not name it: no input had this id, a limit ended the build first, or it was redacted"
        )
    elif most:
        lines.append(
            "the build kept only samples of dropped documents, and none has this id; build again with --keep-rejected, which "
            "changes no document, to learn the reason for each"
        )
    return lines, False


def _records(folder: DatasetFolder, manifest: Manifest, stats: BuildStats) -> Iterator[dict[str, Any]]:
    """Yield the records of ``rejected.jsonl`` and the samples that are not among them."""
    seen = set()
    for line in (folder.read_bound(REJECTED_NAME, manifest) or b"").splitlines():
        record = json.loads(line)
        seen.add((record.get("id", "")[:ID_CHARACTERS], record.get("kind")))
        yield record
    for sample in (sample for of_outcome in stats.samples.values() for sample in of_outcome):
        if (sample["id"], sample.get("kind")) not in seen:
            yield dict(sample)
