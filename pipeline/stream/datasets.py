"""Where streams begin: shards, tokens and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from ..errors import ConfigError, InputError
from .arguments import check_integer
from .data import KeyedData, MemoryData, ShardFiles, Source
from .mixing import MixedData
from .order.mixture import exact_weights
from .plan import Plan
from .splitting import share_given, split_data
from .stages import Stream
from .text_data import TextData


class Documents(Stream):
    """A stream at its beginning: documents with keys, by which they can be split."""

    def __init__(self, data: KeyedData, *, epochs: int | None, max_open_shards: int | None = None) -> None:
        super().__init__(Plan(data=data, epochs=epochs, max_open_shards=max_open_shards))
        self._data = data

    def split(self, *, val: float) -> tuple[Stream, Stream]:
        """Return two datasets, ``(rest, held_out)``: ``val`` is the share of documents held out, by a hash of their keys.

        Every document is in exactly one, in the same one whatever the number of shards, and a larger share holds out
        what a smaller one did, and more. A key is the name of a document's tar member, in memory its number. Calling it
        reads the index and the keys of every shard, some 30 bytes and half a microsecond a document, but no token; of
        remote shards and of over a million documents the counts are kept in the cache directory.

        Raises ``ConfigError`` for a share that is not above 0 and below 1.
        """
        rest, held_out = split_data(self._data, share_given(val))
        return self._with(data=rest), self._with(data=held_out)


class ShardDataset(Documents):
    """The tokens of a dataset directory, of shards by braces, glob, list or URL, or of plain webdataset tars.

    ``split`` names the split of a directory. ``epochs`` bounds the stream (None: endless). ``verify=True`` hashes
    each shard before its first use. At most ``max_open_shards`` are open at a time (default: half
    of the files that the process may open). Tars without an index are scanned once; the index is kept beside them or in
    ``cache_dir``. Remote shards (``s3://``, ``gs://``, ``https://``, ...) are
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
        max_open_shards: int | None = None,
        cache_dir: str | None = None,
        cache_limit: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        eos_id: int | None = None,
        memory_map: bool | None = None,
    ) -> None:
        if epochs is not None:
            check_integer("epochs", epochs, least=1)
        if max_open_shards is not None:
            check_integer("max_open_shards", max_open_shards, least=1)
        data = ShardFiles(
            source,
            split,
            verify=verify,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            storage_options=storage_options,
            eos_id=eos_id,
            memory_map=memory_map,
        )
        super().__init__(data, epochs=epochs, max_open_shards=max_open_shards)

    def sources(self) -> dict[str, Documents]:
        """Return a bare dataset for each named source of a build (``wiki=...``), by name: what ``mix`` takes.

        Raises ``ConfigError`` where inputs had no names, and for a dataset with ``epochs``.
        """
        files: ShardFiles = self._data  # type: ignore[assignment]
        found = files.of_sources()
        if set(found) == {""}:
            raise ConfigError(
                "no source of this dataset has a name; name inputs when you build, as in wiki=wiki/*.jsonl web=web/*.jsonl"
            )
        if self._plan.epochs is not None:
            raise ConfigError("sources are mixed endlessly, each by epochs of its own: leave epochs out")
        limit = self._plan.max_open_shards
        return {name: Documents(data, epochs=None, max_open_shards=limit) for name, data in found.items()}

    @classmethod
    def from_tokens(
        cls, tokens: Any, *, lengths: Any = None, eos_id: int | None = None, epochs: int | None = None
    ) -> Documents:
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
        return Documents(data, epochs=epochs)

    @classmethod
    def from_texts(cls, texts: list[str], tokenizer: Any, *, epochs: int | None = None) -> Documents:
        """Tokenize ``texts`` now and stream them from memory; ``tokenizer`` is a name, path or loaded tokenizer."""
        from ..text.tokens import load_tokenizer

        loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        documents = [np.append(ids, loaded.eos_id).astype(loaded.dtype) for ids in loaded.encode_batch(list(texts))]
        lengths = np.asarray([len(document) for document in documents], dtype=np.int64)
        tokens = np.concatenate([np.zeros(0, loaded.dtype), *documents])
        return Documents(MemoryData(tokens, lengths, loaded.eos_id, loaded.sha256), epochs=epochs)


class TextDataset(Stream):
    """Raw text, filtered and tokenized while it is streamed: training starts seconds after the call.

    ``files`` are what the builder takes: jsonl, csv, txt (each also .gz or .zst), parquet and webdataset tars of ``.txt``
    or ``.json`` members, by path, directory, braces or glob. ``tokenizer`` is a name, path or loaded tokenizer; ids are
    those of Hugging Face's definition, by the fastest encoder that gives the same. ``text_key`` and ``id_key`` name the
    fields of a record. ``eos`` ends each document with the end-of-text id. ``on_error="skip"`` passes over records that
    cannot be used, and the rest of files that cannot be read on, and counts them in ``stats()``; ``"stop"`` raises
    ``InputError`` naming file and line. ``epochs`` bounds the stream (None: endless), for one rank.

    Nobody knows ahead how many tokens there are, so this is a cursor stream: each of its lanes (48, for small input
    fewer; one without ``.shuffle()``, in the order of the files) keeps a cursor; ranks and workers share lanes out, so
    their product must divide them. ``.batch`` gives neighbouring sequences of one lane.

    Raises ``InputError`` for files that are not there or of no known kind.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = file.write_text('{"text": "to be"}\\n{"text": "or not"}\\n')
    >>> stream = TextDataset(file, tokenizer="bytes").pack(4).batch(2)
    >>> next(iter(stream))["input_ids"].shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        files: str | PathLike[str] | Sequence[str | PathLike[str]],
        tokenizer: Any,
        *,
        text_key: str = "text",
        id_key: str = "id",
        epochs: int | None = None,
        on_error: str = "stop",
        eos: bool = True,
    ) -> None:
        from ..text.inputs import find_inputs
        from ..text.tokens import Tokenizer, load_tokenizer

        if epochs is not None:
            check_integer("epochs", epochs, least=1)
        for name, key in (("text_key", text_key), ("id_key", id_key)):
            if not isinstance(key, str):
                raise ConfigError(f"{name} must be the name of a field, got {key!r}")
        if on_error not in ("stop", "skip"):
            raise ConfigError(f"on_error must be 'stop' or 'skip', got {on_error!r}")
        loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | PathLike) else tokenizer
        if not isinstance(loaded, Tokenizer):
            raise ConfigError(
                f"tokenizer must be a name, a path or what load_tokenizer returns, got {type(loaded).__name__}; of a "
                "tokenizer of transformers give the name or the directory that it was saved in"
            )
        found = find_inputs(files)
        if not found:
            raise InputError(
                "no files were given: TextDataset needs at least one path, directory, glob or brace pattern"
            )
        data = TextData(found, loaded, text_key=text_key, id_key=id_key, skip=on_error == "skip", eos=eos)
        super().__init__(Plan(data=data, epochs=epochs))
        self._data = data

    def split(self, *, val: float) -> tuple[Stream, Stream]:
        """Return two datasets, ``(rest, held_out)``: ``val`` is the share of documents held out, by a hash of their ids.

        Every document is in exactly one, in the same one in whatever file it lies, and a larger share holds out what a
        smaller one did, and more; equal ids go together, and of documents without one equal texts. Each of the two reads
        all files. Raises ``ConfigError`` for a share that is not above 0 and below 1.
        """
        rest, held_out = self._data.halves(share_given(val))
        return self._with(data=rest), self._with(data=held_out)


def mix(
    sources: Mapping[str, Stream],
    weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None = None,
    *,
    temperature: float | None = None,
) -> Stream:
    """Mix bare sources by their share of sequences; ``.shuffle()`` and ``.pack()`` follow and hold for all.

    ``weights`` are shares by name, or a schedule ``[(global sequence, shares), ...]`` that begins at 0; with
    ``temperature`` T instead, shares are proportional to tokens to the power of 1 / T. Each source repeats by epochs of
    its own. Sources may be datasets of their own or the named sources of one, ``ShardDataset(...).sources()``. Raises
    ``ConfigError`` for sources that were shuffled, packed or bounded, or differ in dtype or tokenizer.
    """
    data: dict[str, Any] = {}
    for name, source in sources.items():
        plan = source._plan
        if isinstance(plan.data, TextData):
            raise ConfigError(f"source {name!r} is text, whose tokens nobody counted; build shards of it and mix those")
        if replace(plan, data=None, max_open_shards=None) != Plan(data=None):  # type: ignore[arg-type]
            raise ConfigError(
                f"source {name!r} must be a bare dataset; .shuffle(), .pack() and the rest follow the mix"
            )
        data[name] = plan.data
    if not data:
        raise ConfigError("a mix needs at least one source")
    if (weights is None) == (temperature is None):
        raise ConfigError("give weights or a temperature, one of them")
    if temperature is not None:
        if temperature <= 0:
            raise ConfigError(f"temperature must be above 0, got {temperature}")
        powers = {name: float(sum(each.tokens)) ** (1 / temperature) for name, each in data.items()}
        weights = {name: round(power / sum(powers.values()), 6) for name, power in powers.items()}
    steps = [(0, weights)] if isinstance(weights, Mapping) else list(weights or ())
    if not steps or steps[0][0] != 0 or any(a[0] >= b[0] for a, b in pairwise(steps)):
        raise ConfigError(f"a schedule begins at global sequence 0 and ascends, got {[place for place, _ in steps]}")
    schedule = tuple((place, exact_weights(shares, list(data))) for place, shares in steps)
    limits = [limit for source in sources.values() if (limit := source._plan.max_open_shards) is not None]
    return Stream(Plan(data=MixedData(data), weights=schedule, max_open_shards=min(limits, default=None)))
