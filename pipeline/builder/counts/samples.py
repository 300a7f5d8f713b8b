"""Texts to show: a few of every outcome, and the nearest to the limits of each rule.

Texts are drawn by their hashes, so each text has the same chance in any order of the corpus and of the work. No text is shown
twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from filters.rules.rule import Rule

from ...draws import draws
from ...text.document import Document, made_id
from ...text.hashes import text_hashes
from ...text.judging import Drop

SAMPLES = 5  # texts shown of each outcome
SAMPLE_CHARACTERS, ID_CHARACTERS = 600, 200  # shown of each text and each id
_NEAREST = 2  # texts shown on each side of a rule
_NEAREST_CHARACTERS = 300  # shown of each of these texts


class Sample(TypedDict, total=False):
    """A text to show, and its origin. ``line`` counts from the start of the ``span`` if there is one.

    ``kind`` is the outcome, or begins with ``cut_`` if ``text`` is what was cut. ``hash`` is of the whole text.
    """

    id: str
    file: str
    line: int
    reason: str | None
    text: str
    kind: str
    hash: str
    kept_id: str  # of the document that is kept instead; ``name:key`` in an earlier dataset
    original: str  # the text that is kept instead
    span: int
    part: str


class NearText(TypedDict):
    """A text whose measured value is near a limit. ``key`` is drawn from the hash of the text."""

    key: int
    distance: float
    value: float
    id: str
    file: str
    text: str


class Samples:
    """The added texts that have the smallest keys, by outcome.

    >>> samples = Samples()
    >>> for key in (5, 3, 9, 3, 1, 8, 7):
    ...     samples.add("words", key, {"id": "", "text": f"text {key}"})
    >>> [sample["text"] for sample in samples.shown()["words"]]
    ['text 1', 'text 3', 'text 5', 'text 7', 'text 8']
    """

    def __init__(self) -> None:
        self._chosen: dict[str, dict[int, Sample]] = {}

    def wants(self, outcome: str, key: int) -> bool:
        """Return whether a text would be shown if no other text were added after it."""
        chosen = self._chosen.get(outcome, {})
        return key not in chosen and (len(chosen) < SAMPLES or key < max(chosen))

    def add(self, outcome: str, key: int, sample: Sample) -> None:
        if self.wants(outcome, key):
            chosen = self._chosen.setdefault(outcome, {})
            chosen[key] = {**sample, "id": sample["id"][:ID_CHARACTERS], "text": sample["text"][:SAMPLE_CHARACTERS]}
            if "kept_id" in sample:
                chosen[key]["kept_id"] = sample["kept_id"][:ID_CHARACTERS]
            if len(chosen) > SAMPLES:
                del chosen[max(chosen)]

    def update(self, chosen: Mapping[str, Iterable[tuple[int, Sample]]]) -> None:
        """Add the samples that ``to_json`` returned."""
        for outcome, samples in chosen.items():
            for key, sample in samples:
                self.add(outcome, key, sample)

    def to_json(self) -> dict[str, list[tuple[int, Sample]]]:
        return {outcome: sorted(chosen.items()) for outcome, chosen in sorted(self._chosen.items())}

    def shown(self) -> dict[str, list[Sample]]:
        """Return the samples of each outcome, in the order of their keys."""
        return {outcome: [sample for _, sample in samples] for outcome, samples in self.to_json().items()}


def sample_keys(texts: Sequence[str], seed: int) -> list[int]:
    """Return the key of each text, drawn from its hash and the seed."""
    keys: list[int] = hash_keys(text_hashes(texts), seed).tolist()
    return keys


def hash_keys(hashes: NDArray[np.uint8], seed: int) -> NDArray[np.uint64]:
    """Return the keys (uint64 ``[n]``) of texts with these hashes (uint8 ``[n, 16]``)."""
    return draws(hashes, seed, "samples")


class NearestTexts(dict[str, dict[str, list[NearText]]]):
    """The texts whose values are nearest to a limit of a rule, by rule and side ("kept" or "dropped").

    The hash chooses among texts of equal distance, so batches of any size give the same texts.
    """

    def add(
        self,
        rules: Sequence[Rule],
        documents: Sequence[Document],
        measured: tuple[NDArray[np.float64], NDArray[np.bool_]],
        drops: Sequence[Drop | None],
    ) -> None:
        """Add documents. ``measured`` are their values, and whether each value applies: ``[documents, rules]`` both."""
        if not rules:
            return
        values, holds = measured
        columns = {rule.name: column for column, rule in enumerate(rules)}
        dropped_by = np.array([-1 if drop is None else columns[drop.rule] for drop in drops])
        low, high = (np.array([getattr(rule, end) for rule in rules], float) for end in ("min", "max"))
        with np.errstate(invalid="ignore"):
            distances = np.minimum(np.abs(values - low), np.abs(high - values))
        distances[~(holds & np.isfinite(distances))] = np.inf
        near: list[tuple[list[NearText], int, NDArray[np.int64]]] = []
        for rule, column in columns.items():
            for side, outcome in (("kept", -1), ("dropped", column)):
                nearest = self.setdefault(rule, {}).setdefault(side, [])
                farthest = nearest[-1]["distance"] if len(nearest) == _NEAREST else np.finfo(float).max
                rows = np.flatnonzero((dropped_by == outcome) & (distances[:, column] <= farthest))
                near.append((nearest, column, rows))
        hashed = np.unique(np.concatenate([rows for *_, rows in near]))  # most texts are near to no limit
        keys = np.zeros(len(documents), np.uint64)
        keys[hashed] = sample_keys([documents[row].text for row in hashed.tolist()], 0)
        for nearest, column, rows in near:
            rows = rows[np.lexsort((keys[rows], distances[rows, column]))]
            _, first = np.unique(keys[rows], return_index=True)  # once for each text
            chosen = rows[np.sort(first)[:_NEAREST]].tolist()
            _keep_nearest(
                nearest, [_near_text(documents[k], values[k, column], distances[k, column], keys[k]) for k in chosen]
            )

    def merge(self, other: Mapping[str, Mapping[str, list[NearText]]]) -> None:
        """Add the texts of another partition."""
        for rule, sides in other.items():
            for side, texts in sides.items():
                _keep_nearest(self.setdefault(rule, {}).setdefault(side, []), texts)


def _keep_nearest(nearest: list[NearText], more: Sequence[NearText]) -> None:
    """Add ``more`` to the nearest texts, and keep only the nearest, each text once."""
    distinct: dict[int, NearText] = {}
    for text in sorted((*nearest, *more), key=itemgetter("distance", "key")):
        distinct.setdefault(text["key"], text)
    nearest[:] = list(distinct.values())[:_NEAREST]


def _near_text(document: Document, value: float, distance: float, key: int) -> NearText:
    """Return the entry of a document. An id that was made from the line is left out: it depends on how files are cut."""
    id = "" if document.id == made_id(document.file, document.line) else f"{document.id}{document.part}"
    return {
        "key": int(key),
        "distance": float(distance),
        "value": float(value),
        "id": id[:ID_CHARACTERS],
        "file": document.file,
        "text": document.text[:_NEAREST_CHARACTERS],
    }
