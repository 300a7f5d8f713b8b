"""The datasets that a stream begins with: shards, arrays of tokens, texts, and mixes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError, InputError, value_text
from ..notices import warn
from ..objects.request_options import TIMEOUT, TRIES, RequestOptions
from .arguments import check_choice, check_flag, check_integer, check_optional, parse_eos_id, parse_request_options
from .config import StreamConfig
from .data.counted_data import CountedData
from .data.holdout import parse_share
from .data.shard_data import DEFAULT_CACHE, PIECE_TOKENS, MemoryData, ShardFiles, ShardNames
from .data.sources import Source, Sources
from .data.text_data import LiveData, TextData
from .function_identity import identified
from .order.mixture import Changes, exact_weights, temperature_weights
from .schedule import Schedule
from .stream import Stream

if TYPE_CHECKING:
    from ..text.document import OnError
    from ..text.extract import Extract
    from ..text.storage.input_file import InputFile
    from .data.live_source import LiveSource


class Documents(Stream):
    """A dataset of documents, which can be split."""

    def __init__(self, data: CountedData, *, epochs: int | None) -> None:
        super().__init__(StreamConfig(sources=Sources({"": data}), epochs=epochs))
        self._data = data

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
        from .train_val_split import hold_out  # training does not need it

        self._data.check_stage("split")
        rest, held_out = hold_out(self._data, parse_share(val))
        return Documents(rest, epochs=self._config.epochs), Documents(held_out, epochs=self._config.epochs)

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
        from .data.upsampling import upsampled  # training without it does not need it

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
        return Documents(upsampled(self._data, by, times), epochs=self._config.epochs)


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
        if self._config.epochs is not None:
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
        from ..text.tokenizer.tokenizer import load_tokenizer

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


class Texts(Stream):
    """A dataset of raw text, which can be split."""

    def __init__(self, data: TextData, *, epochs: int | None) -> None:
        super().__init__(StreamConfig(sources=Sources({"": data}), epochs=epochs))
        self._data = data

    def split(self, *, val: float) -> tuple[Texts, Texts]:
        """Return two datasets, ``(train, val)``; ``val`` is the share of documents in the second, drawn by a hash of their ids.

        Every document is in exactly one of them, whatever its file. A larger share selects all that a smaller one selects, and
        more. Documents with equal ids stay together; so do documents without an id that have equal texts. Each result reads
        all files, and can be split again, by an independent hash.

        Raises ``ConfigError`` for a share that is not above 0 and below 1.

        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "texts.txt")
        >>> _ = file.write_text("to be\\n\\nor not to be\\n\\nthat is the question")
        >>> train, val = TextDataset(file, tokenizer="bytes", epochs=1, format="paragraphs").split(val=0.5)
        >>> len(list(train.documents())) + len(list(val.documents()))
        3
        """
        rest, held_out = self._data.hold_out(parse_share(val))
        return Texts(rest, epochs=self._config.epochs), Texts(held_out, epochs=self._config.epochs)


class TextDataset(Texts):
    """Raw text, filtered and tokenized while it streams, so that training starts seconds after the call.

    ``source`` is what the builder takes: jsonl, csv, tsv, txt, warc and wet (each also compressed), parquet, arrow, and
    webdataset tars of ``.txt`` or ``.json`` members. Name them by path, directory, braces, glob or url
    (``hf://datasets/...``, ``s3://``, ``https://``). ``source`` may also hold the records: a DataFrame, an Arrow table, a
    dataset, or a list of dicts; these are written to a temporary file.

    - ``tokenizer``: a name, a path or a loaded tokenizer (see ``from_texts``). Ids are those of Hugging Face's definition,
      from the fastest encoder that gives the same ids.
    - ``format``: the format of every file, whatever its suffix. With ``"text"`` a file is one document. With ``"lines"``,
      ``"paragraphs"`` (blocks between blank lines) or ``"separator=<|endoftext|>"`` a text file holds many documents, each named
      by its first line. ``"csv,delimiter=;,quote=none"`` is for tables with other characters.
    - ``text_key``, ``id_key``: the fields of a record.
    - ``tokens_key``: a field with lists of ids that ``tokenizer`` made before (Parquet, Arrow, JSON, records). The ids are
      checked, not made again; ``.filter`` gets them as ``record.tokens``.
    - ``fields``: other fields that ``.filter`` gets in ``record.metadata``, as in ``("url:str", "int_score:int")``. A record
      with a value of another type is bad.
    - ``where``: which records to read, as in ``"int_score >= 3"``. Its fields are in ``record.metadata`` too. Row groups of
      Parquet without such a record are not read.
    - ``normalize``: give equal texts one spelling (NFC, line ends), as a build does by default.
    - ``extract``: how to extract text from the HTML of WARC files: ``"resiliparse"``, ``"trafilatura"``, ``"module:function"``,
      or a function of the page's bytes and url that returns text or None.
    - ``eos``, ``bos``: end each document with the end-of-text id; begin it with the begin-of-text id, as ``--bos always`` of
      a build does. The tokenizer's own template (its post-processor, its chat template) is not applied.
    - ``epochs``: bounds the stream (None: endless). Ranks of ``torch.distributed`` then agree on the end at each step.
    - ``on_error``: ``"records"`` skips records that cannot be used. ``"skip"`` also skips the rest of a file that cannot be
      read further, as in a build. ``stats()`` counts them.
    - ``storage_options``, ``tries``, ``timeout``: as in `ShardDataset`.

    ``source`` may also be live: a ``datasets.IterableDataset``, any object with ``__iter__``, ``state_dict`` and
    ``load_state_dict`` (plain JSON), or a function that returns an iterator of dicts. None of its records is written to disk.
    In a resume, the object loads its own state. A function is called again, and its records are skipped up to the position,
    so it must return the same records each time. All rows of a rank share one lane. ``datasets`` splits its datasets among
    ranks; from any other source, each rank reads all records and keeps its share. A state loads only on as many ranks.
    ``.shuffle()`` shuffles 16 MiB of text together, or ``window`` blocks of 32 KiB. A resume loses the contents of a shuffle
    buffer of ``datasets``, as its documentation says: use ``.shuffle()`` instead, or give ``lambda: iter(dataset)``.

    The stream is sequential (see ``Stream.shuffle``). Each row of a global batch has its own lanes. They are spread over
    files, row groups of Parquet, and byte ranges of plain JSON Lines or text. In byte ranges, a document without an id is
    named by its byte. Without ``.shuffle()`` there is one lane, in the order of the files, for one rank.

    How well sorted input is shuffled (300,000 documents of 1 kB; ``scripts/bench_text.py shuffle``): a perfect shuffle puts 2%
    of the pairs among 512 neighbours within 1% of the input. One plain file has 2.1%, 32 compressed files 2.4%, and one
    compressed file 3.4%. Such a file is read from its start, so after a tenth of an epoch it has 5.8%.

    Raises ``InputError`` for files that are missing or of no known kind; with ``on_error="stop"``, while iterating, for a
    record that cannot be used, naming file and line or byte.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = file.write_text('{"text": "to be"}\\n{"text": "or not"}\\n')
    >>> stream = TextDataset(file, tokenizer="bytes").pack(4).batch(2)
    >>> next(iter(stream))["input_ids"].shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        source: Any,
        tokenizer: Any,
        *,
        text_key: str = "text",
        tokens_key: str | None = None,
        id_key: str = "id",
        epochs: int | None = None,
        on_error: OnError = "stop",
        eos: bool = True,
        bos: bool = False,
        fields: str | Sequence[str] = (),
        where: str | None = None,
        format: str = "",
        normalize: bool = False,
        extract: Extract = "resiliparse",
        storage_options: Mapping[str, Any] | None = None,
        tries: int = TRIES,
        timeout: float = TIMEOUT,
    ) -> None:
        from ..text.document import ON_ERROR
        from ..text.fields import merge_fields, parse_fields
        from ..text.token_ids import Vocabulary
        from ..text.tokenizer.tokenizer import load_tokenizer
        from ..text.where import Where

        epochs = check_optional("epochs", epochs)
        for name, key in (
            ("text_key", text_key),
            ("id_key", id_key),
            ("tokens_key", "" if tokens_key is None else tokens_key),
        ):
            if not isinstance(key, str):
                raise ConfigError(f"{name} must be the name of a field, got {key!r}")
        if not isinstance(on_error, str) or on_error not in ON_ERROR:
            raise ConfigError(f"on_error must be one of {', '.join(ON_ERROR)}, got {on_error!r}")
        eos = check_flag("eos", eos)
        normalize = check_flag("normalize", normalize)
        bos = check_flag("bos", bos)
        requests = parse_request_options(storage_options, tries, timeout)
        condition = None if where is None else Where.parse(where)
        named = parse_fields(fields.split(",") if isinstance(fields, str) else fields)
        kept = merge_fields([named, condition.fields if condition else ()])
        encoder = load_tokenizer(tokenizer)
        if bos and encoder.bos_id is None:
            raise ConfigError(f"bos=True: tokenizer {encoder.name!r} has no begin-of-text id; leave bos out")
        if encoder.can_lose and encoder.unknown is None and tokens_key is None:
            warn(
                f"tokenizer {encoder.name!r} has neither a token for each byte nor an unknown one: characters that its "
                "vocabulary lacks are left out"
            )
        options: dict[str, Any] = {"text_key": text_key, "id_key": id_key, "on_error": on_error, "eos": eos, "bos": bos}
        if tokens_key is not None:
            if normalize or text_key != "text":
                raise ConfigError(
                    f"tokens_key={tokens_key!r} reads ids in place of text: remove text_key and normalize"
                )
            options |= {"text_key": tokens_key, "vocabulary": Vocabulary.of(encoder)}
        options |= {"fields": kept, "where": condition, "normalize": normalize}
        if extract != "resiliparse":
            options |= {"extract": extract, "extract_name": _name_of_extract(extract)}
        live, files = _texts_of(source, requests, format)
        data = TextData(files, encoder, **options) if live is None else LiveData(live, encoder, **options)
        super().__init__(data, epochs=epochs)


