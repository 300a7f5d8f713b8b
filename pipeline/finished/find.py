"""Whether a finished dataset has a text: as a document, equal or nearly so, or as a passage of a document."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from filters.words import words

from ..builder.dedup.decontaminate import NGRAM, SHORTEST, Decontaminator, describe_short
from ..builder.dedup.minhash import MinHasher, shingle_sets
from ..builder.dedup.spellings import spellings
from ..errors import ConfigError, value_text
from ..notices import warn
from ..objects.request_options import TIMEOUT, TRIES, RequestOptions
from ..progress import Progress
from ..text.hashes import text_hashes
from ..text.normalize import normalize
from .documents import DatasetDocuments, DocumentLocation
from .signature_index import SignatureIndex, open_index

EXACT, NEAR, PASSAGE = "exact", "near", "passage"
_DEVIATIONS = 3  # a document is read if its estimate is at most so many standard deviations below the threshold


class Match(NamedTuple):
    """A document in which a text was found.

    ``split``, ``shard``, ``document``: where the document is, with its number in the shard. ``key``: its key in the tar.
    ``id``, ``source``: its origin, '' if the shard does not say.
    ``kind``: "exact" if the texts are equal, "near" if they are alike, "passage" if the document has a passage of the text.
    ``likeness``: the Jaccard similarity of the word n-grams of both texts; for a passage, the share of the text's windows that
    the document has. ``estimate``: the similarity by signatures, None for a passage.
    ``passage``: the longest part of the document that the text has too.
    """

    split: str
    shard: str
    document: int
    key: str
    id: str
    source: str
    kind: str
    likeness: float
    estimate: float | None
    passage: str


class FoundItem(NamedTuple):
    """How much of a text the documents of a dataset have together.

    ``runs``: the text's runs of 13 words, or 1 if it has 8 to 12 words and is compared whole; 0 if it has fewer. ``found``: how
    many of them are in a document. ``documents``: every document with one, as SHARD:NUMBER. ``matches``: the best.
    """

    runs: int
    found: int
    documents: list[str]
    matches: list[Match]

    @property
    def share(self) -> float:
        return self.found / max(1, self.runs)


def find(
    dataset: str | Path,
    texts: str | Sequence[str],
    *,
    passages: bool = False,
    threshold: float = 0.8,
    most: int = 10,
    index: str | Path | None = None,
    progress: Progress | None = None,
    tries: int = TRIES,
    timeout: float = TIMEOUT,
) -> list[list[Match]]:
    """Return for each text a list of `Match`: the documents of a dataset that have it, the best first, at most ``most``.

    By default whole documents are compared: a match is equal, or has a similarity of at least ``threshold``. The signatures that
    a build keeps find 92% of documents at a similarity of 0.8, 99% at 0.85, and few below 0.7.

    ``passages``: look within documents instead. A document has a passage of a text if 13 words in a row are in both. A
    text of 8 to 12 words must be in the document as a whole. Ligatures, HTML entities, decomposed accents and words parted at a
    line's end hide nothing. This reads the whole dataset, and warns of shorter texts.
    ``index``: a directory that keeps the tables of signatures, so that later calls start at once.
    ``dataset`` may be a url; ``tries`` and ``timeout`` are for its requests.

    Raises ``MissingDatasetError`` if there is no dataset. Raises ``ConfigError`` if the dataset keeps no signatures, or with
    ``passages`` if no text has 8 words.

    >>> import pathlib, tempfile, pipeline
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "in.txt").write_text("It was the best of times, it was the worst of times.")
    >>> _ = pipeline.build(folder / "in.txt", folder / "out", tokenizer="bytes", rules=(), progress=Progress(quiet=True))
    >>> [[match]] = find(folder / "out", "It was the best of times, it was the worst of times.", progress=Progress(quiet=True))
    >>> match.kind, match.shard, match.likeness
    ('exact', 'train-000000.tar', 1.0)
    """
    check_threshold(threshold)
    listed = [texts] if isinstance(texts, str) else list(texts)
    if wrong := [text for text in listed if not isinstance(text, str)]:
        raise ConfigError(f"texts must be text or a list of texts, got {value_text(wrong[0])}")
    documents = DatasetDocuments(dataset, RequestOptions(tries=tries, timeout=timeout))
    progress = progress or Progress()
    return search(documents, listed, threshold, most, progress, passages=passages, index=index)


def check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold must be above 0 and at most 1, got {threshold}")


def find_items(documents: DatasetDocuments, texts: Sequence[str], most: int, progress: Progress) -> list[FoundItem]:
    """Return for each item of a benchmark how much of it a dataset has: `find` with ``passages``, over all documents together."""
    return _Passages(documents, _as_built(documents, texts), most).items(progress)


def _as_built(documents: DatasetDocuments, texts: Sequence[str]) -> Sequence[str]:
    return [normalize(text) for text in texts] if documents.settings.get("normalize") else texts


def search(
    documents: DatasetDocuments,
    texts: Sequence[str],
    threshold: float,
    most: int,
    progress: Progress,
    *,
    passages: bool = False,
    index: str | Path | None = None,
) -> list[list[Match]]:
    """Return the matches as `find` does, in a dataset that is open."""
    if passages:
        return [item.matches for item in find_items(documents, texts, most, progress)]
    texts = _as_built(documents, texts)
    return _Search(documents, open_index(documents, index, progress), threshold, most).search(texts)


class _Search:
    """Searches whole documents."""

    def __init__(self, documents: DatasetDocuments, index: SignatureIndex, threshold: float, most: int) -> None:
        self._documents, self._index, self._threshold, self._most = documents, index, threshold, most
        settings = documents.settings
        self._ngram: int = settings["dedup_ngram"]
        values = index.signatures.shape[1]
        self._hasher = MinHasher(self._ngram, settings["dedup_bands"], settings["dedup_rows"], values)
        self._least = threshold - _DEVIATIONS * math.sqrt(threshold * (1 - threshold) / values)

    def search(self, texts: Sequence[str]) -> list[list[Match]]:
        every = zip(texts, text_hashes(texts), self._hasher.signatures(texts), strict=True)
        # The numbers of a document and of a text, the estimate, and whether they are equal.
        candidates: list[tuple[int, int, float, bool]] = []
        for number, (_, text_hash, signature) in enumerate(every):
            same = self._index.equal(text_hash)
            near = {d: share for d, share in self._index.alike(signature).items() if share >= self._least}
            candidates += [(document, number, 1.0, True) for document in same]
            candidates += [(d, number, share, False) for d, share in near.items() if d not in same]
        found: list[list[Match]] = [[] for _ in texts]
        for document, number, estimate, equal in sorted(candidates):  # so that each shard's table is read once
            if (match := self._match(document, texts[number], estimate, exact=equal)) is not None:
                found[number].append(match)
        return [sorted(some, key=lambda match: -match.likeness)[: self._most] for some in found]

    def _match(self, number: int, text: str, estimate: float, *, exact: bool) -> Match | None:
        """Return the match of a text with a document; None if they are less alike than the threshold.

        Some tokenizers do not decode tokens to the original text. Then the text that the build kept is read. Without a kept text,
        the estimate decides.
        """
        location = self._documents.locate(number)
        document: str | None = self._documents.text(location)
        if not (text_hashes([document or ""])[0] == self._index.hashes[number]).all():
            document = self._documents.kept_text(location)
        likeness = estimate
        if document is not None and not exact:
            a, b = shingle_sets([text, document], self._ngram)
            likeness = len(np.intersect1d(a, b)) / max(1, len(np.union1d(a, b)))
        if likeness < self._threshold:
            return None
        passage = shared_passage(text, document or "", self._ngram)
        return _match_at(self._documents, location, EXACT if exact else NEAR, likeness, estimate, passage)


class _Passages:
    """Searches for the windows of texts within documents."""

    def __init__(self, documents: DatasetDocuments, texts: Sequence[str], most: int) -> None:
        self._documents, self._texts, self._most = documents, [spellings(text)[0] for text in texts], most
        self._every = Decontaminator(self._texts)
        if not len(self._every.hashes):
            raise ConfigError(
                f"none of {len(texts):,} texts has {SHORTEST} words, as a passage needs; give longer texts"
            )
        self._windows = self._every.sizes.tolist()
        if few := self._windows.count(0):
            warn(describe_short({"passages": [few, len(texts)]}))
        self._numbers, starts = self._every.texts_of  # the texts that have each window, window by window
        self._starts = starts.tolist()

    def items(self, progress: Progress) -> list[FoundItem]:
        shards = list(self._documents.shards())
        # For each text, its windows in each document of each shard, and those in any document.
        found: list[Counter[tuple[int, int]]] = [Counter() for _ in self._texts]
        anywhere = np.zeros(len(self._numbers), bool)
        with progress.each("find", shards, lambda item: item[1].bytes, "bytes") as items:
            for at, (_, shard) in enumerate(items):
                for document, entry in self._hits(self._documents.texts(shard)):
                    windows = slice(self._starts[entry], self._starts[entry + 1])
                    anywhere[windows] = True
                    for number in self._numbers[windows].tolist():
                        found[number][at, document] += 1
        best = [
            (document, number, count)
            for number, counts in enumerate(found)
            for document, count in heapq.nsmallest(self._most, counts.items(), key=lambda item: (-item[1], item[0]))
        ]
        matches: list[list[Match]] = [[] for _ in self._texts]
        for (at, row), number, count in sorted(best):
            location, text = DocumentLocation(*shards[at], row), self._texts[number]
            spelled = spellings(self._documents.text(location))
            passage = max((shared_passage(text, each, NGRAM) for each in spelled), key=len)
            share = count / self._windows[number]
            matches[number].append(_match_at(self._documents, location, PASSAGE, share, None, passage))
        totals = np.bincount(self._numbers[anywhere], minlength=len(self._texts)).tolist()
        documents = [[f"{shards[at][1].name}:{row}" for at, row in sorted(counts)] for counts in found]
        for some in matches:
            some.sort(key=lambda match: -match.likeness)
        return list(map(FoundItem, self._windows, totals, documents, matches))

    def _hits(self, batches: Iterator[list[str]]) -> Iterator[tuple[int, int]]:
        """Yield each window that a document has: the number of the document, and the index of the window in ``hashes``."""
        first = 0
        for texts in batches:
            yield from ((first + row, entry) for row, entry in self._every.found(texts).tolist())
            first += len(texts)


def _match_at(
    documents: DatasetDocuments,
    location: DocumentLocation,
    kind: str,
    likeness: float,
    estimate: float | None,
    passage: str,
) -> Match:
    table = documents.table(location.shard)
    key, id, source = (str(table[name][location.document]) if name in table else "" for name in ("key", "id", "source"))
    return Match(
        location.split, location.shard.name, location.document, key, id, source, kind, likeness, estimate, passage
    )


def shared_passage(text: str, document: str, ngram: int) -> str:
    """Return the longest passage of a document whose runs of ``ngram`` words are all in the text too; '' if there is none.

    A text of fewer words is one run.

    >>> shared_passage("A rose is a rose.", "Once more: a rose IS a thorn.", ngram=3)
    'a rose IS a'
    """
    wanted, found = [word for word, *_ in words(text)], list(words(document))
    ngram = max(1, min(ngram, len(wanted)))
    runs = {tuple(wanted[k : k + ngram]) for k in range(len(wanted) - ngram + 1)}
    best, begin = (0, 0), 0
    for k in range(len(found) - ngram + 2):
        if k > len(found) - ngram or tuple(word for word, *_ in found[k : k + ngram]) not in runs:
            begin = k + 1
        elif k - begin + ngram > best[1] - best[0]:
            best = begin, k + ngram
    return document[found[best[0]][1] : found[best[1] - 1][2]] if best[1] else ""
