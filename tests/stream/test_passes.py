"""After a load, passes follow one another as without it: none is lost, none comes twice, whoever iterates."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.stream.iteration.pass_start import PassStart
from pipeline.stream.position import Position
from tests.stream.streams import KINDS, batched, ids

HERE = 7
PLACE = Position(70, pass_number=HERE)


def inside(standing: PassStart) -> PassStart:
    return standing.load(HERE, PLACE, at_end=False)


def at_end(standing: PassStart) -> PassStart:
    return standing.load(HERE, PLACE, at_end=True)


def found_at_end(standing: PassStart) -> PassStart:
    """Load the end of a pass, which only reading shows."""
    return replace(standing.load(HERE, PLACE, at_end=False), at_end=True)


def named(epoch: int) -> Callable[[PassStart], PassStart]:
    return lambda standing: standing.set_epoch(epoch)


def read(standing: PassStart) -> PassStart:
    return replace(standing, begun=True).ended()


def broken_off(standing: PassStart) -> PassStart:
    return replace(standing, begun=True)


REST, WHOLE = (HERE, False), (HERE, True)
TABLE: list[tuple[list[Callable[[PassStart], PassStart]], tuple[int, bool]]] = [
    ([], (0, True)),
    ([read], (0, True)),
    ([named(3)], (3, True)),
    ([named(3), read], (3, True)),
    ([named(3), named(5)], (5, True)),
    ([inside], REST),
    ([inside, read], WHOLE),
    ([inside, broken_off], REST),
    ([at_end], REST),
    ([at_end, read], WHOLE),
    ([inside, named(0)], REST),
    ([inside, named(0), named(0)], REST),
    ([inside, named(0), named(2)], (HERE + 2, True)),
    ([inside, named(0), read], WHOLE),
    ([inside, named(0), read, named(0)], WHOLE),
    ([inside, named(0), read, named(1)], (HERE + 1, True)),
    ([inside, named(0), broken_off, named(1)], (HERE + 1, True)),
    ([inside, named(0), broken_off, named(0)], WHOLE),
    ([at_end, named(0)], (HERE + 1, True)),
    ([at_end, named(0), named(1)], (HERE + 2, True)),
    ([at_end, named(0), read, named(1)], (HERE + 2, True)),
    ([named(0), inside], REST),
    ([named(0), inside, read], WHOLE),
    ([named(0), inside, read, named(1)], (HERE + 1, True)),
    ([named(0), inside, named(4)], REST),
    ([named(0), inside, named(4), read, named(5)], (HERE + 1, True)),
    ([named(0), at_end], (HERE + 1, True)),
    ([named(0), at_end, read], (HERE + 1, True)),
    ([named(0), at_end, read, named(1)], (HERE + 2, True)),
    ([named(0), found_at_end, read, named(1), read, named(2)], (HERE + 3, True)),
    ([named(0), read, inside], REST),
    ([named(0), read, at_end], REST),
    ([named(0), read, at_end, named(9)], (HERE + 1, True)),
    ([inside, read, named(5)], (HERE + 1, True)),
    ([inside, read, named(5), read, named(6)], (HERE + 2, True)),
    ([inside, broken_off, named(5)], REST),
    ([inside, broken_off, named(5), read, named(6)], (HERE + 1, True)),
    ([at_end, read, named(5)], (HERE + 1, True)),
    ([at_end, read, named(5), read, named(6)], (HERE + 2, True)),
    ([PassStart.followed], (1, True)),
    ([inside, read, PassStart.followed], (HERE + 1, True)),
    ([inside, named(0), read, PassStart.followed, read, named(2)], (HERE + 2, True)),
    ([inside, read, PassStart.followed, read, named(5)], (HERE + 2, True)),
]


@pytest.mark.parametrize(("calls", "next_read"), TABLE)
def test_calls_say_which_pass_is_read_and_whether_whole(
    calls: list[Callable[[PassStart], PassStart]], next_read: tuple[int, bool]
) -> None:
    standing = PassStart()
    for call in calls:
        standing = call(standing)
    assert (standing.next_pass, standing.is_whole) == next_read


def stateful(stream: pipeline.Stream, workers: int) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(
        stream, batch_size=None, num_workers=workers
    )


LOADERS: dict[str, Callable[[pipeline.Stream], Any]] = {
    "bare": lambda stream: stream,
    "0 workers": lambda stream: DataLoader(stream, batch_size=None),
    "2 workers": lambda stream: DataLoader(stream, batch_size=None, num_workers=2),
    "persistent": lambda stream: DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True),
    "loader": lambda stream: stream.loader(),
    "stateful, 0": lambda stream: stateful(stream, 0),
    "stateful, 2": lambda stream: stateful(stream, 2),
}


@pytest.fixture(scope="module")
def whole(small: Path, texts: Path) -> Callable[[str], list[list[Any]]]:
    """The batches of the first passes of each kind of stream, where ``set_epoch`` is called before each."""

    @cache
    def passes(kind: str) -> list[list[Any]]:
        stream, found = KINDS[kind](small, texts), []
        for number in range(6):
            stream.set_epoch(number)
            found.append(ids(stream))
        return found

    return passes


def saved(stream: pipeline.Stream, loader: str, batches: int) -> dict[str, Any]:
    """The state after some batches of pass 1, or with -1 after its last one was followed by the end."""
    source = LOADERS[loader](stream) if loader.startswith("stateful") else stream
    for number in range(2):
        stream.set_epoch(number)
        if number == 0 or batches == -1:
            ids(source)
        else:
            iterator = iter(source)
            ids(islice(iterator, batches))
            state: dict[str, Any] = json.loads(json.dumps(source.state_dict()))
            del iterator
            return state
    state = json.loads(json.dumps(source.state_dict()))
    return state


@pytest.fixture(scope="module")
def states(small: Path, texts: Path) -> Callable[[str, str, int], dict[str, Any]]:
    """What `saved` gives of a kind of stream; loaders that keep no state are saved as the bare stream."""
    made = cache(lambda kind, loader, batches: saved(KINDS[kind](small, texts), loader, batches))
    return lambda kind, loader, batches: made(kind, loader if loader.startswith("stateful") else "bare", batches)


def loaded(stream: pipeline.Stream, loader: str, state: dict[str, Any]) -> Any:
    source = LOADERS[loader](stream)
    (source if loader.startswith("stateful") else stream).load_state_dict(state)
    return source


# A pass ends at a place of its own in each kind of stream, and is noticed otherwise by each loader.
CASES = [
    *((kind, "bare") for kind in KINDS),
    ("epochs=1", "persistent"),
    ("text", "stateful, 2"),
    ("mix, take", "2 workers"),
    *(
        pytest.param("epochs=1", loader, marks=pytest.mark.nightly)
        for loader in LOADERS
        if loader not in ("bare", "loader", "persistent")
    ),
    *(
        pytest.param(kind, loader, marks=pytest.mark.nightly)
        for kind in KINDS
        for loader in ("stateful, 0", "stateful, 2", "2 workers")
        if kind != "epochs=1" and (kind, loader) not in (("text", "stateful, 2"), ("mix, take", "2 workers"))
    ),
]


@pytest.mark.parametrize(("kind", "loader"), [*CASES, ("epochs=1", "loader")])
def test_a_loop_that_calls_set_epoch_loses_and_repeats_no_pass(
    small: Path, texts: Path, whole: Callable[[str], list[list[Any]]], states: Any, kind: str, loader: str
) -> None:
    passes = whole(kind)
    last, count = len(passes[1]), 2 if "2" in loader else 3  # of two workers, two passes: they are slow
    for batches, restarts, expected in (
        (3, (0, 1), [passes[1][3:], passes[2], passes[3]]),
        (last - 1, (0,), [passes[1][-1:], passes[2], passes[3]]),  # of two workers, one has nothing left
        (last, (0, 2), passes[2:5]),
        (-1, (0, 2), passes[2:5]),
    ):
        state = states(kind, loader, batches)
        for first in restarts if loader == "bare" else restarts[:1]:
            stream = KINDS[kind](small, texts)
            source = loaded(stream, loader, state)
            got = []
            for epoch in range(first, first + count):
                for _ in range(2):  # a second call changes nothing
                    (source if loader == "loader" else stream).set_epoch(epoch)
                got.append(ids(source))
            assert got == expected[:count], (batches, first)


@pytest.mark.parametrize(("kind", "loader"), CASES)
def test_a_loop_without_set_epoch_reads_the_rest_then_the_pass(
    small: Path, texts: Path, whole: Callable[[str], list[list[Any]]], states: Any, kind: str, loader: str
) -> None:
    passes, count = whole(kind), 2 if "2" in loader else 3  # of two workers, two passes: they are slow
    for batches in (3, len(passes[1]), -1):
        source = loaded(KINDS[kind](small, texts), loader, states(kind, loader, batches))
        # A loader that saved after the last batch passes over that end by itself; with workers, it begins a pass at once.
        rest = passes[1] if (loader, batches) == ("stateful, 2", -1) else [] if batches == -1 else passes[1][batches:]
        later = passes[2:4] if loader == "persistent" else [passes[1]] * 2
        assert [ids(source) for _ in range(count)] == [rest, *later][:count], batches


def test_batches_are_counted_from_where_each_pass_began(small: Path) -> None:
    first = ids(batched(small, 1))
    stream = batched(small, 1)
    stream.load_state_dict(stream.state_dict(batches=4))
    source = DataLoader(stream, batch_size=None, num_workers=2)
    for begin in (4, 0, 0):
        for number, _ in enumerate(source, 1):
            if number in (1, 3, len(first) - begin):
                second = batched(small, 1)
                second.load_state_dict(stream.state_dict(batches=number))
                assert ids(second) == first[begin + number :]


def test_after_the_last_batch_of_the_rest_comes_the_whole_pass(small: Path) -> None:
    first = ids(batched(small, 1))
    stream = batched(small, 1)
    stream.load_state_dict(stream.state_dict(batches=4))
    assert ids(islice(stream, len(first) - 4)) == first[4:]
    assert ids(stream) == first


def test_a_pass_that_is_broken_off_keeps_the_position(small: Path) -> None:
    first = ids(batched(small, 1))
    for loader in ("bare", "0 workers", "2 workers"):
        source = loaded(batched(small, 1), loader, batched(small, 1).state_dict(batches=4))
        for _ in range(2):
            assert ids(islice(source, 3)) == first[4:7]


def test_a_state_that_the_only_worker_loads_holds_in_the_next_pass(
    small: Path, whole: Callable[[str], list[list[Any]]]
) -> None:
    stream, expected = batched(small, 1), whole("epochs=1")[2]
    stream.set_epoch(2)
    first, second = stateful(stream, 1), stateful(batched(small, 1), 1)
    begun = iter(first)
    assert ids(islice(begun, 3)) == expected[:3]
    second.load_state_dict(first.state_dict())
    assert [ids(second), ids(second)] == [expected[3:], expected]


@pytest.mark.parametrize(("batches", "read"), [(7, 1), (7, 2), (1, 1)])
def test_states_of_workers_in_two_passes_resume_exactly(batches: int, read: int) -> None:
    def make() -> pipeline.Stream:
        data = pipeline.ShardDataset.from_tokens(range(8 * batches), epochs=1)
        return data.shuffle(seed=0, lanes=2).pack(4).batch(2)

    passes = []
    for number in range(4):
        stream = make()
        stream.set_epoch(number)
        passes.append(ids(stream))
    assert len(passes[0]) == batches

    def after(state: dict[str, Any], epoch: int, count: int | None) -> tuple[list[Any], dict[str, Any]]:
        stream = make()
        loader = stateful(stream, 3)
        loader.load_state_dict(state)
        stream.set_epoch(epoch)
        iterator = iter(loader)
        return ids(islice(iterator, count)), loader.state_dict()

    first = stateful(make(), 3)
    iterator = iter(first)
    assert ids(islice(iterator, batches)) == passes[0]
    # Only workers that gave a batch are in the next pass, here and, if a pass has one batch, in three passes.
    got, state = after(first.state_dict(), 1, read)
    assert got == passes[1][:read]
    rest, state = after(state, 1 if read < batches else 2, read)
    assert rest == (passes[1] + passes[2])[read : 2 * read]
    assert after(state, 5, None)[0] == (passes[1][2 * read :] or passes[3])


@pytest.mark.parametrize("place", [0, 3, -1])
def test_set_epoch_of_the_stream_skips_no_pass_of_its_loader(
    small: Path, whole: Callable[[str], list[list[Any]]], place: int
) -> None:
    passes = whole("epochs=1")
    stream = batched(small, 1)
    loader = stream.loader()
    if place:
        stream.load_state_dict(saved(batched(small, 1), "bare", place))
    expected = [passes[1][3:], *passes[2:4]] if place == 3 else passes[2:5] if place else passes[:3]
    got = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        got.append(ids(loader))
    assert got == expected


def test_weights_set_inside_a_pass_hold_in_the_passes_after_it(small: Path) -> None:
    def mixed() -> pipeline.Stream:
        sources = {name: pipeline.ShardDataset(small) for name in "ab"}
        return pipeline.mix(sources, {"a": 1, "b": 1}).shuffle(lanes=2).pack(16).batch(2).take(6)

    stream = mixed()
    assert len(ids(islice(stream, 2))) == 2
    stream.set_weights({"a": 0, "b": 1})
    changed = [ids(stream) for _ in range(3)]
    assert [len(each) for each in changed] == [4, 6, 6]
    assert changed[1] == changed[2]
    assert changed[1][2:] == changed[0]


def test_a_forked_rank_neither_moves_nor_ends_the_pass_of_its_parent(small: Path) -> None:
    stream = batched(small, 1)
    stream.load_state_dict(stream.state_dict(batches=4))
    first = ids(batched(small, 1))
    for work in (_begin_again, _read_all):
        child = multiprocessing.get_context("fork").Process(target=work, args=(stream,))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert ids(stream) == first[4:]


def _begin_again(stream: pipeline.Stream) -> None:
    stream.load_state_dict(stream.state_dict(batches=0) | {"sequence_index": 0})
    assert stream.state_dict()["sequence_index"] == 0


def _read_all(stream: Iterator[Any]) -> None:
    for _ in stream:
        pass