def _name_of_extract(extract: Extract) -> str:
    """Return the name of an extractor in a state; a function of the user is named by its source code."""
    from ..text.extract import EXTRACTORS, Extractor, find_page_function

    Extractor(extract)
    return str(extract) if extract in EXTRACTORS else identified(find_page_function(extract), None, "extract").name


def _texts_of(source: Any, requests: RequestOptions, format: str) -> tuple[LiveSource | None, list[InputFile]]:
    """Return the live source that the user gave, or the input files. Records in memory are written to files."""
    from ..text.discovery import InputFile, find_inputs, join_inputs
    from ..text.storage.in_memory import is_in_memory, materialize_while_running, split_inputs
    from .data.live_source import LiveSource, is_live, refuse_iterator

    inputs, files = split_inputs(source), list[InputFile]()
    live = [LiveSource(value, name) for name, value in inputs if is_live(value)]
    if live and len(inputs) > 1:
        raise ConfigError(
            f"{live[0].name} is a live source, which is streamed alone, but {len(inputs)} inputs were given: join "
            "them first, as datasets.interleave_datasets does"
        )
    if live:
        return live[0], []
    for name, value in inputs:
        refuse_iterator(value)
        if is_in_memory(value):
            path = materialize_while_running(value)
            files.append(InputFile(path, path.name, name))
        else:
            files += find_inputs(value, requests=requests, format=format)
    if not files:
        raise InputError("no files were given: TextDataset needs at least one path, directory, glob or brace pattern")
    return None, [_absolute(file) for file in join_inputs(files)]


