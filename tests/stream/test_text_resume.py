"""Streams of raw text resume exactly, on other ranks too, and refuse states that are not theirs."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, InputError, StateError
from tests.helpers.text_samples import spelled, write_texts
from tests.helpers.text_streams import TEXTS, ids, is_short, joined, make, packed
from tests.stream.loaders import assert_raises


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    return [write_texts(folder / f"part{n}.jsonl.zst", texts) for n, texts in enumerate(TEXTS)]


def test_it_resumes_after_every_batch(files: list[Path]) -> None:
    def few(**options: Any) -> pipeline.Stream:
        return pipeline.TextDataset(files, "bytes", **options).shuffle(seed=3, window=24, lanes=12)

    pipeline.assert_resumes(lambda: few().pack(50, stride=20, boundaries=True).batch(3), items=3)
    pipeline.assert_resumes(lambda: few(epochs=1).pack(512).batch(12), steps=(2, 5))
    pipeline.assert_resumes(lambda: few().filter(is_short).pack(64, best_fit=True).batch(2), items=3)


def drop_some(items: Any) -> Any:
    for item in items:
        if int(item["input_ids"].ravel()[0]) % 3:
            yield item


def test_it_resumes_inside_a_batch_where_a_stage_drops_samples(files: list[Path]) -> None:
    pipeline.assert_resumes(lambda: make(files).pack(32).apply(drop_some).batch(3), items=3)
    pipeline.assert_resumes(lambda: make(files).pack(32).batch(3).apply(drop_some), items=3)


def test_a_loader_that_saves_its_workers_states_resumes(files: list[Path]) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    expected = ids(islice(packed(files), 13))
    loader = stateful.StatefulDataLoader(packed(files), batch_size=None, num_workers=3)
    assert ids(islice(loader, 5)) == expected[:5]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = stateful.StatefulDataLoader(packed(files), batch_size=None, num_workers=3)
    resumed.load_state_dict(state)
    assert ids(islice(resumed, 8)) == expected[5:]
    ranks = [
        stateful.StatefulDataLoader(packed(files, 3).shard(rank, 3), batch_size=None, num_workers=1)
        for rank in range(2)
    ]
    next(iter(ranks[0]))
    ranks[1].load_state_dict(ranks[0].state_dict())
    assert_raises(StateError, r"lacks lanes 2, 3, 8, .* \(12 of 36\)", ranks[1])


def test_states_of_ranks_are_small_and_merge_for_other_ranks(files: list[Path]) -> None:
    expected = ids(islice(packed(files), 14))
    states = []
    for rank in range(3):
        stream = packed(files, 3).shard(rank, 3)
        list(islice(stream, 4))
        states.append(json.loads(json.dumps(stream.state_dict())))
        assert len(states[-1]["lanes"]) == 12
        assert len(json.dumps(states[-1]["lanes"])) < 64 * 12
    merged = pipeline.merge_states(states)
    ranks = []
    for rank in range(2):
        stream = packed(files, 2).shard(rank, 2)
        stream.load_state_dict(merged)
        assert stream.state_dict() == merged
        ranks.append(ids(islice(stream, 10)))
    assert joined(ranks) == expected[4:]


def test_a_state_that_lacks_lanes_is_refused_naming_them(files: list[Path]) -> None:
    stream = packed(files, 3).shard(1, 3)
    list(islice(stream, 2))
    state = stream.state_dict()
    other = packed(files)
    with pytest.raises(StateError, match=r"lacks lanes 0, 1, 4, .* \(24 of 36\).*merge_states"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match=r"lacks lanes 0, 1, 4, .* \(24 of 36\)"):
        pipeline.merge_states([state])
    ahead = packed(files, 3).shard(0, 3)
    list(islice(ahead, 3))
    with pytest.raises(StateError, match=r"sequence_index is 12 in state 0.* 18 in state 1"):
        pipeline.merge_states([state, ahead.state_dict()])
    moved = {**state, "lanes": {**state["lanes"], "2": [0, 0, 0, 1]}}
    with pytest.raises(StateError, match=r"lane 2 is at \[.*\] in one state.* \[0, 0, 0, 1\] in state 1.* merge"):
        pipeline.merge_states([state, moved])
    with pytest.raises(StateError, match="none"):
        pipeline.merge_states([])
    broken = {**state, "lanes": {"1": [0, 0]}}
    with pytest.raises(StateError, match=r"lane 1 .*must be 4 numbers"):
        other.load_state_dict(broken)


@pytest.mark.parametrize(("ranks", "batch_size"), [(3, 6), (2, 2), (1, 7)])
def test_a_state_of_another_global_batch_is_refused_with_the_cure(
    files: list[Path], ranks: int, batch_size: int
) -> None:
    state = packed(files).state_dict()
    other = pipeline.TextDataset(files, "bytes").shuffle(seed=3, window=72).pack(64).batch(batch_size).shard(0, ranks)
    with pytest.raises(StateError, match=r"(global_batch|lanes) was (6|36) when"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match=r"global_batch was 6 .* but is 12 .* needs as many rows"):
        packed(files).shard(0, 2).load_state_dict(state)


def test_a_state_of_another_shape_is_refused_naming_the_field(files: list[Path]) -> None:
    stream = packed(files)
    next(iter(stream))
    others = {
        "global_batch": make(files).pack(64).batch(3),
        "data": make(files, eos=False).pack(64).batch(6),
        "window": pipeline.TextDataset(files, "bytes").shuffle(seed=3, window=73, lanes=36).pack(64).batch(6),
    }
    for field, other in others.items():
        with pytest.raises(StateError, match=f"^{field} was"):
            other.load_state_dict(stream.state_dict())


def test_a_changed_file_is_refused_when_a_state_is_loaded(tmp_path: Path) -> None:
    file = write_texts(tmp_path / "a.jsonl", TEXTS[0])
    stream = packed(file)
    next(iter(stream))
    state = stream.state_dict()
    unsaved = packed(file)
    write_texts(file, [*TEXTS[0][:-1], "another"])
    with pytest.raises(StateError, match=r"^data was"):
        packed(file).load_state_dict(state)
    with pytest.raises(InputError, match=r"a\.jsonl changed since the stream was made"):
        unsaved.state_dict()
    file.unlink()
    with pytest.raises(InputError, match=r"a\.jsonl: cannot be read any more.*No such file.*restore it"):
        unsaved.state_dict()


def test_set_epoch_begins_that_epoch_in_every_lane(files: list[Path]) -> None:
    single = pipeline.TextDataset(files, "bytes").shuffle(seed=3, window=2, lanes=1).documents()
    count = sum(map(len, TEXTS))
    second = [spelled(item["input_ids"]) for item in islice(single, count, count + 9)]
    single.set_epoch(1)
    assert [spelled(item["input_ids"]) for item in islice(single, 9)] == second
    assert single.stats()["epoch"] == 1
    with pytest.raises(ConfigError, match="use epochs=1"):
        packed(files, epochs=2).set_epoch(2)


def test_batches_cannot_be_counted_ahead_and_the_error_says_what_works(files: list[Path]) -> None:
    with pytest.raises(StateError, match="StatefulDataLoader"):
        packed(files).state_dict(batches=3)
    stream = packed(files)
    list(islice(DataLoader(stream, batch_size=None, num_workers=2), 3))
    with pytest.raises(StateError, match="without workers") as error:
        stream.state_dict()
    assert "batches=n" not in str(error.value)
