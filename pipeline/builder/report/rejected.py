"""Lists dropped documents: in ``rejected.jsonl``, and in the samples of every outcome that the report shows."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import orjson

from ...atomic import atomic_file
from ...shards.manifest import REJECTED_NAME
from ..counts.samples import SAMPLE_CHARACTERS, SAMPLES, Sample, Samples, hash_keys
from ..outcome import DUPLICATES, KEPT, NEAR
from ..partitions.partition import Origin, locate, partitions
from ..partitions.partition_writer import write_line
from ..signature_store import earlier_name
from ..stages.dedup import load_keepers, positions
from ..stages.registry import OUTCOMES
from ..stages.split import load_outcome, outcome_keys
from ..work.workspace import Workspace

_CONTEXT = 12  # words shown before the first one that differs


def write_rejected(workspace: Workspace) -> None:
    """Write ``rejected.jsonl``: records that could not be read and, with ``keep_rejected``, every dropped document.

    Each line says file, line, kind and reason; ``kept_id`` is the document that is kept in place of a duplicate.
    """
    path = workspace.output / REJECTED_NAME
    path.unlink(missing_ok=True)
    with atomic_file(path) as out:
        # All lines of a stage come before those of the next, so that the order does not depend on the partitions.
        editions = range(1 + len(workspace.plan.editing))
        for edition, partition in itertools.product(editions, partitions(workspace)):
            part = partition.editions[edition] / REJECTED_NAME
            if part.exists():
                with open(part, "rb") as file:
                    for line in file:
                        write_line(out, locate(partition, orjson.loads(line)))
        if workspace.plan.recipe.keep_rejected:
            later = _LaterOutcomes(workspace)
            for dropped in later.dropped():
                later.name(dropped)
                for document in _documents(workspace, dropped):
                    write_line(out, later.line(document))
    if path.stat().st_size == 0:
        path.unlink()


def take_samples(workspace: Workspace) -> Samples:
    """Return the samples of every outcome. Partitions already have samples of the documents that filters dropped."""
    samples = Samples()
    for partition in partitions(workspace):
        for outcome, pairs in partition.counts.samples.to_json().items():
            for key, sample in pairs:
                if samples.wants(outcome, key):
                    samples.add(outcome, key, locate(partition, sample))
    later = _LaterOutcomes(workspace)
    keys = _smallest(workspace)
    chosen = np.array(sorted(keys), np.int64)
    later.name(chosen)
    originals = later.originals(chosen)
    for document in _documents(workspace, chosen):
        sample = later.line(document)
        if (original := originals.get(document.at)) is not None:
            sample["text"], sample["original"] = from_first_difference(document.text, original)
        samples.add(later.titles[document.outcome], keys[document.at], sample)
    return samples


def from_first_difference(*texts: str) -> tuple[str, ...]:
    """Return two texts from some words before the first word that differs, cut to the length of a sample.

    >>> from_first_difference("a b " + "equal " * 500 + "end", "a b " + "equal " * 500 + "stop")[1]
    '… equal equal equal equal equal equal equal equal equal equal equal equal stop'
    """
    before: deque[tuple[int, ...]] = deque([(0,) * len(texts)], maxlen=_CONTEXT + 1)
    for words in zip(*(re.finditer(r"\S{1,40}", text) for text in texts), strict=False):
        before.append(tuple(word.start() for word in words))
        if len({word[0] for word in words}) > 1:
            break
    starts = before[0]
    return tuple(("… " * any(starts) + text[at:])[:SAMPLE_CHARACTERS] for text, at in zip(texts, starts, strict=True))


def _smallest(workspace: Workspace) -> dict[int, int]:
    """Return the documents with the smallest keys of each outcome, by number, and their keys."""
    smallest: dict[int, dict[int, int]] = {}
    for partition in partitions(workspace):
        first_number, outcome = positions(partition).start, load_outcome(partition)
        keys = hash_keys(partition.hashes, workspace.plan.recipe.seed)
        for what in np.unique(outcome).tolist():
            rows = np.flatnonzero(outcome == what)
            distinct, first = np.unique(keys[rows], return_index=True)
            rows_of = smallest.setdefault(what, {})
            for key, row in zip(distinct[:SAMPLES].tolist(), rows[first[:SAMPLES]].tolist(), strict=True):
                rows_of.setdefault(key, first_number + row)
            smallest[what] = dict(sorted(rows_of.items())[:SAMPLES])
    return {at: key for rows_of in smallest.values() for key, at in rows_of.items()}


class _Document(NamedTuple):
    at: int  # its number among the documents of all partitions
    origin: Origin
    text: str
    hash: str
    outcome: int


def _documents(workspace: Workspace, numbers: np.ndarray, *, texts: bool = True) -> Iterator[_Document]:
    """Yield the documents of ``numbers``, which ascend. Without ``texts``, which are most of the work, their texts are ''."""
    for partition in partitions(workspace):
        whole = positions(partition)
        mine = numbers[np.searchsorted(numbers, whole.start) : np.searchsorted(numbers, whole.stop)].tolist()
        if mine:
            origins, hashes, outcomes = partition.origins(), partition.hashes, load_outcome(partition)
            documents = partition.texts([at - whole.start for at in mine]) if texts else itertools.repeat("")
            for at, text in zip(mine, documents, strict=False):
                row = at - whole.start
                yield _Document(at, origins[row], text, hashes[row].tobytes().hex(), int(outcomes[row]))


class _LaterOutcomes:
    """The outcomes of the documents that passed the filters, and the reasons."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._kind, self._keeper, self._before = load_keepers(workspace)
        self._names: dict[int, Origin] = {}
        self._outcomes = [OUTCOMES[key] for key in outcome_keys(workspace)]
        self.titles = [outcome.title or outcome.key for outcome in self._outcomes]

    def dropped(self) -> Iterator[np.ndarray]:
        """Yield the numbers of the documents that were dropped, those of some partitions at a time."""
        every, some = partitions(self._workspace), list[np.ndarray]()
        for partition in every:
            some.append(positions(partition).start + np.flatnonzero(load_outcome(partition)))
            if partition is every[-1] or sum(map(len, some)) >= self._workspace.plan.limits.named_documents:
                yield np.concatenate(some)
                some = []

    def name(self, numbers: np.ndarray) -> None:
        """Look up the names of the documents that are kept in place of some duplicates, for `reason`."""
        copies = numbers[self._kind[numbers] != KEPT]
        kept = np.unique(self._keeper[copies])
        documents = _documents(self._workspace, kept[kept >= 0], texts=False)
        self._names = {document.at: document.origin for document in documents}

    def originals(self, numbers: np.ndarray) -> dict[int, str]:
        """Return the texts that are kept in place of the near duplicates among some documents.

        Texts of earlier builds are unknown, and left out.
        """
        copies = numbers[self._kind[numbers] == NEAR]
        kept = np.unique(self._keeper[copies])
        texts = {document.at: document.text for document in _documents(self._workspace, kept[kept >= 0])}
        return {at: texts[keeper] for at in copies.tolist() if (keeper := int(self._keeper[at])) in texts}

    def line(self, document: _Document) -> Sample:
        """Return the line of a document, with the reason to drop it; the reason is None if it was not dropped."""
        kept, origin, outcome = int(self._keeper[document.at]), document.origin, self._outcomes[document.outcome]
        line: Sample = {"id": origin.id, "file": origin.file, "line": origin.line, "kind": outcome.key}
        line |= {"reason": outcome.reason or None, "hash": document.hash, "text": document.text}
        if outcome.key not in DUPLICATES:
            return line
        keeper = self._names.get(kept)
        line["kept_id"] = keeper.id if keeper else earlier_name(self._workspace, kept + self._before)
        where = f" ({keeper.file}, line {keeper.line})" if keeper else ""
        return line | {"reason": f"{outcome.reason} of {line['kept_id']}{where}"}