def mix(
    sources: Mapping[str, Stream],
    weights: Mapping[str, float] | Schedule | Sequence[tuple[int, Mapping[str, float]]] | None = None,
    *,
    temperature: float | None = None,
    stopping_strategy: str | None = None,
) -> Stream:
    """Mix datasets by their shares of rows. Call ``.shuffle()``, ``.pack()`` and others on the mix, not on the datasets.

    ``sources`` maps names to datasets of any kinds, or is ``ShardDataset(...).sources()``. ``weights`` are shares by name, a
    `Schedule` of shares that change over the run, or ``[(sequence index, shares), ...]`` from 0 on. With ``temperature`` T
    instead, shares are proportional to tokens to the power of 1 / T. Weights name every source; 0 leaves one out. Each source
    repeats by epochs of its own.

    Shares are rounded to multiples of 1 / 4,096; a weight above 0 gets at least that. If this changes the mix
    much, a warning is logged. ``stats()["sources"]`` reports the rounded share as ``asked``, and the ``tokens`` that rows
    were made of.

    A mix of shards and arrays is indexed. A text among its sources makes it sequential (see ``Stream``), as ``.filter``,
    ``.map_documents`` and best fit do. If a source is live, each rank reads its own part of it, and a state loads only on as
    many ranks.

    The mix is endless. In an indexed mix, ``stopping_strategy`` sets an end: ``"first_exhausted"`` before the first source
    begins its second epoch, ``"all_exhausted"`` when the first epoch of every source has been read. The rows are counted in
    advance, as if by ``.take``: the mix has a ``len()``, and ``set_epoch`` moves on by as many rows. Lanes end at different
    times. So if a source has fewer than 30,000 rows, more than 1% of them may stay unread or be read twice;
    ``.shuffle(lanes=1)`` ends exactly.

    Raises ``ConfigError`` for sources that are shuffled, packed or bounded, or differ in dtype or tokenizer, and for a
    ``temperature`` of texts; while iterating, for a ``stopping_strategy`` of a sequential mix.

    >>> sources = {name: ShardDataset.from_tokens(range(64)) for name in ("web", "wiki")}
    >>> stream = mix(sources, weights={"web": 0.75, "wiki": 0.25}).shuffle(seed=0).pack(4).batch(2)
    >>> next(iter(stream))["input_ids"].shape
    torch.Size([2, 4])
    """
    if not isinstance(sources, Mapping) or not sources:
        count = f" of {len(sources)}" if isinstance(sources, Sequence | Mapping) else ""
        raise ConfigError(
            f"a mix needs a dict of datasets by their names, got a {type(sources).__name__}{count}; write "
            "pipeline.mix({'web': web, 'wiki': wiki}, {'web': 0.7, 'wiki': 0.3})"
        )
    if stopping_strategy is not None:
        check_choice("stopping_strategy", stopping_strategy, "first_exhausted", "all_exhausted")
    mixed = Sources.of_mix({name: _bare(name, source, stopping_strategy) for name, source in sources.items()})
    if (weights is None) == (temperature is None):
        raise ConfigError("give weights or a temperature, one of them")
    if temperature is not None:
        if not mixed.all_counted:
            raise ConfigError(
                "a temperature needs the tokens of each source, which are not counted in advance for text; give weights"
            )
        counts = {name: source.total_tokens for name, source in mixed.by_name.items()}
        changes: Changes | Schedule = ((0, temperature_weights(counts, temperature)),)
    elif isinstance(weights, Schedule):
        changes = weights.for_sources(list(mixed.by_name))
    else:
        changes = _changes(weights, list(mixed.by_name))
    return Stream(StreamConfig(sources=mixed, weights=changes, stopping_strategy=stopping_strategy))


