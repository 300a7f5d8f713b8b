"""The stages of documents, before ``.pack()`` or ``.documents()``: shuffle, filter, map_documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never

from ..errors import ConfigError
from .arguments import MOST_ROWS, check_flag, check_integer
from .describe import stages
from .function_identity import DocumentMap, identified
from .loader.positioned_stream import PositionedStream

if TYPE_CHECKING:
    from .stream import Stream


class DocumentStages(PositionedStream):
    """The part of a ``Stream`` whose methods choose, change and order documents."""

    def shuffle(
        self,
        *unnamed: Never,
        seed: int = 0,
        window: int | None = None,
        lanes: int | None = None,
        buffer_size: None = None,
    ) -> Stream:
        """Shuffle blocks, and documents within windows of blocks, and interleave ``lanes`` parts of the epoch.

        A block is a run of neighbouring documents, of one shard and at most about 512 KiB, or of one file of a
        ``TextDataset`` and about 32 KiB. The order is a function of ``seed`` (an int from 0 on) and the epoch: ranks and
        workers do not change it. ``window`` is the number of blocks whose documents are shuffled together; in a
        ``TextDataset`` all lanes share it, and each has a window of its own, of at least one block. Defaults: windows of
        about 4 MiB and 64 lanes, for a mix of up to five sources 3 MiB and 16 lanes, and of more 256 MiB together. There is no
        buffer: ``.shuffle(1000)`` and ``buffer_size=`` of other libraries are errors that show what to write.

        In a sequential stream, each row of a global batch (ranks x batch size) has lanes of its own: 4 to 48, fewer for
        little data. ``lanes`` is then a multiple of the rows, and workers of a loader must divide the lanes of a row. All
        windows together hold 256 MiB.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64), lengths=[8] * 8, epochs=1).shuffle(seed=1).pack(8)
        >>> sorted(row["input_ids"][0].item() for row in stream)
        [0, 8, 16, 24, 32, 40, 48, 56]
        """
        self._before_layout("shuffle")
        given = [*map(repr, unnamed), *([] if buffer_size is None else [f"buffer_size={buffer_size!r}"])]
        if given:
            raise ConfigError(
                f".shuffle({', '.join(given)}): documents are shuffled by seed, in windows of blocks, and no buffer is "
                "filled; write .shuffle(seed=0), or .shuffle(seed=0, window=64) to shuffle 64 blocks together"
            )
        if self._config.seed is not None:
            raise ConfigError(
                f"a stream is shuffled once; remove the second .shuffle(), or that of seed={self._config.seed}"
            )
        check_integer("seed", seed, least=0)
        for name, value in (("window", window), ("lanes", lanes)):
            if value is not None:
                check_integer(name, value, least=1, most=MOST_ROWS)
        return self._with(seed=seed, window=window, lanes=lanes)

    def filter(self, predicate: Callable[[Any], Any], *, name: str | None = None) -> Stream:
        """Keep the documents for which ``predicate`` returns true.

        The predicate gets the 1-D array of a document's token ids; for a ``TextDataset``, a record with the attributes
        ``text``, ``id``, ``file``, ``line`` and ``source``. Its result must depend on nothing else. The kept count is unknown
        in advance, so the stream becomes sequential (see ``Stream``): every rank takes equally many steps even if nearly all
        documents of one rank are dropped, and every rank saves its own state (``merge_states``).

        A state belongs to its filters: to their source and the values that it reads, or to ``name``, which a filter needs
        where there is no source, or no plain value, and which must change when the filter does. Raises ``ConfigError`` for a
        mix and, while iterating, where no document is kept of a whole epoch (of a rank's part of 8 epochs).

        >>> import pipeline
        >>> documents = pipeline.ShardDataset.from_tokens(range(64), lengths=[4, 60])
        >>> next(iter(documents.filter(lambda ids: len(ids) > 8).pack(4)))["input_ids"].tolist()
        [4, 5, 6, 7]
        """
        self._before_layout("filter")
        if not callable(predicate):
            raise ConfigError(f"filter needs a function, got {type(predicate).__name__}")
        self._config.data.check_stage("filter")
        if self._config.document_maps:
            raise ConfigError(".filter() sees documents as they are stored; write it before .map_documents()")
        return self._with(filters=(*self._config.filters, identified(predicate, name)))

    def map_documents(
        self, function: Callable[[Any, Any], Any], *, name: str | None = None, same_length: bool = False
    ) -> Stream:
        """Replace the token ids of each document before documents are packed: for templates, fill-in-the-middle, loss masks.

        ``function(ids, mask)`` gets the 1-D read-only array of a document's ids, and its loss mask: None where every token
        counts, else uint8, 0 for tokens that no label counts. It returns the new ids, of any length, or ``(ids, mask)``, one
        boolean or integer for each. Labels of masked tokens are -100. Its result must depend on nothing else. Several
        functions run one after another.

        Lengths are unknown in advance then, so the stream becomes sequential (see ``Stream``); where every function is given
        with ``same_length=True``, it stays as it is, and a mix may have them, too. A state belongs to the functions, as to
        those of ``filter``, or to their ``name``. Raises ``ConfigError`` for a mix of other functions, and while iterating
        for a result that is none of these, another length under ``same_length``, or an id that the data's dtype cannot hold.

        >>> import pipeline
        >>> documents = pipeline.ShardDataset.from_tokens(range(8), lengths=[3, 5])
        >>> stream = documents.map_documents(lambda ids, mask: (ids[::-1], ids[::-1] > 1)).pack(4)
        >>> row = next(iter(stream))
        >>> row["input_ids"].tolist(), row["labels"].tolist()
        ([2, 1, 0, 7], [-100, -100, 7, 6])
        """
        self._before_layout("map_documents")
        if not callable(function):
            raise ConfigError(f"map_documents needs a function, got {type(function).__name__}")
        check_flag("same_length", same_length)
        self._config.data.check_stage("map_documents(same_length=True)" if same_length else "map_documents")
        found = DocumentMap(*identified(function, name, "map_documents"), same_length)
        return self._with(document_maps=(*self._config.document_maps, found))

    def _with(self, **changes: Any) -> Stream:
        """Return a stream whose config differs by these fields."""
        raise NotImplementedError

    def _before_layout(self, method: str) -> None:
        config = self._config
        layout = None if config.layout is None else config.layout.call()
        if layout is None and not config.steps and config.batch_size is None:
            return
        if layout is not None and method in ("pack", "sample", "documents"):
            raise ConfigError(f".{method}() comes once: {layout} already says what a sample is; remove one of the two")
        later = stages(config)
        later = (
            later[later.index(layout) :] if layout is not None else [each for each in later if _follows_layout(each)]
        )
        raise ConfigError(f".{method}() comes before {later[0]}; move it there, as in .{method}(...){''.join(later)}")


def _follows_layout(stage: str) -> bool:
    return not stage.startswith((".filter(", ".map_documents(", ".shuffle("))
