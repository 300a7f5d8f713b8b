"""Remote shards read by extents: by requests for ranges, whose answers go to memory or to a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ...errors import CorruptShardError, ManifestError, ShardwrightError
from ...objects.cache import object_id
from ...objects.remote_object import RemoteObject, describe
from ...objects.request_options import CONNECTIONS, is_version
from ...objects.request_threads import in_threads
from ...objects.urls import identity, shown
from ..extents.extent_table import ExtentTable, IndexLocation
from ..format import BLOCK, HEADERS, NPY_HEADER
from ..index import BlockIndex, as_index
from ..manifest import ShardInfo
from ..shard_access import ShardAccess
from .block_reader import Runs

REQUEST_BYTES = 4 << 20  # the most bytes of neighbours that one request reads
_INDEX_GAP = 64 << 10  # bytes between the lengths of two blocks: reading them takes less time than another request


class ByteRange(NamedTuple):
    """Bytes of a shard."""

    shard: int
    begin: int
    end: int


class RemoteBlocks:
    """Reads remote shards that have indexes, from servers that support ranges.

    ``infos``: the manifest's entries for ``urls``. Blocks and their indexes are kept in the cache of ``access``, if it has one.
    Raises ``ManifestError`` if a shard's size is not the manifest's. Raises ``CorruptShardError`` if a shard changes while it
    is read, and the table has no checksums of its bytes.
    """

    threads = CONNECTIONS

    def __init__(
        self, table: ExtentTable, urls: Sequence[str], infos: Sequence[ShardInfo | None], access: ShardAccess
    ) -> None:
        self.table = table
        self._urls = urls
        self._infos = infos
        self._requests = access.requests
        self._cache = access.cache
        self._run = access.run
        self._versions: dict[int, str] = {}
        self._ids: dict[int, str] = {}

    def name(self, shard: int) -> str:
        return shown(self._urls[shard])

    def index(self, runs: Runs) -> list[BlockIndex]:
        locations = [self.table.index_of(*run) for run in runs]
        spans = [
            ByteRange(location.shard, location.lengths, location.lengths + 4 * location.documents)
            for location in locations
        ]
        parts = [(runs[part], locations[part]) for part in neighbours(spans, _INDEX_GAP)]
        return list(chain.from_iterable(in_threads(partial(self._indexes, *part) for part in parts)))

    def _indexes(self, runs: Runs, locations: Sequence[IndexLocation]) -> list[BlockIndex]:
        """Return the indexes of neighbouring runs of one shard. One request reads the lengths of their documents."""
        shard = locations[0].shard

        def index_of(raw: Any, number: int) -> BlockIndex:
            count = locations[number].documents
            return as_index(raw[: 8 * count], raw[8 * count :])

        def wrong(number: int, raw: bytes) -> str | None:
            return self.table.wrong_index(*runs[number], *index_of(raw, number))

        def read(numbers: list[int], field: str, item: int) -> list[bytes]:
            begins = [getattr(locations[number], field) for number in numbers]
            ends = [begin + item * locations[number].documents for number, begin in zip(numbers, begins, strict=True)]
            raw = self._object(shard).read(begins[0], ends[-1] - begins[0])
            return [raw[begin - begins[0] : end - begins[0]] for begin, end in zip(begins, ends, strict=True)]

        def fetch(numbers: list[int]) -> list[bytes]:
            problem = None
            for _ in range(2):  # wrong bytes that come twice are wrong at the source
                lengths = dict(zip(numbers, read(numbers, "lengths", 4), strict=True))
                # The guess that each document is a member of its own is mostly right, and saves a request.
                raws = {n: _starts_of_members(self.table, runs[n][0], lengths[n]) + lengths[n] for n in numbers}
                if others := [number for number in numbers if wrong(number, raws[number]) is not None]:
                    starts = read(others, "starts", 8)
                    raws |= {n: start + lengths[n] for n, start in zip(others, starts, strict=True)}
                problem = next(filter(None, (wrong(number, raws[number]) for number in others)), None)
                if problem is None:
                    return list(raws.values())
            raise self._error(shard, problem) or AssertionError

        def is_sound(number: int, raw: bytes) -> bool:
            return len(raw) == 12 * locations[number].documents and wrong(number, raw) is None

        names = [f"{location.first}-{location.documents}.index" for location in locations]
        return [index_of(raw, number) for number, raw in enumerate(self._from_cache(shard, names, fetch, is_sound))]

    def read(self, runs: Runs, out: memoryview) -> None:
        first, last = np.array(runs, np.int64).reshape(-1, 2).T
        sizes = self.table.size_sums[last] - self.table.size_sums[first]
        begins = self.table.offset_of(first)
        numbers = np.stack([self.table.shard_of(first), begins, begins + sizes], 1)
        spans = [ByteRange(*span) for span in numbers.tolist()]
        ends = np.cumsum(sizes)
        memory = [slice(*pair) for pair in np.stack([ends - sizes, ends], 1).tolist()]
        in_threads(
            partial(self._read, runs[part], spans[part], out[memory[part][0].start : memory[part][-1].stop])
            for part in neighbours(spans)
        )

    def _read(self, runs: Runs, spans: Sequence[ByteRange], out: memoryview) -> None:
        """Fill ``out`` with neighbouring blocks of one shard. One request reads the blocks that are not in the cache."""
        shard, offset = spans[0].shard, spans[0].begin
        blocks = [out[span.begin - offset : span.end - offset] for span in spans]

        def wrong(first: int, last: int, data: memoryview) -> ShardwrightError | None:
            return self._error(shard, self.table.wrong_bytes(first, last, data))

        def fetch(numbers: list[int]) -> list[memoryview]:
            for part in neighbours([spans[number] for number in numbers]):
                first, last = numbers[part][0], numbers[part][-1]
                begin, end = spans[first].begin, spans[last].end
                check = partial(wrong, runs[first][0], runs[last][1])
                self._object(shard).fill(begin, out[begin - offset : end - offset], check)
            return [blocks[number] for number in numbers]

        def is_sound(number: int, raw: bytes) -> bool:
            return len(raw) == len(blocks[number]) and wrong(*runs[number], memoryview(raw)) is None

        names = [f"{span.begin}-{span.end - span.begin}.block" for span in spans]
        for block, data in zip(blocks, self._from_cache(shard, names, fetch, is_sound), strict=True):
            if data is not block:
                block[:] = data

    def _object(self, shard: int) -> RemoteObject:
        return RemoteObject(
            self._urls[shard], self._requests, lambda size, version: self._unexpected(shard, size, version)
        )

    def _unexpected(self, shard: int, size: int, version: str) -> ShardwrightError | None:
        """Return the error for a shard of unexpected size, or of unexpected version if its bytes have no checksums."""
        info, name = self._infos[shard], self.name(shard)
        if info is not None and size != info.bytes:
            return ManifestError(
                f"{name}: {size} bytes, but the manifest says {info.bytes}; copy it again or rebuild it"
            )
        known = self._versions.setdefault(shard, version)
        if self.table.crc32 is not None or is_version(version, known):
            return None
        return CorruptShardError(
            f"{name}: it changed while it was read: its version was {known}, now it is {version}; restore the object, or "
            "make the stream again"
        )

    def _from_cache(
        self,
        shard: int,
        names: list[str],
        fetch: Callable[[list[int]], Sequence[bytes | memoryview]],
        is_sound: Callable[[int, bytes], bool],
    ) -> Sequence[bytes | memoryview]:
        """Return bytes from the cache, which ``fetch`` fills; damaged files in it are fetched again."""
        if self._cache is None:
            return fetch(list(range(len(names))))
        return self._cache.read_all(self._id(shard), names, fetch, is_sound)

    def _id(self, shard: int) -> str:
        """Return a shard's folder in the cache, named by its contents, or by its url, size and version."""
        if shard not in self._ids:
            info = self._infos[shard]
            if info is not None:
                self._ids[shard] = object_id(info.sha256, info.bytes)
            else:
                size, version = describe(self._urls[shard], self._requests)
                self._versions.setdefault(shard, version)
                self._ids[shard] = object_id(identity(self._urls[shard]), size, version or self._run)
        return self._ids[shard]

    def _error(self, shard: int, problem: str | None) -> ShardwrightError | None:
        if problem is None:
            return None
        cure = "it is damaged or was replaced at the source: copy it again or rebuild it"
        return CorruptShardError(f"{self.name(shard)}: {problem}; {cure}")


