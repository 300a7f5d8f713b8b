"""Datasets of raw text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, InputError
from ...notices import warn
from ...objects.request_options import TIMEOUT, TRIES, RequestOptions
from ..arguments import check_flag, check_optional, parse_request_options
from ..function_identity import identified
from ..settings import StreamSettings
from ..stream import Stream
from .sources.holdout import parse_share
from .sources.sources import Sources
from .sources.text_data import LiveData, TextData

if TYPE_CHECKING:
    from ...text.document import OnError
    from ...text.extract import Extract
    from ...text.storage.input_file import InputFile
    from .sources.live_source import LiveSource


class Texts(Stream):
    """A dataset of raw text, which can be split."""

    def __init__(self, data: TextData, *, epochs: int | None) -> None:
        super().__init__(StreamSettings(sources=Sources({"": data}), epochs=epochs))

    @property
    def _data(self) -> TextData:
        [data] = self._settings.sources.by_name.values()
        assert isinstance(data, TextData)
        return data

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
        rest, held_out = self._data.hold_out(parse_share("val", val))
        return Texts(rest, epochs=self._settings.epochs), Texts(held_out, epochs=self._settings.epochs)

    def subset(self, share: float) -> Texts:
        """Return a dataset of a ``share`` of the documents, drawn by a hash of what ``split`` hashes, but independent of it.

        ``subset(1/32)`` is inside ``subset(1/16)``, and adding files changes neither. All files are read.

        Raises ``ConfigError`` for a share that is not above 0 and below 1.

        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "texts.txt")
        >>> _ = file.write_text("\\n\\n".join(f"document {n}" for n in range(100)))
        >>> data = TextDataset(file, tokenizer="bytes", epochs=1, format="paragraphs")
        >>> len(list(data.subset(1 / 2).documents())), len(list(data.subset(1 / 10).documents()))
        (51, 7)
        """
        from .parts import subset

        return Texts(subset(self._data, parse_share("share", share)), epochs=self._settings.epochs)


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
        from ...text.document import ON_ERROR
        from ...text.fields import merge_fields, parse_fields
        from ...text.token_ids import Vocabulary
        from ...text.tokens.tokenizer import load_tokenizer
        from ...text.where import Where

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
    from ...text.extract import EXTRACTORS, Extractor, find_page_function

    Extractor(extract)
    return str(extract) if extract in EXTRACTORS else identified(find_page_function(extract), None, "extract").name


def _texts_of(source: Any, requests: RequestOptions, format: str) -> tuple[LiveSource | None, list[InputFile]]:
    """Return the live source that the user gave, or the input files. Records in memory are written to files."""
    from ...text.discovery import InputFile, find_inputs, join_inputs
    from ...text.storage.in_memory import is_in_memory, materialize_while_running, split_inputs
    from .sources.live_source import LiveSource, is_live, refuse_iterator

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


def _absolute(file: InputFile) -> InputFile:
    """Return the file with an absolute path, which stays right if the process changes its directory."""
    return file if file.stored is not None else replace(file, path=Path(file.path).absolute())
