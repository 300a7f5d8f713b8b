"""Token ids of other tools -> documents: columns of Parquet, Arrow and JSON, Megatron's pairs of files, flat arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..builder.recipe import Recipe
from ..errors import ConfigError, DamagedInputError, InputError
from ..objects.request_options import RequestOptions
from ..objects.urls import is_remote
from ..paths import matching, natural_key
from ..progress import Progress
from ..shards.manifest import FileInfo, Manifest
from ..shards.token_arrays import is_llmc, map_tokens
from ..text.document import BadRecord, Document, made_id
from ..text.fields import parse_fields
from ..text.readers.document_reader import DocumentReader, InputFile, field_finder, find_inputs
from ..text.token_ids import Vocabulary
from ..text.tokens.tokenizer import load_tokenizer
from .megatron import read_documents
from .token_writer import write_shards

FLAT_DTYPES = ("uint16", "uint32")
_STEP = 1 << 22  # ids that are searched at once for the ends of documents
_ENDINGS = (".bin", ".npy")


def import_tokens(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    tokens_key: str = "input_ids",
    id_key: str = "id",
    keep_fields: Sequence[str] = (),
    where: str | None = None,
    dtype: str = "uint16",
    eos_id: int | None = None,
    requests: RequestOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Manifest:
    """Make a dataset of token ids in files; return its manifest.

    ``sources`` are files, folders, patterns or urls of Parquet, Arrow or JSON (Lines). Their column or field ``tokens_key``
    holds lists of ids. ``where`` selects records, and ``keep_fields`` are the fields that documents keep. Local files or
    folders may also hold arrays of ids: ``NAME.bin`` next to ``NAME.idx`` is Megatron's; any other ``.bin`` has ids of
    ``dtype`` ("uint16" or "uint32") without a header, or the header of llm.c, which tells the dtype. These and ``.npy``
    are cut into documents after each ``eos_id`` (default: the tokenizer's).

    ``tokenizer``, ``eos_id`` and ``settings`` are as in `write_shards`, which may raise other errors, too.
    ``on_error="skip"`` also skips the rest of damaged files. Raises ``InputError`` if a source cannot be read.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "ids.jsonl").write_text('{"input_ids": [104, 105]}')
    >>> quiet = Progress(quiet=True)
    >>> import_tokens(folder / "ids.jsonl", folder / "out", tokenizer="bytes", progress=quiet).counts["tokens"]
    3
    """
    if dtype not in FLAT_DTYPES:
        raise ConfigError(f"--dtype (dtype= in Python) must be one of {', '.join(FLAT_DTYPES)}, got {dtype!r}")
    recipe = Recipe(id_key=id_key, keep_fields=tuple(keep_fields), where=where)
    names = [os.fspath(spec) for spec in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    arrays_of = {name: _arrays(name) for name in names}
    arrays = [path for paths in arrays_of.values() for path in paths]
    tables = [name for name, paths in arrays_of.items() if not paths]
    files = find_inputs(tables, outputs=[os.fspath(output)], requests=requests) if tables else []
    if not arrays and not files:
        raise InputError("no sources were given; name at least one file or directory")
    tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
    ends = tokenizer.eos_id if eos_id is None and tokenizer is not None else eos_id
    inputs: list[dict[str, Any]] = []
    skips_damage = settings.get("on_error") == "skip"
    vocabulary = Vocabulary.of(tokenizer)
    reading = _Reading(tokens_key, vocabulary, recipe, ends, np.dtype(dtype), skips_damage, inputs)
    progress = progress or Progress()
    documents = reading.documents(files, arrays, progress)
    return write_shards(documents, output, tokenizer, eos_id=eos_id, progress=progress, inputs=inputs, **settings)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads files of ids, and adds the manifest's entry of each file that was read to ``inputs``."""

    tokens_key: str
    vocabulary: Vocabulary
    recipe: Recipe
    eos_id: int | None
    dtype: np.dtype[Any]
    skips_damage: bool
    inputs: list[dict[str, Any]]

    def documents(self, files: Sequence[InputFile], arrays: Sequence[Path], progress: Progress) -> Iterator[Any]:
        """Yield documents for `write_shards`, and a `BadRecord` for each unusable record and each damaged file."""
        total = sum(file.size for file in files) + sum(path.stat().st_size for path in arrays)
        with progress.bar("read", total, "bytes") as advance:
            elsewhere = field_finder(partial(iter, files), {})
            sources: list[InputFile | Path] = [*files, *arrays]
            for source in sources:
                try:
                    if isinstance(source, Path):
                        yield from self._of_array(source, advance)
                    else:
                        yield from self._of_file(source, advance, elsewhere)
                except DamagedInputError as error:
                    if not self.skips_damage:
                        raise
                    yield BadRecord(str(source), 0, None, "the rest of a damaged file", str(error))

    def _of_file(
        self, file: InputFile, advance: Callable[[int], None], elsewhere: Callable[[str], bool]
    ) -> Iterator[Any]:
        recipe = self.recipe
        options: dict[str, Any] = {"text_key": self.tokens_key, "id_key": recipe.id_key, "where": recipe.condition}
        options["elsewhere"] = elsewhere
        reader = DocumentReader(file, keep=parse_fields(recipe.keep_fields), vocabulary=self.vocabulary, **options)
        for record in reader.records(advance):
            if isinstance(record, Document):
                origin = {"id": record.id, "file": record.file, "line": record.line}
                yield record.tokens, {**record.metadata, **origin}
            elif isinstance(record, BadRecord):
                yield record
        self._note(file.name, file.size, reader.sha256)

    def _of_array(self, path: Path, advance: Callable[[int], None]) -> Iterator[Any]:
        documents = read_documents(path) if path.with_suffix(".idx").exists() else self._cut(path)
        for number, ids in enumerate(documents):
            yield ids, {"id": made_id(path.name, number), "file": path.name}
            advance(ids.nbytes)
        info = FileInfo.of(path, path.name)
        self._note(info.name, info.bytes, info.sha256)

    def _cut(self, path: Path) -> Iterator[NDArray[Any]]:
        """Yield the documents of a flat array. Each ends with the end-of-text id or at the array's end."""
        tokens = map_tokens(path, self.dtype)
        # llm.c writes the id before each document.
        begin = int(is_llmc(path) and len(tokens) > 0 and tokens[0] == self.eos_id)
        for at in range(begin, len(tokens), _STEP):
            for end in (np.flatnonzero(tokens[at : at + _STEP] == self.eos_id) + at + 1).tolist():
                yield tokens[begin:end]
                begin = end
        if begin == 0 and len(tokens):
            raise DamagedInputError(
                f"{path}: none of its {len(tokens):,} ids is {self.eos_id}, so nothing ends documents; name another --eos-id, "
                f"or another --dtype ({tokens.dtype} was read)"
            )
        if begin < len(tokens):
            yield tokens[begin:]

    def _note(self, name: str, size: int, sha256: str | None) -> None:
        self.inputs.append({"name": name, "source": "", "bytes": size, "sha256": sha256})


def _arrays(name: str) -> list[Path]:
    """Return the arrays that a path or pattern names; an empty list if it names files of records."""
    if is_remote(name):
        if name.endswith(_ENDINGS):
            raise ConfigError(f"{name}: arrays of ids are read from this machine; copy it here first")
        return []
    if os.path.isdir(name):
        found_by = (Path(name).glob(f"[!.]*{ending}") for ending in _ENDINGS)
        return [path for paths in found_by for path in sorted(paths, key=lambda path: natural_key(path.name))]
    if not os.path.exists(name) and os.path.exists(f"{name}.idx"):  # Megatron names the pair without an ending
        name += ".bin"
    found = [name] if os.path.exists(name) else matching(name)
    paths = [Path(path).with_suffix(".bin") if path.endswith(".idx") else Path(path) for path in found]
    arrays = [path for path in dict.fromkeys(paths) if path.suffix in _ENDINGS]
    if missing := [str(path) for path in arrays if not path.exists()]:
        raise InputError(f"{missing[0]}: missing, but its .idx exists; copy both files")
    return arrays
