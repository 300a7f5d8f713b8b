"""The words that documents share with texts: with the items of evaluation sets, or with searched passages.

The unit is a run of 13 words (`filters.words`), an n-gram, as in appendix C of Brown et al. 2020 (GPT-3). A text of 8 to 12 words
is one n-gram. Shorter texts are not compared. N-grams are compared by the 64-bit hashes of `minhash`: 10**12 n-grams of documents
and 10**6 of evaluation sets cause a false match in one of 18 such builds.

A document holds an item of an evaluation set if its n-grams cover a share of the words that the item's n-grams cover: of those
n-grams that count. An n-gram does not count if

* too few of its words are words: numbers, signs and single letters make formulas and tables;
* too many documents of the corpus have it, as licences and well-known quotations.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from filters.compiled.text_arrays import code_points
from filters.words import lowered, word_table, words

from ...atomic import read_json, write_json
from ...errors import ConfigError, DamagedInputError, first_few
from ...notices import warn
from ...shards.extents.extent_table import runs
from ...text.document import TEXT_KEY, BadRecord, Document
from ...text.normalize import normalize
from ...text.storage.input_file import with_distinct_names
from .spellings import spellings

if TYPE_CHECKING:
    from ...text.discovery import InputFile

NGRAM = 13
SHORTEST = 8  # an evaluation text of fewer words is not compared
MEANINGFUL = 6 / 13  # of the words of an n-gram, at least: words of three letters, or not of ASCII
_NAMES = "names.json"
_NAMED, _SHOWN = 1000, 8  # items that are not compared: in the manifest, in a sentence
_ARRAYS = ("hashes", "entries", "places", "sizes", "words", "lengths")
_PREFILTER_BITS = 6  # beyond the bits that number the n-grams: one in 64 n-grams of a document passes by chance


class Decontaminator:
    """Holds the n-grams of texts.

    ``hashes`` (uint64 ``[n]``) increase. ``entries`` (int64) are the indices in ``hashes`` of the n-grams of each text in turn,
    each once; ``places`` are their first words. ``sizes`` (int64 ``[texts]``) says how many each text has, and ``words`` how
    long they are. ``lengths`` (int64) are their different lengths. If ``meaningful``, n-grams of numbers and signs are left out.

    >>> question = "which of these thirteen words in a row will be found again in a web page"
    >>> rows, entries = Decontaminator([question]).matches([f"So: {question}!", "nothing of it"])
    >>> rows.tolist()
    [0, 0, 0, 0]
    """

    def __init__(self, texts: Sequence[str], ngram: int = NGRAM, *, meaningful: bool = False) -> None:
        found, places = [np.zeros(0, np.uint64)] * len(texts), [np.zeros(0, np.int64)] * len(texts)
        counts = np.minimum(np.diff(_shingles(texts, 1)[1], prepend=0), ngram)  # the n-grams of one word are words
        self.lengths = np.unique(counts[counts >= min(SHORTEST, ngram)])
        for length in self.lengths.tolist():
            numbers = np.flatnonzero(counts == length).tolist()
            for number, hashes in zip(numbers, windows([texts[k] for k in numbers], length), strict=True):
                kept = np.flatnonzero(_mean(texts[number], length)) if meaningful else np.arange(len(hashes))
                found[number], first = np.unique(hashes[kept], return_index=True)
                places[number] = kept[first]
        self.words = counts
        self.places = np.concatenate([np.zeros(0, np.int64), *places])
        self.sizes = np.array([len(hashes) for hashes in found], np.int64)
        self.hashes, self.entries = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]), return_inverse=True)

    @functools.cached_property
    def _prefilter(self) -> tuple[NDArray[np.bool_], NDArray[np.uint8], np.uint64]:
        """Which lengths to look for, a bit for each prefix of a hash, and the shift from a hash to its prefix."""
        wanted = np.zeros(int(self.lengths.max(initial=0)) + 1, bool)
        wanted[self.lengths] = True
        bits = len(self.hashes).bit_length() + _PREFILTER_BITS
        shift = np.uint64(64 - bits)
        known = np.zeros(1 << bits, bool)
        known[self.hashes >> shift] = True
        return wanted, np.packbits(known, bitorder="little"), shift

    def matches(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the text and the index in ``hashes`` of each n-gram that is in an evaluation set."""
        from .kernels import find_shingles

        points, ends = code_points([lowered(text) for text in texts])
        wanted, known, shift = self._prefilter
        most = len(points) * len(self.lengths)
        hits, rows = np.empty(most, np.uint64), np.empty(most, np.int64)
        count = find_shingles(points, ends, word_table(), wanted, known, shift, hits, rows)
        entries = np.searchsorted(self.hashes, hits[:count])
        same = np.flatnonzero(np.append(self.hashes, np.uint64(0))[entries] == hits[:count])
        same = same[entries[same] < len(self.hashes)]
        return rows[same], entries[same]

    def found(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the text and the n-gram, an index in ``hashes``, of each n-gram that a text has in any spelling: ``[n, 2]``."""
        spelled = [(row, spelling) for row, text in enumerate(texts) for spelling in spellings(text)]
        rows, entries = self.matches([spelling for _, spelling in spelled])
        owners = np.array([row for row, _ in spelled], np.int64)
        return np.unique(np.stack([owners[rows], entries], axis=1), axis=0)

    def of_text(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return the n-grams of a text, the first word of each, and their length in words."""
        end = int(self._ends[number])
        own = slice(end - int(self.sizes[number]), end)
        return self.entries[own], self.places[own], int(self.words[number])

    @functools.cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes)

    @functools.cached_property
    def texts_of(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The texts that have each n-gram, n-gram by n-gram, and where those of each n-gram begin (one more than n-grams)."""
        order = np.argsort(self.entries, kind="stable")
        numbers = np.repeat(np.arange(len(self.sizes)), self.sizes)[order]
        return numbers, np.searchsorted(self.entries[order], np.arange(len(self.hashes) + 1))


class Evaluation:
    """The items of evaluation sets: their ``names``, and the n-grams of their texts."""

    def __init__(self, names: Sequence[str], texts: Sequence[str]) -> None:
        self.names = list(names)
        self.grams = Decontaminator([spellings(text)[0] for text in texts], meaningful=True)

    def save(self, directory: Path) -> None:
        write_json(directory / _NAMES, self.names)
        for name in _ARRAYS:
            np.save(directory / f"{name}.npy", getattr(self.grams, name))

    @classmethod
    def load(cls, directory: Path) -> Evaluation:
        loaded = cls([], [])
        loaded.names = read_json(directory / _NAMES)
        for name in _ARRAYS:
            setattr(loaded.grams, name, np.load(directory / f"{name}.npy"))
        return loaded


class Holding(NamedTuple):
    """An ``item`` of an evaluation set that a document holds (rows of `holdings`), and the ``share`` that it has of it."""

    row: int
    item: int
    share: float


def holdings(grams: Decontaminator, found: NDArray[np.int64], counts: NDArray[np.bool_], share: float) -> list[Holding]:
    """Return the items that documents hold, by document, the greatest share first.

    ``found`` is as `Evaluation.found` returns it. ``counts`` says which n-grams count, ``share`` how much of an item
    a document must have.
    """
    numbers, starts = grams.texts_of
    found = found[counts[found[:, 1]]]
    begins, sizes = starts[found[:, 1]], np.diff(starts)[found[:, 1]]
    pairs = np.column_stack([numbers[runs(begins, sizes)], np.repeat(found, sizes, axis=0)])
    held = []
    for (item, row), group in itertools.groupby(sorted(pairs.tolist()), itemgetter(0, 1)):
        entries, firsts, length = grams.of_text(item)
        words = _covered(firsts[np.isin(entries, [entry for *_, entry in group])], length)
        part = words / _covered(firsts[counts[entries]], length)
        if part >= share:
            held.append(Holding(row, item, part))
    return sorted(held, key=lambda each: (each.row, -each.share, each.item))


def _covered(firsts: NDArray[np.int64], length: int) -> int:
    """Return how many words n-grams of ``length`` words cover, whose first words are ``firsts``."""
    return int(np.minimum(np.diff(np.sort(firsts), append=firsts.max() + length), length).sum())


def windows(texts: Sequence[str], length: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the n-grams of each text, one for each word that begins one; a shorter text is one n-gram."""
    every, stops = _shingles(texts, length)
    return (every[begin:end] for begin, end in itertools.pairwise([0, *stops.tolist()]))


def _shingles(texts: Sequence[str], length: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the n-grams of all texts, and where those of each end."""
    from .kernels import shingle

    points, ends = code_points([lowered(text) for text in texts])
    every, stops = np.empty(len(points), np.uint64), np.empty(len(texts), np.int64)
    shingle(points, ends, word_table(), length, every, stops)
    return every, stops


def _mean(text: str, length: int) -> NDArray[np.bool_]:
    """Return which n-grams of a text have enough words of letters."""
    letters = [not word[0].isascii() or (word.isalpha() and len(word) > 2) for word, *_ in words(text)]
    sums = np.cumsum([0, *letters])
    return np.asarray(sums[length:] - sums[:-length] >= MEANINGFUL * length)


def read_evaluation_sets(
    specs: Sequence[str], key: str, id_key: str = "id", *, normalized: bool = True
) -> tuple[Evaluation, dict[str, str], dict[str, list[Any]]]:
    """Return the items of the sets that ``specs`` name, the sha256 of each file, and the items that are not compared.

    ``key`` and ``id_key`` name the fields of the texts and the ids. ``normalized`` says whether to normalise the texts, as a
    build does its documents. The last result has, by file, the number of items that are not compared, of all items, and the
    names of the first. Raises ``ConfigError`` if a set yields no n-gram. Warns of records without text, and of such items.
    """
    from ...text.readers.document_reader import find_inputs

    names: list[str] = []
    texts: list[str] = []
    hashes, files = {}, []
    for file in with_distinct_names(find_inputs(specs)):
        read, hashes[file.name] = _read_set(file, key, id_key)
        files.append((file, len(read)))
        names += [each.id if each.id.startswith(f"{file.name}:") else f"{file.name}: {each.id}" for each in read]
        texts += [normalize(each.text) if normalized else each.text for each in read]
    evaluation = Evaluation(names, texts)
    left_out, first = {}, 0
    for file, number in files:
        without = np.flatnonzero(evaluation.grams.sizes[first : first + number] == 0) + first
        if len(without) == number:
            raise ConfigError(
                f"{file.path}: this evaluation set has no n-gram: none of its {number:,} texts has {SHORTEST} words "
                "(letters, in scripts without spaces) beside numbers and signs; leave it out of --decontaminate, or name another "
                "field with --decontaminate-key"
            )
        if len(without):
            shown = [names[item].removeprefix(f"{file.name}: ") for item in without[:_NAMED].tolist()]
            left_out[file.name] = [len(without), number, *shown]
        first += number
    if left_out:
        warn(describe_short(left_out))
    return evaluation, hashes, left_out


def describe_short(short: Mapping[str, Sequence[Any]]) -> str:
    """Return a sentence that says how many texts of each evaluation set are not compared, and names the first ones.

    >>> describe_short({"quiz.jsonl": [2, 501, "q7", "q9"]})
    'quiz.jsonl: 2 of 501 texts are too short (under 8 words) or only numbers and signs, and were not compared: q7, q9'
    """
    counts = []
    for name, (few, many, *names) in short.items():
        more = f" and {few - len(names[:_SHOWN]):,} more" * (few > len(names[:_SHOWN]))
        named = f": {', '.join(names[:_SHOWN])}{more}" if names else ""
        counts.append(
            f"{name}: {few:,} of {many:,} texts are too short (under {SHORTEST} words) or only numbers and signs, and were "
            f"not compared{named}"
        )
    return "; ".join(counts)


def _read_set(file: InputFile, key: str, id_key: str) -> tuple[list[Document], str]:
    """Return the items of an evaluation set, and the sha256 of its file or the version of its object."""
    from ...text.readers.document_reader import DocumentReader

    reader = DocumentReader(file, text_key=key, id_key=id_key)
    try:
        records = list(reader)
    except DamagedInputError as error:
        raise ConfigError(_with_cure(f"evaluation set {error}")) from error
    items = [record for record in records if isinstance(record, Document)]
    bad = [record for record in records if isinstance(record, BadRecord)]
    if not records:
        raise ConfigError(f"{file.path}: this evaluation set has no record; leave it out of --decontaminate")
    if bad:
        first = f"the first, line {bad[0].line}: {bad[0].reason}{': ' * bool(bad[0].detail)}{bad[0].detail}"
        lines = f"; all: lines {first_few([record.line for record in bad], 20)}" if len(bad) > 1 else ""
        message = _with_cure(
            f"{file.path}: {len(bad):,} of {len(records):,} records of this evaluation set yield no text, {first}{lines}"
        )
        if not items:
            raise ConfigError(message)
        warn(message)
    return items, reader.sha256 or f"version {file.stored.version if file.stored else ''}"


def _with_cure(message: str) -> str:
    return message.replace(TEXT_KEY, "decontaminate_key (--decontaminate-key)")
