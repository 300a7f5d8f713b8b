"""Data of tokens: shards of a dataset directory, tars of other tools, or arrays in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError, ShardError
from ....notices import say_once
from ....objects.remote_object import knows_ranges
from ....objects.request_options import RequestOptions
from ....objects.urls import is_remote, local_name, shown
from ....shards.blocks.block_reader import BlockReader, Runs
from ....shards.blocks.local_blocks import LocalBlocks, Stamp, file_stamp
from ....shards.blocks.memory_blocks import MemoryBlocks
from ....shards.blocks.remote_blocks import RemoteBlocks
from ....shards.dataset_folder import DatasetFolder
from ....shards.extents.extent_table import ExtentTable
from ....shards.extents.table_file import LOCAL_THREADS, REMOTE_THREADS, load_extent_table, load_tars
from ....shards.format import COLUMN, KEY_COLUMN
from ....shards.index import BlockIndex, parse_table
from ....shards.manifest import MANIFEST_NAME, ShardInfo
from ....shards.other_data import other_file
from ....shards.shard_access import ShardAccess
from ....shards.shard_list import ShardList, latest, resolve
from ...arguments import check_flag, check_optional, check_path, parse_eos_id
from .counted_data import CountedData
from .selection import Selection

if TYPE_CHECKING:
    from ....text.tokens.tokenizer import Tokenizer

DEFAULT_CACHE = "auto"
PIECE_TOKENS = 4096  # of the pieces in which an array without documents is shuffled (section 2 of the order)
_SAMPLES = 256  # pieces whose hash identifies a mapped file
_OF_DOCUMENTS = (
    "documents filter map_documents map_documents(same_length=True) pack(best_fit=True) pack(boundaries=True) "
    "pack(document_ids=True) sample(boundaries=True) sample(document_ids=True) split subset without"
).split()

_FEW = 8  # names: for fewer, a table is parsed only if it has one of them

T = TypeVar("T")
_FOLLOWING = threading.Lock()

ShardNames = str | PathLike[str] | Sequence[str | PathLike[str]]


class _Table:
    """A table of extents, loaded at its first use. It is not pickled: another process loads it again.

    Unless ``checked``, checksums of bytes are left out.
    """

    def __init__(
        self, parts: Sequence[ShardList], access: ShardAccess, table: ExtentTable | None = None, *, checked: bool = True
    ) -> None:
        self._parts, self._access = parts, access
        self._table, self._checked = table, checked

    def get(self) -> ExtentTable:
        if self._table is None:
            table = load_extent_table(self._parts, self._access)
            self._table = table if self._checked else replace(table, crc32=None)
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}


class ShardFiles(CountedData):
    """Shards on disk or remote, with their entries in the manifest, or tars without a manifest, with their index.

    Remote shards are read in blocks (with ``whole_shards``: whole) by ``requests``. ``cache_dir`` caches at most ``cache_limit``
    bytes; None reads into memory alone.
    """

    def __init__(
        self,
        source: ShardNames,
        split: str | None,
        *,
        verify: bool,
        cache_dir: str | PathLike[str] | None,
        eos_id: int | None,
        requests: RequestOptions,
        cache_limit: int | None = None,
        whole_shards: bool = False,
    ) -> None:
        _check_source(source)
        if split is not None and not isinstance(split, str):
            raise ConfigError(f"split must be the name of a split, or None for all splits, got {split!r}")
        verify = check_flag("verify", verify)
        whole_shards = check_flag("whole_shards", whole_shards)
        cache_limit = check_optional("cache_limit", cache_limit, most=None)
        directory = None
        if cache_dir is not None and cache_dir != DEFAULT_CACHE:
            check_path("cache_dir", cache_dir)
            directory = str(Path(cache_dir).absolute())
        self.split = "all splits" if split is None else split
        self._access = ShardAccess(directory, cache_limit, requests, use_cache=cache_dir is not None)
        self._whole_shards = whole_shards
        self._verify = verify
        parts = [_absolute(part) for part in resolve(source, split, self._access)]
        self.selection = Selection(_Table(parts, self._access).get)
        self._parts = parts
        self._stamps: Sequence[Stamp | None] | None = None
        self.label = f"ShardDataset({_shown(source)}, split={split!r})"
        self._manifest, self._directory = parts[0].manifest, parts[0].directory
        manifest = parts[0].manifest  # the other manifests agree with it in all fields that are read here
        if manifest is not None:
            self.dtype = manifest.token_dtype
            self.vocab_size = size = manifest.tokenizer.get("vocab_size")
            self.eos_id = manifest.tokenizer["eos_id"] if eos_id is None else parse_eos_id(eos_id, self.dtype, size)
            self.tokenizer_sha256 = manifest.tokenizer.get("sha256")
            self.tokenizer_name = manifest.tokenizer.get("name")
            self.count()
            self.fingerprint = _digest([manifest.dtype, self.tokenizer_sha256, self._originals()])
            former: dict[str, str] = {}
            for dropped in manifest.recipe.get("dropped", []):
                difference = (
                    f"; it belongs to {dropped['dataset']}, which became this dataset when {len(dropped['keys']):,} documents "
                    f"were dropped on {dropped['date'][:10]} ({dropped['reason']}): stream that one, or begin a new run"
                )
                former |= dict.fromkeys(dropped["data"].values(), difference)
            self.former = former
        else:
            if verify:
                raise ConfigError(
                    f"verify=True needs a {MANIFEST_NAME} with the hashes of the shards, but there is none beside {source}; "
                    "leave verify out"
                )
            # These are taken before the tars are read, so that any later change is noticed.
            urls = [url for part in parts for url in part.urls]
            self._stamps = [None if is_remote(url) else file_stamp(local_name(url)) for url in urls]
            table, contents = load_tars(urls, self._access)
            self.selection = Selection(_Table(parts, self._access, table).get)
            self.dtype = table.dtype
            self.eos_id = parse_eos_id(eos_id, self.dtype)
            self.tokenizer_sha256 = None
            self.count()
            checksums = [table.index_crc32.tolist(), table.documents.tolist(), table.extents.tolist()]
            self.fingerprint = _digest([self.dtype.str, self.shard_names, checksums, contents])

        self._remote = any("://" in url and is_remote(url) for url in self._urls)

    def of_sources(self) -> dict[str, ShardFiles]:
        """Return the shards of each source that the manifest names, in the order of their first shards; {} without one."""
        numbers: dict[str, list[int]] = {}
        for number, source in enumerate(self.sources_of_shards):
            numbers.setdefault(source, []).append(number)
        originals, parts = self._originals(), dict[str, ShardFiles]()
        for source, chosen in numbers.items():
            digest = _digest([self.dtype.str, self.tokenizer_sha256, [originals[k] for k in chosen]])
            label = f"{self.label}.sources()[{source!r}]"
            parts[source] = self.part(
                replace(self.selection, shards=chosen), split=self.split, label=label, fingerprint=digest
            )
        return parts

    def _originals(self) -> list[str]:
        """Return the sha256 that each shard had before any redaction."""
        return [
            part.manifest.original_sha256(info) for part in self._parts if part.manifest for info in part.infos or ()
        ]

    def count(self) -> None:
        self._list_shards()
        if self.selection.rows is None and None not in self._infos:  # no table needs to be read
            self.documents = [info.documents for info in self._infos if info is not None]
            self.tokens = [info.tokens for info in self._infos if info is not None]
        else:
            super().count()

    def _list_shards(self) -> None:
        """List the selected shards as the manifests describe them now."""
        urls = [url for part in self._parts for url in part.urls]
        infos: list[ShardInfo | None] = []
        for part in self._parts:
            infos += part.infos or [None] * len(part.urls)
        self._urls: Sequence[str] = self.selection.of_shards(urls)
        self._infos: Sequence[ShardInfo | None] = self.selection.of_shards(infos)
        # Without queries, since a new signature changes them.
        self.shard_names = [shown(url).rpartition("/")[2] for url in self._urls]
        manifests, redacted = [part.manifest for part in self._parts for _ in part.urls], dict[int, NDArray[np.int64]]()
        for shard, (manifest, info) in enumerate(zip(manifests, infos, strict=True)):
            if manifest is not None and info is not None and (numbers := manifest.redacted.get(info.name)):
                redacted[shard] = np.array(numbers, np.int64)
        self.selection = replace(self.selection, redacted=redacted)

    @property
    def sources_of_shards(self) -> Sequence[str]:  # type: ignore[override]
        return [info.source for info in self._infos if info is not None]

    @property
    def extents(self) -> Selection:
        return self.followed(lambda: super(ShardFiles, self).extents)

    def _origin(self, document: tuple[int, int]) -> dict[str, Any]:
        shard, number = document
        where = {"shard": self.shard_names[shard], "document": number}
        if self._infos[shard] is None:  # a tar of another tool
            return where
        return where | {name: column[number] for name, column in self._provenance(shard).items()}

    def find(self, documents: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        found = super().find(documents)
        found |= self._find([document for document in documents if document not in found])
        if (repeats := self.selection.repeats) is None:
            return found
        # Each listing that has the document; the first listing if none has it.
        table, shards = self.extents.table, len(self._urls) // repeats.listings
        firsts = table.document_sums[table.shard_bounds[:-1]]
        return {
            document: [
                (listing * shards + shard, number)
                for shard, number in places
                if shard < shards
                for listing in range(max(1, int(repeats.times[firsts[shard] + number])))
            ]
            for document, places in found.items()
        }

    def _find(self, documents: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """Return the shard and number, in the first listing, of each document that has one of these keys or ids."""
        found: dict[str, list[tuple[int, int]]] = {}
        # It may be a key. Keys of a split ascend from shard to shard, so few tables are read.
        for document in documents if len(documents) <= _FEW else ():
            for shards in self._of_splits() if document.isdecimal() else ():
                at = bisect_right(shards, document, key=lambda shard: (self._column(shard, KEY_COLUMN) or [""])[0]) - 1
                if at >= 0 and document in (keys := self._column(shards[at], KEY_COLUMN)):
                    found.setdefault(document, []).append((shards[at], keys.index(document)))
        sought = {document for document in documents if document not in found}
        quoted = [json.dumps(each, ensure_ascii=False).encode("utf-8", "surrogatepass") for each in sorted(sought)]

        def named(shard: int) -> list[list[tuple[str, int]]]:
            """Return the documents of a shard with such a key, and those with such an id."""
            if self._infos[shard] is None:  # a tar of another tool
                return [[], []]
            table = self.followed(lambda: self._access.raw_table(self._urls[shard], self._infos[shard]))
            if len(quoted) <= _FEW and not any(each in table[0] for each in quoted):  # to parse it takes longer
                return [[], []]
            columns = (parse_table(*table).get(name, []) for name in (KEY_COLUMN, "id"))
            return [[(value, at) for at, value in enumerate(column) if value in sought] for column in columns]

        of_shards = self._of_every_shard(named) if sought else []
        for column in (0, 1):  # a key is nobody's id
            by_name: dict[str, list[tuple[int, int]]] = {}
            for shard, columns in enumerate(of_shards):
                for document, at in columns[column]:
                    by_name.setdefault(document, []).append((shard, at))
            found = by_name | found
        return found

    def _of_splits(self) -> list[list[int]]:
        """Return the shards of each split of each dataset, in the order of their names."""
        ends = np.cumsum([len(part.urls) for part in self._parts])
        numbers = self.selection.of_shards(range(len(self._urls)))[: len(self._urls) // self.selection.listings]
        parts = np.searchsorted(ends, numbers, side="right").tolist()
        found: dict[tuple[int, str], list[int]] = {}
        for shard in sorted(range(len(parts)), key=self.shard_names.__getitem__):
            found.setdefault((parts[shard], self.shard_names[shard].rpartition("-")[0]), []).append(shard)
        return list(found.values())

    def _column(self, shard: int, name: str) -> list[Any]:
        """Return a column of the table of a shard; an empty list if there is none."""
        if self._infos[shard] is None:  # a tar of another tool
            return []
        return self._provenance(shard).get(name, [])

    def _provenance(self, shard: int) -> dict[str, list[Any]]:
        return self.followed(lambda: _provenance(self._access, self._urls[shard], self._infos[shard]))

    def field(self, name: str) -> tuple[NDArray[np.int64], list[Any]]:
        """Return the number of tokens of each document, and its value of a field that the build kept.

        Raises ``ConfigError``, which names the fields of a shard, if the shard lacks the field.
        """
        if self._infos[:1] == [None]:
            raise ConfigError(
                f"{self.label}: tars without a {MANIFEST_NAME} have no fields; build shards of their texts"
            )

        def read(shard: int) -> tuple[NDArray[np.int64], list[Any]]:
            read_shard = self._access.index_and_table
            index, table = self.followed(lambda: read_shard(self._urls[shard], self._infos[shard]))
            if f"{COLUMN}{name}" not in table:
                kept = [column.removeprefix(COLUMN) for column in table if column.startswith(COLUMN)]
                raise ConfigError(
                    f"{shown(self._urls[shard])} has no field {name!r}, only {', '.join(kept) or 'none'}; keep it when you "
                    f"build: --keep-fields {name}:float"
                )
            return index.lengths, table[f"{COLUMN}{name}"]

        read_of_shards = self._of_every_shard(read)
        lengths = [lengths for lengths, _ in read_of_shards]
        return np.concatenate([np.zeros(0, np.int64), *lengths]), [each for _, own in read_of_shards for each in own]

    def _of_every_shard(self, read: Callable[[int], T]) -> list[T]:
        """Return the result of ``read`` for each shard, computed in several threads."""
        with ThreadPoolExecutor(REMOTE_THREADS if self._remote else LOCAL_THREADS) as pool:
            return list(pool.map(read, range(len(self._urls) // self.selection.listings)))

    def document(self, shard: int, number: int) -> NDArray[Any]:
        return self.followed(lambda: self._access.document(self._urls[shard], number, self._infos[shard]))

    def followed(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``. If it fails because shards were redacted meanwhile, call it again."""
        while True:
            parts = self._parts
            try:
                return read()
            except ShardError:
                with _FOLLOWING:  # only one thread reads the manifests again
                    if parts is self._parts and not self._follow():
                        raise

    def _follow(self) -> bool:
        """Read the manifests again and apply their redactions; return whether anything changed."""
        found = [latest(part, self._access) for part in self._parts]
        parts = [part for part, _ in found]
        if parts == self._parts:
            return False
        self._parts = parts
        table = _Table(parts, self._access, checked=all(whole for _, whole in found))
        self.selection = replace(self.selection, load=table.get)
        self._list_shards()
        for part in parts:
            if part.manifest is not None and part.manifest.redactions:
                entry = part.manifest.redactions[-1]
                say_once(
                    f"{shown(part.directory)}: {len(entry['documents']):,} documents were redacted on {entry['date'][:10]} "
                    f"({entry['reason']}); the stream goes on, and their labels do not count"
                )
        return True

    def ranges(self) -> BlockReader:
        return _FollowedBlocks(self)

    def blocks(self) -> BlockReader:
        """Return a reader of the shards as the manifest describes them now."""
        table = self.extents.table
        if self._remote and self._by_blocks(table):
            return RemoteBlocks(table, self._urls, self._infos, self._access)
        return LocalBlocks(table, self._urls, self._infos, self._access, verify=self._verify, stamps=self._stamps)

    def _by_blocks(self, table: ExtentTable) -> bool:
        """Say whether remote shards are read in blocks. If they cannot be, a warning says why."""
        if self._whole_shards or not all(map(is_remote, self._urls)):
            return False
        if not table.indexed.all():
            reason = "tars without an index"
        elif not knows_ranges(self._urls[0], self._access.requests):
            reason = "a server that knows no ranges"
        else:
            return True
        say_once(f"{shown(self._urls[0])}: {reason}: shards are downloaded whole")
        return False

    def load_tokenizer(self) -> Tokenizer:
        if self._manifest is None or not self._manifest.tokenizer.get("sha256"):
            return super().load_tokenizer()
        from ....text.tokens.tokenizer import tokenizer_of_dataset  # training does not need it

        return tokenizer_of_dataset(DatasetFolder(self._directory, self._access.requests), self._manifest)


