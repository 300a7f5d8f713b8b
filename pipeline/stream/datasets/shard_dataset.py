"""Datasets of shards and of arrays of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ConfigError
from ...notices import warn
from ...objects.request_options import TIMEOUT, TRIES
from ..arguments import check_flag, check_integer, check_optional, parse_eos_id, parse_request_options
from ..settings import StreamSettings
from ..stream import Stream
from .sources.counted_data import CountedData
from .sources.holdout import parse_share
from .sources.shard_data import DEFAULT_CACHE, PIECE_TOKENS, MemoryData, ShardFiles, ShardNames
from .sources.sources import Sources


class Documents(Stream):
    """A dataset of documents, which can be split."""

    def __init__(self, data: CountedData, *, epochs: int | None) -> None:
        super().__init__(StreamSettings(sources=Sources({"": data}), epochs=epochs))

    @property
    def _data(self) -> CountedData:
        [data] = self._settings.sources.by_name.values()
        assert isinstance(data, CountedData)
        return data

    def split(self, *, val: float) -> tuple[Documents, Documents]:
        """Return two datasets, ``(train, val)``; ``val`` is the share of the second, drawn by a hash.

        Every document is whole in exactly one of them. If the data has more than 1,000 extents (runs of documents of about
        192 KiB) or more than 200 MB of tokens, the hash draws extents, and nothing is read. From less data it draws single
        documents: the call reads all of them, and both results stay in memory. The hash is computed from the shard's name and
        the number of the extent or document in the shard.

        Adding shards moves no document from one part to the other. A larger share selects all that a smaller one selects, and
        more. Each result can be split again, by an independent hash; ``val`` is then a share of that result.

        A new build of the same texts has other shards, so documents of the old ``val`` can be in the new ``train``. Use
        ``val_fraction`` of the build for a split that stays: it draws by the content of documents.

        Raises ``ConfigError`` for a share that is not above 0 and below 1.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(64), lengths=[1] * 64, epochs=1)
        >>> train, val = data.split(val=0.25)
        >>> len(train.documents()) + len(val.documents())
        64
        """
        from .parts import hold_out  # training does not need it

        self._data.check_stage("split")
        rest, held_out = hold_out(self._data, parse_share("val", val))
        return Documents(rest, epochs=self._settings.epochs), Documents(held_out, epochs=self._settings.epochs)

    def subset(self, share: float) -> Documents:
        """Return a dataset of a ``share`` of the tokens, drawn by a hash: the data of a small run that stands for a large one.

        Each shard gives its share, up to one extent or document. So ``subset(1/32)`` is inside ``subset(1/16)``, and adding
        shards changes neither. The hash draws what that of ``split`` draws, and does not depend on it: a subset of ``train``
        holds a share of ``train``, and nothing of ``val``. ``mix(...).proxy(share)`` takes a subset of every source.

        Raises ``ConfigError`` for a share that is not above 0 and below 1, if nothing is left, and after ``upsample``.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(64), lengths=[1] * 64, epochs=1)
        >>> len(data.subset(1 / 4).documents()), len(data.subset(1 / 8).documents())
        (16, 8)
        """
        from .parts import subset  # training does not need it

        return Documents(subset(self._data, parse_share("share", share)), epochs=self._settings.epochs)

    def upsample(self, by: str, times: Sequence[int]) -> Documents:
        """Return the dataset with each document read several times an epoch, or never, by the quantile of its score.

        ``by`` is a field of numbers that ``--keep-fields`` of the build kept in the shards. ``times`` says how often an epoch
        reads the documents of each quantile, the lowest scores first: ``[0, 1, 2, 4]`` are quarters, ten numbers tenths.
        Documents of equal scores are read equally often: the rank of a score is the share of documents below it, plus half the
        share of documents that equal it.

        Copies take no disk, and are shuffled over the epoch like all documents. The stream stays indexed: ``len()``,
        ``epochs``, resumes and ``trace`` count a document as often as it is read. A state loads only with the same scores and
        ``times``.

        The call reads the table of each shard, which takes 1.4 CPU seconds for a million documents. A block that holds
        documents of several quantiles is read several times an epoch.

        Raises ``ConfigError`` for a field that is missing or holds anything but numbers, and for documents in memory, which
        have no fields: arrays, and the parts of a ``.split()`` of little data.

        >>> import pathlib, tempfile
        >>> import pipeline
        >>> records = [{"text": f"document {n}", "score": n} for n in range(8)]
        >>> settings = {"tokenizer": "bytes", "rules": (), "dedup": False, "val_fraction": 0, "keep_fields": "score:int"}
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "shards")
        >>> _ = pipeline.build(records, folder, **settings, progress=pipeline.Progress(quiet=True))
        >>> stream = ShardDataset(folder, epochs=1).upsample("score", [0, 1, 2, 4]).documents()
        >>> sorted(stream.decode(row)[0][9:10] for row in stream)
        ['2', '3', '4', '4', '5', '5', '6', '6', '6', '6', '7', '7', '7', '7']
        """
        from .sources.upsampling import upsampled  # training without it does not need it

        if not isinstance(by, str):
            raise ConfigError(f"by must be the name of a field, got {by!r}")
        if isinstance(times, str) or not isinstance(times, Sequence) or not any(times):
            raise ConfigError(f"times must list how often each quantile is read, as [0, 1, 2, 4], got {times!r}")
        times = [check_integer("each of times", each, least=0, most=255) for each in times]
        self._data.check_stage("upsample")
        if not isinstance(self._data, ShardFiles):
            raise ConfigError(
                f"{self._data!r} is in memory, where documents have no fields; upsample shards, and split off val in the "
                "build (--val-fraction)"
            )
        return Documents(upsampled(self._data, by, times), epochs=self._settings.epochs)


class ShardDataset(Documents):
    """The tokens of a dataset directory, of shards (by braces, glob, list or URL), or of plain webdataset tars.

    - ``split`` names the split to stream; None streams all splits, in the order of their names. A directory or a pattern
      with wildcards is searched for shards of the split; a listed shard of another split is an error. Tars without a
      manifest have no splits.
    - Directories in a list are streamed as one, in the order given. They need the same dtype, tokenizer and end-of-text id.
    - ``epochs`` bounds the stream (None: endless).
    - ``verify=True`` checks each block whenever it is read.
    - ``eos_id`` fills short rows (default: the id of the manifest, else 0).

    Remote shards (``s3://``, ``gs://``, ``https://``, ...) are read in blocks, by ranged requests, ahead of need.

    - ``cache_dir`` keeps the blocks; all processes of a machine share it (default: "auto", ``$SHARDWRIGHT_CACHE``, else the
      user's cache directory). None keeps them in memory alone.
    - ``cache_limit`` bounds the bytes of the cached blocks (default: all but a tenth of the disk).
    - ``whole_shards`` downloads whole shards into ``cache_dir``. It is turned on, with a warning, for tars without an index and
      for servers without ranged requests.
    - ``storage_options`` are passed to fsspec.
    - ``tries`` is how often a request is made at most (8).
    - ``timeout`` is in seconds: a request without a byte for so long is repeated (20). A server that has never answered is
      given up after half that time.

    Tars without an index are scanned once; the index is kept beside them or in ``cache_dir``.

    A state loads only with the same data, or a copy. A manifest identifies data by the sha256 of each shard. Tars without a
    manifest are identified by their names, the positions of documents, and

    - for shards of this package: the checksums in their footers;
    - for tars of other tools: the names of members, and the first and last 512 bytes of each document;
    - for remote tars: size and version (ETag), if the server states one.

    If a local tar changes while it is streamed, reading its next documents raises ``ShardError``.

    Raises ``ManifestError`` for an incomplete dataset or an unknown split; ``ConfigError`` for listed shards of another
    split and directories that differ; ``ShardError`` on opening a shard that contradicts its manifest; ``StorageError`` for
    a remote object that cannot be fetched.

    >>> import pathlib, tempfile
    >>> import pipeline
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "in.jsonl").write_text('{"text": "to be or not to be"}')
    >>> _ = pipeline.build(folder / "in.jsonl", folder / "shards", tokenizer="bytes", rules=(), val_fraction=0)
    >>> next(iter(ShardDataset(folder / "shards").pack(8).batch(2)))["input_ids"].shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        source: ShardNames,
        split: str | None = "train",
        *,
        epochs: int | None = None,
        verify: bool = False,
        cache_dir: str | PathLike[str] | None = DEFAULT_CACHE,
        cache_limit: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        tries: int = TRIES,
        timeout: float = TIMEOUT,
        eos_id: int | None = None,
        whole_shards: bool = False,
    ) -> None:
        epochs = check_optional("epochs", epochs)  # before files are asked for
        data = ShardFiles(
            source,
            split,
            verify=verify,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            requests=parse_request_options(storage_options, tries, timeout),
            eos_id=eos_id,
            whole_shards=whole_shards,
        )
        super().__init__(data, epochs=epochs)

    def sources(self) -> dict[str, Documents]:
        """Return the named sources of a build (``wiki=...``) as a dict of datasets, for ``mix``.

        Raises ``ConfigError`` if inputs had no names, and for a dataset with ``epochs``.

        >>> import pathlib, tempfile
        >>> import pipeline
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"text": "to be or not to be"}')
        >>> _ = pipeline.build(f"wiki={folder}/in.jsonl", folder / "shards", tokenizer="bytes", rules=(), val_fraction=0)
        >>> list(ShardDataset(folder / "shards").sources())
        ['wiki']
        """
        files: ShardFiles = self._data  # type: ignore[assignment]
        sources = files.of_sources()
        if set(sources) <= {""}:
            raise ConfigError(
                "no source of this dataset has a name; name inputs when you build, as in wiki=wiki/*.jsonl web=web/*.jsonl"
            )
        if self._settings.epochs is not None:
            raise ConfigError("each source of a mix repeats by epochs of its own: leave epochs out")
        return {name: Documents(data, epochs=None) for name, data in sources.items()}

    @classmethod
    def from_tokens(
        cls,
        tokens: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        eos_id: int | None = None,
        epochs: int | None = None,
    ) -> Documents:
        """Stream a 1-D array of token ids in memory or mapped from a file (``np.memmap``), of any integer dtype.

        ``lengths`` (1-D integers) gives the number of tokens of each document. Without it, a document ends at every
        ``eos_id``. If there is no ``eos_id`` in the array, or none is stated, the ends of documents are unknown:
        ``.shuffle()`` then moves pieces of 4,096 tokens, and methods that need documents (``.documents()``, ``.filter()``,
        ``.split()``, ``boundaries=True``, ...) raise ``ConfigError``. This method raises it for other shapes and dtypes.

        A state loads only with the same tokens. An array in memory is hashed whole. A memmap is read only as far as the stream
        needs (whole, to find ``eos_id``). It is identified by its dtype, its length, and 256 pieces of 4,096 tokens at equal
        distances, from the first to the last. Do not write to it while it is streamed.

        >>> stream = ShardDataset.from_tokens([1, 2, 0, 3, 0], eos_id=0, epochs=1).documents()
        >>> [item["input_ids"].tolist() for item in stream]
        [[1, 2, 0], [3, 0]]
        """
        epochs = check_optional("epochs", epochs)
        array = np.asarray(tokens)
        if array.ndim != 1 or array.dtype.kind not in "ui":
            raise ConfigError(f"tokens must be a 1-D array of integers, got {array.dtype} of shape {array.shape}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        ends = _document_ends(array, eos_id) if lengths is None else np.empty(0, np.int64)
        sizes = np.diff(ends, prepend=0) if lengths is None else np.asarray(lengths)
        pieces = lengths is None and len(array) > 0 and not len(ends)
        if pieces:
            sizes = np.diff(np.append(np.arange(0, len(array), PIECE_TOKENS), len(array)))
        if sizes.ndim != 1 or (len(sizes) and sizes.dtype.kind not in "ui"):
            raise ConfigError(f"lengths must be a 1-D array of integers, got {sizes.dtype} of shape {sizes.shape}")
        label = f"ShardDataset.from_tokens({array.dtype} of shape {array.shape})"
        data = MemoryData(array, sizes.astype(np.int64), eos_id, None, label, pieces=pieces)
        return Documents(data, epochs=epochs)

    @classmethod
    def from_texts(
        cls, texts: Iterable[str], tokenizer: Any, *, epochs: int | None = None, bos: bool = False
    ) -> Documents:
        """Tokenize ``texts`` now and stream them from memory, each followed by the end-of-text id.

        ``bos`` puts the begin-of-text id before each. ``tokenizer`` is a name, a path, or a loaded tokenizer of this package,
        ``transformers``, ``tokenizers`` or ``tiktoken`` (used by its serialised definition). Raises ``ConfigError`` for texts
        that are not strings.

        >>> next(iter(ShardDataset.from_texts(["ab"], "bytes").documents()))["input_ids"].tolist()
        [100, 101, 1]
        """
        from ...text.tokens.tokenizer import load_tokenizer

        epochs = check_optional("epochs", epochs)
        bos = check_flag("bos", bos)
        if isinstance(texts, str | bytes | Mapping):
            raise ConfigError(f"texts must be a list of texts, got one {type(texts).__name__}; write [text]")
        try:
            documents = list(texts)
        except TypeError:
            raise ConfigError(f"texts must be an iterable of texts, got {texts!r}") from None
        for number, text in enumerate(documents):
            if not isinstance(text, str):
                raise ConfigError(f"texts must be strings, but number {number} is of type {type(text).__name__}")
        loaded = load_tokenizer(tokenizer)
        tokens, lengths = loaded.encode_flat(documents, bos=bos, eos=True)
        lost, whole = loaded.count_lost(documents, tokens)
        if lost:
            warn(f"tokenizer {loaded.name}: {loaded.loss_text(lost, whole)}")
        label = f"ShardDataset.from_texts({len(documents):,} texts, {loaded.name!r})"
        data = MemoryData(tokens, lengths, loaded.eos_id, loaded.sha256, label)
        data.vocab_size, data.tokenizer, data.tokenizer_name = loaded.vocab_size, loaded, loaded.name
        return Documents(data, epochs=epochs)


_STEP = 1 << 24  # tokens that are compared at once


def _document_ends(tokens: NDArray[Any], eos_id: int | None) -> NDArray[np.int64]:
    """Return where documents end: after each ``eos_id``, and after the last token. Empty if no token is ``eos_id``."""
    if eos_id is None:
        return np.empty(0, np.int64)
    eos = parse_eos_id(eos_id, tokens.dtype)
    parts = [np.flatnonzero(tokens[at : at + _STEP] == eos) + at + 1 for at in range(0, len(tokens), _STEP)]
    ends = np.concatenate([np.empty(0, np.int64), *parts])
    return np.append(ends, len(tokens)) if len(ends) and ends[-1] < len(tokens) else ends
