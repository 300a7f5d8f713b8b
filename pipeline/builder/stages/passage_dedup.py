"""The stage that finds passages, runs of at least N words that occur earlier in the dataset. It cuts or counts them, or drops
the documents that they fill. `pipeline.builder.dedup.word_runs` defines passages, windows, picks and candidates.

    passage_dedup/runs/tables/000034/       the runs that the windows of a partition pick: a table of hashes (key_tables.py)
    passage_dedup/runs/buckets/000002/      these runs, sorted over all partitions
    passage_dedup/windows/tables/000034/    candidates of a partition, which may occur elsewhere: words.npy (uint64), the
                                            words of all candidates; runs.npy (int64 [runs, 3]), for each run of these words
                                            its document, its first word in the document and its number of words; a table of
                                            their windows of N words; entries.npy (uint32), each window's entry in this table
    passage_dedup/windows/buckets/000002/   these windows, sorted over all partitions
    passage_dedup/windows-1/                the tables and buckets of round 1, whose first windows are of other documents
    passage_dedup/judged/1/000034/          passages.npy (int64 [n, 3]), the passages of round 1: document, first word, end;
                                            verdicts.npy (uint8), for each document whether it stays, as far as round 1 tells
    passage_dedup/partitions/000034/        the version of a partition whose texts are cut: documents.arrow and held.bin (hashes
                                            of the texts after the cut), if any text is cut; rejected.jsonl; counts.json;
                                            repeated.json, the most frequent of the passages that first occur in this partition

A document counts as an earlier one only if it stays: otherwise, a passage could be cut from all its documents. But whether a
document stays depends on the passages that are cut from it. So documents are judged in rounds. In even rounds, all documents that
are not dropped yet count as earlier ones: a document that stays nevertheless stays for good. In odd rounds, only documents that
stay for good count: a document that is dropped nevertheless is dropped for good. The first document that is neither is decided
in the next two rounds, so the rounds end; most builds need one or two. After `ROUNDS`, the rest stays.

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
from ..counts.samples import CUT_PASSAGES, ID_CHARACTERS, SAMPLE_CHARACTERS, RepeatedPassage, sample_keys
from ..dedup.key_tables import Found, count_buckets, load_found, sort_bucket, write_table
from ..dedup.minhash import text_hashes
from ..dedup.word_runs import (
    candidates,
    covered_words,
    find_words,
    picked_runs,
    remove_spans,
    stretches,
    whole_spans,
    window_hashes,
)
from ..outcome import Outcome
from ..partitions.partition import COUNTS, HELD, Origin, Partition, partitions
from ..partitions.partition_writer import (
    DocumentFile,
    PassedDocument,
    rejected_line,
    with_texts,
    write_line,
)
from ..recipe import Recipe
from ..work.workspace import Workspace
from .line_dedup import EARLIER, limit_of_words, too_short
from .quotas import BEYOND, MAX_TOKENS, PASSAGES, drop_beyond
from .stage import Run, Stage, Step
from .survivors import drop, drops_path, surviving_texts

RUNS, WINDOWS = "runs", "windows"
SHOWN = 100  # passages in the report
ROUNDS = 20  # an even number, so that passages of the last round are in documents that stay
UNDECIDED, STAYS, DROPPED = range(3)  # verdicts
_REPEATED = "repeated.json"
CUT = "passages cut as repeated"  # the title of samples of passages that were cut


class PassageDedupStage(Stage):
    """Finds passages that occur earlier in the corpus."""

    name = PASSAGES
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
        if (workspace.root / BEYOND).exists():
            yield Step(units=every, function=drop_beyond, makes=functools.partial(drops_path, stage=MAX_TOKENS))
        buckets = 0  # of the previous kind
        for number in range(-1, ROUNDS):
            kind, name = (RUNS, RUNS) if number < 0 else (_windows(number), WINDOWS)
            write = functools.partial(write_runs if number < 0 else write_windows, number, buckets)
            makes = functools.partial(_table, kind=kind)
            yield Step(name=f"find {name}", function=write, makes=makes, **by_partition)
            buckets = count_buckets(map(makes, every), run.plan.limits.bucket_hashes)
            yield Step(
                name=f"sort {name}",
                units=range(buckets),
                function=functools.partial(_sort, workspace, kind, buckets),
                makes=functools.partial(_bucket, workspace, kind),
            )
            if number >= 0:
                makes = functools.partial(_judged, number)
                yield Step(
                    name="judge", function=functools.partial(judge, number, buckets), makes=makes, **by_partition
                )
                if not any((_verdicts(each, number) == UNDECIDED).any() for each in every):
                    break
        function = functools.partial(write_result, number, buckets)
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


def _windows(number: int) -> str:
    """Return the kind of the windows of a round."""
    return f"{WINDOWS}-{number}" if number else WINDOWS


def _judged(number: int, partition: Partition) -> Path:
    return partition.workspace.folder(PassageDedupStage.name) / "judged" / f"{number}" / f"{partition.number:06d}"


def _verdicts(partition: Partition, number: int) -> NDArray[np.uint8]:
    """Return the verdicts on the documents of a partition after a round; before round 0, all are undecided."""
    if number < 0:
        return np.full(len(partition.hashes), UNDECIDED, np.uint8)
    verdicts: NDArray[np.uint8] = np.load(_judged(number, partition) / "verdicts.npy")
    return verdicts


def _counting(partition: Partition, number: int) -> NDArray[np.bool_]:
    """Return which documents of a partition count as earlier ones in a round."""
    verdicts = _verdicts(partition, number - 1)
    return np.isin(verdicts, [STAYS] if number % 2 else [STAYS, UNDECIDED])


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


def write_runs(number: int, _: int, partition: Partition) -> None:
    """Write the table of the runs that the windows of a partition pick."""
    found = [picked_runs(find_words(texts), _length(partition)) for _, texts in surviving_texts(partition)]
    with result_directory(_table(partition, RUNS)) as directory:
        write_table(directory, np.concatenate([np.zeros(0, np.uint64), *found]))


def write_windows(number: int, buckets: int, partition: Partition) -> None:
    """Write the table of the windows of a partition for a round, and before round 0 the candidates."""
    with result_directory(_table(partition, _windows(number))) as directory:
        if number:
            windows = PartitionWindows(partition)
            counting = _counting(partition, number)[windows.documents]
            write_table(directory, windows.hashes, windows.places, counting)
            return
        words, runs = _candidates(partition, buckets)
        np.save(directory / "words.npy", words)
        np.save(directory / "runs.npy", runs)
        places, hashes = window_hashes(words, runs[:, 2], _length(partition))
        np.save(directory / "entries.npy", write_table(directory, hashes, places))


def _candidates(partition: Partition, buckets: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the words of the candidates of a partition, and the runs of these words."""
    found = _found(partition, RUNS, buckets)
    repeated = found.keys[found.totals > 1]
    words, runs = [np.zeros(0, np.uint64)], [np.zeros((0, 3), np.int64)]
    for rows, texts in surviving_texts(partition):
        some = candidates(find_words(texts), _length(partition), repeated)
        some.runs[:, 0] = rows[some.runs[:, 0]]
        words.append(some.words)
        runs.append(some.runs)
    return np.concatenate(words), np.concatenate(runs)


