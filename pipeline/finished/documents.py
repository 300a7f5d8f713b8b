"""The documents of a finished dataset by their numbers in input order: where each is, its text and its origin."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..builder.stages.write import texts_name
from ..errors import ConfigError, CorruptShardError
from ..objects.request_options import RequestOptions
from ..shards.dataset_folder import REPAIR, DatasetFolder
from ..shards.manifest import ShardInfo
from ..shards.shard_access import ShardAccess
from ..text.readers.document_reader import Document, DocumentReader, find_inputs
from ..text.tokens.tokenizer import Tokenizer, tokenizer_of_dataset
from ..weak_methods import weak_lru_cache

_TABLES = 4  # tables of shards in memory; one of 60,000 documents takes 50 MB
_BATCH = 256  # texts yielded at once


class DocumentLocation(NamedTuple):
    """Where a document is: its split, its shard's entry in the manifest, and its number in the shard."""

    split: str
    shard: ShardInfo
    document: int


class DatasetDocuments:
    """The documents of a dataset. Raises ``MissingDatasetError`` if there is none."""

    def __init__(self, dataset: str | Path, requests: RequestOptions | None = None) -> None:
        self.folder = DatasetFolder(dataset, requests)
        self.manifest = self.folder.manifest()
        self.settings: dict[str, Any] = self.manifest.recipe.get("settings", {})
        self._access = ShardAccess(requests=self.folder.requests)
        self.table = weak_lru_cache(self._table, _TABLES)
        self._first_key = weak_lru_cache(self._read_first_key, None)

    def __len__(self) -> int:
        return sum(split.documents for split in self.manifest.splits.values())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if not self.manifest.tokenizer.get("sha256"):
            raise ConfigError(
                f"{self.folder.base}: has no tokenizer, so its ids cannot be read as text; build it from text"
            )
        return tokenizer_of_dataset(self.folder, self.manifest)

    def locate(self, number: int) -> DocumentLocation:
        """Return the location of the document with a number, which is its key. Keys ascend in each split."""
        key = f"{number:012d}"
        for name, split in self.manifest.splits.items():
            shards = [shard for shard in split.shards if shard.documents]
            at = bisect_right(shards, key, key=self._first_key) - 1
            if at >= 0:
                keys = self.table(shards[at])["key"]
                if (row := bisect_left(keys, key)) < len(keys) and keys[row] == key:
                    return DocumentLocation(name, shards[at], row)
        raise CorruptShardError(f"{self.folder.base}: no shard has the key {key}; {REPAIR}")

    def shards(self) -> Iterator[tuple[str, ShardInfo]]:
        """Yield every shard after its split."""
        yield from ((name, shard) for name, split in self.manifest.splits.items() for shard in split.shards)

    def text(self, location: DocumentLocation) -> str:
        """Return the text of a document, decoded from its tokens."""
        ids = self._access.document(self.folder.path(location.shard.name), location.document, location.shard)
        return self._decoded(ids)

    def kept_text(self, location: DocumentLocation) -> str | None:
        """Return the text of a document from the file that the build kept (``--keep-texts``); None if it kept none."""
        kept = self._kept(location.shard)
        return None if kept is None else next(itertools.islice(kept, location.document, None))

    def texts(self, shard: ShardInfo) -> Iterator[list[str]]:
        """Yield the texts of a shard in order, some at a time: kept texts, else decoded ones; '' for redacted documents."""
        texts = self._kept(shard) or self._every_decoded(shard)
        while batch := list(itertools.islice(texts, _BATCH)):
            yield batch

    def _read_first_key(self, shard: ShardInfo) -> str:
        return self._access.first_key(self.folder.path(shard.name))

    def _table(self, shard: ShardInfo) -> dict[str, list[Any]]:
        return self._access.table(self.folder.path(shard.name), shard)

    def _kept(self, shard: ShardInfo) -> Iterator[str] | None:
        name = texts_name(shard.name, self.settings.get("keep_texts") or "")
        if all(info.name != name for info in self.manifest.files):
            return None
        [file] = find_inputs([self.folder.path(name)], requests=self.folder.requests)
        return (record.text for record in DocumentReader(file) if isinstance(record, Document))

    def _every_decoded(self, shard: ShardInfo) -> Iterator[str]:
        path = self.folder.path(shard.name)
        index, redacted = self._access.index(path, shard), {*self.manifest.redacted.get(shard.name, [])}
        with self._access.opened(path, shard) as (handle, _), open(handle, "rb", closefd=False) as file:
            for number, (start, length) in enumerate(zip(index.starts.tolist(), index.lengths.tolist(), strict=True)):
                file.seek(start)
                ids = np.frombuffer(file.read(length * index.dtype.itemsize), index.dtype)
                yield "" if number in redacted else self._decoded(ids)

    def _decoded(self, ids: NDArray[Any]) -> str:
        """Return the text of a document's ids, without the ids that begin and end documents, which stand for no text."""
        tokenizer = self.tokenizer
        first = int(len(ids) > 0 and ids[0] == tokenizer.bos_id)
        last = len(ids) - int(len(ids) > first and ids[-1] == tokenizer.eos_id)
        return tokenizer.decode(ids[first:last].tolist())
