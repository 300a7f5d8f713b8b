"""Where streams begin: shards, tokens and texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ConfigError
from .data import MemoryData, ShardFiles, Source
from .plan import Plan
from .stages import Stream, check_integer


class ShardDataset(Stream):
    """The tokens of a dataset directory, of shards by braces, glob, list or URL, or of plain webdataset tars.

    ``split`` names the split of a directory. ``epochs`` bounds the stream (None: endless). ``verify=True`` hashes
    each shard before its first use. At most ``max_open_shards`` are open at a time. Tars without an index are scanned
    once; the index is kept beside them or in ``cache_dir``. Remote shards (``s3://``, ``gs://``, ``https://``, ...) are
    downloaded whole when they are needed and somewhat ahead, hashed, and kept in ``cache_dir`` (default:
    ``$SHARDWRIGHT_CACHE``, else the user's cache directory), of which they take at most ``cache_limit`` bytes (default:
    all but a tenth of the disk); all processes of a machine share it. ``storage_options`` go to fsspec. ``eos_id`` pads
    what is short (default: the manifest's, else 0).

    Raises ``ManifestError`` for an incomplete dataset or unknown split, and ``ShardError`` for a shard that disagrees
    with its manifest, when it is opened.
    """

    def __init__(
        self,
        source: Source,
        split: str = "train",
        *,
        epochs: int | None = None,
        verify: bool = False,
        max_open_shards: int = 512,
        cache_dir: str | None = None,
        cache_limit: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        eos_id: int | None = None,
    ) -> None:
        if epochs is not None:
            check_integer("epochs", epochs, least=1)
        check_integer("max_open_shards", max_open_shards, least=1)
        data = ShardFiles(
            source,
            split,
            verify=verify,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            storage_options=storage_options,
            eos_id=eos_id,
        )
        super().__init__(Plan(data=data, epochs=epochs, max_open_shards=min(max_open_shards, data.max_open)))

    @classmethod
    def from_tokens(
        cls, tokens: Any, *, lengths: Any = None, eos_id: int | None = None, epochs: int | None = None
    ) -> Stream:
        """Stream a 1-D array of token ids in memory.

        ``lengths`` says how many tokens each document has; without it a document ends at every ``eos_id``, and without
        either the array is one document.
        """
        array = np.asarray(tokens)
        if array.ndim != 1 or array.dtype.kind not in "ui":
            raise ConfigError(f"tokens must be a 1-D array of integers, got {array.dtype} of shape {array.shape}")
        if lengths is None:
            ends = np.flatnonzero(array == eos_id) + 1 if eos_id is not None else np.zeros(0, np.int64)
            lengths = np.diff(np.unique(np.concatenate([[0], ends, [len(array)]])))
        data = MemoryData(array, np.asarray(lengths, dtype=np.int64), eos_id or 0, None)
        return Stream(Plan(data=data, epochs=epochs))

    @classmethod
    def from_texts(cls, texts: list[str], tokenizer: Any, *, epochs: int | None = None) -> Stream:
        """Tokenize ``texts`` now and stream them from memory; ``tokenizer`` is a name, path or loaded tokenizer."""
        from ..text.tokens import load_tokenizer

        loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        documents = [np.append(ids, loaded.eos_id).astype(loaded.dtype) for ids in loaded.encode_batch(list(texts))]
        lengths = np.asarray([len(document) for document in documents], dtype=np.int64)
        tokens = np.concatenate([np.zeros(0, loaded.dtype), *documents])
        return Stream(Plan(data=MemoryData(tokens, lengths, loaded.eos_id, loaded.sha256), epochs=epochs))
