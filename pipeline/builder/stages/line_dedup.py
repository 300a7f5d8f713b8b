"""The stage that cuts lines and paragraphs that stood before, anywhere in the corpus; the first in input order stays.

    filter/*/*/passages.bin     each part's hashes, sorted, each one once (parts.py)
    repeats/buckets/000002/     hashes of one range, of all parts: starts.npy (int64 [parts + 1]), seen.npy (bool): which
                                of them an earlier part holds too
    repeats/parts/000034/       a part again, its texts cut: it takes the place of the filter's (parts.py)

So memory is bounded: a bucket holds a few million hashes, and a hash comes to it once from each part, however often the
part repeats it. What counts as standing before are the documents that passed the filters, whatever becomes of them
later: what a document is cut by does not depend on dedup, quotas or how much was left of others.
"""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from filters.rules.loader import Rule, Verdict
from filters.rules.ruleset import RuleSet

from ...atomic import write_json
from ..dedup.segments import LINES, PARAGRAPHS, Passages, split, taken, without
from ..plan import Plan, load_plan
from ..report.samples import Samples, sample_keys
from ..report.stats import PASSED, Flow
from ..workspace import result_directory
from .filter import make_hasher, write_line
from .partition import PartWriter, Row, all_parts, cut_path, filtered_path, read_batches, read_json

WORDS_LEFT = "words_left"
CUT = "cut as repeated"  # what samples of it are called


