"""What was dropped, by name: ``rejected.jsonl``, and the samples of every outcome that the report shows."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from ...atomic import atomic_file
from ...errors import BuildError, InputError
from ...text.document import made_id
from ..dedup.lsh import EXACT, NEAR
from ..dedup.signature_store import dataset_name, fetch_earlier
from ..plan import Plan
from ..stages.filter import write_line
from ..stages.partition import (
    DONE,
    Origin,
    Origins,
    all_parts,
    listed,
    part_folder,
    part_path,
    part_slice,
    read_columns,
    read_json,
    unit_path,
)
from ..stages.split import OVER_QUOTA
from ..workspace import discard
from .samples import SAMPLES, Samples, hash_keys

REJECTED_NAME = "rejected.jsonl"
_SHOWN_AS = {0: "kept", EXACT: "exact duplicates", NEAR: "near duplicates", OVER_QUOTA: "max_tokens"}


def keep_rejected(work: Path, output: Path, plan: Plan) -> None:
    """Write ``rejected.jsonl``: records that could not be read and, where asked for, every document that was dropped.

    Each line says file, line and reason; a duplicate's reason names the document that stands for it.
    """
    (output / REJECTED_NAME).unlink(missing_ok=True)
    with atomic_file(output / REJECTED_NAME) as out:
        for part in range(len(all_parts(work))):
            with open(part_path(work, part) / REJECTED_NAME, "rb") as file:
                for line in file:
                    write_line(out, placed(work, part, orjson.loads(line)))
        if plan.recipe.keep_rejected:
            later = _Later(work, plan)
            for dropped in later.dropped():
                later.name(dropped)
                for document in _documents(work, dropped):
                    write_line(out, _line(document, later.reason(document.at)))
    if (output / REJECTED_NAME).stat().st_size == 0:
        (output / REJECTED_NAME).unlink()


def refuse_if_all_are_bad(work: Path, plan: Plan) -> None:
    """Raise ``InputError`` where every single record was bad: then it is the settings that are wrong.

    With ``on_error="skip"`` an empty dataset is what was asked for.
    """
    units = [unit_path(work, number) for number in range(len(plan.units))]
    done = [read_json(unit / DONE) for unit in units]
    records, bad = sum(each["records"] for each in done), sum(each["bad"] for each in done)
    if bad < records or not records or plan.recipe.on_error == "skip":
        return
    unit, part = next((unit, each["parts"][0]) for unit, each in zip(units, done, strict=True) if each["bad"])
    with open(part_folder(unit, part) / REJECTED_NAME, "rb") as file:
        first = orjson.loads(file.readline())
    for path in units:
        discard(path)  # so that another recipe is no change of a build begun
    raise InputError(
        f"none of the {records:,} records is a document; the first, {first['file']}, line {first['line']}: "
        f"{first['reason']}"
    )


def placed(work: Path, part: int, record: dict[str, Any]) -> dict[str, Any]:
    """Return what the filter stage wrote of a record with its line counted from the start of the file."""
    record["line"] += listed(work)["first_lines"][all_parts(work)[part][0]][record.pop("span")]
    if record.get("id") == "":
        record["id"] = made_id(record["file"], record["line"])
    return record


def take_samples(work: Path, plan: Plan) -> Samples:
    """Choose the samples of every outcome: of what the filters dropped, each part did; of the rest, it is done here."""
    samples = Samples()
    for part in range(len(all_parts(work))):
        for outcome, held in read_json(part_path(work, part) / "counts.json")["samples"].items():
            for key, sample in held:
                if samples.wants(outcome, key):
                    samples.add(outcome, key, placed(work, part, sample))
    later = _Later(work, plan)
    keys = _smallest(work, later.outcome, plan.recipe.seed)
    chosen = np.array(sorted(keys), np.int64)
    later.name(chosen)
    for document in _documents(work, chosen):
        sample = _line(document, later.reason(document.at))
        samples.add(_SHOWN_AS[int(later.outcome[document.at])], keys[document.at], sample)
    return samples


def _smallest(work: Path, outcome: np.ndarray, seed: int) -> dict[int, int]:
    """Return the places of the texts with the smallest keys of each outcome, and their keys."""
    hashes = np.load(work / "dedup" / "hashes.npy", mmap_mode="r")
    found: dict[int, dict[int, int]] = {}
    for part in range(len(all_parts(work))):
        mine = part_slice(work, part)
        keys = hash_keys(hashes[mine], seed)
        for what in np.unique(outcome[mine]).tolist():
            rows = np.flatnonzero(outcome[mine] == what)
            distinct, first = np.unique(keys[rows], return_index=True)
            held = found.setdefault(what, {})
            for key, row in zip(distinct[:SAMPLES].tolist(), rows[first[:SAMPLES]].tolist(), strict=True):
                held.setdefault(key, mine.start + row)
            found[what] = dict(sorted(held.items())[:SAMPLES])
    return {at: key for held in found.values() for key, at in held.items()}


class _Document(NamedTuple):
    at: int  # its place among the documents of all parts
    origin: Origin
    text: str


def _documents(work: Path, places: np.ndarray, *, texts: bool = True) -> Iterator[_Document]:
    """Yield the documents at places in ascending order; without ``texts``, which are most of the work, these are ''."""
    for part in range(len(all_parts(work))):
        whole = part_slice(work, part)
        mine = places[np.searchsorted(places, whole.start) : np.searchsorted(places, whole.stop)].tolist()
        if mine:
            origins = Origins(work, part)
            held = _texts(work, part, [at - whole.start for at in mine]) if texts else itertools.repeat("")
            for at, text in zip(mine, held, strict=False):
                yield _Document(at, origins[at - whole.start], text)


def _texts(work: Path, part: int, rows: Sequence[int]) -> Iterator[str]:
    """Yield the texts of some documents of a part, whose rows ascend, a record batch at a time."""
    begin = 0
    for batch in read_columns(work, part, "text"):
        column = batch.column(0)
        first, last = bisect_left(rows, begin), bisect_left(rows, begin + len(column))
        yield from (column[row - begin].as_py() for row in rows[first:last])
        begin += len(column)


def _line(document: _Document, reason: str | None) -> dict[str, Any]:
    origin = document.origin
    return {"id": origin.id, "file": origin.file, "line": origin.line, "reason": reason, "text": document.text}


class _Later:
    """What became of the documents that passed the filters."""

    def __init__(self, work: Path, plan: Plan) -> None:
        self._work, self._plan = work, plan
        self._keeper = np.load(work / "dedup" / "keeper.npy", mmap_mode="r")
        self._before = read_json(work / "dedup" / "counts.json")["before"]
        self._names: dict[int, str] = {}
        self.outcome = np.load(work / "settled" / "outcome.npy", mmap_mode="r")

    def dropped(self) -> Iterator[np.ndarray]:
        """Yield the places of the documents that were dropped, some at a time."""
        step = self._plan.limits.named_documents
        for begin in range(0, len(self.outcome), step):
            yield begin + np.flatnonzero(self.outcome[begin : begin + step])

    def name(self, places: np.ndarray) -> None:
        """Learn what the documents are called that stand for those at the places."""
        copies = places[np.isin(self.outcome[places], (EXACT, NEAR))]
        stand = np.unique(self._keeper[copies])
        self._names = {
            at: f"{origin.id} ({origin.file}, line {origin.line})"
            for at, origin, _ in _documents(self._work, stand[stand >= 0], texts=False)
        }

    def reason(self, at: int) -> str | None:
        """Say why a document was dropped; None: it was not."""
        what, stands = int(self.outcome[at]), int(self._keeper[at])
        if what == 0:
            return None
        if what == OVER_QUOTA:
            return "max_tokens of its source reached"
        name = self._names[stands] if stands >= 0 else _earlier_name(self._work, self._plan, stands + self._before)
        return f"{'exact' if what == EXACT else 'near'} duplicate of {name}"


def _earlier_name(work: Path, plan: Plan, number: int) -> str:
    """Name a document of an earlier build by its dataset and its key there."""
    for spec, folder in zip(plan.recipe.against, fetch_earlier(work, plan.recipe), strict=True):
        count = len(np.load(folder / "hashes.npy", mmap_mode="r"))
        if number < count:
            return f"{dataset_name(spec)}:{number:012d}"
        number -= count
    raise BuildError(f"no earlier document {number}: a fault of the builder")
