"""Documents of token ids -> a dataset: checked, split by content, laid out, written and verified.

The documents are read once, into files on disk. Then they are laid out and written as shards, as a build does it. All files
are in a hidden directory next to the output, which is renamed when it is complete. A killed process leaves only the hidden
directory, and the next one deletes it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ..atomic_directory import discard
from ..builder.counts.build_stats import BuildStats
from ..builder.outcome import DUPLICATES
from ..builder.recipe import Recipe
from ..errors import BuildError, ConfigError, InputError
from ..integers import as_integer
from ..progress import Progress
from ..shards.extents.extent_table import ExtentTable
from ..shards.extents.table_file import write_table
from ..shards.format import COLUMN, token_dtype
from ..shards.manifest import TOKENIZER_NAME, FileInfo, Manifest, ShardInfo, Split
from ..shards.shard_plan import SPLITS, TRAIN, VAL, in_validation, lay_out
from ..shards.verify.dataset import verify_dataset
from ..shards.writer import TokenBlocks, write_shard
from ..text.document import BadRecord, OnError, location_of
from ..text.token_ids import Vocabulary, WrongIdsError
from ..text.tokens.tokenizer import Tokenizer, load_tokenizer
from ..text.tokens.tokenizer_files import CONFIG_NAME
from .new_directory import new_directory

_DOCUMENTS = 512  # documents that are read back and written together
_HASHES_AT_ONCE = 1 << 22
_FILES = ("tokens", "hashes", "fields")
_PLACE = ("id", "file", "line")  # the fields of a document's origin; other fields are the user's


def write_shards(
    documents: Iterable[Any],
    output: str | os.PathLike[str],
    tokenizer: Any = None,
    *,
    eos_id: int | None = None,
    val_fraction: float = 0.005,
    seed: int = 0,
    tokens_per_shard: int | None = None,
    tokens_per_sample: int = 0,
    on_error: OnError = "stop",
    progress: Progress | None = None,
    inputs: Iterable[Mapping[str, Any]] = (),
) -> Manifest:
    """Write documents of token ids as a verified dataset, which streams like a built one; return its manifest.

    Each of ``documents`` is a list or 1-D array of ids, or a pair of such ids and a dict of fields. The tables of the shards keep
    the fields: ``id``, ``file`` and ``line`` tell the origin of a document; other fields are the caller's and hold plain
    JSON. Documents are read once, as many as the disk holds: memory grows by about 30 bytes a document.

    ``tokenizer`` (a name, a path, or a loaded one) defines the valid ids and the end-of-text id. Without one, ``eos_id`` is the
    end-of-text id. This id is appended to each document that does not end with it. A hash of the ids and ``seed`` puts
    ``val_fraction`` of the documents into the validation split, so equal documents are in the same split. Exact copies are
    counted and kept. The other settings are those of a build. Equal documents and settings give equal bytes.

    ``output`` must be empty or missing; it appears when it is complete. ``inputs`` are the manifest's entries for the files
    that were read. Raises ``ConfigError`` if settings cannot work, and ``InputError`` if there is no document or one is not a
    list of valid ids; with ``on_error="records"`` such documents are skipped and counted.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> documents = [[104, 105], ([111, 107], {"url": "https://example.org"})]
    >>> quiet = Progress(quiet=True)
    >>> manifest = write_shards(documents, f"{folder}/shards", tokenizer="bytes", val_fraction=0, progress=quiet)
    >>> manifest.split("train").documents, manifest.split("train").tokens
    (2, 6)
    """
    recipe = Recipe(
        val_fraction=val_fraction,
        seed=seed,
        tokens_per_shard=tokens_per_shard,
        tokens_per_sample=tokens_per_sample,
        on_error=on_error,
    )
    loaded, end = _tokenizer_and_end(tokenizer, eos_id)
    progress = progress or Progress()
    with new_directory(output) as directory:
        spool = _Spool(directory / ".spool", loaded, end, recipe.on_error)
        spool.read(documents)
        infos, tables = _write(spool, directory, recipe, progress)
        counts = spool.stats().to_json()
        discard(spool.folder)
        if loaded is not None:
            loaded.save(directory)
        beside = [name for name in (TOKENIZER_NAME, CONFIG_NAME) if (directory / name).exists()]
        manifest = Manifest(
            dtype=spool.dtype.str,
            tokenizer=_described(loaded, end),
            splits={name: Split(tuple(infos[name])) for name in SPLITS if infos[name] or name == SPLITS[TRAIN]},
            extents=write_table(
                directory, (tables[info] for name in sorted(SPLITS) for info in infos[name]), spool.dtype.str
            ),
            recipe={"tokens": {"val_fraction": recipe.val_fraction, "seed": recipe.seed, "eos_id": end}},
            inputs=[dict(item) for item in inputs],
            counts=counts,
            files=tuple(FileInfo.of(directory / name, name) for name in beside),
        )
        manifest.write(directory)
        if problem := next(verify_dataset(directory, progress=progress), None):  # which reads the disk again
            raise BuildError(f"{problem}: the disk did not keep the dataset as it was written, and may be failing")
    return manifest


@dataclass(slots=True)
class _Spool:
    """All documents in the order of reading, in files of ``folder``: their joined ids, hashes and fields."""

    folder: Path
    tokenizer: Tokenizer | None
    eos_id: int
    on_error: OnError
    lengths: array[int] = field(default_factory=lambda: array("I"))
    bad: Counter[str] = field(default_factory=Counter)
    names: dict[str, None] = field(default_factory=dict)  # of all fields, in the order of their first use
    closed: int = 0  # documents that lacked the end-of-text id
    blank: Counter[int] = field(default_factory=Counter)  # documents of end-of-text ids only, by their lengths
    greatest: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens in the shards."""
        return token_dtype(self.greatest + 1) if self.tokenizer is None else self.tokenizer.dtype

    @property
    def _kept_dtype(self) -> np.dtype[Any]:
        return np.dtype("<u4") if self.tokenizer is None else self.tokenizer.dtype

    def read(self, documents: Iterable[Any]) -> None:
        """Write every valid document to the files. Raises ``InputError`` if there is none."""
        self.folder.mkdir()
        self.greatest = self.eos_id
        vocabulary = Vocabulary.of(self.tokenizer)
        end = np.array([self.eos_id], vocabulary.dtype)
        with ExitStack() as stack:
            tokens_file, hashes, fields = (stack.enter_context(open(self._path(name), "wb")) for name in _FILES)
            for number, document in enumerate(documents):
                try:
                    ids, values = self._parts(document)
                    tokens = vocabulary.ids(ids)
                    line = orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)
                except (WrongIdsError, TypeError) as error:
                    self._refuse(document, number, error)
                    continue
                self.greatest = max(self.greatest, int(tokens.max(initial=0)))
                if not len(tokens) or tokens[-1] != self.eos_id:
                    tokens = np.append(tokens, end)
                    self.closed += 1
                if (tokens == self.eos_id).all():
                    self.blank[len(tokens)] += 1
                tokens_file.write(tokens.data)
                hashes.write(hashlib.blake2b(tokens.astype("<u4", copy=False).data, digest_size=16).digest())
                fields.write(line)
                self.names.update(dict.fromkeys(values))
                self.lengths.append(len(tokens))
        if not self.lengths:
            skipped = ", ".join(f"{count:,} skipped: {reason}" for reason, count in self.bad.items())
            raise InputError(
                f"no document was read{f' ({skipped})' * bool(skipped)}; name sources that hold documents of token ids"
            )

    def _parts(self, document: Any) -> tuple[Any, dict[str, Any]]:
        if isinstance(document, BadRecord):
            raise WrongIdsError(document.reason, document.detail)
        if not (isinstance(document, tuple) and len(document) == 2 and isinstance(document[1], Mapping)):
            return document, {}
        values = dict(document[1])
        if "id" in values:
            values["id"] = str(values["id"])
        return document[0], values

    def _refuse(self, document: Any, number: int, error: Exception) -> None:
        """Count a document that cannot be used, or raise ``InputError`` if ``on_error`` is "stop"."""
        reason, *details = (
            error.args if isinstance(error, WrongIdsError) else ("fields that JSON cannot hold", str(error))
        )
        if self.on_error != "stop":
            self.bad[reason] += document.count if isinstance(document, BadRecord) else 1
            return
        if isinstance(document, BadRecord):
            where = location_of(document.file, document.line)
        else:
            values = self._parts(document)[1]
            named = values.get("file") and values.get("line")
            where = location_of(values["file"], values["line"]) if named else f"document {values.get('id', number)}"
        detail = "".join(f": {text}" for text in details if text)
        raise InputError(
            f"{where}: {reason}{detail}. Repair it, or skip and count such documents: on_error='records' (--on-error records)"
        )

    def stats(self) -> BuildStats:
        """Return the counts for the manifest."""
        number, copies = len(self.lengths), self._copies() - sum(count - 1 for count in self.blank.values())
        notes = [f"{copies:,} documents are exact copies of others, and are kept"] if copies else []
        if self.closed:
            notes.append(
                f"{self.closed:,} documents lacked the end-of-text id {self.eos_id} at their end: it was added"
            )
        if empty := self.blank[1]:
            notes.append(f"{empty:,} documents are empty: they hold only the end-of-text id")
        if redacted := self.blank.total() - empty:
            notes.append(f"{redacted:,} documents are kept, but hold only end-of-text ids, as redacted documents do")
        nothing = dict.fromkeys(DUPLICATES, 0)
        return BuildStats(
            read=number,
            passed_filters=number,
            kept=number,
            tokens=sum(self.lengths),
            bad=dict(self.bad),
            notes=notes,
            duplicates=nothing,
            duplicate_characters=nothing,
        )

    def _copies(self) -> int:
        """Return the number of documents that equal an earlier one. Memory holds a part of the hashes at a time."""
        hashes, copies = self.hashes().view("<u8"), 0
        parts = -(-len(hashes) // _HASHES_AT_ONCE)
        for part in range(parts):
            some = hashes[hashes[:, 0] % np.uint64(parts) == part]
            ordered = some[np.lexsort((some[:, 1], some[:, 0]))]
            copies += int((ordered[1:] == ordered[:-1]).all(axis=1).sum())
        return copies

    def hashes(self) -> NDArray[np.uint8]:
        """Return the hash of each document, uint8 ``[n, 16]``, mapped from its file."""
        return _mapped(self._path(_FILES[1]), np.dtype(np.uint8)).reshape(-1, 16)

    def blocks(self, bounds: NDArray[np.int64]) -> Iterator[NDArray[np.unsignedinteger[Any]]]:
        """Yield the tokens of some documents at a time; a row of ``bounds`` ``[n, 2]`` is a document's first token and end."""
        tokens = _mapped(self._path(_FILES[0]), self._kept_dtype)
        for first in range(0, len(bounds), _DOCUMENTS):
            pieces = [tokens[begin:end] for begin, end in bounds[first : first + _DOCUMENTS].tolist()]
            yield np.concatenate(pieces).astype(self.dtype, copy=False)

    def fields(self, wanted: NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
        """Yield the fields of the wanted documents."""
        with open(self._path(_FILES[2]), "rb") as file:
            yield from map(orjson.loads, itertools.compress(file, wanted))

    def _path(self, name: str) -> Path:
        return self.folder / name


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the contents of a file, mapped unless it is empty."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def _write(
    spool: _Spool, directory: Path, recipe: Recipe, progress: Progress
) -> tuple[dict[str, list[ShardInfo]], dict[ShardInfo, ExtentTable]]:
    """Write the shards of each split; return the entries of the shards and the extents of each."""
    lengths = np.frombuffer(spool.lengths, np.uint32).astype(np.int64) if spool.lengths else np.empty(0, np.int64)
    ends = np.cumsum(lengths)
    hashes = spool.hashes()
    in_val = in_validation(hashes, recipe.seed, recipe.val_fraction)
    infos: dict[str, list[ShardInfo]] = {}
    tables: dict[ShardInfo, ExtentTable] = {}
    with progress.bar("write", int(lengths.sum()), "tokens") as advance:
        for number, split in enumerate(SPLITS):
            chosen = in_val == (number == VAL)
            rows, fields = np.flatnonzero(chosen), spool.fields(chosen)
            infos[split] = []
            for plan in lay_out(lengths[rows], split, recipe.tokens_per_shard):
                mine = rows[plan.first : plan.last]
                bounds = np.stack([ends[mine] - lengths[mine], ends[mine]], axis=1)
                info, table = write_shard(
                    directory / plan.name,
                    tokens=TokenBlocks(spool.dtype, spool.blocks(bounds)),
                    lengths=lengths[mine],
                    keys=[f"{row:012d}" for row in mine.tolist()],
                    table=_table(spool.names, list(itertools.islice(fields, len(mine))), hashes[mine]),
                    tokens_per_sample=recipe.tokens_per_sample,
                )
                infos[split].append(info)
                tables[info] = table
                advance(info.tokens)
    return infos, tables


def _table(names: Iterable[str], fields: list[dict[str, Any]], hashes: NDArray[np.uint8]) -> dict[str, list[Any]]:
    """Return the columns of a shard's table, with the names that a build uses."""
    ordered = sorted(names, key=lambda name: name not in _PLACE)
    columns = {name if name in _PLACE else f"{COLUMN}{name}": [row.get(name) for row in fields] for name in ordered}
    return columns | {"hash": [digest.tobytes().hex() for digest in hashes]}


def _tokenizer_and_end(spec: Any, eos_id: int | None) -> tuple[Tokenizer | None, int]:
    """Return the loaded tokenizer, or None if none is named, and the id that ends documents."""
    if eos_id is not None:
        given, eos_id = eos_id, as_integer(eos_id)
        if eos_id is None or not 0 <= eos_id < Vocabulary().size:
            raise ConfigError(f"eos_id must be a token id, got {given!r}")
    if spec is None:
        if eos_id is None:
            raise ConfigError(
                "nothing says which id ends documents; name the tokenizer (--tokenizer), or eos_id (--eos-id)"
            )
        return None, eos_id
    tokenizer = load_tokenizer(spec)
    if eos_id is not None and eos_id >= tokenizer.vocab_size:
        raise ConfigError(
            f"eos_id {eos_id} is outside the vocabulary of {tokenizer.name}, which ends at {tokenizer.vocab_size - 1}"
        )
    return tokenizer, tokenizer.eos_id if eos_id is None else eos_id


def _described(tokenizer: Tokenizer | None, end: int) -> dict[str, Any]:
    """Return the manifest's entry for the tokenizer, as in a build. Without a tokenizer, it has only the end-of-text id."""
    if tokenizer is None:
        return {"name": None, "sha256": None, "vocab_size": None, "eos_id": end, "bos_id": None, "special_ids": {}}
    return tokenizer.described() | {"eos_id": end}