def _bare(name: object, stream: object, stopping_strategy: str | None) -> Source:
    """Return the source of a stream on which no method was called yet; ``ConfigError`` for any other value."""
    if not isinstance(name, str):
        raise ConfigError(f"sources of a mix have names of type str, got {name!r}")
    if not isinstance(stream, Stream):
        raise ConfigError(
            f"source {name!r} must be a dataset, got {value_text(stream)}; write pipeline.ShardDataset(...)"
        )
    config = stream._config
    if config.epochs is not None and (config.epochs > 1 or stopping_strategy is None):
        raise ConfigError(
            f"source {name!r} ends after epochs={config.epochs}, but each source of a mix starts again after its epoch: "
            "remove epochs=, and end the mix by stopping_strategy= or .take(n)"
        )
    if config.sources.is_mix or config != StreamConfig(sources=config.sources, epochs=config.epochs):
        raise ConfigError(f"source {name!r} must be a bare dataset; .shuffle(), .pack() and the rest follow the mix")
    [source] = config.sources.by_name.values()
    return source


def _changes(weights: Any, names: list[str]) -> Changes:
    """Return exact weights, each with the global sequence from which they hold."""
    steps = [(0, weights)] if isinstance(weights, Mapping) else weights
    pairs = isinstance(steps, Sequence) and all(isinstance(step, tuple | list) and len(step) == 2 for step in steps)
    if not pairs or isinstance(steps, str):
        raise ConfigError(
            "weights must be a dict of shares by name, as {'web': 0.7, 'wiki': 0.3}, a list of (global sequence, shares), or a "
            f"pipeline.Schedule, got {weights!r}"
        )
    steps = [(check_integer("a global sequence of the schedule", start, least=0), shares) for start, shares in steps]
    if not steps or steps[0][0] != 0 or any(a[0] >= b[0] for a, b in pairwise(steps)):
        raise ConfigError(f"a schedule must begin at global sequence 0 and ascend, got {[start for start, _ in steps]}")
    return tuple((start, exact_weights(shares, names)) for start, shares in steps)


def _absolute(file: InputFile) -> InputFile:
    """Return the file with an absolute path, which stays right if the process changes its directory."""
    return file if file.stored is not None else replace(file, path=Path(file.path).absolute())


_STEP = 1 << 24  # tokens that are compared at once


def _document_ends(tokens: NDArray[Any], eos_id: int | None) -> NDArray[np.int64]:
    """Return where documents end: after each ``eos_id``, and after the last token. Empty if no token is ``eos_id``."""
    if eos_id is None:
        return np.empty(0, np.int64)
    eos = parse_eos_id(eos_id, tokens.dtype)
    parts = [np.flatnonzero(tokens[at : at + _STEP] == eos) + at + 1 for at in range(0, len(tokens), _STEP)]
    ends = np.concatenate([np.empty(0, np.int64), *parts])
    return np.append(ends, len(tokens)) if len(ends) and ends[-1] < len(tokens) else ends
