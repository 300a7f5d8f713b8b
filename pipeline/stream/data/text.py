"""Files of raw text as the data of a stream; what reads them is loaded when they are streamed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import ConfigError, InputError
from ..sequential.cursor import Cursor, Windows, lane_stats
from ..sequential.lanes import lanes_reader
from .base import Share

if TYPE_CHECKING:
    from ...text.discovery import InputFile
    from ...text.fields import Field
    from ...text.tokenizer.tokenizer import Tokenizer
    from ..config import StreamConfig
    from ..loader.position import Position
    from ..loader.worker_context import WorkerContext
    from ..reader import Reader

_WINDOW = 16_384  # documents
_LANE_BYTES = 1 << 20  # input that makes a lane worth having
_LANES = (1, 2, 4, 6, 12, 24, 48)  # each of which many numbers of ranks and workers divide


class TextData:
    """Files of raw text and the tokenizer that makes ids of them, as the source of a stream.

    ``skip`` passes over records that cannot be used, and over the rest of a file that cannot be read on, and counts
    them; without it they raise ``InputError``.
    """

    counted = False
    name = ""
    split = "text"

    def __init__(
        self,
        files: list[InputFile],
        tokenizer: Tokenizer,
        *,
        text_key: str,
        id_key: str,
        skip: bool,
        eos: bool,
        fields: tuple[Field, ...] = (),
    ) -> None:
        self.files = files
        self.encoder = tokenizer
        self.text_key = text_key
        self.id_key = id_key
        self.fields = fields  # of records, for filters
        self.skip = skip
        self.eos = eos
        self.dtype = tokenizer.dtype
        self.eos_id = tokenizer.eos_id
        self.tokenizer: str | None = tokenizer.sha256
        # Of each split that made this: the share held out, and whether this is what was.
        self.splits: tuple[tuple[Fraction, bool], ...] = ()
        self._found = {file.name: _stamp(file) for file in files}
        from ...text.formats import is_packed

        # Compressed text is counted as three times its size.
        self.bytes = sum(self._found[file.name][0] * (3 if is_packed(file) else 1) for file in files)

    def __repr__(self) -> str:
        named = repr(str(self.files[0].path)) if len(self.files) == 1 else f"{len(self.files):,} files"
        halves = "".join(f".split(val={float(share):g})[{int(held)}]" for share, held in self.splits)
        return f"TextDataset({named}, tokenizer={self.encoder.name!r}){halves}"

    def fingerprints(self) -> dict[str, str]:
        return {self.name: self.fingerprint}

    def sizes(self) -> str:
        return f"{len(self.files):,} files, {self.bytes:,} bytes of text"

    def check_stage(self, method: str) -> None:
        return

    def source_of_mix(self, name: str) -> NoReturn:
        raise ConfigError(
            f"source {name!r} is text, whose tokens are not counted in advance; build shards of it and mix those"
        )

    def default_lanes(self, sequential: bool) -> int:
        """Return how many lanes suit this much text: 48, fewer for less than 48 MiB."""
        return max(lanes for lanes in _LANES if lanes == 1 or lanes * _LANE_BYTES <= self.bytes)

    def window(self, config: StreamConfig) -> int:
        """Return the documents that are shuffled together."""
        unshuffled = _WINDOW // 16 if config.best_fit else 1
        return unshuffled if config.seed is None else config.window or _WINDOW

    def sequences(self, config: StreamConfig) -> None:
        config.stated_layout()

    def make_reader(self, config: StreamConfig, start: Position, context: WorkerContext, share: Share) -> Reader[Any]:
        return lanes_reader(config, self.windows, start, context, share.skip, share.every)

    def stats(self, config: StreamConfig, position: Position) -> dict[str, Any]:
        return lane_stats(Counter(), 0, position.lanes or {})

    def windows(self, config: StreamConfig, cursors: dict[int, Cursor], epochs: int | None) -> Windows:
        """Return what sequential lanes read: windows of documents."""
        from ..sequential.text_blocks import TextWindows  # loaded for text alone

        return TextWindows(
            self,
            lanes=config.lane_count,
            places={lane: (cursor[0], cursor[1], cursor[2]) for lane, cursor in cursors.items()},
            seed=config.seed,
            window=self.window(config),
            filters=tuple(each.function for each in config.filters),
            epochs=epochs,
        )

    def halves(self, share: Fraction) -> tuple[TextData, TextData]:
        """Return the rest and what is held out, to be told apart when documents are read."""
        rest, held = copy.copy(self), copy.copy(self)
        for data, is_held in ((rest, False), (held, True)):
            data.splits = (*self.splits, (share, is_held))
            vars(data).pop("fingerprint", None)  # of the whole
        return rest, held

    def check(self, file: InputFile) -> None:
        """Raise ``InputError`` for a file that is gone or changed since the stream was made."""
        try:
            stamp = _stamp(file)
        except OSError as error:
            raise InputError(f"{file.path}: cannot be read any more: {error.strerror}; bring it back") from None
        if stamp != self._found[file.name]:
            raise InputError(
                f"{file.name} changed since the stream was made, so its order is another one; create the stream again, "
                "and do not write to files that are read"
            )

    @cached_property
    def fingerprint(self) -> str:
        """What the order and the ids depend on: each file's name, size, first and last MiB, in order; the tokenizer.

        Made when a state is first saved or loaded, for very many files take a while. Raises ``InputError`` for a file that
        changed since the stream was made.
        """
        from ...text.discovery import fingerprint

        for file in self.files:
            self.check(file)
        with ThreadPoolExecutor(16, thread_name_prefix="shardwright-fingerprint") as threads:
            files = list(threads.map(fingerprint, self.files))
        splits = [[str(share), held] for share, held in self.splits]
        told = [files, self.tokenizer, self.text_key, self.id_key, self.skip, self.eos, splits]
        if self.fields:
            told.append([str(field) for field in self.fields])  # one that does not fit makes a bad record
        return hashlib.sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()


def _stamp(file: InputFile) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns
