"""Where streams begin: shards, tokens and texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, InputError
from ..shards.open_files import MOST
from .arguments import check_epochs, check_integer, eos_given
from .data import Data, KeyedData, MemoryData, ShardFiles, Source
from .mixing import MixedData
from .order.mixture import Schedule, exact_weights, temperature_weights
from .plan import Plan
from .splitting import HalfData, share_given, split_data
from .stages import Stream
from .text_data import TextData


class Documents(Stream):
    """A stream at its beginning: documents with keys, by which they can be split."""

    def __init__(self, data: KeyedData | HalfData, *, epochs: int | None, max_open_shards: int = MOST) -> None:
        super().__init__(Plan(data=data, epochs=epochs, max_open_shards=max_open_shards))
        self._data = data

    def split(self, *, val: float) -> tuple[Documents, Documents]:
        """Return two datasets, ``(rest, held_out)``: ``val`` is the share of documents held out, by a hash of their keys.

        Every document is in exactly one, in the same one whatever the number of shards, and a larger share holds out
        what a smaller one did, and more. Both can be split again, by an independent hash: ``val`` is then a share of the
        half that is split. A key is the name of a document's tar member, in memory its number. Calling it
        reads the index and the keys of every shard, some 30 bytes and half a microsecond a document, but no token; of
        remote shards and of over a million documents the counts are kept in the cache directory.

        Raises ``ConfigError`` for a share that is not above 0 and below 1.
        """
        plan = self._plan
        rest, held_out = split_data(self._data, share_given(val))
        return (
            Documents(rest, epochs=plan.epochs, max_open_shards=plan.max_open_shards),
            Documents(held_out, epochs=plan.epochs, max_open_shards=plan.max_open_shards),
        )


class ShardDataset(Documents):
    """The tokens of a dataset directory, of shards by braces, glob, list or URL, or of plain webdataset tars.

    ``split`` names the split of a directory. ``epochs`` bounds the stream (None: endless). ``verify=True`` hashes
    each shard before its first use. At most ``max_open_shards`` are open at a time; all streams of a process together
    keep to half of the files that it may open. Tars without an index are scanned once; the index is kept beside them or in
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
        check_epochs(epochs)  # before files are asked for
        if max_open_shards is None:
            max_open_shards = MOST
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
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        sizes = np.diff(_document_ends(array, eos_id), prepend=0) if lengths is None else np.asarray(lengths)
        if sizes.ndim != 1 or (len(sizes) and sizes.dtype.kind not in "ui"):
            raise ConfigError(f"lengths must be a 1-D array of integers, got {sizes.dtype} of shape {sizes.shape}")
        label = f"ShardDataset.from_tokens({array.dtype} of shape {array.shape})"
        return Documents(MemoryData(array, sizes.astype(np.int64), eos_id, None, label), epochs=epochs)

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: Any, *, epochs: int | None = None) -> Documents:
        """Tokenize ``texts`` now and stream them from memory, each ended by the end-of-text id.

        ``tokenizer`` is a name, a path, or a loaded tokenizer: ours, or one of ``transformers`` or ``tokenizers``, whose
        serialised definition is used.
        """
        from ..text.tokenizer.tokenizer import load_tokenizer

        check_epochs(epochs)
        if isinstance(texts, str | bytes):
            raise ConfigError(f"texts must be a list of texts, got one {type(texts).__name__}; write [text]")
        given = list(texts)
        for number, text in enumerate(given):
            if not isinstance(text, str):
                raise ConfigError(f"texts must be strings, but number {number} is of type {type(text).__name__}")
        loaded = load_tokenizer(tokenizer)
        tokens, lengths = loaded.encode_flat(given, eos=True)
        label = f"ShardDataset.from_texts({len(given):,} texts, {loaded.name!r})"
        return Documents(MemoryData(tokens, lengths, loaded.eos_id, loaded.sha256, label), epochs=epochs)


class Texts(Stream):
    """A stream of raw text at its beginning, which can be split."""

    def __init__(self, data: TextData, *, epochs: int | None) -> None:
        super().__init__(Plan(data=data, epochs=epochs))
        self._data = data

    def split(self, *, val: float) -> tuple[Texts, Texts]:
        """Return two datasets, ``(rest, held_out)``: ``val`` is the share of documents held out, by a hash of their ids.

        Every document is in exactly one, in the same one in whatever file it lies, and a larger share holds out what a
        smaller one did, and more; equal ids go together, and of documents without one equal texts. Each of the two reads
        all files, and can be split again, by an independent hash. Raises ``ConfigError`` for a share that is not above 0
        and below 1.
        """
        rest, held_out = self._data.halves(share_given(val))
        return Texts(rest, epochs=self._plan.epochs), Texts(held_out, epochs=self._plan.epochs)


class TextDataset(Texts):
    """Raw text, filtered and tokenized while it is streamed: training starts seconds after the call.

    ``files`` are what the builder takes: jsonl, csv, txt (each also .gz or .zst), parquet and webdataset tars of ``.txt``
    or ``.json`` members, by path, directory, braces or glob. ``tokenizer`` is a name, a path or a loaded tokenizer (see
    ``from_texts``); ids are those of Hugging Face's definition, by the fastest encoder that gives the same.
    ``text_key`` and ``id_key`` name the fields of a record. ``eos`` ends each document with the end-of-text id.
    ``on_error="skip"`` passes over records that cannot be used, and the rest of files that cannot be read on, and
    counts them in ``stats()``; ``"stop"`` raises ``InputError`` naming file and line. ``epochs`` bounds the stream
    (None: endless), for one rank.

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
        from ..text.discovery import find_inputs
        from ..text.tokenizer.tokenizer import load_tokenizer

        check_epochs(epochs)
        for name, key in (("text_key", text_key), ("id_key", id_key)):
            if not isinstance(key, str):
                raise ConfigError(f"{name} must be the name of a field, got {key!r}")
        if on_error not in ("stop", "skip"):
            raise ConfigError(f"on_error must be 'stop' or 'skip', got {on_error!r}")
        loaded = load_tokenizer(tokenizer)
        found = find_inputs(files)
        if not found:
            raise InputError(
                "no files were given: TextDataset needs at least one path, directory, glob or brace pattern"
            )
        data = TextData(found, loaded, text_key=text_key, id_key=id_key, skip=on_error == "skip", eos=eos)
        super().__init__(data, epochs=epochs)


def mix(
    sources: Mapping[str, Stream],
    weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None = None,
    *,
    temperature: float | None = None,
) -> Stream:
    """Mix bare sources by their share of sequences; ``.shuffle()`` and ``.pack()`` follow and hold for all.

    ``weights`` are shares by name, or a schedule ``[(global sequence, shares), ...]`` that begins at 0; with
    ``temperature`` T instead, shares are proportional to tokens to the power of 1 / T. Shares are realised as multiples
    of 1 / 4,096, at least 1 / 4,096 for a weight above 0: ``stats()["sources"]`` says which (``asked``). Each source
    repeats by epochs of its own. Sources may be datasets of their own or the named sources of one,
    ``ShardDataset(...).sources()``. Raises ``ConfigError`` for sources that were shuffled, packed or bounded, or differ
    in dtype or tokenizer.
    """
    if not isinstance(sources, Mapping) or not sources:
        raise ConfigError(f"a mix needs at least one source, as {{'web': ShardDataset(...)}}, got {sources!r}")
    data = {name: _bare(name, source) for name, source in sources.items()}
    mixed = MixedData(data)
    if (weights is None) == (temperature is None):
        raise ConfigError("give weights or a temperature, one of them")
    if temperature is not None:
        counts = {name: sum(each.tokens) for name, each in data.items()}
        schedule: Schedule = ((0, temperature_weights(counts, temperature)),)
    else:
        schedule = _schedule(weights, list(data))
    limit = min(source._plan.max_open_shards for source in sources.values())
    return Stream(Plan(data=mixed, weights=schedule, max_open_shards=limit))


def _bare(name: Any, source: Any) -> Data:
    """Return the data of a source that nothing was done to yet."""
    if not isinstance(name, str):
        raise ConfigError(f"sources of a mix have names of type str, got {name!r}")
    if not isinstance(source, Stream):
        given = f"got {source!r} of type {type(source).__name__}"
        raise ConfigError(f"source {name!r} must be a dataset, {given}; write pipeline.ShardDataset(...)")
    plan = source._plan
    if isinstance(plan.data, TextData):
        raise ConfigError(f"source {name!r} is text, whose tokens nobody counted; build shards of it and mix those")
    bare = Plan(data=plan.data, max_open_shards=plan.max_open_shards)
    if isinstance(plan.data, MixedData) or plan != bare:
        raise ConfigError(f"source {name!r} must be a bare dataset; .shuffle(), .pack() and the rest follow the mix")
    return plan.data


def _schedule(weights: Any, names: list[str]) -> Schedule:
    """Return weights as a schedule of exact rationals."""
    steps = [(0, weights)] if isinstance(weights, Mapping) else weights
    pairs = isinstance(steps, Sequence) and all(isinstance(step, tuple | list) and len(step) == 2 for step in steps)
    if not pairs or isinstance(steps, str):
        raise ConfigError(f"weights must be a dict of shares, or a list of (global sequence, shares), got {weights!r}")
    for place, _ in steps:
        check_integer("a global sequence of the schedule", place, least=0)
    if not steps or steps[0][0] != 0 or any(a[0] >= b[0] for a, b in pairwise(steps)):
        raise ConfigError(f"a schedule begins at global sequence 0 and ascends, got {[place for place, _ in steps]}")
    return tuple((place, exact_weights(shares, names)) for place, shares in steps)


_STEP = 1 << 24  # tokens that are compared at once


def _document_ends(tokens: NDArray[Any], eos_id: Any) -> NDArray[np.int64]:
    """Return where documents end, each after an ``eos_id``, the last where the tokens end; without one there is one."""
    eos = None if eos_id is None else eos_given(eos_id, tokens.dtype)
    starts = range(0, len(tokens) if eos is not None else 0, _STEP)
    ends = [np.flatnonzero(tokens[start : start + _STEP] == eos) + start + 1 for start in starts]
    return np.unique(np.concatenate([*ends, np.array([len(tokens)] if len(tokens) else [], np.int64)]))