class PartitionWindows:
    """The windows of the candidates of a partition: the place, the hash and the document of each.

    A place is an index in ``words``.
    """

    def __init__(self, partition: Partition) -> None:
        folder, self.length = _table(partition, WINDOWS), _length(partition)
        self.words: NDArray[np.uint64] = np.load(folder / "words.npy")
        self.runs: NDArray[np.int64] = np.load(folder / "runs.npy")
        self.begins = np.cumsum(self.runs[:, 2]) - self.runs[:, 2]
        self.places, self.hashes = window_hashes(self.words, self.runs[:, 2], self.length)
        self.documents = self.runs[np.searchsorted(self.begins, self.places, side="right") - 1, 0]

    def located(self, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return some places and their ends as document, word and end in the document, int64 ``[n, 3]``."""
        runs = np.searchsorted(self.begins, firsts, side="right") - 1
        shift = self.runs[runs, 1] - self.begins[runs]
        return np.stack([self.runs[runs, 0], firsts + shift, ends + shift], axis=1)


class PartitionCandidates:
    """The windows of a partition, and how often each occurs in all partitions, and where first in a round."""

    def __init__(self, partition: Partition, number: int, buckets: int) -> None:
        self._windows, self._counting = PartitionWindows(partition), _counting(partition, number)
        found = _found(partition, _windows(number), buckets)
        self._entries = np.load(_table(partition, WINDOWS) / "entries.npy")
        self.totals, self.firsts = found.totals[self._entries], found.firsts[self._entries]
        self._own = (np.uint64(partition.number) << np.uint64(32)) + self._windows.places.astype(np.uint64)

    def passages(self, workspace: Workspace) -> NDArray[np.int64]:
        """Return the passages that occur earlier, int64 ``[n, 3]``: document, its first word, its end."""
        windows, firsts = self._windows, self.firsts.copy()
        # A document that does not count as an earlier one repeats its own words nevertheless.
        alone = np.flatnonzero(~self._counting[windows.documents])
        pairs = (windows.documents[alone] << 32) + self._entries[alone]
        _, first, group = np.unique(pairs, return_index=True, return_inverse=True)
        firsts[alone] = np.minimum(firsts[alone], self._own[alone][first[group]])
        earlier = np.flatnonzero((firsts < self._own) & (self._own - firsts >= np.uint64(windows.length)))
        earlier = earlier[self._equal(workspace, earlier, firsts[earlier])]
        covered = covered_words(windows.places[earlier], windows.length, len(windows.words))
        return windows.located(*stretches(covered, windows.begins))

    def _equal(self, workspace: Workspace, numbers: NDArray[np.int64], firsts: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which windows have the same words as the windows at ``firsts``. Adjacent ones are compared together."""
        places, length, words = self._windows.places[numbers], self._windows.length, self._windows.words
        new = (np.diff(places, prepend=-2) != 1) | (np.diff(firsts, prepend=np.uint64(0)) != 1)
        begins = np.flatnonzero(new)
        ends = np.append(begins[1:], len(numbers))[: len(begins)]
        equal = np.empty(len(numbers), bool)
        holders = (firsts[begins] >> np.uint64(32)).astype(np.int64)
        for number in np.unique(holders).tolist():
            there = np.load(_table(Partition(workspace, number), WINDOWS) / "words.npy", mmap_mode="r")
            for index in np.flatnonzero(holders == number).tolist():
                begin, end = int(begins[index]), int(ends[index])
                size, place, first = end - begin - 1 + length, places[begin], int(firsts[begin]) & 0xFFFFFFFF
                equal[begin:end] = np.array_equal(words[place : place + size], there[first : first + size])
        return equal

    def most_repeated(self) -> list[tuple[int, list[int]]]:
        """Return the most frequent of the passages that first occur here: the count of each, and its row of `passages`."""
        here = np.flatnonzero((self.firsts == self._own) & (self.totals > 1))
        places, totals = self._windows.places[here], self.totals[here].astype(np.int64)
        begins = np.flatnonzero((np.diff(places, prepend=-2) != 1) | (np.diff(totals, prepend=0) != 0))
        ends = np.append(begins[1:], len(here))[: len(begins)] - 1
        passages = self._windows.located(places[begins], places[ends] + self._windows.length).tolist()
        shown: list[tuple[int, list[int]]] = []
        for index in np.argsort(-totals[begins], kind="stable").tolist():
            document, first, end = passage = passages[index]
            if all(document != d or first >= e or end <= f for _, (d, f, e) in shown):
                shown.append((int(totals[begins[index]]), passage))
            if len(shown) == SHOWN:
                break
        return shown


def judge(number: int, buckets: int, partition: Partition) -> None:
    """Write the passages of the documents of a partition in a round, and the verdicts after it."""
    recipe, verdicts = partition.workspace.plan.recipe, _verdicts(partition, number - 1)
    found = PartitionCandidates(partition, number, buckets).passages(partition.workspace)
    passages = _by_document(found)
    drops, rows = np.zeros(len(verdicts), bool), [row for row in passages if verdicts[row] == UNDECIDED]
    for row, text in zip(rows, partition.texts(rows) if recipe.repeated_passages != "count" else (), strict=False):
        drops[row] = left_of(recipe, text, find_words([text]).spans, passages[row]) is None
    verdicts[(verdicts == UNDECIDED) & (drops if number % 2 else ~drops)] = DROPPED if number % 2 else STAYS
    with result_directory(_judged(number, partition)) as directory:
        np.save(directory / "passages.npy", found)
        np.save(directory / "verdicts.npy", verdicts)


def _by_document(passages: NDArray[np.int64]) -> dict[int, list[list[int]]]:
    """Return the first word and the end of each passage, by document."""
    found: dict[int, list[list[int]]] = {}
    for document, *words in passages.tolist():
        found.setdefault(document, []).append(words)
    return found


def left_of(recipe: Recipe, text: str, words: NDArray[np.int64], passages: Sequence[Sequence[int]]) -> str | None:
    """Return what a cut leaves of a text; None if its document is dropped.

    ``words``: int64 ``[n, 2]``, first character and end of each word. ``passages``: first word and end of each passage.
    """
    if recipe.repeated_passages == "cut":
        spans = whole_spans(text, words, passages)
        left = remove_spans(text, spans)
        return None if spans and too_short(left, recipe.words_left) is not None else left
    number = sum(end - first for first, end in passages)
    is_dropped = recipe.repeated_passages == "drop" and number > recipe.repeated_share * len(words)
    return None if is_dropped else text


class PassageCutter:
    """Cuts the texts of one partition, and counts and lists what is cut."""

    def __init__(self, recipe: Recipe, rejected: IO[bytes]) -> None:
        self._recipe = recipe
        self._rejected = rejected
        self.counts = Counts()
        names = "passages", "words", "documents", "cut", "characters"
        self.counts.add_all("passages", dict.fromkeys(names, 0))

    def left_of(
        self, row: PassedDocument, words: NDArray[np.int64], passages: Sequence[Sequence[int]], verdict: int
    ) -> str:
        """Return the text of a document after the cuts; whole if it is dropped. Arguments as for the function `left_of`."""
        recipe, text = self._recipe, row.text
        number = sum(end - first for first, end in passages)
        self.counts.add_all("passages", {"passages": len(passages), "words": number, "documents": 1})
        if recipe.repeated_passages != "cut" or verdict == DROPPED or not (spans := whole_spans(text, words, passages)):
            return text
        left = remove_spans(text, spans)
        self.counts.add_all("passages", {"cut": 1, "characters": len(text) - len(left)})
        reason = f"cut: {len(spans):,} passage{'s' * (len(spans) > 1)} {EARLIER}"
        line = rejected_line(row, row.span, CUT_PASSAGES, reason, "\n".join(text[first:end] for first, end in spans))
        self.counts.samples.add(CUT, sample_keys([line["text"]], recipe.seed)[0], line)
        if recipe.keep_rejected:
            write_line(self._rejected, line)
        return left


def write_result(number: int, buckets: int, partition: Partition) -> None:
    """Cut, count or drop the documents of a partition, and write the most frequent of the passages that first occur in it."""
    recipe, found = partition.workspace.plan.recipe, PartitionCandidates(partition, number, buckets)
    passages = _by_document(np.load(_judged(number, partition) / "passages.npy"))
    verdicts = _verdicts(partition, number)
    shown: dict[int, list[tuple[int, list[int]]]] = {}
    for count, (document, *words) in found.most_repeated():
        shown.setdefault(document, []).append((count, words))
    most, origins, first, found_in = [], partition.origins(), 0, sorted({*passages, *shown})
    cuts, held = recipe.repeated_passages == "cut" and len(passages) > 0, partition.hashes
    with result_directory(_result(partition)) as directory:
        with open(directory / REJECTED_NAME, "wb") as rejected, DocumentFile(directory) as file:
            cutter = PassageCutter(recipe, rejected)
            for batch in partition.batches(*PassedDocument._fields):
                texts = {}
                for at in found_in[bisect_left(found_in, first) : bisect_left(found_in, first + len(batch))]:
                    row = PassedDocument(*(column[at - first].as_py() for column in batch.columns))
                    spans = find_words([row.text]).spans
                    for count, (begin, end) in shown.get(at, ()):
                        text = row.text[spans[begin, 0] : spans[end - 1, 1]]
                        most.append(_entry(count, end - begin, text, origins[at]))
                    if at in passages:
                        texts[at - first] = cutter.left_of(row, spans, passages[at], verdicts[at])
                if cuts:
                    file.write(with_texts(batch, texts))
                    held[[first + row for row in texts]] = text_hashes([*texts.values()])
                first += len(batch)
        write_json(directory / COUNTS, Counts.sum([partition.counts, cutter.counts]).to_json())
        write_json(directory / _REPEATED, most)
        if cuts:
            held.tofile(directory / f"{HELD}.bin")
        if recipe.repeated_passages != "count":
            drop(partition, PassageDedupStage.name, verdicts == DROPPED)


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
