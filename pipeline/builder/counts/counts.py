"""What a piece of a build counted: a partition, a stage, the whole. Pieces merge by adding, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...atomic import read_json
from .count_types import Histogram
from .histograms import add_histograms
from .margins import Margins
from .samples import Samples

PASSED = ""  # the outcome of a document that no filter dropped


class Counts:
    """Numbers by paths of names, histograms and margins by rule, and samples by outcome.

    The paths, as stages write them:

        filtered, SOURCE, LANGUAGE, OUTCOME     documents after the filters; outcome '' passed them
        final, SOURCE, LANGUAGE, OUTCOME        what became of those that passed
        characters of filtered, ...             the same in characters, and "characters of final, ..."
        tokens, SOURCE, LANGUAGE                of the documents that are kept
        token lengths, POWER                    documents of that many tokens, as a power of two
        bad, REASON                             records that gave no document, and "bad by source, SOURCE"
        cut, WHAT / edited, TRANSFORM           lines that were cut; documents that a transform edited
        added, TRANSFORM                        documents beyond the one that several were made of
        added to, SOURCE, LANGUAGE              the same
        repeats, WHAT                           of line dedup
        read characters / records               as read; records that were read, bad ones included

    >>> counts, more = Counts(), Counts()
    >>> counts.add_outcome("filtered", "web", "en", "words", 10)
    >>> more.add_outcome("filtered", "web", "de", "words", 5)
    >>> counts.update(more)
    >>> counts.by("filtered", 2), counts.by("characters of filtered", 1)
    ({'words': 2}, {'de': 5, 'en': 10})
    """

    def __init__(self, histograms: Mapping[str, Histogram] | None = None) -> None:
        self.numbers: Counter[tuple[str, ...]] = Counter()
        self.histograms = dict(histograms or {})
        self.samples = Samples()
        self.margins = Margins()

    def add(self, *path: str, number: int = 1) -> None:
        self.numbers[path] += number

    def add_all(self, name: str, numbers: Mapping[str, int]) -> None:
        """Add numbers under the paths ``name, key``."""
        for key, number in numbers.items():
            self.numbers[name, key] += number

    def add_outcome(
        self, step: str, source: str, language: str, outcome: str, characters: int, documents: int = 1
    ) -> None:
        self.numbers[step, source, language, outcome] += documents
        self.numbers[f"characters of {step}", source, language, outcome] += characters

    def update(self, other: Counts) -> None:
        self.numbers.update(other.numbers)
        self.histograms = add_histograms(self.histograms, other.histograms)
        self.samples.update(other.samples.to_json())
        self.margins.merge(other.margins)

    def by(self, name: str, at: int = 0) -> dict[str, int]:
        """Sum the numbers under a name by one of the names that follow it."""
        return {group: number for (group,), number in self.groups(name, at)}

    def groups(self, name: str, *at: int) -> list[tuple[tuple[str, ...], int]]:
        """Sum the numbers under a name by some of the names that follow it."""
        sums: Counter[tuple[str, ...]] = Counter()
        for (first, *rest), number in self.numbers.items():
            if first == name:
                sums[tuple(rest[index] for index in at)] += number
        return sorted(sums.items())

    def to_json(self) -> dict[str, Any]:
        numbers = [[*path, number] for path, number in sorted(self.numbers.items())]
        return {
            "numbers": numbers,
            "histograms": self.histograms,
            "samples": self.samples.to_json(),
            "margins": self.margins,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Counts:
        counts = cls(value["histograms"])
        counts.numbers.update({tuple(path): number for *path, number in value["numbers"]})
        counts.samples.update(value["samples"])
        counts.margins.merge(value["margins"])
        return counts

    @classmethod
    def read(cls, path: Path) -> Counts:
        return cls.from_json(read_json(path))

    @classmethod
    def sum(cls, pieces: Iterable[Counts]) -> Counts:
        total = cls()
        for piece in pieces:
            total.update(piece)
        return total


def descending(numbers: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the entries by falling number, equal ones by name."""
    return sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
