"""An iterator belongs to the process that began it."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import StateError
from tests.stream.streams import batched, ids


def _go_on(iterator: Any, stream: pipeline.Stream, found: Any) -> None:
    try:
        next(iterator)
    except StateError as error:
        found.put(str(error))
    found.put(next(iter(stream))["input_ids"].tolist())


@pytest.mark.parametrize("ahead", [0, 3])
def test_an_iterator_begun_before_a_fork_is_refused_after_it(dataset: Path, ahead: int) -> None:
    stream = batched(dataset).prefetch(ahead)
    first = ids([next(iter(stream))])[0]
    iterator = iter(stream)
    next(iterator)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=_go_on, args=(iterator, stream, found))
    child.start()
    assert "lacks its threads and files: call iter() there" in found.get(timeout=60)
    assert found.get(timeout=60) == first
    child.join(60)
    assert child.exitcode == 0
    assert next(iterator)["input_ids"].tolist() != first  # the parent goes on


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_of_an_iterator_are_refused_naming_the_state(dataset: Path, function: Callable[[Any], Any]) -> None:
    with pytest.raises(StateError, match=r"save stream\.state_dict\(\)"):
        function(iter(batched(dataset)))
