"""The stage that finds passages, runs of at least N words that occur earlier in the dataset. It cuts or counts them, or drops
the documents that they fill. `pipeline.builder.dedup.word_runs` defines passages, windows, picks and candidates.

    passage_dedup/runs/                     the runs that the windows of all partitions pick, as `dedup.key_tables` sorts them
    passage_dedup/windows-0/                candidates, which may occur elsewhere, and their windows of N words, sorted in the
                                            same way. In tables/000034: words.npy (uint64), the words of all candidates;
                                            runs.npy (int64 [runs, 3]), for each run of these words its document, its first word
                                            in the document and its number of words; entries.npy (uint32), each window's entry
    passage_dedup/windows-1/                those windows that a document of no verdict has after round 0, wherever they are:
                                            undecided/, the keys of such documents; in tables/000034, windows.npy (int64 [3, n]):
                                            the number of each window in round 0, its first word in words.npy, its hash
    passage_dedup/judged/1/000034/          repeated.npy (bool), for each window of round 1 whether it occurs earlier;
                                            verdicts.npy (uint8), for each document whether it stays, as far as round 1 tells;
                                            undecided.npy (uint64), hashes of windows of documents that have no verdict yet
    passage_dedup/partitions/000034/        the edition of a partition whose texts are cut: documents.arrow and held.bin (hashes
                                            of the texts after the cut), if any text is cut; rejected.jsonl; counts.json;
                                            repeated.json, the most frequent of the passages that first occur in this partition

A document counts as an earlier one only if it stays: otherwise, a passage could be cut from all its documents. But whether a
document stays depends on the passages that are cut from it. So documents are judged in rounds. In even rounds, all documents that
are not dropped yet count as earlier ones: a document that stays nevertheless stays for good. In odd rounds, only documents that
stay for good count: a document that is dropped nevertheless is dropped for good. The first document that is neither is decided
in the next two rounds, so the rounds end; most builds need one or two. After `ROUNDS`, the rest stays. A window that no undecided
document has keeps its first place, so each round sorts the other windows alone, in the partitions that have any.

It is the last stage before tokens are made. So only survivors count as earlier documents, and a near duplicate is dropped whole,
not cut. Each window is compared word by word with its first occurrence only, so the time grows in proportion to the words,
however often a passage occurs.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from ...atomic import read_json, write_json
from ...atomic_directory import discard_whole, result_directory
from ...text.hashes import text_hashes
from ..counts.build_stats import BuildStats
from ..counts.samples import ID_CHARACTERS, SAMPLE_CHARACTERS
from ..counts.sums import Counts
from ..dedup.key_tables import KeyTables, count_buckets, count_keys, in_key_set, load_keys, write_key_set, write_table
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
from ..partitions.partition_writer import DocumentFile, PassedDocument, RejectedFile, with_values
from ..recipe import Recipe
from ..work.workspace import Workspace
from .line_dedup import EARLIER, limit_of_words, too_short
from .quotas import BEYOND, MAX_TOKENS, PASSAGES, drop_beyond
from .section import Change, Section, Table
from .stage import Run, Stage, Step, once
from .survivors import drop, drops_path, surviving_texts

RUNS = -1  # in place of the number of a round, whose windows are sorted
SHOWN = 100  # passages in the report
ROUNDS = 20  # an even number, so that passages of the last round are in documents that stay
UNDECIDED, STAYS, DROPPED = range(3)  # verdicts
_REPEATED = "repeated.json"
_WINDOWS, _REPEATED_WINDOWS, _UNDECIDED = "windows.npy", "repeated.npy", "undecided.npy"
_CUT_PASSAGES = "cut_passages"  # the kind of records that show what was cut
CUT = "passages cut as repeated"  # the title of samples of passages that were cut


class RepeatedPassage(TypedDict):
    """A passage of ``words`` words that occurs ``count`` times, and the document in which it occurs first."""

    count: int
    words: int
    text: str
    id: str
    file: str
    line: int


class PassageDedupStage(Stage):
    """Finds passages that occur earlier in the corpus."""

    name = PASSAGES
    drops = Outcome(name, "passages that occur earlier are too much of it")
    edits = True
    quotes = (_CUT_PASSAGES, drops.key, "repeated_passages")

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.dedup_passages is not None

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        workspace, every = run.workspace, partitions(run.workspace, before=self.name)
        by_partition: dict[str, Any] = {
            "prepare": functools.partial(prepare_words, run.plan.recipe),
            "size": lambda partition: partition.bytes,
        }
        if (workspace.root / BEYOND).exists():
            yield Step(units=every, function=drop_beyond, makes=functools.partial(drops_path, stage=MAX_TOKENS))
        sorted_keys: list[KeyTables] = []  # of runs, then of the windows of each round
        left = every  # partitions that have windows
        for number in range(-1, ROUNDS):
            makes = functools.partial(_table, number=number)
            if number > 0:
                undecided = [_judged(number - 1, each) / _UNDECIDED for each in left]
                yield once(_key_set(workspace, number), write_key_set, _key_set(workspace, number), undecided)
            write = functools.partial(write_windows, number, sorted_keys[0]) if number >= 0 else write_runs
            name = "windows" if number >= 0 else "runs"
            yield Step(name=f"find {name}", units=left, function=write, makes=makes, **by_partition)
            left = [each for each in left if count_keys([makes(each)])] if number > 0 else left
            buckets = count_buckets(count_keys(map(makes, left)), run.plan.limits.bucket_hashes)
            numbers = tuple(each.number for each in left) if number > 0 else range(len(every))
            keys = KeyTables(_folder(workspace, number), numbers, buckets)
            if not all(keys.path("results", group).exists() for group in range(keys.groups)):
                for verb, units, make, path in keys.steps():
                    yield Step(name=f"{verb} {name}", units=units, function=make, makes=path)
                for kind in ("groups", "buckets"):
                    discard_whole(keys.folder / kind)
            sorted_keys.append(keys)
            if number >= 0:
                makes = functools.partial(_judged, number)
                function = functools.partial(judge, number, keys)
                yield Step(name="judge", units=left, function=function, makes=makes, **by_partition)
                if not any((_verdicts(each, number) == UNDECIDED).any() for each in left):
                    break
        result = functools.partial(write_result, sorted_keys[1:])
        yield Step(name="passages", units=every, function=result, makes=_result, **by_partition)

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        """Return ``passages`` and ``repeated_passages``, those that occur most.

        ``passages`` counts the ``passages`` that occur earlier, their ``words`` and ``documents``; documents that were ``cut``
        and kept; and ``characters`` cut from them.
        """
        found = [passage for each in partitions(workspace) for passage in read_json(_result(each) / _REPEATED)]
        most = sorted(found, key=lambda passage: -passage["count"])[:SHOWN]
        return {"passages": counts.by("passages"), "repeated_passages": most}

    def section(self, counts: Mapping[str, Any]) -> Section:
        if not (found := counts.get("passages")):
            return Section()
        what = f"{found['passages']:,} passages that occur earlier"
        where = f"cut from {found['cut']:,} documents: " if found["cut"] else f"in {found['documents']:,} documents: "
        cuts = [
            ("passages that occur earlier", found["passages"]),
            ("words of these passages", found["words"]),
            ("documents that have them", found["documents"]),
            ("documents they were cut from and that were kept", found["cut"]),
        ]
        table = Table(
            "Repeated passages",
            "The passages that occur most, and the document in which each is first. Up to 600 characters of each are shown.",
            ("times", "words", "passage"),
            [(each["count"], each["words"], each) for each in counts.get("repeated_passages", ())],
        )
        return Section(
            changes=[Change(where + what, 0, found["characters"])], cuts=cuts, tables=[table] if table.rows else ()
        )


def _result(partition: Partition) -> Path:
    return partition.edition(PassageDedupStage.name)


def _folder(workspace: Workspace, number: int) -> Path:
    """Return the folder of the windows of a round, or of RUNS."""
    return workspace.folder(PassageDedupStage.name) / (f"windows-{number}" if number >= 0 else "runs")


def _table(partition: Partition, number: int) -> Path:
    return _folder(partition.workspace, number) / "tables" / f"{partition.number:06d}"


def _key_set(workspace: Workspace, number: int) -> Path:
    return _folder(workspace, number) / "undecided"


def _judged(number: int, partition: Partition) -> Path:
    return partition.workspace.folder(PassageDedupStage.name) / "judged" / f"{number}" / f"{partition.number:06d}"


def _verdicts(partition: Partition, number: int) -> NDArray[np.uint8]:
    """Return the verdicts on the documents of a partition after a round; before round 0, all are undecided."""
    if number < 0:
        return np.full(len(partition.hashes), UNDECIDED, np.uint8)
    path = _judged(number, partition) / "verdicts.npy"  # written in rounds in which the partition has windows
    return np.asarray(np.load(path)) if path.exists() else _verdicts(partition, number - 1)


def _counting(partition: Partition, number: int) -> NDArray[np.bool_]:
    """Return which documents of a partition count as earlier ones in a round."""
    verdicts = _verdicts(partition, number - 1)
    return np.isin(verdicts, [STAYS] if number % 2 else [STAYS, UNDECIDED])


def prepare_words(recipe: Recipe) -> None:
    """Load libraries, tables and compiled kernels, before workers are forked."""
    import pyarrow  # noqa: F401

    find_words(["to compile"])
    limit_of_words(recipe.words_left).prepare()


def _length(partition: Partition) -> int:
    length = partition.workspace.plan.recipe.dedup_passages
    assert length is not None
    return length


def write_runs(partition: Partition) -> None:
    """Write the table of the runs that the windows of a partition pick."""
    found = [picked_runs(find_words(texts), _length(partition)) for _, texts in surviving_texts(partition)]
    keys = np.concatenate([np.zeros(0, np.uint64), *found])
    with result_directory(_table(partition, RUNS)) as directory:
        write_table(directory, partition.number, keys, np.arange(len(keys)))


def write_windows(number: int, runs: KeyTables, partition: Partition) -> None:
    """Write the table of the windows of a partition for a round, and before round 0 the candidates."""
    with result_directory(_table(partition, number)) as directory:
        if number:
            windows, among = PartitionWindows(partition, number - 1), _key_set(partition.workspace, number)
            windows.take(np.flatnonzero(in_key_set(among, windows.hashes)))
            np.save(directory / _WINDOWS, np.stack([windows.numbers, windows.places, windows.hashes.view(np.int64)]))
            found = windows.hashes, windows.places, _counting(partition, number)[windows.documents]
        else:
            words, of_words = _candidates(partition, runs)
            np.save(directory / "words.npy", words)
            np.save(directory / "runs.npy", of_words)
            places, hashes = window_hashes(words, of_words[:, 2], _length(partition))
            found = hashes, places, np.ones(len(places), bool)
        np.save(directory / "entries.npy", write_table(directory, partition.number, *found))


def _candidates(partition: Partition, keys: KeyTables) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the words of the candidates of a partition, and the runs of these words."""
    repeated = load_keys(_table(partition, RUNS))[keys.found(partition.number)[0] > 1]
    words, runs = [np.zeros(0, np.uint64)], [np.zeros((0, 3), np.int64)]
    for rows, texts in surviving_texts(partition):
        some = candidates(find_words(texts), _length(partition), repeated)
        some.runs[:, 0] = rows[some.runs[:, 0]]
        words.append(some.words)
        runs.append(some.runs)
    return np.concatenate(words), np.concatenate(runs)