def count_buckets(work: Path, bucket_hashes: int) -> int:
    """Return in how many buckets, of about ``bucket_hashes`` each, the hashes of all parts are sorted."""
    size = sum((filtered_path(work, part) / "passages.bin").stat().st_size for part in range(len(all_parts(work))))
    return max(1, -(-size // (8 * bucket_hashes)))


def bucket_path(work: Path, bucket: int) -> Path:
    return work / "repeats" / "buckets" / f"{bucket:06d}"


def find_unit(work: Path, buckets: int, bucket: int) -> None:
    """Sort one bucket: note of each hash in it whether an earlier part holds it."""
    slices = [_in_bucket(_hashes(work, part), bucket, buckets) for part in range(len(all_parts(work)))]
    hashes = np.concatenate([np.zeros(0, np.uint64), *slices])
    order = np.argsort(hashes, kind="stable")  # among equal ones, input order
    ordered = hashes[order]
    seen = np.zeros(len(hashes), bool)
    seen[order[1:]] = ordered[1:] == ordered[:-1]
    with result_directory(bucket_path(work, bucket)) as directory:
        np.save(directory / "starts.npy", np.cumsum([0, *map(len, slices)], dtype=np.int64))
        np.save(directory / "seen.npy", seen)


def _hashes(work: Path, part: int) -> NDArray[np.uint64]:
    path = filtered_path(work, part) / "passages.bin"
    return np.memmap(path, np.uint64, "r") if path.stat().st_size else np.zeros(0, np.uint64)


def _in_bucket(hashes: NDArray[np.uint64], bucket: int, buckets: int) -> NDArray[np.uint64]:
    """Return those of sorted hashes that fall in one of ``buckets`` equal ranges."""
    first, last = (bucket << 64) // buckets, ((bucket + 1) << 64) // buckets - 1
    begin = np.searchsorted(hashes, np.uint64(first), side="left")
    # A copy: as long as a view lives, so does the map of all that was touched to find it.
    return np.array(hashes[begin : np.searchsorted(hashes, np.uint64(last), side="right")])


class Repeats:
    """Tells the passages of one part that stood before. Give it the texts in order, each once."""

    def __init__(self, known: NDArray[np.uint64], seen: NDArray[np.bool_]) -> None:
        self._known = known  # hashes of the part, sorted
        self._seen = seen  # those of earlier parts, and of texts already given

    def among(self, found: Passages) -> NDArray[np.bool_]:
        """Return which passages of the next texts stood before."""
        at = np.searchsorted(self._known, found.hashes)
        first = np.zeros(len(at), bool)
        first[np.unique(at, return_index=True)[1]] = True
        repeated = self._seen[at] | ~first
        self._seen[at] = True
        return repeated


def load_repeats(work: Path, buckets: int, part: int) -> Repeats:
    """Return what all buckets know of one part."""
    seen = [np.zeros(0, bool)]
    for bucket in range(buckets):
        path = bucket_path(work, bucket)
        starts = np.load(path / "starts.npy", mmap_mode="r")
        seen.append(np.array(np.load(path / "seen.npy", mmap_mode="r")[starts[part] : starts[part + 1]]))
    return Repeats(np.array(_hashes(work, part)), np.concatenate(seen))


class _Cut(NamedTuple):
    """What is cut from one text: the lines that its passages take, and how many there are of each kind."""

    places: list[tuple[int, int]]
    kinds: Counter[str]


class Cutter:
    """Cuts the texts of one part, counts, and drops those of which too little is left."""

    def __init__(self, plan: Plan, unit: int, repeats: Repeats, writer: PartWriter, rejected: IO[bytes]) -> None:
        self._recipe = plan.recipe
        self._inputs = [plan.inputs[span.input] for span in plan.units[unit]]
        self._repeats = repeats
        self._writer = writer
        self._rejected = rejected
        self._flow = Flow()
        self._samples = Samples()
        self._cut = Counter(dict.fromkeys(("compared", "passages", "documents", "characters"), 0))
        self._cut.update(dict.fromkeys(self._recipe.passage_kinds, 0))

    def add(self, rows: Sequence[Row]) -> None:
        """Cut and settle the next documents of the part."""
        recipe = self._recipe
        found = split([row.text for row in rows], recipe.passage_kinds, recipe.shortest_passage)
        repeated = np.flatnonzero(self._repeats.among(found))
        self._cut.update({"compared": sum(row.characters for row in rows), "passages": len(found.hashes)})
        cut: dict[int, _Cut] = {}
        for (row, first, last), is_line in zip(found.places[repeated].tolist(), repeated < found.lines, strict=True):
            held = cut.setdefault(row, _Cut([], Counter()))
            held.places.append((first, last))
            held.kinds[LINES if is_line else PARAGRAPHS] += 1
        for number, row in enumerate(rows):
            if number in cut:
                self._settle_cut(row, cut[number])
            else:
                self._keep(row)

    def _settle_cut(self, row: Row, cut: _Cut) -> None:
        """Keep what is left of a document, if that is enough."""
        text = without(row.text, cut.places)
        what = " and ".join(f"{number:,} {kind if number > 1 else kind[:-1]}" for kind, number in cut.kinds.items())
        verdict = too_short(text, self._recipe.words_left)
        if verdict is None:
            self._cut.update({**cut.kinds, "documents": 1, "characters": row.characters - len(text)})
            self._keep(row._replace(text=text, characters=len(text)))
            self._reject(row, CUT, f"cut: {what} that stood before", taken(row.text, cut.places))
        else:
            reason = f"{verdict.reason} without {what} that stood before"
            self._count(row, WORDS_LEFT)
            self._reject(row, WORDS_LEFT, reason, row.text)

    def _keep(self, row: Row) -> None:
        self._writer.add(row)
        self._count(row, PASSED)

    def _count(self, row: Row, outcome: str) -> None:
        self._flow.add(self._inputs[row.span].source, row.language, outcome, row.characters)

    def _reject(self, row: Row, outcome: str, reason: str, text: str) -> None:
        file = self._inputs[row.span].name
        line = {"id": row.id, "file": file, "line": row.line, "reason": reason, "text": text, "span": row.span}
        self._samples.add(outcome, sample_keys([text], self._recipe.seed)[0], line)
        if self._recipe.keep_rejected:
            write_line(self._rejected, line)

    def recounted(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the filter counted of the part, with what became of those that it had passed."""
        flow = Flow(row for row in counts["flow"] if row[Flow.FIELDS.index("outcome")] != PASSED)
        kept = self._flow.by("outcome").get(PASSED, [0, 0])[0]
        flow.update(self._flow)
        self._samples.update(counts["samples"])
        samples = self._samples.to_json()
        return {**counts, "flow": flow.to_json(), "samples": samples, "kept": kept, "repeats": dict(self._cut)}


def too_short(text: str, words_left: int) -> Verdict | None:
    """Return why nothing is to be kept of a text that was cut."""
    if not text.strip():
        return Verdict("dedup", WORDS_LEFT, 0, max(1, words_left), "min")
    first = text.split(None, 4 * words_left)[: 4 * words_left]
    if sum(map(str.isalpha, first)) >= words_left:
        return None  # each of these holds at least a word; most texts need no counting beyond them
    rules = _limit(words_left)
    return rules.judge(rules.measure(text))


@functools.lru_cache(maxsize=1)
def _limit(words_left: int) -> RuleSet:
    return RuleSet([Rule(WORDS_LEFT, "words", "dedup", min=words_left)])


def prepare_cut(work: Path) -> None:
    """Load libraries and compiled kernels, before workers are forked."""
    import pyarrow  # noqa: F401

    recipe = load_plan(work).recipe
    make_hasher(recipe).warm_up()
    _limit(recipe.words_left).prepare()


def cut_unit(work: Path, buckets: int, part: int) -> None:
    """Write one part again, without the passages that stood before."""
    if cut_path(work, part).exists():  # what it was made of may be gone
        return
    plan, source = load_plan(work), filtered_path(work, part)
    unit = all_parts(work)[part][0]
    hasher = make_hasher(plan.recipe) if plan.recipe.dedup else None
    with result_directory(cut_path(work, part)) as directory:
        shutil.copyfile(source / "rejected.jsonl", directory / "rejected.jsonl")
        with open(directory / "rejected.jsonl", "ab") as rejected, PartWriter(directory, hasher) as writer:
            cutter = Cutter(plan, unit, load_repeats(work, buckets, part), writer, rejected)
            for batch in read_batches(source, *Row._fields):
                columns = [column.to_pylist() for column in batch.columns]
                cutter.add([Row(*values) for values in zip(*columns, strict=True)])
        write_json(directory / "counts.json", cutter.recounted(read_json(source / "counts.json")))
