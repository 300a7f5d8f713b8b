"""Documents that share long word n-grams with an evaluation set.

An overlap is any run of 13 words (`filters.words`), as in appendix C of Brown et al. 2020 (GPT-3). An evaluation text of 8 to 12
words is one n-gram. Shorter texts are not compared, and the build warns of them. N-grams are compared by the 64-bit hashes of
`minhash`: 10**12 n-grams of documents and 10**6 of evaluation sets cause a false match in one of 18 such builds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from filters.compiled.text_arrays import code_points
from filters.words import lowered, word_table

from ...atomic import read_json, write_json
from ...errors import ConfigError, DamagedInputError
from ...notices import warn
from ...text.document import TEXT_KEY, BadRecord, Document
from ...text.normalize import normalize
from ...text.storage.input_file import with_distinct_names
from .minhash import shingle_sets

if TYPE_CHECKING:
    from ...text.discovery import InputFile

NGRAM = 13
SHORTEST = 8  # an evaluation text of fewer words is not compared
_NAMES = "names.json"
_ARRAYS = ("hashes", "sets", "lengths")
_PREFILTER_BITS = 6  # beyond the bits that number the n-grams: one in 64 n-grams of a document passes by chance


class Decontaminator:
    """Holds the n-grams of evaluation sets, ``{name: texts}``.

    ``hashes`` (uint64 ``[n]``) increase. ``sets`` (uint32 ``[n]``) is the number of the first set that has each hash.
    ``lengths`` (int64) are the lengths of the n-grams in words.

    >>> question = "which of these thirteen words in a row will be found again in a web page"
    >>> Decontaminator({"quiz": [question]}).overlaps([f"So: {question}!", "nothing of it"])
    [(4, 'quiz'), (0, None)]
    """

    def __init__(self, texts: Mapping[str, Iterable[str]], ngram: int = NGRAM) -> None:
        self.names = list(texts)
        sets = [(number, *pair) for number, group in enumerate(texts.values()) for pair in _by_length(group, ngram)]
        grams = [(number, hashes) for number, length, group in sets for hashes in shingle_sets(group, length)]
        joined = np.concatenate([np.zeros(0, np.uint64), *(hashes for _, hashes in grams)])
        numbers = np.repeat(np.array([number for number, _ in grams], np.uint32), [len(hashes) for _, hashes in grams])
        self.hashes, first = np.unique(joined, return_index=True)  # the first of equal hashes: sets are in order
        self.sets = numbers[first]
        self.lengths = np.unique(np.array([length for _, length, _ in sets], np.int64))

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

    def overlaps(self, texts: Sequence[str]) -> list[tuple[int, str | None]]:
        """Return for each text how many of its n-grams are in evaluation sets, and the name of the first such n-gram's set."""
        rows, entries = self.matches(texts)
        names: dict[int, str] = {}
        for row, number in zip(rows.tolist(), self.sets[entries].tolist(), strict=True):
            names.setdefault(row, self.names[number])
        counts = np.bincount(rows, minlength=len(texts)).tolist()
        return [(number, names.get(row)) for row, number in enumerate(counts)]

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

    def save(self, directory: Path) -> None:
        write_json(directory / _NAMES, self.names)
        for name in _ARRAYS:
            np.save(directory / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, directory: Path) -> Decontaminator:
        loaded = cls({})
        loaded.names = read_json(directory / _NAMES)
        for name in _ARRAYS:
            setattr(loaded, name, np.load(directory / f"{name}.npy"))
        return loaded


def _by_length(texts: Iterable[str], ngram: int) -> Iterable[tuple[int, list[str]]]:
    """Group evaluation texts by the length of their n-grams, and leave out texts that are too short."""
    texts = list(texts)
    lengths = list(zip(np.minimum(_count_words(texts), ngram).tolist(), texts, strict=True))
    lengths = [pair for pair in lengths if pair[0] >= min(SHORTEST, ngram)]
    for length, group in itertools.groupby(sorted(lengths, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        yield length, [text for _, text in group]


def _count_words(texts: Sequence[str]) -> NDArray[np.int64]:
    from .kernels import shingle

    points, ends = code_points([lowered(text) for text in texts])
    words, stops = np.empty(len(points), np.uint64), np.empty(len(texts), np.int64)
    shingle(points, ends, word_table(), 1, words, stops)
    return np.diff(stops, prepend=0)


def read_evaluation_sets(
    specs: Sequence[str], key: str, *, normalized: bool = True
) -> tuple[Decontaminator, dict[str, str], dict[str, list[int]]]:
    """Return the n-grams of the sets that ``specs`` name, the sha256 of each file, and the numbers of texts that are too short.

    ``key`` names the field of the texts. ``normalized`` says whether to normalise the texts, as a build does its documents. The
    numbers are, by file, the texts that are too short and all texts. Raises ``ConfigError`` if a set yields no n-gram. Warns if
    records yield no text, and if texts are too short.
    """
    from ...text.readers.document_reader import find_inputs

    texts, hashes, short = {}, {}, {}
    for file in with_distinct_names(find_inputs(specs)):
        name = file.name
        as_read, hashes[name] = _read_set(file, key)
        texts[name] = [normalize(text) if normalized else text for text in as_read]
        if not any(_by_length(texts[name], NGRAM)):
            raise ConfigError(
                f"{file.path}: this evaluation set has no n-gram: none of its {len(as_read):,} texts has {SHORTEST} words "
                "(letters, in scripts without spaces); leave it out of --decontaminate, or name another field with "
                "--decontaminate-key"
            )
        if count := int(np.count_nonzero(_count_words(texts[name]) < SHORTEST)):
            short[name] = [count, len(as_read)]
    if short:
        warn(describe_short(short))
    return Decontaminator(texts), hashes, short


def describe_short(short: Mapping[str, Sequence[int]]) -> str:
    """Return a sentence: how many texts of which evaluation sets are not compared.

    >>> describe_short({"quiz.jsonl": [500, 501]})
    'quiz.jsonl: 500 of 501 evaluation texts are too short (under 8 words) and were not compared'
    """
    counts = (f"{name}: {few:,} of {many:,} evaluation texts" for name, (few, many) in short.items())
    return f"{'; '.join(counts)} are too short (under {SHORTEST} words) and were not compared"


def _read_set(file: InputFile, key: str) -> tuple[list[str], str]:
    """Return the texts of an evaluation set, and the sha256 of its file or the version of its object."""
    from ...text.readers.document_reader import DocumentReader

    reader = DocumentReader(file, text_key=key)
    try:
        records = list(reader)
    except DamagedInputError as error:
        raise ConfigError(_with_cure(f"evaluation set {error}")) from error
    texts = [record.text for record in records if isinstance(record, Document)]
    bad = [record for record in records if isinstance(record, BadRecord)]
    if not records:
        raise ConfigError(f"{file.path}: this evaluation set has no record; leave it out of --decontaminate")
    if bad:
        first = f"the first, line {bad[0].line}: {bad[0].reason}{': ' * bool(bad[0].detail)}{bad[0].detail}"
        message = _with_cure(
            f"{file.path}: {len(bad):,} of {len(records):,} records of this evaluation set yield no text, {first}"
        )
        if not texts:
            raise ConfigError(message)
        warn(message)
    return texts, reader.sha256 or f"version {file.stored.version if file.stored else ''}"


def _with_cure(message: str) -> str:
    return message.replace(TEXT_KEY, "decontaminate_key (--decontaminate-key)")
