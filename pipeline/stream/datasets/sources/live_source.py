"""Live sources: streaming datasets, objects that save their own position, functions that return iterators.

Their records are not written to disk. To continue from a position, an object loads its own state; a function is called again, and
the records before the position are skipped.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ....errors import ConfigError, InputError, StateError

log = logging.getLogger("pipeline")


def is_live(value: Any) -> bool:
    """Say whether a value is an object that saves its own state, or a function that returns an iterator."""
    return _saves_itself(value) or (callable(value) and not hasattr(value, "__iter__"))


def _saves_itself(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("__iter__", "state_dict", "load_state_dict"))


def refuse_iterator(value: Any) -> None:
    """Raise ``InputError`` for a generator or another iterator, which can be read only once."""
    if isinstance(value, Iterator) and not hasattr(value, "__arrow_c_stream__"):
        name = getattr(value, "__name__", "records")
        raise InputError(
            f"a {type(value).__name__} object can be read once, so a stream cannot read it again for the next epoch or a "
            f"resume: give the function that returns it ({name}, not {name}()), or a list of its records"
        )


class LiveReading:
    """Iterates over the records of a rank, each with its number in the epoch, from 1 on.

    ``number`` counts the records read, kept or not. All ``ranks`` read the same records; rank ``rank`` keeps record
    ``n`` if ``(n - 1) % ranks == rank``. ``save(record)`` returns the state after ``record``, the last record read.
    """

    def __init__(
        self, name: str, items: Iterator[Any], number: int, rank: int, ranks: int, save: Callable[[Any], str]
    ) -> None:
        self.number = number
        self._name, self._items, self._rank, self._ranks, self._save = name, items, rank, ranks, save
        self._last: Any = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        while self.advance():
            if (self.number - 1) % self._ranks == self._rank:
                yield self.number, self._last

    def advance(self) -> bool:
        """Read one record; return False if there are no more."""
        try:
            self._last = next(self._items)
        except StopIteration:
            return False
        except Exception as error:
            error.add_note(f"raised by {self._name} after {self.number:,} records of this epoch")
            raise
        self.number += 1
        return True

    def state(self) -> str:
        """Return the state from which `LiveSource.read` continues after the last record read."""
        return self._save(self._last)


class LiveSource:
    """An object with ``state_dict`` and ``load_state_dict``, or a function that returns an iterator.

    ``label`` is the name that the user gave the source of documents. While records of a function are skipped, a warning says how
    many: first after ``seconds``, then each time that the time has doubled.
    """

    def __init__(self, value: Any, label: str = "", seconds: float = 5.0) -> None:
        self.name: str = getattr(value, "__name__", type(value).__name__)
        self.label = label
        self._value = value
        self._seconds = seconds
        self._said = False

    def read(self, epoch: int, number: int, state: str, rank: int, ranks: int) -> LiveReading:
        """Read a rank's part from ``state`` on, saved after ``number`` records of an epoch ('' at the start of the epoch)."""
        datasets = sys.modules.get("datasets")
        splits_itself = datasets is not None and isinstance(self._value, datasets.IterableDataset)
        if rank == 0 and ranks > 1 and not splits_itself and not self._said:
            self._said = True
            log.warning(
                "each of %d ranks reads all of %s, and keeps every %d-th record; a datasets.IterableDataset is split instead",
                ranks, self.name, ranks,
            )  # fmt: skip
        if not _saves_itself(self._value):
            return self._call_again(number, state, rank, ranks)
        value = self._copy()
        if splits_itself and ranks > 1:
            value, rank, ranks = _part_of(value, rank, ranks), 0, 1
        if hasattr(value, "set_epoch"):
            value.set_epoch(epoch)
        if state:
            try:
                value.load_state_dict(json.loads(state))
            except json.JSONDecodeError:
                raise StateError(
                    f"the state of {self.name} is no JSON: {state[:100]!r}; load it as it was saved"
                ) from None
        return LiveReading(self.name, iter(value), number, rank, ranks, lambda _: self._state_of(value))

    def _copy(self) -> Any:
        try:
            return copy.deepcopy(self._value)
        except Exception as error:
            raise ConfigError(
                f"{self.name} cannot be copied ({error}), but each iterator of a stream reads its own copy: give the class a "
                "__deepcopy__, open files in __iter__, or give a function that returns an iterator"
            ) from None

    def _state_of(self, value: Any) -> str:
        state = value.state_dict()
        for wrong in _no_json(state, ""):
            raise ConfigError(
                f"state_dict() of {self.name} holds a value that JSON cannot hold: {wrong}; a state is plain JSON, so return "
                "dicts with string keys, lists, strings and numbers, or give a function that returns an iterator"
            )
        return json.dumps(state, separators=(",", ":"))

    def _call_again(self, number: int, state: str, rank: int, ranks: int) -> LiveReading:
        """Call the function, and skip ``number`` records. A hash of the last one shows whether they are the same as before."""
        items = self._value()
        if not hasattr(items, "__iter__"):
            raise InputError(
                f"{self.name}() returned {type(items).__name__}; a function as a source must be one that returns an iterator of "
                "dicts"
            )
        reading = LiveReading(self.name, iter(items), 0, rank, ranks, _hash_of)
        begin, due = time.monotonic(), self._seconds
        while reading.number < number and reading.advance():
            seconds = time.monotonic() - begin
            if seconds >= due:
                due = 2 * seconds
                log.warning(
                    "%s was called again to resume, and %d of %d records were skipped in %d seconds; an object with state_dict "
                    "and load_state_dict resumes without skipping",
                    self.name, reading.number, number, seconds,
                )  # fmt: skip
        if reading.number < number or (number and reading.state() != state):
            difference = f"ends after {reading.number:,}" if reading.number < number else "gives another record there"
            raise StateError(
                f"the state was saved after record {number:,} of {self.name}, which now {difference}: to resume, a function must "
                "give the same records each time it is called"
            )
        return reading


def _part_of(dataset: Any, rank: int, ranks: int) -> Any:
    """Return a rank's part of a ``datasets.IterableDataset``."""
    from datasets.distributed import split_dataset_by_node

    if (split := getattr(dataset, "_distributed", None)) is not None:
        raise ConfigError(
            f"the dataset is split among {split.world_size} ranks already, and the stream would split this rank's part again: "
            "give the whole dataset, or state .shard(0, 1)"
        )
    return split_dataset_by_node(dataset, rank, ranks)


def _hash_of(record: Any) -> str:
    text = json.dumps(record, default=lambda value: type(value).__name__, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _no_json(value: Any, key: str) -> Iterator[str]:
    """Yield the key, type and value of each part that JSON cannot hold exactly, as text."""
    if type(value) is dict and all(isinstance(name, str) for name in value):
        for name, item in value.items():
            yield from _no_json(item, f"{key}[{name!r}]")
    elif type(value) is list:
        for number, item in enumerate(value):
            yield from _no_json(item, f"{key}[{number}]")
    elif not (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    ):
        yield f"key {key or '(all of it)'} is of type {type(value).__name__}, {value!r:.60}"
