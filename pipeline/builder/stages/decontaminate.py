"""The stage that finds documents that hold items of evaluation sets, and drops, cuts or marks them.

    ingest/*/*/matches.npy              int64 [n, 2]: a document of the partition, and an n-gram of an item that it has
    decontaminate/counting.npy          bool, for each n-gram: few enough documents have it, so it counts
    decontaminate/partitions/000034/    the edition of a partition that held items; found.json: the documents, the longest run
                                        of words and the greatest share of each item, by its number

An n-gram is counted once for documents of equal text, since crawls hold the same page many times. The stage comes before all
dedup, so no document is dropped as the duplicate of one that held an item.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ...atomic import atomic_file, read_json, write_json
from ...atomic_directory import result_directory
from ...errors import first_few
from ...text.hashes import text_hashes
from ..counts.build_stats import BuildStats
from ..counts.sums import PASSED, Counts
from ..dedup.decontaminate import Decontaminator, Evaluation, Holding, holdings, windows
from ..dedup.segments import segment_finder
from ..dedup.spellings import spellings, spellings_with_offsets
from ..dedup.word_runs import covered_words, find_words, remove_spans, stretches, whole_spans
from ..outcome import Outcome
from ..partitions.partition import COUNTS, MATCHES, Partition, partitions
from ..partitions.partition_writer import DocumentFile, PassedDocument, RejectedFile, make_hasher, with_values
from ..recipe import CONTAMINATED, MARK, Recipe
from ..transforms.references import load_evaluation
from ..work.workspace import Workspace
from .line_dedup import prepare_cut, too_short
from .section import Change, Code, Section, Table
from .stage import Run, Stage, Step, once

CUT, MARKED = "cut as contaminated", "marked as contaminated"  # titles of samples
_CUT_ITEMS = "cut_items"  # the kind of records that show what was cut
_SHOWN = 200  # items in the report
LEAST_COMMON = 20  # an n-gram that so few documents have counts, however small the corpus is
_COUNTING, _FOUND = "counting.npy", "found.json"


class DecontaminateStage(Stage):
    """Finds documents that hold items of evaluation sets."""

    name = "decontaminate"
    drops = Outcome(CONTAMINATED)
    edits = True
    quotes = (_CUT_ITEMS,)

    def wanted(self, recipe: Recipe) -> bool:
        return bool(recipe.decontaminate)

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        workspace = run.workspace
        path = workspace.folder(self.name) / _COUNTING
        yield once(path, write_counting, workspace, path)
        yield Step(
            units=partitions(workspace, before=self.name),
            function=judge_partition,
            makes=lambda partition: partition.edition(self.name),
            prepare=functools.partial(prepare_judge, workspace),
            size=lambda partition: partition.bytes,
        )

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        """Return ``contamination`` and ``contaminated_items``, those in most documents first.

        ``contamination`` counts documents that were ``cut`` or ``marked`` and kept, and ``characters`` cut from them. An item has
        its number of documents, and the longest run of words and the greatest share of it that one of them has.
        """
        evaluation, found = load_evaluation(workspace), dict[int, list[float]]()
        names, grams = evaluation.names, evaluation.grams
        counting = np.load(workspace.folder(self.name) / _COUNTING)[grams.entries]
        counted = np.bincount(np.repeat(np.arange(len(names)), grams.sizes)[counting], minlength=len(names))
        if common := [names[item] for item in np.flatnonzero((counted == 0) & (grams.sizes > 0)).tolist()]:
            stats.notes.append(
                f"decontaminate: {len(common):,} item{'s' * (len(common) > 1)} cannot be found, because too many documents share "
                "their words: "
                f"{first_few(common)}; raise --decontaminate-common to find them"
            )
        for partition in partitions(workspace):
            for item, numbers in read_json(partition.edition(self.name) / _FOUND).items():
                documents, run, share = found.get(int(item), (0, 0, 0))
                found[int(item)] = [documents + numbers[0], max(run, numbers[1]), max(share, numbers[2])]
        items = [
            {"item": names[item], "documents": int(documents), "run": int(run), "share": round(share, 4)}
            for item, (documents, run, share) in sorted(found.items(), key=lambda each: (-each[1][0], each[0]))
        ]
        return {"contamination": counts.by("contamination"), "contaminated_items": items}

    def section(self, counts: Mapping[str, Any]) -> Section:
        found, items = counts.get("contamination", {}), counts.get("contaminated_items", ())
        whats = {"cut": "cut from", "marked": "marked, of items of evaluation sets:"}
        table = Table(
            "Items of evaluation sets",
            f"The items that documents hold, the first {len(items[:_SHOWN])} of {len(items):,}: how many documents hold each, "
            "the longest run of words that one of them shares with it, and the greatest share of the item that one has.",
            ("documents", "words in a row", "share", "item"),
            [(each["documents"], each["run"], float(each["share"]), Code(each["item"])) for each in items[:_SHOWN]],
        )
        return Section(
            changes=[
                Change(f"{what} {found[kind]:,} documents{': runs of items' * (kind == 'cut')}", 0, found["characters"])
                for kind, what in whats.items()
                if found.get(kind)
            ],
            cuts=[(f"documents {kind} as contaminated", n) for kind, n in found.items() if kind != "characters"],
            tables=[table] if items else (),
        )


def write_counting(workspace: Workspace, path: Path) -> None:
    """Write which n-grams count: those that at most a share of the documents have."""
    every = partitions(workspace, before=DecontaminateStage.name)
    pairs = [np.zeros((0, 2), np.uint64)]  # the hash of a text, and an n-gram
    for partition in every:
        rows, entries = np.load(partition.path(MATCHES)).T
        keys = partition.hashes[rows, :8].copy().view(np.uint64)[:, 0]
        pairs.append(np.stack([keys, entries.astype(np.uint64)], axis=1))
    distinct = np.unique(np.concatenate(pairs), axis=0)[:, 1].astype(np.int64)
    documents = sum(partition.path("hashes.bin").stat().st_size // 16 for partition in every)
    most = max(LEAST_COMMON, workspace.plan.recipe.decontaminate_common * documents)
    counting = np.bincount(distinct, minlength=len(load_evaluation(workspace).grams.hashes)) <= most
    with atomic_file(path) as file:
        np.save(file, counting)


def prepare_judge(workspace: Workspace) -> None:
    """Load items, and all that `line_dedup` needs to write a partition again, before workers are forked."""
    load_evaluation(workspace).grams.found(["to compile"])
    prepare_cut(workspace)


def judge_partition(partition: Partition) -> None:
    """Write which items the documents of a partition hold, and the documents again if some do."""
    recipe, workspace = partition.workspace.plan.recipe, partition.workspace
    evaluation = load_evaluation(workspace)
    counting = np.load(workspace.folder(DecontaminateStage.name) / _COUNTING)
    held = holdings(evaluation.grams, np.load(partition.path(MATCHES)), counting, recipe.decontaminate_share)
    by_row = {row: list(some) for row, some in groupby(held, attrgetter("row"))}
    with result_directory(partition.edition(DecontaminateStage.name)) as directory:
        judge = _Judge(partition, evaluation, counting, directory)
        if by_row:
            judge.write(by_row)
        write_json(directory / _FOUND, judge.found)


class _Judge:
    """Drops, cuts or marks the documents of one partition."""

    def __init__(
        self, partition: Partition, evaluation: Evaluation, counting: NDArray[np.bool_], directory: Path
    ) -> None:
        self._partition, self._directory = partition, directory
        self._recipe, self._source = partition.workspace.plan.recipe, partition.source
        self._evaluation, self._counting = evaluation, counting
        self.found: dict[str, list[float]] = {}
        self._counts = Counts()
        self._rejected = RejectedFile(directory, self._recipe, self._counts.samples)

    def write(self, held: Mapping[int, Sequence[Holding]]) -> None:
        """Write the files of the partition again. ``held`` are the items of its documents, by row."""
        partition, directory = self._partition, self._directory
        keep, texts = np.ones(len(partition.hashes), bool), {}
        counts, first, segments = partition.counts, 0, [np.zeros(0, np.uint64)]
        find = segment_finder(self._recipe.segment_kinds, self._recipe.shortest_passage)
        with self._rejected, DocumentFile(directory) as file:
            for batch in partition.batches(*PassedDocument._fields):
                columns: dict[str, dict[int, Any]] = {"text": {}, "characters": {}, "metadata": {}}
                for number in sorted(held.keys() & set(range(first, first + len(batch)))):
                    row = PassedDocument(*(column[number - first].as_py() for column in batch.columns))
                    new = self._judged(row, held[number])
                    if new is None:
                        keep[number] = False
                        self._moved(counts, row)
                        continue
                    if new.text != row.text:
                        texts[number] = new.text
                    for name, values in columns.items():
                        values[number - first] = getattr(new, name)
                kept = with_values(batch, columns, keep[first : first + len(batch)])
                file.write(kept)
                if find is not None:
                    segments.append(np.unique(find(kept.column("text").to_pylist()).hashes))
                first += len(batch)
        counts.update(self._counts)
        write_json(directory / COUNTS, counts.to_json())
        if find is not None:
            np.unique(np.concatenate(segments)).tofile(directory / "passages.bin")
        if self._recipe.decontaminate_action != MARK:
            self._write_hashes(keep, texts)

    def _moved(self, counts: Counts, row: PassedDocument) -> None:
        """Count a document that passed the filters as dropped."""
        path = self._source, row.language, PASSED
        counts.numbers["filtered", *path] -= 1
        counts.numbers["characters of filtered", *path] -= row.characters
        if not counts.numbers["filtered", *path]:
            del counts.numbers["filtered", *path], counts.numbers["characters of filtered", *path]
        self._counts.add_outcome("filtered", self._source, row.language, CONTAMINATED, row.characters)

    def _judged(self, row: PassedDocument, held: Sequence[Holding]) -> PassedDocument | None:
        """Return a document as it is kept (None: dropped), and write what becomes of it."""
        recipe, spans, longest = self._recipe, list[tuple[int, int]](), 0
        cuts = recipe.decontaminate_action == "cut"
        # To know where each character comes from takes long.
        spelled = spellings_with_offsets(row.text) if cuts else [(each, None) for each in spellings(row.text)]
        for each in held:
            grams = self._evaluation.grams
            entries, _, _ = grams.of_text(each.item)
            run, where = shared_runs(spelled, grams, entries[self._counting[entries]])
            spans += where if cuts else []
            longest = max(longest, run)
            documents, most, share = self.found.get(str(each.item), (0, 0, 0))
            self.found[str(each.item)] = [documents + 1, max(most, run), max(share, each.share)]
        name, more = self._evaluation.names[held[0].item], len(held) - 1
        reason = f"contaminated by {name}: {held[0].share:.0%} of the item, {longest:,} words in a row"
        reason += f"; and by {more:,} other item{'s' * (more > 1)}" * (more > 0)
        if recipe.decontaminate_action == MARK:
            metadata = orjson.dumps({**orjson.loads(row.metadata), CONTAMINATED: name}).decode()
            self._counts.add_all("contamination", {"marked": 1, "characters": 0})
            self._rejected.add(row, MARKED, reason, is_kept=True)
            return row._replace(metadata=metadata)
        if cuts and spans:
            left = remove_spans(row.text, joined(spans))
            if too_short(left, recipe.words_left) is None:
                self._counts.add_all("contamination", {"cut": 1, "characters": len(row.text) - len(left)})
                cut = "\n".join(row.text[begin:end] for begin, end in joined(spans))
                self._rejected.add(row, _CUT_ITEMS, f"cut: {reason}", cut, title=CUT)
                return row._replace(text=left, characters=len(left))
            reason += "; too little is left without them"
        self._rejected.add(row, CONTAMINATED, reason)
        return None

    def _write_hashes(self, keep: NDArray[np.bool_], texts: Mapping[int, str]) -> None:
        """Write the hashes and signatures of the documents that are kept, of which ``texts`` are new."""
        partition = self._partition
        rows, new = sorted(texts), [texts[row] for row in sorted(texts)]
        signatures = np.fromfile(partition.path("signatures.bin"), np.uint32)
        for name, values, made in (
            ("hashes.bin", partition.hashes, text_hashes),
            ("signatures.bin", signatures.reshape(len(keep), -1), make_hasher(self._recipe).signatures),
        ):
            if rows and values.size:
                values[rows] = made(new)
            values[keep].tofile(self._directory / name)


def shared_runs(
    spelled: Sequence[tuple[str, Sequence[int] | None]], grams: Decontaminator, entries: NDArray[np.int64]
) -> tuple[int, list[tuple[int, int]]]:
    """Return the words of the longest run that a text shares with an item, and the characters of all such runs.

    ``spelled`` are the spellings of the text, and the places of their characters in it; None: they are not asked for.
    ``entries`` are the n-grams of the item that count.
    """
    longest, spans = 0, list[tuple[int, int]]()
    for spelling, offsets in spelled:
        places = find_words([spelling]).spans
        shared = np.zeros(len(places), bool)
        for length in grams.lengths.tolist():
            if length <= len(places):
                (hashes,) = windows([spelling], length)
                at = np.flatnonzero(np.isin(hashes, grams.hashes[entries]))
                shared |= covered_words(at, length, len(places))
        firsts, ends = stretches(shared, np.zeros(1, np.int64))
        longest = max([longest, *(ends - firsts).tolist()])
        if offsets is not None:
            runs = whole_spans(spelling, places, np.stack([firsts, ends], axis=1).tolist())
            spans += [(offsets[begin], offsets[end]) for begin, end in runs]
    return longest, spans


def joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans of characters in order, those that overlap as one.

    >>> joined([(5, 9), (0, 2), (8, 12)])
    [(0, 2), (5, 12)]
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
