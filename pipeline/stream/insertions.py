"""Texts in place of tokens at stated rows of a run: an experiment that changes these tokens and no other.

The place of a text is a sequence of the global order and a token of its row, so ranks, workers and resumes do not move it. Rows
are filled as in the plain stream, and then the text is written over them. Labels follow, since they are cut from the filled row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .arguments import check_integer
from .batch.rows import DocumentRows, Reader, Rows
from .order import RankStep, derive_key

if TYPE_CHECKING:
    from .datasets.sources.sources import Sources
    from .layout import Layout

_MOST_DRAWS = 64  # for each row, before all rows count as taken
Span = dict[str, Any]  # of a document in a row, as `trace` returns it


@dataclass(frozen=True, eq=False)
class Insertion:
    """The arguments of ``Stream.insert``: ``texts`` as given, their ``ids``, how many ``times`` each, and where.

    ``at`` has the steps to draw from, or the step, the row and the token of each place: those of the first text come first.
    """

    texts: tuple[Any, ...]
    ids: tuple[NDArray[np.int64], ...]
    times: tuple[int, ...]
    at: range | tuple[tuple[int, int, int], ...]
    seed: int


class Place(NamedTuple):
    """Where text number ``text`` is: tokens ``begin`` to ``end`` (exclusive) of row ``row`` of the global batch of ``step``."""

    text: int
    step: int
    row: int
    begin: int
    end: int
    ids: NDArray[np.int64]


def parse_insertion(
    layout: Layout, sources: Sources, vocab_size: int | None, texts: Any, at: Any, times: Any, seed: Any
) -> Insertion:
    """Return the checked arguments of ``Stream.insert``; ``ConfigError`` names the one that is wrong, and the cure."""
    dtype = sources.dtype
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not len(texts):
        raise ConfigError(f"texts must be a list of strings or of lists of token ids, got {texts!r:.60}")
    most = min(vocab_size or np.iinfo(dtype).max + 1, np.iinfo(dtype).max + 1)
    tokenizer = sources.load_tokenizer() if any(isinstance(text, str) for text in texts) else None
    encoded = list[NDArray[np.int64]]()
    for number, text in enumerate(texts):
        ids = [*text] if isinstance(text, Iterable) else []
        if isinstance(text, str) and tokenizer is not None:
            ids = [*tokenizer.encode(text), tokenizer.eos_id]
        ids = [check_integer(f"text {number}: a token id", token, least=0, most=most - 1) for token in ids]
        if not ids or len(ids) > (layout.longest or len(ids)):
            raise ConfigError(
                f"text {number} has {len(ids):,} tokens, and a row has 1 to {layout.longest}: cut the text, or give longer rows"
            )
        encoded.append(np.array(ids, np.int64))
    counts = [times] * len(texts) if not isinstance(times, Sequence) else [*times]
    if len(counts) != len(texts):
        raise ConfigError(
            f"times has {len(counts)} numbers for {len(texts)} texts; give one for each, or one number for all"
        )
    counts = [check_integer("times", count, least=1) for count in counts]
    if isinstance(at, range):
        steps: Any = range(check_integer("at", at.start, least=0), at.stop, at.step)
    elif isinstance(at, Sequence) and all(isinstance(place, tuple | list) and len(place) in (2, 3) for place in at):
        if len(at) != sum(counts):
            raise ConfigError(
                f"at has {len(at)} places for {sum(counts)} texts (times included); give one for each, or a range"
            )
        steps = tuple(tuple(check_integer("at", number, least=0) for number in (*place, 0)[:3]) for place in at)
        repeated = [n for n, count in enumerate(counts) for _ in range(count)]
        for (_, _, begin), number in zip(steps, repeated, strict=True):
            end, longest = begin + len(encoded[number]), layout.longest
            if (begin and layout.unit == "documents") or end > (longest or end):
                raise ConfigError(
                    f"text {number} would be at tokens {begin} to {end}, but a row has {longest}; begin at token 0"
                )
    else:
        raise ConfigError(f"at must be a range of steps, as range(100, 200), or a list of (step, row), got {at!r:.60}")
    plain = (text if isinstance(text, str) else ids.tolist() for text, ids in zip(texts, encoded, strict=True))
    return Insertion(tuple(plain), tuple(encoded), tuple(counts), steps, check_integer("seed", seed, least=0))


@dataclass(frozen=True, eq=False)
class InsertedTexts:
    """The places of all texts by sequence index, each list in the order of its tokens.

    ``whole_rows``: rows are documents, and a text replaces a whole one.
    """

    insertions: Sequence[Insertion]
    places: Mapping[int, Sequence[Place]]
    whole_rows: bool

    @cached_property
    def hash(self) -> str:
        """A hash of places and texts, for states."""
        written = [[i, place.begin, place.ids.tolist()] for i in sorted(self.places) for place in self.places[i]]
        return hashlib.sha256(json.dumps(written).encode()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Return the texts and the places of all of them, as `Stream.insertions` does."""
        places = [
            {name: getattr(place, name) for name in ("text", "step", "row", "begin", "end")} | {"sequence_index": index}
            for index, of_row in sorted(self.places.items())
            for place in of_row
        ]
        return {"texts": [text for insertion in self.insertions for text in insertion.texts], "places": places}

    def shown(self, row: dict[str, Any], *, with_ids: bool) -> dict[str, Any]:
        """Return a row of a trace with the texts in it: each has ``overwrites``, the spans of documents in whose place it is."""
        spans: list[Span] = row["documents"]
        for place in self.places.get(row["sequence_index"], ()):
            length, stop = len(place.ids), max((span["row_end"] for span in spans), default=0)
            begin, end = (0, stop) if self.whole_rows else (place.begin, place.end)
            text: Span = {"row_begin": place.begin, "row_end": place.end, "document_begin": 0, "document_end": length}
            text |= {"document_tokens": length, "origin": {"inserted": place.text}}
            text |= {"ids": place.ids.tolist()} if with_ids else {}
            text["overwrites"] = [part for span in spans for part in _parts(span, [(begin, end)])]
            spans = [part for span in spans for part in _parts(span, [(0, begin), (end, stop)])]
            spans = sorted([*spans, text], key=lambda span: span["row_begin"])
        return row | {"documents": spans}

    def visible(self, span: Span) -> Iterator[Span]:
        """Yield the parts of a span of `seen` that no text overwrites."""
        at, pieces = 0, list[tuple[int, int]]()
        for place in self.places.get(span["sequence_index"], ()):
            pieces.append((at, place.begin))
            at = span["row_end"] if self.whole_rows else place.end
        return _parts(span, [*pieces, (at, span["row_end"])]) if at else iter([span])


