"""What blocks and indexes of remote shards share: objects, their folders in the cache, and retries of what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import CorruptShardError
from ..manifest import ShardInfo
from ..remote.access import Access, Transient
from ..remote.block_cache import BlockCache, shard_id
from ..remote.objects import RemoteObjects
from ..remote.transport import attempting

T = TypeVar("T")


class WrongBytesError(Transient):
    """Bytes that have another checksum than is stated."""


class BlockStore:
    """Remote ``objects`` of shards, of which ``infos`` are what a manifest says, and a ``cache``, None for none."""

    def __init__(
        self, objects: RemoteObjects, infos: Sequence[ShardInfo | None], access: Access, cache: BlockCache | None
    ) -> None:
        self.objects = objects
        self.cache = cache
        self._infos = infos
        self._access = access
        self._ids: dict[int, str] = {}

    def id(self, shard: int) -> str:
        """Return the folder of a shard in the cache: by its contents, or by its place and version."""
        found = self._ids.get(shard)
        if found is None:
            info = self._infos[shard]
            marks = (info.sha256, info.bytes) if info is not None else self.objects.marks(shard)
            found = self._ids[shard] = shard_id(*marks)
        return found

    def checked(self, fetch: Callable[[int], T], shard: int, doing: str) -> T:
        """Return what ``fetch(attempt)`` returns, with retries; bytes that are wrong twice are wrong at the source."""
        wrong = 0

        def attempt(number: int) -> T:
            nonlocal wrong
            try:
                return fetch(number)
            except WrongBytesError as error:
                wrong += 1
                if wrong == 1:
                    raise
                raise CorruptShardError(
                    f"{self.objects.name(shard)}: {error}; it is damaged or was replaced at the source: copy it again or "
                    "rebuild it"
                ) from None

        return attempting(attempt, self.objects.target(shard), doing, self._access)
