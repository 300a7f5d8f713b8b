"""Live sources: datasets that stream, objects that save their own position and functions are streamed and resumed exactly."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, InputError, StateError
from pipeline.stream.datasets.sources.live_source import LiveSource
from tests.helpers.text_samples import write_texts
from tests.helpers.text_streams import ids
from tests.stream.loaders import assert_raises
from tests.stream.ranks import die_together, run_ranks

TEXTS = [f"text number {n} " * (n % 7 + 1) for n in range(60)]


def records() -> Iterator[dict[str, Any]]:
    for number, text in enumerate(TEXTS):
        yield {"id": f"r{number}", "text": text, "score": number}


class Saved:
    """An object that saves its own position, and no more."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.next < len(TEXTS):
            self.next += 1
            yield {"text": TEXTS[self.next - 1], "score": self.next - 1}

    def state_dict(self) -> dict[str, Any]:
        return {"place": {"next": self.next}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["place"]["next"]


def streaming() -> Any:
    dataset = pytest.importorskip("datasets").Dataset.from_list(list(records()))
    return dataset.to_iterable_dataset(num_shards=4)


def texts_of(items: Any) -> list[str]:
    return [bytes(id - 3 for id in item["input_ids"].tolist()).decode() for item in items]


def documents(source: Any, **options: Any) -> pipeline.Stream:
    return pipeline.TextDataset(source, "bytes", **{"epochs": 1, "eos": False, **options}).shuffle(seed=1).documents()


SOURCES: list[Callable[[], Any]] = [lambda: records, Saved, streaming, lambda: streaming().map(dict, batched=True)]


@pytest.mark.parametrize("make", SOURCES, ids=["function", "object", "dataset", "mapped dataset"])
def test_each_kind_gives_every_document_once_an_epoch_and_resumes(make: Callable[[], Any]) -> None:
    source = make()
    assert texts_of(pipeline.TextDataset(source, "bytes", epochs=1, eos=False).documents()) == TEXTS
    both = texts_of(documents(source, epochs=2))
    assert sorted(both[:60]) == sorted(both[60:]) == sorted(TEXTS)
    assert both[:60] not in (both[60:], TEXTS)
    steps = () if make in SOURCES[:2] else (1, 9, 10)  # datasets are slow
    pipeline.assert_resumes(lambda: documents(source, epochs=2).batch(6), items=14, steps=steps)


def test_every_layout_and_method_resumes() -> None:
    def stream(**options: Any) -> Any:
        return pipeline.TextDataset(records, "bytes", **options).shuffle(seed=2, window=1)

    pipeline.assert_resumes(lambda: stream().pack(50, stride=20, boundaries=True).batch(4), steps=(2, 5, 11))
    pipeline.assert_resumes(lambda: stream(epochs=2).pack(200, best_fit=True).batch(4), steps=(2, 5, 11))
    kept = stream(where="score >= 10").filter(lambda record: record.metadata["score"] % 2 == 0, name="even")
    pipeline.assert_resumes(
        lambda: kept.map_documents(lambda ids, mask: ids[:5], name="cut").pack(16), steps=(2, 9, 19)
    )
    once = stream(epochs=1, where="score >= 10").filter(lambda record: record.metadata["score"] % 2 == 0, name="even")
    assert len(list(once.documents())) == 25


def test_halves_of_a_split_have_every_document_once() -> None:
    halves = pipeline.TextDataset(streaming(), "bytes", epochs=1, eos=False).split(val=0.3)
    held = [texts_of(half.documents()) for half in halves]
    assert sorted(held[0] + held[1]) == sorted(TEXTS)
    assert 5 < len(held[1]) < 30


def test_an_endless_function_is_not_read_far_before_the_first_batch() -> None:
    given = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal given
        for number in count():
            given += 1
            yield {"text": f"text {number}"}

    batch = next(iter(pipeline.TextDataset(endless, "bytes").shuffle(seed=0).pack(16).batch(4)))
    assert batch["input_ids"].shape == (4, 16)
    assert given <= 16


# Ranks and workers


def _two_ranks_killed(folder: str, limit: int | None) -> list[str]:
    """Stream two epochs on two ranks, with a state beside each batch, and end by SIGKILL after ``limit`` batches."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    path = Path(folder, f"rank{dist.get_rank()}.json")
    stream = documents(streaming(), epochs=None).batch(3).take(20)
    done: list[str] = []
    if path.exists():
        saved = json.loads(path.read_text())
        stream.load_state_dict(saved["state"])
        done = saved["texts"]
    for number, batch in enumerate(stream, 1):
        lengths = batch["attention_mask"].sum(1).tolist()
        done += [
            bytes(i - 3 for i in row[:n].tolist()).decode() for row, n in zip(batch["input_ids"], lengths, strict=True)
        ]
        path.write_text(json.dumps({"state": stream.state_dict(), "texts": done}))
        if number == limit:
            die_together()
    return done


def test_two_killed_ranks_go_on_and_give_every_document_once(tmp_path: Path) -> None:
    expected = run_ranks(_two_ranks_killed, 2, str(tmp_path), None)
    for path in tmp_path.iterdir():
        path.unlink()
    run_ranks(_two_ranks_killed, 2, str(tmp_path), 4, killed=True)
    resumed = run_ranks(_two_ranks_killed, 2, str(tmp_path), None)
    assert resumed == expected
    assert sorted(resumed[0][:30] + resumed[1][:30]) == sorted(TEXTS)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_a_source_and_say_once_what_each_reads(ranks: int, caplog: pytest.LogCaptureFixture) -> None:
    for source, said in ((records, 1), (Saved(), 1), (streaming(), 0)):
        caplog.clear()
        parts = [
            texts_of(islice(documents(source, epochs=None).shard(rank, ranks), 60 // ranks)) for rank in range(ranks)
        ]
        assert sorted(text for part in parts for text in part) == sorted(TEXTS)
        name = getattr(source, "__name__", type(source).__name__)
        told = f"each of {ranks} ranks reads all of {name}, and keeps every {ranks}-th record; "
        assert sum(record.message.startswith(told) for record in caplog.records) == said


def test_a_state_belongs_to_its_number_of_ranks() -> None:
    streams = [documents(records, epochs=None).batch(2).shard(rank, 2) for rank in range(2)]
    expected = []
    for stream in streams:
        assert len(list(islice(stream, 3))) == 3
        expected.append(texts_of(islice(documents(records, epochs=None).shard(len(expected), 2), 12))[6:])
    states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
    with pytest.raises(StateError, match=r"ranks was 2 .* but is 1 .*a live source"):
        documents(records, epochs=None).batch(4).load_state_dict(pipeline.merge_states(states))
    for rank in range(2):
        resumed = documents(records, epochs=None).batch(2).shard(rank, 2)
        resumed.load_state_dict(pipeline.merge_states(states))
        rows = [row for batch in islice(resumed, 3) for row in batch["input_ids"]]
        assert [bytes(i - 3 for i in row.tolist() if i > 2).decode() for row in rows] == expected[rank]


def test_a_dataset_that_is_split_already_is_not_split_again() -> None:
    split = pytest.importorskip("datasets.distributed").split_dataset_by_node(streaming(), 0, 2)
    with pytest.raises(ConfigError, match=r"2 ranks.*give the whole dataset.*\.shard\(0, 1\)"):
        next(iter(documents(split, epochs=None).shard(0, 2)))
    assert len(texts_of(documents(split).shard(0, 1))) == 30


def test_one_worker_of_a_loader_reads_and_several_are_refused() -> None:
    stream = documents(streaming()).batch(4)
    alone = ids(stream)
    assert ids(DataLoader(documents(streaming()).batch(4), batch_size=None, num_workers=1)) == alone
    for epochs in (1, None):
        loader = DataLoader(documents(records, epochs=epochs).batch(4), batch_size=None, num_workers=2)
        assert_raises(ConfigError, "one lane on each rank, which 2 workers of a DataLoader cannot share", loader)


# Mixes


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("mix") / "a.jsonl", [f"file {n} " * 9 for n in range(200)])


def mixed(source: Any, file: Path, ranks: int = 1, rank: int = 0) -> pipeline.Stream:
    """Rows of 8 ids: three of four are whole documents of a live source."""
    sources = {"file": pipeline.TextDataset(file, "bytes"), "live": pipeline.TextDataset(source, "bytes")}
    mix = pipeline.mix(sources, {"file": 1, "live": 3}).shuffle(seed=3, lanes=8).pack(8).batch(8 // ranks)
    return mix if ranks == 1 else mix.shard(rank, ranks)


def numbered(count: int = 700) -> Iterator[dict[str, Any]]:
    yield from ({"text": f"{n:07}"} for n in range(count))


class Numbered(Saved):
    """Saves its position, which it writes in another way once it was loaded."""

    def __init__(self, count: int = 700) -> None:
        super().__init__()
        self.count = count
        self.loaded: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in islice(numbered(self.count), self.next, None):
            self.next += 1
            yield record

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self.loaded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = {"loaded": True}


def numbers_in(batches: list[list[list[int]]]) -> list[int]:
    rows = ("".join(chr(id - 3) for id in row if id > 2) for batch in batches for row in batch)
    return [int(text) for text in rows if text.isdecimal()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mix_gives_each_live_document_once_and_goes_on(file: Path, ranks: int) -> None:
    whole = []
    for rank in range(ranks):
        stream = mixed(numbered, file, ranks, rank)
        whole.append(ids(islice(stream, 100)))
        sources = stream.stats()["sources"]
        assert (sources["live"]["asked"], sources["live"]["epoch"]) == (0.75, 0)
        assert 590 < sources["live"]["sequences"] < 610
    given = [number for rank in whole for number in numbers_in(rank)]
    assert len(given) == len(set(given)) > 580
    for make in (lambda: numbered, Numbered):
        streams = [mixed(make(), file, ranks, rank) for rank in range(ranks)]
        for at in range(0, 100, 25):
            assert [ids(islice(stream, 25)) for stream in streams] == [rank[at : at + 25] for rank in whole]
            states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
            streams = [mixed(make(), file, ranks, rank) for rank in range(ranks)]
            for stream in streams:
                stream.load_state_dict(pipeline.merge_states(states))
    with pytest.raises(StateError, match=f"ranks was {ranks} .* but is 4"):
        mixed(numbered, file, 4).load_state_dict(pipeline.merge_states(states))


def test_best_fit_goes_on_though_the_state_is_written_otherwise() -> None:
    def fitted() -> pipeline.Stream:
        return (
            pipeline.TextDataset(Numbered(9000), "bytes").shuffle(seed=2, window=1).pack(20, best_fit=True).batch(300)
        )

    stream = fitted()
    states = [(stream.state_dict(), batch["input_ids"].tolist()) for batch in islice(stream, 15)]
    resumed = fitted()
    resumed.load_state_dict(states[6][0])  # in the second window
    assert ids(islice(resumed, 8)) == [batch for _, batch in states[7:]]


def test_a_mix_of_live_sources_changes_weights_and_has_one_worker(file: Path) -> None:
    expected = ids(islice(mixed(numbered, file), 10))
    assert ids(islice(DataLoader(mixed(numbered, file), batch_size=None, num_workers=1), 10)) == expected
    assert_raises(ConfigError, "which 2 workers", DataLoader(mixed(numbered, file), batch_size=None, num_workers=2))
    stream = mixed(numbered, file)
    before = numbers_in(ids(islice(stream, 10)))
    stream.set_weights({"file": 0, "live": 1})
    after = numbers_in(ids(islice(stream, 10)))
    assert len(after) == 80
    assert not set(before) & set(after)
    both = {"a": pipeline.TextDataset(numbered, "bytes"), "b": pipeline.TextDataset(records, "bytes")}
    batch = next(iter(pipeline.mix(both, {"a": 1, "b": 1}).pack(8).batch(4)))  # live alone, and not shuffled
    assert batch["input_ids"].shape == (4, 8)


# What sources do wrong


def test_a_shuffle_buffer_of_datasets_loses_what_it_held(caplog: pytest.LogCaptureFixture) -> None:
    stream = documents(streaming().shuffle(seed=4, buffer_size=8))
    items = iter(stream)
    before = texts_of(islice(items, 20))
    state = stream.state_dict()
    resumed = documents(streaming().shuffle(seed=4, buffer_size=8))
    resumed.load_state_dict(state)
    datasets_log = logging.getLogger("datasets")
    datasets_log.addHandler(caplog.handler)
    try:
        after = texts_of(resumed)
    finally:
        datasets_log.removeHandler(caplog.handler)
    assert "shuffle buffer will be refilled" in caplog.text
    assert 60 - 3 * 8 <= len(set(before + after)) <= 60
    exact = streaming().shuffle(seed=4, buffer_size=8)
    pipeline.assert_resumes(lambda: documents(lambda: iter(exact)).batch(3), steps=(7, 14))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": {"b": object()}}, r"key \['a'\]\['b'\] is of type object"),
        ({"rng": [1, (2, 3)]}, r"key \['rng'\]\[1\] is of type tuple, \(2, 3\)"),
        ({1: 2}, r"key \(all of it\) is of type dict, \{1: 2\}"),
        ({"x": float("nan")}, r"key \['x'\] is of type float, nan"),
    ],
)
def test_a_state_that_json_does_not_give_back_is_refused(state: Any, said: str) -> None:
    class Other(Saved):
        def state_dict(self) -> Any:
            return state

    with pytest.raises(ConfigError, match=f"of Other .*JSON.*: {said}"):
        next(iter(documents(Other())))


def test_a_state_of_a_source_that_was_cut_is_refused() -> None:
    stream = documents(Saved())
    state = stream.state_dict()
    state["lanes"]["0"][2] = "{"
    stream.load_state_dict(state)
    with pytest.raises(StateError, match=r"^the state of Saved is no JSON: '\{'.*load it .*saved"):
        next(iter(stream))


def test_16_mib_or_a_window_of_blocks_are_shuffled_together() -> None:
    def many() -> Iterator[dict[str, Any]]:
        yield from ({"text": f"{number:4} {'x' * 1000}"} for number in range(1200))

    def furthest(**options: Any) -> int:
        rows = pipeline.TextDataset(many, "bytes", eos=False, epochs=1).shuffle(seed=1, **options).documents()
        return max(abs(at - int(text[:4])) for at, text in enumerate(texts_of(rows)))

    assert furthest() > 200
    assert 32 < furthest(window=2) < 66  # texts of 1 kB


def test_what_cannot_be_begun_again_is_refused() -> None:
    with pytest.raises(InputError, match=r"generator object can be read once.*\(records, not records\(\)\)"):
        pipeline.TextDataset(records(), "bytes")
    with pytest.raises(InputError, match="a map object can be read once"):
        pipeline.TextDataset(map(dict, records()), "bytes")

    class Open(Saved):
        def __init__(self) -> None:
            super().__init__()
            self.file = open(os.devnull)  # noqa: SIM115

    with pytest.raises(ConfigError, match=r"Open cannot be copied .* give the class a __deepcopy__"):
        next(iter(documents(Open())))
    with pytest.raises(InputError, match=r"<lambda>\(\) returned int; .* returns an iterator of dicts"):
        next(iter(documents(lambda: 7)))


def test_a_live_source_is_streamed_alone_and_has_one_lane() -> None:
    with pytest.raises(ConfigError, match=r"records is a live source, .* 2 inputs"):
        pipeline.TextDataset([records, [{"text": "a"}]], "bytes")
    with pytest.raises(ConfigError, match="lanes=4: a live source has one lane"):
        iter(pipeline.TextDataset(records, "bytes").shuffle(lanes=4).documents())


def test_a_function_that_gives_other_records_is_refused_on_resume() -> None:
    stream = documents(records)
    next(islice(stream, 30, None))
    state = stream.state_dict()
    for now, said in (
        (TEXTS[:5], "now ends after 5"),
        ([text.upper() for text in TEXTS], "now gives another record there"),
    ):
        resumed = documents(lambda now=now: iter({"text": text} for text in now))
        resumed.load_state_dict(state)
        with pytest.raises(StateError, match=rf"saved after record \d+ of <lambda>, which {said}"):
            next(iter(resumed))


def test_a_function_that_skips_for_long_warns_with_the_count(caplog: pytest.LogCaptureFixture) -> None:
    state = documents(records)
    next(islice(state, 50, None))
    *_, number, place, _ = state.state_dict()["lanes"]["0"]
    source = LiveSource(records, seconds=0.0)
    assert next(iter(source.read(0, number, place, 0, 1))) == (33, {"id": "r32", "text": TEXTS[32], "score": 32})
    assert "records was called again to resume, and 1 of 32 records were skipped in 0 seconds" in caplog.text


def test_errors_name_the_source_and_the_record() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"text": "good"}
        yield {"body": "bad"}
        if dies:
            raise OSError("the line is dead")

    dies = False
    with pytest.raises(InputError, match=r"broken, line 2: .*'text' .*'body'"):
        next(iter(documents(broken)))
    assert texts_of(documents(broken, on_error="records")) == ["good"]
    dies = True
    with pytest.raises(OSError, match="the line is dead") as failure:
        next(iter(documents(broken)))
    assert "raised by broken after 2 records of this epoch" in failure.value.__notes__


def test_an_epoch_that_keeps_nothing_is_an_error() -> None:
    stream = pipeline.TextDataset(records, "bytes").filter(lambda record: False, name="none").pack(8)
    with pytest.raises(ConfigError, match=r"no document was kept .*60 read so far, 60 rejected"):
        next(iter(stream))
