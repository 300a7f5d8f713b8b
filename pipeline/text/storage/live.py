"""Sources that are alive: datasets that stream, objects that save their own position, functions that return iterators.

Nothing of them is written to disk. Each is read again from any place: an object by its own ``state_dict``, a function by
skipping what it gave before.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

from ...errors import ConfigError, InputError, StateError

log = logging.getLogger("pipeline")


def is_live(value: Any) -> bool:
    """Whether a value is read by its own ``state_dict``, or is a function that returns an iterator."""
    return _saves_itself(value) or (callable(value) and not hasattr(value, "__iter__"))


def _saves_itself(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("__iter__", "state_dict", "load_state_dict"))


def refuse_iterator(value: Any) -> None:
    """Raise ``InputError`` for a generator and its like, which can be read once only."""
    if isinstance(value, Iterator) and not is_live(value) and not hasattr(value, "__arrow_c_stream__"):
        name = getattr(value, "__name__", "")
        what = f"{type(value).__name__} {name}()" if name else f"{type(value).__name__} object"
        raise InputError(
            f"a {what} can be read once, so a stream cannot begin it again for its next epoch or to resume: give the "
            f"function that returns it ({name or 'records'}, not {name or 'records'}()), or a list of its records"
        )


class LiveSource:
    """An object with ``state_dict`` and ``load_state_dict``, or a function that returns an iterator.

    ``label`` is what the user calls it as the source of documents. A warning says how much of a function was skipped after so
    many seconds, then after twice as many.
    """

    def __init__(self, value: Any, label: str = "", seconds: float = 5.0) -> None:
        self.value = value
        self.label = label
        self.seconds = seconds
        self.is_function = not _saves_itself(value)
        self.name: str = getattr(value, "__name__", type(value).__name__)
        self._said = False

    @property
    def splits_itself(self) -> bool:
        """Whether ``datasets`` splits it among ranks."""
        datasets = sys.modules.get("datasets")
        return datasets is not None and isinstance(self.value, datasets.IterableDataset)

    def read(self, epoch: int, number: int, state: str, rank: int, ranks: int) -> LiveReading:
        """Read the part of a rank on from ``state``, which was saved behind ``number`` records of an epoch ('' at its start)."""
        if ranks > 1 and rank == 0 and not self.splits_itself and not self._said:
            self._said = True
            log.warning(
                "each of %d ranks reads all of %s, and keeps every %d-th record; a datasets.IterableDataset is split instead",
                ranks, self.name, ranks,
            )  # fmt: skip
        if self.is_function:
            return _FunctionReading(self, number, state, rank, ranks)
        try:
            value = copy.deepcopy(self.value)
        except Exception as error:
            raise ConfigError(
                f"{self.name} cannot be copied ({error}), and each iterator of a stream reads a copy of its own: give the "
                "class a __deepcopy__, open files in __iter__, or give a function that returns an iterator"
            ) from None
        if self.splits_itself and ranks > 1:
            from datasets.distributed import split_dataset_by_node

            if (split := getattr(value, "_distributed", None)) is not None:
                raise ConfigError(
                    f"the dataset is split among {split.world_size} ranks already, and the stream would split the part of this "
                    "rank again: give the whole dataset, or state .shard(0, 1)"
                )
            value, rank, ranks = split_dataset_by_node(value, rank, ranks), 0, 1
        if hasattr(value, "set_epoch"):
            value.set_epoch(epoch)
        if state:
            value.load_state_dict(_parsed(state, self.name))
        return _ObjectReading(self, value, number, rank, ranks)


class LiveReading:
    """Iterates over the records of a rank, each with its number in the epoch, from 1 on.

    ``number`` is that of the record read last, of whatever rank. Of ``ranks`` that read the same records, each keeps those
    whose number less 1 leaves ``rank``.
    """

    def __init__(self, source: LiveSource, items: Any, number: int, rank: int, ranks: int) -> None:
        self.number = number
        self.last: Any = None
        self._source, self._items, self._rank, self._ranks = source, items, rank, ranks

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        while self._next():
            if (self.number - 1) % self._ranks == self._rank:
                yield self.number, self.last

    def _next(self) -> bool:
        """Read one record; return False behind the last."""
        try:
            self.last = next(self._items)
        except StopIteration:
            return False
        except Exception as error:
            error.add_note(f"raised by {self._source.name} after {self.number:,} records of this epoch")
            raise
        self.number += 1
        return True

    def state(self) -> str:
        """Return what `LiveSource.read` goes on by behind the record that was read last."""
        raise NotImplementedError


class _ObjectReading(LiveReading):
    """Reads an object that saves its own position."""

    def __init__(self, source: LiveSource, value: Any, number: int, rank: int, ranks: int) -> None:
        super().__init__(source, iter(value), number, rank, ranks)
        self._value = value

    def state(self) -> str:
        state = self._value.state_dict()
        if (found := _no_json(state, "")) is not None:
            raise ConfigError(
                f"state_dict() of {self._source.name} holds what JSON does not: {found}; a state is plain JSON, so give it "
                "dicts with string keys, lists, strings and numbers, or give a function that returns an iterator"
            )
        return json.dumps(state, separators=(",", ":"))


class _FunctionReading(LiveReading):
    """Calls a function, and skips the records that it gave before; a hash of the last one shows that it gives the same."""

    def __init__(self, source: LiveSource, number: int, state: str, rank: int, ranks: int) -> None:
        items = source.value()
        if not hasattr(items, "__iter__"):
            raise InputError(
                f"{source.name}() returned {type(items).__name__}; a function that gives a stream its records returns an "
                "iterator of dicts"
            )
        super().__init__(source, iter(items), 0, rank, ranks)
        begin, due = time.monotonic(), source.seconds
        while self.number < number and self._next():
            seconds = time.monotonic() - begin
            if seconds >= due:
                due = 2 * seconds
                log.warning(
                    "%s was called again to resume, and %d of %d records were skipped in %d seconds; an object with state_dict "
                    "and load_state_dict begins where it stood",
                    source.name, self.number, number, seconds,
                )  # fmt: skip
        if self.number < number or (number and self.state() != state):
            found = f"ends after {self.number:,}" if self.number < number else "gives another one there"
            raise StateError(
                f"the state was saved behind record {number:,} of {source.name}, which now {found}: to be resumed, a function "
                "gives the same records each time it is called"
            )

    def state(self) -> str:
        text = json.dumps(self.last, default=lambda value: type(value).__name__, sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _parsed(state: str, name: str) -> Any:
    try:
        return json.loads(state)
    except ValueError:
        raise StateError(f"the state of {name} is no JSON: {state[:100]!r}; load it as it was saved") from None


def _no_json(value: Any, key: str) -> str | None:
    """Return the key, type and value of the first thing that JSON does not give back as it was."""
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return None
    if type(value) is list:
        return next((found for n, each in enumerate(value) if (found := _no_json(each, f"{key}[{n}]"))), None)
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return next((found for name, each in value.items() if (found := _no_json(each, f"{key}[{name!r}]"))), None)
    return f"key {key or '(all of it)'} is of type {type(value).__name__}, {value!r:.60}"