class _FollowedBlocks:
    """Reads blocks of shards, which may be redacted meanwhile."""

    def __init__(self, data: ShardFiles) -> None:
        self._data = data
        self._made = data._parts, data.blocks()
        self.threads = self._made[1].threads

    def name(self, shard: int) -> str:
        return self._made[1].name(shard)

    def index(self, runs: Runs) -> list[BlockIndex]:
        return self._data.followed(lambda: self._blocks().index(runs))

    def read(self, runs: Runs, out: memoryview) -> None:
        self._data.followed(lambda: self._blocks().read(runs, out))

    def _blocks(self) -> BlockReader:
        if self._made[0] is not self._data._parts:
            self._made = self._data._parts, self._data.blocks()
        return self._made[1]


class Drawn(NamedTuple):
    """Documents drawn from ``source``: the listed shard of each, its number there, and its hash (`holdout`)."""

    source: CountedData
    shards: NDArray[np.int64]
    numbers: NDArray[np.int64]
    hashes: NDArray[np.uint64]


class MemoryData(CountedData):
    """Tokens in memory or in a mapped file, as one shard; ``ConfigError`` if ``lengths`` or ``eos_id`` do not fit them.

    With ``pieces``, the lengths are those of pieces, and the ends of documents are unknown. The default ``fingerprint`` is a hash
    of the tokens and lengths. ``drawn`` says where the documents are from, if they were drawn from another source.
    """

    def __init__(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        eos_id: int | None,
        tokenizer_sha256: str | None,
        label: str,
        *,
        pieces: bool = False,
        fingerprint: str | None = None,
        drawn: Drawn | None = None,
    ) -> None:
        if len(lengths) and int(lengths.min()) < 0:
            raise ConfigError(f"lengths must be at least 0, got {int(lengths.min())}")
        if int(lengths.sum()) != len(tokens):
            raise ConfigError(f"lengths sum to {int(lengths.sum())}, but there are {len(tokens)} tokens")
        self.split = "memory"
        self.dtype = tokens.dtype
        self.eos_id = parse_eos_id(eos_id, tokens.dtype)
        self.documents = [len(lengths)]
        self.tokens = [len(tokens)]
        self.tokenizer_sha256 = tokenizer_sha256
        self.label = label
        self._tokens = np.ascontiguousarray(tokens)
        self._lengths = lengths
        self.selection, self.drawn = Selection(partial(ExtentTable.of_documents, lengths, tokens.dtype)), drawn
        self._pieces = pieces
        self.shard_names = [""]
        if fingerprint is None:
            sampled = self._tokens if _mapped_file(self._tokens) is None else _sample(self._tokens)
            fingerprint = _digest_of_arrays(sampled, lengths)
        self.fingerprint = fingerprint

    def _origin(self, document: tuple[int, int]) -> dict[str, Any]:
        if self.drawn is None:
            return super()._origin(document)
        return self.drawn.source._origin((int(self.drawn.shards[document[1]]), int(self.drawn.numbers[document[1]])))

    def find(self, documents: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        if self.drawn is None:
            return super().find(documents)
        places = zip(self.drawn.shards.tolist(), self.drawn.numbers.tolist(), strict=True)
        own = {place: (0, number) for number, place in enumerate(places)}
        found = self.drawn.source.find(documents)
        return {name: [own[place] for place in of_name if place in own] for name, of_name in found.items()}

    def document(self, shard: int, number: int) -> NDArray[Any]:
        end = int(self._lengths[: number + 1].sum())
        return self._tokens[end - int(self._lengths[number]) : end]

    def ranges(self) -> BlockReader:
        return MemoryBlocks(self.extents.table, self._tokens, self._lengths)

    def check_stage(self, method: str) -> None:
        if self._pieces and method in _OF_DOCUMENTS:
            named = method if method.endswith(")") else f"{method}()"
            raise ConfigError(
                f".{named} needs documents, but nothing says where the documents of this array end; give from_tokens lengths=, "
                "or the eos_id= that ends each document in the array"
            )

    def __getstate__(self) -> dict[str, Any]:
        # A worker process that is started by spawn maps the file again, so the tokens are not sent.
        return {**vars(self), "_tokens": _mapped_file(self._tokens) or self._tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(mapped := state["_tokens"], tuple):
            file, offset, dtype, count = mapped
            state["_tokens"] = np.asarray(np.memmap(file, dtype, "r", offset, (count,)))
        vars(self).update(state)


def _mapped_file(tokens: NDArray[Any]) -> tuple[str, int, str, int] | None:
    """Return the file from which an array is mapped, the array's offset in it, dtype and size; None if it is not mapped."""
    root: Any = tokens
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c":  # "c": changes are in no file
        return None
    return str(root.filename), root.offset + tokens.ctypes.data - root.ctypes.data, tokens.dtype.str, len(tokens)


def _sample(tokens: NDArray[Any]) -> NDArray[Any]:
    """Return `_SAMPLES` pieces of the tokens at equal distances, from the first to the last."""
    last = max(0, len(tokens) - PIECE_TOKENS)
    starts = sorted({last * number // (_SAMPLES - 1) for number in range(_SAMPLES)})
    return np.concatenate([tokens[start : start + PIECE_TOKENS] for start in starts])


@lru_cache(maxsize=1)
def _provenance(access: ShardAccess, url: str, info: ShardInfo) -> dict[str, list[Any]]:
    return access.table(url, info)


def _check_source(source: Any) -> None:
    """Raise ``ConfigError`` unless ``source`` names shards: for another type, or for files of text."""
    listed = isinstance(source, Sequence) and not isinstance(source, str | bytes)
    if not (listed or isinstance(source, str | PathLike)):
        raise ConfigError(f"a dataset is named by a path, a pattern, a url or a list of these, got {source!r}")
    for spec in source if listed else [source]:
        check_path("each shard" if listed else "a dataset", spec)
        if kind := other_file(_bare(spec)):
            raise ConfigError(f"{_bare(spec)}: {kind}")


def _absolute(shards: ShardList) -> ShardList:
    """Return the shards with absolute paths, which stay right if the process changes its directory."""

    def absolute(path: str) -> str:
        return path if "://" in path else str(Path(path).absolute())

    directory = shards.directory and absolute(shards.directory)
    return shards._replace(urls=[absolute(url) for url in shards.urls], directory=directory)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _digest_of_arrays(*arrays: NDArray[Any]) -> str:
    """Return the sha256 of contiguous 1-D arrays, each with its dtype and size, without copying them."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {len(array)}\n".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def _bare(spec: str | PathLike[str]) -> str:
    return shown(str(spec)) if "://" in str(spec) else str(spec)


def _shown(source: ShardNames) -> str:
    """Return the names of shards as a short literal."""
    if isinstance(source, str | PathLike):
        return repr(_bare(source))
    names = [_bare(spec) for spec in source]
    return repr(names) if len(names) < 3 else f"[{names[0]!r}, ... {len(names) - 1:,} more]"
