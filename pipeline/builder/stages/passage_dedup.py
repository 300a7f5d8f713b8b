"""The stage that finds passages, runs of at least N words that occur earlier in survivors. It cuts or counts them, or drops the
documents that they fill. `pipeline.builder.dedup.word_runs` defines passages, windows, picks and candidates.

    passage_dedup/runs/tables/000034/       the runs that the windows of a partition pick: a table of hashes (key_tables.py)
    passage_dedup/runs/buckets/000002/      these runs, sorted over all partitions
    passage_dedup/windows/tables/000034/    candidates of a partition, which may occur elsewhere: words.npy (uint64), the
                                            words of all candidates; runs.npy (int64 [runs, 3]), for each run of these words
                                            its document, its first word in the document and its number of words; a table of
                                            their windows of N words; entries.npy (uint32), each window's entry in this table
    passage_dedup/windows/buckets/000002/   these windows, sorted over all partitions
    passage_dedup/partitions/000034/        the version of a partition whose texts are cut: documents.arrow, if any text is
                                            cut; rejected.jsonl; counts.json; repeated.json, the most frequent of the
                                            passages that first occur in this partition

It is the last stage before tokens are made. So only survivors count as earlier documents, and a near duplicate is dropped whole,
not cut. Each window is compared word by word with its first occurrence only, so the time grows in proportion to the words,
however often a passage occurs.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...atomic import read_json, write_json
from ...atomic_directory import result_directory
from ...shards.manifest import REJECTED_NAME
from ..counts.build_stats import BuildStats, Change
from ..counts.counts import Counts
from ..counts.samples import ID_CHARACTERS, SAMPLE_CHARACTERS, RepeatedPassage, sample_keys
from ..dedup.key_tables import Found, count_buckets, load_found, sort_bucket, write_table
from ..dedup.word_runs import candidates, covered_words, find_words, picked_runs, remove_spans, stretches, window_hashes
from ..outcome import Outcome
from ..partitions.partition import COUNTS, Origin, Partition, partitions
from ..partitions.partition_writer import DocumentFile, PassedDocument, rejected_line, with_texts, write_line
from ..recipe import Recipe
from ..work.workspace import Workspace
from .line_dedup import EARLIER, limit_of_words, too_short
from .stage import Run, Stage, Step
from .survivors import drop, surviving_texts

RUNS, WINDOWS = "runs", "windows"
SHOWN = 100  # passages in the report
_REPEATED = "repeated.json"
CUT = "passages cut as repeated"  # the title of samples of passages that were cut


class PassageDedupStage(Stage):
    """Finds passages that occur earlier in the corpus."""

    name = "passage_dedup"
    drops = Outcome(name, "passages that occur earlier are too much of it")
    edits = True

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.dedup_passages is not None

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        workspace, every = run.workspace, partitions(run.workspace, before=self.name)
        by_partition: dict[str, Any] = {
            "units": every,
            "prepare": functools.partial(prepare_words, run.plan.recipe),
            "size": lambda partition: partition.bytes,
        }
        buckets = 0  # of the previous kind
        for kind, write in (RUNS, write_runs), (WINDOWS, write_windows):
            makes = functools.partial(_table, kind=kind)
            yield Step(name=f"find {kind}", function=functools.partial(write, buckets), makes=makes, **by_partition)
            buckets = count_buckets(map(makes, every), run.plan.limits.bucket_hashes)
            yield Step(
                name=f"sort {kind}",
                units=range(buckets),
                function=functools.partial(_sort, workspace, kind, buckets),
                makes=functools.partial(_bucket, workspace, kind),
            )
        function = functools.partial(write_result, buckets)
        yield Step(name="passages", function=function, makes=_result, **by_partition)

    def count(self, workspace: Workspace, stats: BuildStats) -> None:
        found = [passage for each in partitions(workspace) for passage in read_json(_result(each) / _REPEATED)]
        stats.repeated_passages = sorted(found, key=lambda passage: -passage["count"])[:SHOWN]

    def changes(self, stats: BuildStats) -> Sequence[Change]:
        if not (found := stats.passages):
            return ()
        what = f"{found['passages']:,} passages that occur earlier"
        where = f"cut from {found['cut']:,} documents: " if found["cut"] else f"in {found['documents']:,} documents: "
        return [Change(where + what, 0, found["characters"])]


def _result(partition: Partition) -> Path:
    return partition.version(PassageDedupStage.name)


def _table(partition: Partition, kind: str) -> Path:
    return partition.workspace.folder(PassageDedupStage.name) / kind / "tables" / f"{partition.number:06d}"


def _bucket(workspace: Workspace, kind: str, bucket: int) -> Path:
    return workspace.folder(PassageDedupStage.name) / kind / "buckets" / f"{bucket:06d}"


def _sort(workspace: Workspace, kind: str, buckets: int, bucket: int) -> None:
    tables = [_table(partition, kind) for partition in partitions(workspace)]
    sort_bucket(tables, _bucket(workspace, kind, bucket), buckets, bucket)


def _found(partition: Partition, kind: str, buckets: int) -> Found:
    results = [_bucket(partition.workspace, kind, bucket) for bucket in range(buckets)]
    return load_found(_table(partition, kind), results, partition.number)


def prepare_words(recipe: Recipe) -> None:
    """Load libraries, tables and compiled kernels, before workers are forked."""
    import pyarrow  # noqa: F401

    find_words(["to compile"])
    limit_of_words(recipe.words_left).prepare()


def _length(partition: Partition) -> int:
    length = partition.workspace.plan.recipe.dedup_passages
    assert length is not None
    return length


def write_runs(_: int, partition: Partition) -> None:
    """Write the table of the runs that the windows of a partition pick."""
    found = [picked_runs(find_words(texts), _length(partition)) for _, texts in surviving_texts(partition)]
    with result_directory(_table(partition, RUNS)) as directory:
        write_table(directory, np.concatenate([np.zeros(0, np.uint64), *found]))


def write_windows(buckets: int, partition: Partition) -> None:
    """Write the candidates of a partition, and the table of their windows."""
    length, found = _length(partition), _found(partition, RUNS, buckets)
    repeated = found.keys[found.totals > 1]
    words, runs = [np.zeros(0, np.uint64)], [np.zeros((0, 3), np.int64)]
    for rows, texts in surviving_texts(partition):
        some = candidates(find_words(texts), length, repeated)
        some.runs[:, 0] = rows[some.runs[:, 0]]
        words.append(some.words)
        runs.append(some.runs)
    joined, every = np.concatenate(words), np.concatenate(runs)
    places, hashes = window_hashes(joined, every[:, 2], length)
    with result_directory(_table(partition, WINDOWS)) as directory:
        np.save(directory / "words.npy", joined)
        np.save(directory / "runs.npy", every)
        np.save(directory / "entries.npy", write_table(directory, hashes, places))


class PartitionCandidates:
    """The candidates of a partition, and how often and where first each of their windows occurs in all partitions.

    A place is an index in ``words``.
    """

    def __init__(self, partition: Partition, buckets: int) -> None:
        folder, self._length = _table(partition, WINDOWS), _length(partition)
        self.words: NDArray[np.uint64] = np.load(folder / "words.npy")
        self.runs: NDArray[np.int64] = np.load(folder / "runs.npy")
        self._begins = np.cumsum(self.runs[:, 2]) - self.runs[:, 2]
        self.places, _ = window_hashes(self.words, self.runs[:, 2], self._length)
        found, at = _found(partition, WINDOWS, buckets), np.load(folder / "entries.npy")
        self.totals, self.firsts = found.totals[at], found.firsts[at]
        self._own = (np.uint64(partition.number) << np.uint64(32)) + self.places.astype(np.uint64)

    def passages(self, workspace: Workspace) -> NDArray[np.int64]:
        """Return the passages that occur earlier, int64 ``[n, 3]``: document, its first word, its end."""
        earlier = np.flatnonzero(self.firsts + np.uint64(self._length) <= self._own)
        earlier = earlier[self._equal(workspace, earlier)]
        covered = covered_words(self.places[earlier], self._length, len(self.words))
        return self._located(*stretches(covered, self._begins))

    def _equal(self, workspace: Workspace, windows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which windows have the same words as the first window with their hash. Adjacent ones are compared together."""
        places, firsts = self.places[windows], self.firsts[windows]
        new = (np.diff(places, prepend=-2) != 1) | (np.diff(firsts, prepend=np.uint64(0)) != 1)
        begins = np.flatnonzero(new)
        ends = np.append(begins[1:], len(windows))[: len(begins)]
        equal = np.empty(len(windows), bool)
        numbers = (firsts[begins] >> np.uint64(32)).astype(np.int64)
        for number in np.unique(numbers).tolist():
            there = np.load(_table(Partition(workspace, number), WINDOWS) / "words.npy", mmap_mode="r")
            for index in np.flatnonzero(numbers == number).tolist():
                begin, end = int(begins[index]), int(ends[index])
                size, place, first = end - begin - 1 + self._length, places[begin], int(firsts[begin]) & 0xFFFFFFFF
                equal[begin:end] = np.array_equal(self.words[place : place + size], there[first : first + size])
        return equal

    def most_repeated(self) -> list[tuple[int, list[int]]]:
        """Return the most frequent of the passages that first occur here: the count of each, and its row of `passages`."""
        here = np.flatnonzero((self.firsts == self._own) & (self.totals > 1))
        places, totals = self.places[here], self.totals[here].astype(np.int64)
        begins = np.flatnonzero((np.diff(places, prepend=-2) != 1) | (np.diff(totals, prepend=0) != 0))
        ends = np.append(begins[1:], len(here))[: len(begins)] - 1
        passages = self._located(places[begins], places[ends] + self._length).tolist()
        shown: list[tuple[int, list[int]]] = []
        for index in np.argsort(-totals[begins], kind="stable").tolist():
            document, first, end = passage = passages[index]
            if all(document != d or first >= e or end <= f for _, (d, f, e) in shown):
                shown.append((int(totals[begins[index]]), passage))
            if len(shown) == SHOWN:
                break
        return shown

    def _located(self, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        runs = np.searchsorted(self._begins, firsts, side="right") - 1
        shift = self.runs[runs, 1] - self._begins[runs]
        return np.stack([self.runs[runs, 0], firsts + shift, ends + shift], axis=1)


class PassageCutter:
    """Cuts the texts of one partition, or counts what would be cut, or drops documents."""

    def __init__(self, recipe: Recipe, rejected: IO[bytes]) -> None:
        self._recipe = recipe
        self._rejected = rejected
        self.counts = Counts()
        names = "passages", "words", "documents", "cut", "characters"
        self.counts.add_all("passages", dict.fromkeys(names, 0))

    def left_of(self, row: PassedDocument, words: NDArray[np.int64], passages: Sequence[Sequence[int]]) -> str | None:
        """Return the text of a document after the cuts; None if the document is dropped.

        ``words``: int64 ``[n, 2]``, first character and end of each word. ``passages``: first word and end of each passage.
        """
        recipe, text = self._recipe, row.text
        number = sum(end - first for first, end in passages)
        self.counts.add_all("passages", {"passages": len(passages), "words": number, "documents": 1})
        if recipe.repeated_passages != "cut":
            is_dropped = recipe.repeated_passages == "drop" and number > recipe.repeated_share * len(words)
            return None if is_dropped else text
        spans = [(int(words[first, 0]), int(words[end - 1, 1])) for first, end in passages]
        left = remove_spans(text, spans)
        if too_short(left, recipe.words_left) is not None:
            return None
        self.counts.add_all("passages", {"cut": 1, "characters": len(text) - len(left)})
        reason = f"cut: {len(spans):,} passage{'s' * (len(spans) > 1)} {EARLIER}"
        line = rejected_line(row, row.span, reason, "\n".join(text[first:end] for first, end in spans))
        self.counts.samples.add(CUT, sample_keys([line["text"]], recipe.seed)[0], line)
        if recipe.keep_rejected:
            write_line(self._rejected, line)
        return left


def write_result(buckets: int, partition: Partition) -> None:
    """Cut, count or drop the documents of a partition, and write the most frequent of the passages that first occur in it."""
    recipe, found = partition.workspace.plan.recipe, PartitionCandidates(partition, buckets)
    passages: dict[int, list[list[int]]] = {}
    for document, *words in found.passages(partition.workspace).tolist():
        passages.setdefault(document, []).append(words)
    shown: dict[int, list[tuple[int, list[int]]]] = {}
    for count, (document, *words) in found.most_repeated():
        shown.setdefault(document, []).append((count, words))
    most, origins, first, found_in = [], partition.origins(), 0, sorted({*passages, *shown})
    drops = np.zeros(len(partition.hashes), bool)
    cuts = recipe.repeated_passages == "cut" and len(passages) > 0
    with result_directory(_result(partition)) as directory:
        with open(directory / REJECTED_NAME, "wb") as rejected, DocumentFile(directory) as file:
            cutter = PassageCutter(recipe, rejected)
            for batch in partition.batches(*PassedDocument._fields):
                texts = {}
                for number in found_in[bisect_left(found_in, first) : bisect_left(found_in, first + len(batch))]:
                    row = PassedDocument(*(column[number - first].as_py() for column in batch.columns))
                    spans = find_words([row.text]).spans
                    for count, (begin, end) in shown.get(number, ()):
                        text = row.text[spans[begin, 0] : spans[end - 1, 1]]
                        most.append(_entry(count, end - begin, text, origins[number]))
                    if number in passages:
                        left = cutter.left_of(row, spans, passages[number])
                        drops[number] = left is None
                        texts.update({number - first: left} if left is not None else {})
                if cuts:
                    file.write(with_texts(batch, texts))
                first += len(batch)
        write_json(directory / COUNTS, Counts.sum([partition.counts, cutter.counts]).to_json())
        write_json(directory / _REPEATED, most)
        if recipe.repeated_passages != "count":
            drop(partition, PassageDedupStage.name, drops)


def _entry(count: int, words: int, text: str, origin: Origin) -> RepeatedPassage:
    id, file, line, _ = origin
    return {
        "count": count,
        "words": words,
        "text": text[:SAMPLE_CHARACTERS],
        "id": id[:ID_CHARACTERS],
        "file": file,
        "line": line,
    }