class PartitionWindows:
    """The windows of a partition in a round: the place, the hash and the document of each, and its number among all.

    A place is an index in ``words``.
    """

    def __init__(self, partition: Partition, number: int) -> None:
        folder, self.length = _table(partition, 0), _length(partition)
        self.words: NDArray[np.uint64] = np.load(folder / "words.npy", mmap_mode="r" if number else None)
        self.runs: NDArray[np.int64] = np.load(folder / "runs.npy")
        self.begins = np.cumsum(self.runs[:, 2]) - self.runs[:, 2]
        if number:
            self.numbers, self.places, hashes = np.load(_table(partition, number) / _WINDOWS)
            self.hashes = hashes.view(np.uint64)
        else:
            self.places, self.hashes = window_hashes(self.words, self.runs[:, 2], self.length)
            self.numbers = np.arange(len(self.places))
        self.documents = self.runs[np.searchsorted(self.begins, self.places, side="right") - 1, 0]

    def take(self, some: NDArray[np.int64]) -> None:
        """Keep some of the windows."""
        self.numbers, self.places, self.hashes = self.numbers[some], self.places[some], self.hashes[some]
        self.documents = self.documents[some]

    def passages(self, repeated: NDArray[np.bool_]) -> dict[int, list[list[int]]]:
        """Return the first word and the end of each passage of ``repeated`` windows, by document."""
        found: dict[int, list[list[int]]] = {}
        covered = covered_words(self.places[repeated], self.length, len(self.words))
        for document, *words in self.located(*stretches(covered, self.begins)).tolist():
            found.setdefault(document, []).append(words)
        return found

    def located(self, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return some places and their ends as document, word and end in the document, int64 ``[n, 3]``."""
        runs = np.searchsorted(self.begins, firsts, side="right") - 1
        shift = self.runs[runs, 1] - self.begins[runs]
        return np.stack([self.runs[runs, 0], firsts + shift, ends + shift], axis=1)


class PartitionCandidates:
    """The windows of a partition in a round, and how often each occurs in all partitions, and where first."""

    def __init__(self, partition: Partition, number: int, keys: KeyTables) -> None:
        self.windows, self._counting = PartitionWindows(partition, number), _counting(partition, number)
        self._entries = np.load(_table(partition, number) / "entries.npy")
        self.totals, self.firsts = (found[self._entries] for found in keys.found(partition.number))
        self._own = (np.uint64(partition.number) << np.uint64(32)) + self.windows.places.astype(np.uint64)

    def repeated(self, workspace: Workspace) -> NDArray[np.bool_]:
        """Return which windows occur earlier."""
        windows, firsts = self.windows, self.firsts.copy()
        # A document that does not count as an earlier one repeats its own words nevertheless.
        alone = np.flatnonzero(~self._counting[windows.documents])
        pairs = (windows.documents[alone] << 32) + self._entries[alone]
        _, first, group = np.unique(pairs, return_index=True, return_inverse=True)
        firsts[alone] = np.minimum(firsts[alone], self._own[alone][first[group]])
        repeated: NDArray[np.bool_] = (firsts < self._own) & (self._own - firsts >= np.uint64(windows.length))
        earlier = np.flatnonzero(repeated)
        repeated[earlier] = self._equal(workspace, earlier, firsts[earlier])
        return repeated

    def _equal(self, workspace: Workspace, numbers: NDArray[np.int64], firsts: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which windows have the same words as the windows at ``firsts``. Adjacent ones are compared together."""
        places, length, words = self.windows.places[numbers], self.windows.length, self.windows.words
        new = (np.diff(places, prepend=-2) != 1) | (np.diff(firsts, prepend=np.uint64(0)) != 1)
        begins = np.flatnonzero(new)
        ends = np.append(begins[1:], len(numbers))[: len(begins)]
        equal = np.empty(len(numbers), bool)
        holders = (firsts[begins] >> np.uint64(32)).astype(np.int64)
        for number in np.unique(holders).tolist():
            there = np.load(_table(Partition(workspace, number), 0) / "words.npy", mmap_mode="r")
            for index in np.flatnonzero(holders == number).tolist():
                begin, end = int(begins[index]), int(ends[index])
                size, place, first = end - begin - 1 + length, places[begin], int(firsts[begin]) & 0xFFFFFFFF
                equal[begin:end] = np.array_equal(words[place : place + size], there[first : first + size])
        return equal

    def most_repeated(self) -> list[tuple[int, list[int]]]:
        """Return the most frequent of the passages that first occur here: the count of each, and its row of `passages`."""
        here = np.flatnonzero((self.firsts == self._own) & (self.totals > 1))
        places, totals = self.windows.places[here], self.totals[here].astype(np.int64)
        begins = np.flatnonzero((np.diff(places, prepend=-2) != 1) | (np.diff(totals, prepend=0) != 0))
        ends = np.append(begins[1:], len(here))[: len(begins)] - 1
        passages = self.windows.located(places[begins], places[ends] + self.windows.length).tolist()
        shown: list[tuple[int, list[int]]] = []
        for index in np.argsort(-totals[begins], kind="stable").tolist():
            document, first, end = passage = passages[index]
            if all(document != d or first >= e or end <= f for _, (d, f, e) in shown):
                shown.append((int(totals[begins[index]]), passage))
            if len(shown) == SHOWN:
                break
        return shown


def judge(number: int, keys: KeyTables, partition: Partition) -> None:
    """Write which windows of a partition occur earlier in a round, and the verdicts on its documents after it."""
    recipe, verdicts = partition.workspace.plan.recipe, _verdicts(partition, number - 1)
    found = PartitionCandidates(partition, number, keys)
    repeated, windows = found.repeated(partition.workspace), found.windows
    passages = windows.passages(repeated)
    drops, rows = np.zeros(len(verdicts), bool), [row for row in passages if verdicts[row] == UNDECIDED]
    for row, text in zip(rows, partition.texts(rows) if recipe.repeated_passages != "count" else (), strict=False):
        drops[row] = left_of(recipe, text, find_words([text]).spans, passages[row]) is None
    verdicts[(verdicts == UNDECIDED) & (drops if number % 2 else ~drops)] = DROPPED if number % 2 else STAYS
    with result_directory(_judged(number, partition)) as directory:
        np.save(directory / _REPEATED_WINDOWS, repeated)
        np.save(directory / "verdicts.npy", verdicts)
        np.save(directory / _UNDECIDED, windows.hashes[verdicts[windows.documents] == UNDECIDED])


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

    def __init__(self, recipe: Recipe, directory: Path) -> None:
        self._recipe = recipe
        self.counts = Counts()
        self.rejected = RejectedFile(directory, recipe, self.counts.samples)
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
        shown = "\n".join(text[first:end] for first, end in spans)
        self.rejected.add(row, _CUT_PASSAGES, reason, shown, title=CUT)
        return left


def write_result(rounds: Sequence[KeyTables], partition: Partition) -> None:
    """Cut, count or drop the documents of a partition, and write the most frequent of the passages that first occur in it."""
    recipe, verdicts = partition.workspace.plan.recipe, _verdicts(partition, len(rounds) - 1)
    found, repeated = PartitionCandidates(partition, 0, rounds[0]), np.load(_judged(0, partition) / _REPEATED_WINDOWS)
    for number, keys in enumerate((keys for keys in rounds[1:] if partition.number in keys.partitions), 1):
        later = PartitionCandidates(partition, number, keys)
        found.firsts[later.windows.numbers] = later.firsts
        repeated[later.windows.numbers] = np.load(_judged(number, partition) / _REPEATED_WINDOWS)
    passages = found.windows.passages(repeated)
    shown: dict[int, list[tuple[int, list[int]]]] = {}
    for count, (document, *words) in found.most_repeated():
        shown.setdefault(document, []).append((count, words))
    most, origins, begin, found_in = [], partition.origins(), 0, sorted({*passages, *shown})
    cuts, held = recipe.repeated_passages == "cut" and len(passages) > 0, partition.hashes
    with result_directory(_result(partition)) as directory:
        cutter = PassageCutter(recipe, directory)
        with cutter.rejected, DocumentFile(directory) as file:
            for batch in partition.batches(*PassedDocument._fields):
                texts = {}
                for at in found_in[bisect_left(found_in, begin) : bisect_left(found_in, begin + len(batch))]:
                    row = PassedDocument(*(column[at - begin].as_py() for column in batch.columns))
                    spans = find_words([row.text]).spans
                    for count, (word, end) in shown.get(at, ()):
                        text = row.text[spans[word, 0] : spans[end - 1, 1]]
                        most.append(_entry(count, end - word, text, origins[at]))
                    if at in passages:
                        texts[at - begin] = cutter.left_of(row, spans, passages[at], verdicts[at])
                if cuts:
                    sizes = {row: len(text) for row, text in texts.items()}
                    file.write(with_values(batch, {"text": texts, "characters": sizes}))
                    held[[begin + row for row in texts]] = text_hashes([*texts.values()])
                begin += len(batch)
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
