"""The stage that cuts lines and paragraphs that occur earlier in the corpus; the first one in input order is kept.

    ingest/*/*/passages.bin          the hashes of each partition, sorted, each one once (partition_writer.py)
    line_dedup/buckets/000002/       hashes of one range, of all partitions: starts.npy (int64 [partitions + 1]) and
                                     seen.npy (bool): which of them an earlier partition holds too
    line_dedup/partitions/000034/    the edition of a partition whose texts are cut, with all files but passages.bin;
                                     rejected.jsonl: what was cut or dropped (with --keep-rejected)

Memory is bounded: a bucket holds a few million hashes, and a partition that repeats a hash adds it once. Every document that
passed the filters counts as an earlier one, even if a later stage drops it. So the cuts do not depend on dedup, on quotas or on
how much is left of other documents.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filters.rules.rule import Rule, Violation
from filters.rules.ruleset import RuleSet

from ...atomic import write_json
from ...atomic_directory import result_directory
from ..counts.build_stats import BuildStats
from ..counts.sums import PASSED, Counts
from ..dedup.segments import KINDS, LINES, PARAGRAPHS, Segments, remove_segments, segment_lines, split
from ..outcome import Outcome
from ..partitions.partition import COUNTS, Partition, partitions
from ..partitions.partition_writer import PartitionWriter, PassedDocument, RejectedFile, make_hasher
from ..recipe import Recipe
from ..work.workspace import Workspace
from .section import Change, Section
from .stage import Run, Stage, Step

WORDS_LEFT = "words_left"
_CUT_LINES = "cut_lines"  # the kind of records that show what was cut
CUT = "cut as repeated"  # the title of samples of cut documents
EARLIER = "found earlier in the corpus"  # the end of each reason


class LineDedupStage(Stage):
    """Cuts lines and paragraphs that occur earlier in the corpus."""

    name = "line_dedup"
    drops = Outcome(WORDS_LEFT)
    edits = True
    quotes = (_CUT_LINES, WORDS_LEFT)

    def wanted(self, recipe: Recipe) -> bool:
        return bool(recipe.segment_kinds)

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        workspace = run.workspace
        buckets = count_buckets(workspace, run.plan.limits.bucket_hashes)
        yield Step(
            name="find repeats",
            units=range(buckets),
            function=functools.partial(sort_bucket, workspace, buckets),
            makes=functools.partial(bucket_folder, workspace),
        )
        yield Step(
            name="cut repeats",
            units=_uncut(workspace),
            function=functools.partial(cut_partition, buckets),
            makes=lambda partition: partition.edition(self.name),
            prepare=functools.partial(prepare_cut, workspace),
            size=lambda partition: partition.bytes,
        )

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        """Return ``repeats``: ``passages`` and characters ``compared``; lines, paragraphs and ``characters`` cut; ``documents``
        that were cut and kept.
        """
        return {"repeats": counts.by("repeats")}

    def section(self, counts: Mapping[str, Any]) -> Section:
        if not (found := counts.get("repeats")):
            return Section()
        kinds = [kind for kind in KINDS if kind in found]
        what = " and ".join(f"{found[kind]:,} {kind}" for kind in kinds)
        what = f"cut from {found['documents']:,} documents: {what} that occur earlier"
        cuts = [(f"{kind} that occur earlier", found[kind]) for kind in kinds]
        cuts += [("characters of these", found["characters"]), ("documents they were cut from", found["documents"])]
        return Section(
            changes=[Change(what, 0, found["characters"])],
            lines=[f"{found[kind]:,}  cut: {kind} that occur earlier" for kind in kinds if found[kind]],
            cuts=cuts,
        )


def count_buckets(workspace: Workspace, bucket_hashes: int) -> int:
    """Return in how many buckets, of about ``bucket_hashes`` each, the hashes of all partitions are sorted."""
    size = sum(_segments_path(partition).stat().st_size for partition in _uncut(workspace))
    return max(1, -(-size // (8 * bucket_hashes)))


def bucket_folder(workspace: Workspace, bucket: int) -> Path:
    return workspace.folder(LineDedupStage.name) / "buckets" / f"{bucket:06d}"


def sort_bucket(workspace: Workspace, buckets: int, bucket: int) -> None:
    """Sort one bucket, and write for each hash in it whether an earlier partition holds it."""
    slices = [in_bucket(_hashes(partition), bucket, buckets) for partition in _uncut(workspace)]
    hashes = np.concatenate([np.zeros(0, np.uint64), *slices])
    order = np.argsort(hashes, kind="stable")  # among equal ones, input order
    ordered = hashes[order]
    seen = np.zeros(len(hashes), bool)
    seen[order[1:]] = ordered[1:] == ordered[:-1]
    with result_directory(bucket_folder(workspace, bucket)) as directory:
        np.save(directory / "starts.npy", np.cumsum([0, *map(len, slices)], dtype=np.int64))
        np.save(directory / "seen.npy", seen)


def in_bucket(keys: NDArray[np.uint64], bucket: int, buckets: int) -> NDArray[np.uint64]:
    """Return the keys in one of ``buckets`` equal ranges; ``keys`` are sorted."""
    first, last = (bucket << 64) // buckets, ((bucket + 1) << 64) // buckets - 1
    begin, end = np.searchsorted(keys, np.uint64(first)), np.searchsorted(keys, np.uint64(last), side="right")
    return np.array(keys[begin:end])  # a copy: a view would keep in memory all pages that the search touched


def _uncut(workspace: Workspace) -> list[Partition]:
    return partitions(workspace, before=LineDedupStage.name)


def _segments_path(partition: Partition) -> Path:
    return partition.path("passages.bin")


def _hashes(partition: Partition) -> NDArray[np.uint64]:
    path = _segments_path(partition)
    return np.memmap(path, np.uint64, "r") if path.stat().st_size else np.zeros(0, np.uint64)


class Repeats:
    """Finds which segments of one partition occur earlier. Pass the texts in order, each once."""

    def __init__(self, known: NDArray[np.uint64], seen: NDArray[np.bool_]) -> None:
        self._known = known  # hashes of the partition, sorted
        self._seen = seen  # which of these occur in earlier partitions, or in earlier texts of this one

    def among(self, segments: Segments) -> NDArray[np.bool_]:
        """Return which segments of the next texts occur earlier."""
        at = np.searchsorted(self._known, segments.hashes)
        first = np.zeros(len(at), bool)
        first[np.unique(at, return_index=True)[1]] = True
        repeated = self._seen[at] | ~first
        self._seen[at] = True
        return repeated


def load_repeats(partition: Partition, buckets: int) -> Repeats:
    """Return which segments of one partition occur in earlier ones, from all buckets."""
    seen, number = [np.zeros(0, bool)], partition.number
    for bucket in range(buckets):
        path = bucket_folder(partition.workspace, bucket)
        starts = np.load(path / "starts.npy", mmap_mode="r")
        seen.append(np.array(np.load(path / "seen.npy", mmap_mode="r")[starts[number] : starts[number + 1]]))
    return Repeats(np.array(_hashes(partition)), np.concatenate(seen))


class PassageRemover:
    """Cuts the texts of one partition, drops documents of which too little is left, and counts both."""

    def __init__(self, recipe: Recipe, source: str, repeats: Repeats, writer: PartitionWriter, directory: Path) -> None:
        self._recipe = recipe
        self._source = source
        self._repeats = repeats
        self._writer = writer
        self._counts = Counts()
        self.rejected = RejectedFile(directory, recipe, self._counts.samples)
        names = "compared", "passages", "documents", "characters", *recipe.segment_kinds
        self._counts.add_all("repeats", dict.fromkeys(names, 0))

    def add(self, rows: Sequence[PassedDocument]) -> None:
        """Cut the next documents of the partition."""
        recipe = self._recipe
        segments = split([row.text for row in rows], recipe.segment_kinds, recipe.shortest_passage)
        repeated = np.flatnonzero(self._repeats.among(segments))
        compared = sum(row.characters for row in rows)
        self._counts.add_all("repeats", {"compared": compared, "passages": len(segments.hashes)})
        cut: dict[int, list[tuple[int, int, str]]] = {}  # by row: the lines that each segment takes, and its kind
        for (row, *lines), is_line in zip(
            segments.locations[repeated].tolist(), repeated < segments.lines, strict=True
        ):
            cut.setdefault(row, []).append((*lines, LINES if is_line else PARAGRAPHS))
        for number, row in enumerate(rows):
            if number in cut:
                self._keep_rest(row, cut[number])
            else:
                self._keep(row)

    def _keep_rest(self, row: PassedDocument, cut: Sequence[tuple[int, int, str]]) -> None:
        """Cut a document, and keep the rest if it has enough words."""
        lines, kinds = [(first, last) for first, last, _ in cut], Counter(kind for *_, kind in cut)
        text = remove_segments(row.text, lines)
        what = " and ".join(f"{number:,} {kind if number > 1 else kind[:-1]}" for kind, number in kinds.items())
        violation = too_short(text, self._recipe.words_left)
        if violation is None:
            characters = row.characters - len(text)
            self._counts.add_all("repeats", {**kinds, "documents": 1, "characters": characters})
            self._keep(row._replace(text=text, characters=len(text)))
            shown = segment_lines(row.text, lines)
            self.rejected.add(row, _CUT_LINES, f"cut: {what} {EARLIER}", shown, title=CUT)
        else:
            reason = f"{violation.reason} without {what} {EARLIER}"
            self._count(row, WORDS_LEFT)
            self.rejected.add(row, WORDS_LEFT, reason)

    def _keep(self, row: PassedDocument) -> None:
        self._writer.add(row)
        self._count(row, PASSED)

    def _count(self, row: PassedDocument, outcome: str) -> None:
        self._counts.add_outcome("filtered", self._source, row.language, outcome, row.characters)

    def recounted(self, counts: Counts) -> Counts:
        """Return the counts of the ingest stage, with new outcomes for the documents that passed it."""
        passed = [path for path in counts.numbers if path[-1] == PASSED and path[0].endswith("filtered")]
        for path in passed:
            del counts.numbers[path]
        counts.update(self._counts)
        return counts


def too_short(text: str, words_left: int) -> Violation | None:
    """Return why a text that was cut is dropped, or None if enough of it is left."""
    if not text.strip():
        return Violation("dedup", WORDS_LEFT, 0, max(1, words_left), "min")
    rules = limit_of_words(words_left)
    return rules.judge(rules.measure(text))


@functools.lru_cache(maxsize=1)
def limit_of_words(words_left: int) -> RuleSet:
    return RuleSet([Rule(WORDS_LEFT, "words", "dedup", min=words_left)])


def prepare_cut(workspace: Workspace) -> None:
    """Load libraries and compiled kernels, before workers are forked."""
    import pyarrow  # noqa: F401

    recipe = workspace.plan.recipe
    make_hasher(recipe).warm_up()
    limit_of_words(recipe.words_left).prepare()


def cut_partition(buckets: int, partition: Partition) -> None:
    """Write one partition again, without the segments that occur earlier."""
    recipe = partition.workspace.plan.recipe
    hasher = make_hasher(recipe) if recipe.dedup else None
    with result_directory(partition.edition(LineDedupStage.name)) as directory:
        writer = PartitionWriter(directory, hasher)
        remover = PassageRemover(recipe, partition.source, load_repeats(partition, buckets), writer, directory)
        with remover.rejected, writer:
            for batch in partition.batches(*PassedDocument._fields):
                columns = [column.to_pylist() for column in batch.columns]
                remover.add([PassedDocument(*values) for values in zip(*columns, strict=True)])
        write_json(directory / COUNTS, remover.recounted(partition.counts).to_json())