def place_texts(
    insertions: Sequence[Insertion],
    layout: Layout,
    *,
    size: int,
    always_full: bool,
    begin: Callable[[int], tuple[int, int]],
) -> InsertedTexts:
    """Return the places of texts, if a step has ``size`` rows. ``begin(step)`` is its first sequence, and how many it has.

    The row of a drawn place is a hash of the seed, the text's ids and the number of the repeat, and no other text is in it. So is
    the token, if rows are ``always_full``; else the first one. Raises ``ConfigError`` for a row that does not exist, for texts
    that overlap, and for more texts than rows to draw from.
    """

    def index_of(step: int, row: int) -> int | None:
        first, count = begin(step)
        return first + row if row < count else None

    placed, first = dict[int, list[Place]](), 0
    for insertion in insertions:
        at, count = insertion.at, sum(insertion.times)
        rows = len(at) * size
        # The first repeat of every text, then the second: more repeats do not move those before.
        for time, number in sorted((k, n) for n, times in enumerate(insertion.times) for k in range(times)):
            ids, attempt = insertion.ids[number], 0
            key = hashlib.sha256(ids.tobytes()).hexdigest()
            while isinstance(at, range):
                if count > rows or attempt > _MOST_DRAWS * rows:
                    raise ConfigError(
                        f"{count:,} texts do not fit into the {rows:,} rows of at={at}, one in each: give more steps"
                    )
                drawn = derive_key("insert", insertion.seed, key, time, attempt) % rows
                step, row, attempt = at[drawn // size], drawn % size, attempt + 1
                index = index_of(step, row)
                if index is not None and index not in placed:
                    free = (layout.longest or 0) - len(ids) + 1 if always_full else 1
                    token = derive_key("insert at", insertion.seed, key, time) % free
                    break
            else:
                step, row, token = at[sum(insertion.times[:number]) + time]
                index = index_of(step, row)
            if index is None:
                raise ConfigError(
                    f"at={(step, row)}: step {step} has no row {row}; its rows are 0 to {size - 1}, or fewer at the end"
                )
            of_row = placed.setdefault(index, [])
            of_row.append(Place(first + number, step, row, token, token + len(ids), ids))
            of_row.sort(key=lambda place: place.begin)
            for one, other in pairwise(of_row):
                if one.end > other.begin or layout.unit == "documents":
                    raise ConfigError(
                        f"texts {one.text} and {other.text} overlap in row {row} of step {step}; give one of them another place"
                    )
        first += len(insertion.ids)
    return InsertedTexts(insertions, placed, layout.unit == "documents")


class InsertingReader:
    """A reader that writes texts over the rows of ``reader``, and is this reader otherwise.

    ``rows_of_rank``: each rank has so many neighbouring rows of a step, as in a sequential stream; None: `RankStep` says which.
    """

    def __init__(self, reader: Reader[Any], texts: InsertedTexts, rows_of_rank: int | None) -> None:
        self._reader, self._places, self._rows_of_rank = reader, texts.places, rows_of_rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read(self, step: RankStep) -> Rows | DocumentRows:
        """Return the rows of a step, with the texts in them."""
        rows: Rows | DocumentRows = self._reader.read(step)
        first = step.begin + step.rank * (self._rows_of_rank or 0) + step.first
        indices = range(first, first + rows.filled) if self._rows_of_rank else step.indices()[: rows.filled].tolist()
        for row, index in enumerate(indices):
            for place in self._places.get(index, ()):
                if isinstance(rows, Rows):
                    _write(rows, row, place)
                else:
                    rows.documents[row] = place.ids.astype(rows.documents[row].dtype)
                    if rows.masks is not None:
                        rows.masks[row] = np.ones(len(place.ids), np.uint8)
        return rows


def _write(rows: Rows, row: int, place: Place) -> None:
    begin, end = place.begin, place.end
    if rows.valid is not None:
        if begin > rows.valid[row]:
            raise ConfigError(
                f"text {place.text}: row {place.row} of step {place.step} has {rows.valid[row]} tokens, so no token {begin} to "
                "begin at; state an earlier token, or another row"
            )
        rows.valid[row] = max(end, rows.valid[row])
    rows.tokens[row, begin:end] = place.ids
    if rows.masks is not None:
        rows.masks[row, begin:end] = 1
    if rows.document_ends is not None:
        ends = rows.document_ends[row]
        kept = ends[(ends < begin) | (ends > end)]
        rows.document_ends[row] = np.union1d(kept, [begin, end] if begin else [end])


def _parts(span: Span, pieces: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """Yield the parts of a span that are in pieces of its row."""
    for begin, end in pieces:
        first, last = max(begin, span["row_begin"]), min(end, span["row_end"])
        if first < last:
            moved = first - span["row_begin"], last - span["row_begin"]
            part = {"row_begin": first, "row_end": last}
            part |= {
                name: span["document_begin"] + by
                for name, by in zip(("document_begin", "document_end"), moved, strict=True)
            }
            yield span | part | ({"ids": span["ids"][slice(*moved)]} if "ids" in span else {})
