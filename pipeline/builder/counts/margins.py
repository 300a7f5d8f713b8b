"""Texts nearest to the limits of each rule, on both sides: they show whether a limit lies where it should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from filters.rules.rule import Rule

from ...text.document import Document, made_id
from ...text.judging import Drop
from .count_types import Margin
from .samples import ID_CHARACTERS, sample_keys

_TEXTS = 2  # shown of each side of each rule
_CHARACTERS = 300  # shown of each text


class Margins(dict[str, dict[str, list[Margin]]]):
    """By rule and side, the texts whose values are nearest to a limit: of those that no rule drops, and of those it drops.

    Texts of equal distance are chosen by their hash, so the choice does not depend on how documents are cut into batches.
    """

    def add(
        self,
        rules: Sequence[Rule],
        documents: Sequence[Document],
        measured: tuple[NDArray[np.float64], NDArray[np.bool_]],
        drops: Sequence[Drop | None],
    ) -> None:
        """Add documents: ``measured`` are their values and where these hold, ``[documents, rules]`` each."""
        if not rules:
            return
        values, holds = measured
        columns = {rule.name: column for column, rule in enumerate(rules)}
        broken = np.array([-1 if drop is None else columns[drop.rule] for drop in drops])
        low, high = (np.array([getattr(rule, end) for rule in rules], float) for end in ("min", "max"))
        with np.errstate(invalid="ignore"):
            distances = np.minimum(np.abs(values - low), np.abs(high - values))
        distances[~(holds & np.isfinite(distances))] = np.inf
        near: list[tuple[list[Margin], int, NDArray[np.int64]]] = []
        for rule, column in columns.items():
            for side, outcome in (("kept", -1), ("dropped", column)):
                chosen = self.setdefault(rule, {}).setdefault(side, [])
                farthest = chosen[-1]["distance"] if len(chosen) == _TEXTS else np.finfo(float).max
                near.append((chosen, column, np.flatnonzero((broken == outcome) & (distances[:, column] <= farthest))))
        hashed = np.unique(np.concatenate([rows for _, _, rows in near]))  # most texts are near to no limit
        keys = np.zeros(len(documents), np.uint64)
        keys[hashed] = sample_keys([documents[row].text for row in hashed.tolist()], 0)
        for chosen, column, rows in near:
            rows = rows[np.lexsort((keys[rows], distances[rows, column]))]
            _, first = np.unique(keys[rows], return_index=True)  # of each text
            nearest = rows[np.sort(first)[:_TEXTS]].tolist()
            more = [(documents[k], values[k, column], distances[k, column], keys[k]) for k in nearest]
            _keep_nearest(chosen, list(starmap(_margin, more)))

    def merge(self, other: Mapping[str, Mapping[str, list[Margin]]]) -> None:
        """Add the margins of another partition."""
        for rule, sides in other.items():
            for side, margins in sides.items():
                _keep_nearest(self.setdefault(rule, {}).setdefault(side, []), margins)


def _keep_nearest(margins: list[Margin], more: Sequence[Margin]) -> None:
    """Add ``more`` to the margins, and keep the nearest; no text occurs twice."""
    distinct: dict[int, Margin] = {}
    for margin in sorted((*margins, *more), key=itemgetter("distance", "key")):
        distinct.setdefault(margin["key"], margin)
    margins[:] = list(distinct.values())[:_TEXTS]


def _margin(document: Document, value: float, distance: float, key: int) -> Margin:
    """Return what is shown of a document; an id that was made of its line depends on how files are cut, and is left out."""
    id = "" if document.id == made_id(document.file, document.line) else f"{document.id}{document.part}"
    return {
        "key": int(key),
        "distance": float(distance),
        "value": float(value),
        "id": id[:ID_CHARACTERS],
        "file": document.file,
        "text": document.text[:_CHARACTERS],
    }
