"""Filters the documents of blocks of text by functions, rules and languages, and tokenizes those that are kept."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError, InputError
from ....text.document import BadRecord, Document
from ....text.judging import EMPTY, Drop, is_empty, judge_language, judge_measured, measure
from ....text.normalize import normalize
from ...datasets.sources.selection import WITHHELD
from ...order import permutation
from ...windows.window import Window
from ..lane import REJECTED_BY
from .block_scan import Block

if TYPE_CHECKING:
    from filters.rules.ruleset import RuleSet

    from ...datasets.sources.text_data import TextData

_BLOCK_COST = 512  # bytes of an empty block
_DOCUMENT_COST = 300  # bytes of a document without its text

Filters = tuple[Callable[[Any], Any], ...]


class FilteredBlock(NamedTuple):
    """A block of ``read_bytes`` after the filters, with None for each document that is not kept.

    ``read`` is the documents before the filters, ``rejected`` those rejected by reason, ``size`` its memory in bytes.
    """

    size: int
    read_bytes: int
    documents: list[Document | None]
    read: int
    rejected: Counter[str]
    bad: list[BadRecord]


class DocumentEncoder:
    """Filters the documents of blocks, counts them by outcome, and makes windows of their tokens."""

    def __init__(self, data: TextData, filters: Filters, *, with_origins: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self._with_origins = with_origins
        self._data = data
        self._filters = filters

    def filter(self, block: Block) -> FilteredBlock:
        """Return a block with the documents that are selected and pass the filters."""
        bad = [record for record in block.records if isinstance(record, BadRecord)]
        documents = [record for record in block.records if isinstance(record, Document)]
        selected = self._data.selects(documents)
        kept = [document if is_selected else None for document, is_selected in zip(documents, selected, strict=True)]
        if self._data.normalize:
            for document in kept:
                if document is not None:
                    document.text = normalize(document.text)
        rejected: Counter[str] = Counter()
        for predicate in self._filters:
            left = [index for index, document in enumerate(kept) if document is not None]
            for index, reason in zip(left, self._rejects([documents[index] for index in left], predicate), strict=True):
                if reason is not None:
                    rejected[reason] += 1
                    kept[index] = None
        size = sum(_memory_of(document) for document in kept if document is not None)
        return FilteredBlock(size + _BLOCK_COST, block.size, kept, int(selected.sum()), rejected, bad)

    def _rejects(self, documents: list[Document], predicate: Callable[[Any], Any]) -> Iterator[str | None]:
        """Yield for each document the reason why a filter drops it; None if it is kept."""
        if isinstance(predicate, RuleFilter):
            for drop in predicate(documents, normalized=self._data.normalize):
                yield None if drop is None else drop.rule
            return
        for document in documents:
            try:
                is_kept = predicate(document)
            except Exception as error:
                error.add_note(f"in a filter, of the document of {_where(document)}, id {document.id!r}")
                raise
            yield None if is_kept else "filter"

    def count(self, filtered: FilteredBlock) -> None:
        """Count the documents of a block by outcome; ``InputError`` for a bad record under ``on_error="stop"``."""
        for record in filtered.bad:
            if self._data.on_error == "stop":
                detail = f" ({record.detail})" if record.detail else ""
                raise InputError(
                    f"{_where(record)}: {record.reason}{detail}; mend it, or count and skip such records with "
                    "on_error='records'"
                )
        self.counts["documents"] += filtered.read
        self.counts["rejected"] += filtered.rejected.total()
        self.counts.update({REJECTED_BY + reason: count for reason, count in filtered.rejected.items()})
        self.counts["bad_records"] += sum(record.count for record in filtered.bad)

    def window(self, documents: list[Document | None], key: int | None) -> Window:
        """Return the tokens of the documents that are kept, shuffled by ``key`` (None: in their order)."""
        if key is not None:
            documents = [documents[index] for index in permutation(len(documents), key).tolist()]
        kept = [document for document in documents if document is not None]
        ids, lengths = self._encode(kept)
        mask = None
        if (withheld := self._data.withheld) and any(document.id in withheld for document in kept):
            values = [WITHHELD if document.id in withheld else 1 for document in kept]
            mask = np.repeat(np.array(values, np.uint8), lengths)
        origins = kept if self._with_origins else None
        return Window(ids, np.append(0, np.cumsum(lengths)), mask=mask, origins=origins)

    def _encode(self, documents: list[Document]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the ids of documents, and the number of ids of each. An error names the document's file and line."""
        encode, marks = self._data.tokenizer.encode_flat, self._data.marks
        if self._data.vocabulary is not None:
            return self._joined([document.tokens for document in documents if document.tokens is not None])
        try:
            return encode([document.text for document in documents], **marks)
        except InputError:
            for document in documents:
                try:
                    encode([document.text], **marks)
                except InputError as error:
                    raise InputError(f"{_where(document)}: {error}") from None
            raise

    def _joined(self, documents: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Do the same for documents that are ids already. Begin and end marks are added if a document lacks them."""
        encoder, marks = self._data.tokenizer, self._data.marks
        begin, end = (np.array([id or 0], self._data.dtype) for id in (encoder.bos_id, encoder.eos_id))
        parts, lengths = [np.empty(0, self._data.dtype)], []
        for ids in documents:
            bos = marks["bos"] and not (len(ids) and ids[0] == encoder.bos_id)
            eos = marks["eos"] and not (len(ids) and ids[-1] == encoder.eos_id)
            parts += [begin] * bos + [ids] + [end] * eos
            lengths.append(len(ids) + bos + eos)
        return np.concatenate(parts), np.array(lengths, np.int64)


def _memory_of(document: Document) -> int:
    return _DOCUMENT_COST + (sys.getsizeof(document.text) if document.tokens is None else document.tokens.nbytes)


def _where(record: Document | BadRecord) -> str:
    """Return the file and line of a record, for an error."""
    return f"{record.file}, {f'line {record.line}' if record.line else f'byte {record.byte}'}"


class RuleFilter:
    """A filter of a stream by the rules of a build, and by the languages to keep, as in ``"en,de=0.7"``.

    ``name`` changes with everything that decides: the rules, their files and the language model.
    """

    def __init__(self, rules: Any, language: Any) -> None:
        from filters.language.identifier import LanguageIdentifier, parse_languages
        from filters.rules.named_files import hash_file
        from filters.rules.ruleset import RuleSet, load_rules

        self.rules: RuleSet = rules if isinstance(rules, RuleSet) else load_rules(rules)
        self.wanted = {} if language is None else parse_languages(language)
        if not self.rules and not self.wanted:
            raise ConfigError(
                f"rules={rules!r} and language={language!r} keep everything; name rules, as in rules='gopher'"
            )
        described: list[Any] = [self.rules.describe(), self.wanted]
        self._identifier = None
        if self.wanted or self.rules.reads_language:
            self._identifier = LanguageIdentifier()
            self._identifier.check_known(self.wanted)
            described.append(hash_file(self._identifier.path))
        digest = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=8).hexdigest()
        self.name = f"rules#{digest}"
        self.rules.prepare()  # compiles now, not while the consumer waits for rows

    def __call__(self, documents: Sequence[Document], *, normalized: bool) -> list[Drop | None]:
        """Return why each document is dropped (None: kept). Rules with a [cut] table edit texts, ``normalized`` again if set."""
        if self.rules.cleaners:
            for document in documents:
                text, _ = self.rules.cut(document.text, document.location)
                document.text = normalize(text) if normalized else text
        drops: list[Drop | None] = [EMPTY if is_empty(document) else None for document in documents]
        if self._identifier is not None:
            for index, document in enumerate(documents):
                document.language = self._identifier.identify(document.text)
                drops[index] = judge_language(document, document.language, self.wanted)
        left = [index for index, drop in enumerate(drops) if drop is None]
        if left and self.rules.rules:
            judged = judge_measured(self.rules, measure(self.rules, [documents[index] for index in left]))
            for index, drop in zip(left, judged, strict=True):
                drops[index] = drop
        return drops