def _starts_of_members(table: ExtentTable, first: int, lengths: bytes) -> bytes:
    """Return the starts of documents of these ``lengths``, from extent ``first`` on, if each is a member of its own."""
    sizes = np.frombuffer(lengths, "<u4").astype(np.int64) * table.itemsize
    steps = sizes + -(NPY_HEADER + sizes) % BLOCK + HEADERS
    starts = (int(table.offset_of(first)) or HEADERS) + np.cumsum(steps) - steps
    return bytes(starts.astype("<i8"))


def neighbours(spans: Sequence[ByteRange], gap: int = 0) -> Iterator[slice]:
    """Yield slices of ascending ranges, each for one request: one shard, gaps up to ``gap``, ``REQUEST_BYTES`` at most.

    >>> list(neighbours([ByteRange(0, 0, 9), ByteRange(0, 9, 12), ByteRange(0, 15, 20), ByteRange(1, 20, 30)], gap=2))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    begin = 0
    for number, span in enumerate(spans):
        first, before = spans[begin], spans[max(begin, number - 1)]
        is_near = span.shard == first.shard and span.begin <= before.end + gap
        if not is_near or (number > begin and span.end - first.begin > REQUEST_BYTES):
            yield slice(begin, number)
            begin = number
    if spans:
        yield slice(begin, len(spans))
