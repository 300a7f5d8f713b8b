"""Which program encodes for a definition: the fastest with its ids, found at once or in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple
from weakref import WeakSet

from .conformance import proof_texts
from .encoders import FAST, Encoder, fastest_equal


class Choice(NamedTuple):
    """An encoder, the name of its program, and why faster ones do not serve, by their names."""

    name: str
    encoder: Encoder
    refused: dict[str, str]


_last: dict[tuple[object, ...], Choice] = {}
_under_way: WeakSet[Future[Choice]] = WeakSet()


def choose(definition: str, spelled: Iterable[str], sample: Iterable[str], judge: Callable[[], Encoder]) -> Choice:
    """Return the fastest encoder with the ids of ``judge()``, the definition, on a sample and on texts that ``proof_texts`` has.

    The last choice is kept, for a build and its stages load the same tokenizer.
    """
    spelled, sample = tuple(dict.fromkeys(spelled)), tuple(sample)
    key = definition, spelled, sample, *FAST.items()
    if key not in _last:
        found = Choice(*fastest_equal(definition, judge(), [*sample, *proof_texts(spelled)]))
        _last.clear()
        _last[key] = found
    return _last[key]


def choose_in_thread(definition: str, spelled: Iterable[str], judge: Callable[[], Encoder]) -> Future[Choice]:
    """Do what `choose` does in a thread, for which a fork and the end of the process wait."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="shardwright-encoder")
    choosing = thread.submit(choose, definition, spelled, (), judge)
    _under_way.add(choosing)
    thread.shutdown(wait=False)
    return choosing


if hasattr(os, "register_at_fork"):  # a forked process has no thread that would end the choice
    os.register_at_fork(before=lambda: wait(list(_under_way)))
