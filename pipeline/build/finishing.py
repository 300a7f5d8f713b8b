"""The end of a build: counts that add up, the manifest, and what outlives the work directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from ..atomic import atomic_file, write_json
from ..errors import BuildError
from ..shards.manifest import MANIFEST_NAME, Manifest, Split
from ..text.records import made_id
from .dedup import EXACT
from .earlier import save_signatures
from .filtering import write_line
from .hashing import whole_hashes
from .parts import Origins, all_parts, column_values, listed, part_path, part_slice, read_json
from .plan import Plan
from .settling import OVER
from .tally import Flow, by_group, sum_filter_counts
from .tokenizing import load_build_tokenizer

RUN_NAME = "run.json"
REJECTED_NAME = "rejected.jsonl"
_PACKAGES = ("numpy", "tokenizers", "pyarrow", "numba", "orjson")


def gather_counts(work: Path) -> dict[str, Any]:
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


def make_manifest(work: Path, plan: Plan, counts: dict[str, Any], splits: dict[str, Split]) -> Manifest:
    """Return the manifest: nothing in it tells when, where, how fast or by how many workers it was made."""
    tokenizer = load_build_tokenizer(work)
    for name in ("documents", "tokens"):
        held, counted = sum(getattr(s, name) for s in splits.values()), counts["kept" if name == "documents" else name]
        if held != counted:
            raise BuildError(f"shards hold {held} {name}, but {counted} were counted: a fault of the builder")
    return Manifest(
        dtype=np.dtype(tokenizer.dtype).str,
        tokenizer={
            "name": plan.recipe.described()["tokenizer"],
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "eos_id": tokenizer.eos_id,
            "bos_id": tokenizer.bos_id,
            "special_ids": dict(tokenizer.special_ids),
        },
        splits=splits,
        recipe={"settings": plan.recipe.described(), "definitions": json.loads(json.dumps(plan.definitions))},
        inputs=_inputs(work, plan),
        counts=counts,
    )


def _inputs(work: Path, plan: Plan) -> list[dict[str, Any]]:
    """Describe the inputs, with the sha256 of each; null for one that was not read to its end."""
    return [
        {"name": item.name, "source": item.source, "bytes": item.size, "ends": item.ends, "sha256": digest}
        for item, digest in zip(plan.inputs, whole_hashes(work, plan), strict=True)
    ]


def keep_signatures(work: Path, output: Path, plan: Plan) -> None:
    """Carry over signatures for later builds."""
    kind, split = np.load(work / "dedup" / "kind.npy"), np.load(work / "settled" / "split.npy")
    stays = np.zeros(len(kind), bool)
    stays[np.flatnonzero(kind == 0)[split != OVER]] = True
    save_signatures(work, output, plan.recipe, read_json(work / "dedup" / "counts.json")["before"], stays)


def keep_rejected(work: Path, output: Path, plan: Plan) -> None:
    """Write ``rejected.jsonl``: records that could not be read and, where asked for, every document that was dropped.

    Each line says file, line and reason; a duplicate's reason names the document that stands for it.
    """
    (output / REJECTED_NAME).unlink(missing_ok=True)
    with atomic_file(output / REJECTED_NAME) as out:
        for part in range(len(all_parts(work))):
            _copy_filtered(work, part, out)
        if plan.recipe.keep_rejected:
            _write_dropped_later(work, plan, out)
    if (output / REJECTED_NAME).stat().st_size == 0:
        (output / REJECTED_NAME).unlink()


def _copy_filtered(work: Path, part: int, out: IO[bytes]) -> None:
    """Copy a part's rejected records, their lines counted from the start of the file."""
    first_lines = listed(work)["first_lines"][all_parts(work)[part][0]]
    with open(part_path(work, part) / REJECTED_NAME, "rb") as file:
        for line in file:
            record = orjson.loads(line)
            record["line"] += first_lines[record.pop("span")]
            if record.get("id") == "":
                record["id"] = made_id(record["file"], record["line"])
            write_line(out, record)


def _write_dropped_later(work: Path, plan: Plan, out: IO[bytes]) -> None:
    """Write the documents that passed the filters and were dropped by dedup or a quota."""
    kind, keeper = np.load(work / "dedup" / "kind.npy"), np.load(work / "dedup" / "keeper.npy")
    split = np.load(work / "settled" / "split.npy")
    over = np.zeros(len(kind), bool)
    over[np.flatnonzero(kind == 0)[split == OVER]] = True
    names = _names(work, np.unique(keeper[(kind != 0) & (keeper >= 0)]))
    before = read_json(work / "dedup" / "counts.json")["before"]
    for part in range(len(all_parts(work))):
        place, origins = part_slice(work, part), Origins(work, part)
        texts = column_values(work, part, ["text"])["text"]
        for row in np.flatnonzero((kind[place] != 0) | over[place]).tolist():
            at = place.start + row
            reason = "max_tokens of its source reached"
            if kind[at]:
                stands = int(keeper[at])
                name = names[stands] if stands >= 0 else _earlier_name(plan, stands + before)
                reason = f"{'exact' if kind[at] == EXACT else 'near'} duplicate of {name}"
            origin = origins[row]
            line = {"id": origin.id, "file": origin.file, "line": origin.line, "reason": reason, "text": texts[row]}
            write_line(out, line)


def _names(work: Path, wanted: np.ndarray) -> dict[int, str]:
    """Return how documents, given by their places among all parts, are called."""
    names = {}
    for part in range(len(all_parts(work))):
        place = part_slice(work, part)
        mine = wanted[np.searchsorted(wanted, place.start) : np.searchsorted(wanted, place.stop)]
        origins = Origins(work, part) if len(mine) else None
        for at in mine.tolist():
            assert origins is not None
            origin = origins[at - place.start]
            names[at] = f"{origin.id} ({origin.file}, line {origin.line})"
    return names


def _earlier_name(plan: Plan, number: int) -> str:
    """Name a document of an earlier build by its dataset and its key there."""
    for path in plan.recipe.against:
        count = len(np.load(Path(path) / "signatures" / "hashes.npy", mmap_mode="r"))
        if number < count:
            return f"{Path(path).resolve().name}:{number:012d}"
        number -= count
    raise BuildError(f"no earlier document {number}: a fault of the builder")


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
    yield from (path for name in (MANIFEST_NAME, RUN_NAME, REJECTED_NAME) if (path := output / name).exists())
    for pattern in ("report.html", "tokenizer*.json", "train-[0-9]*.tar", "val-[0-9]*.tar"):
        yield from sorted(output.glob(pattern))
