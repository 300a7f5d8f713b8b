"""Raw text as a stream: every document as often as it should come, in one order, resumed exactly."""

from __future__ import annotations

import ast
import json
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, InputError, StateError
from pipeline.stream.sequential.layout import LaneLayout
from pipeline.stream.sequential.text.windows import TextWindows, WindowSize
from pipeline.text.discovery import find_inputs
from pipeline.text.document import Document
from pipeline.text.formats import FORMATS
from pipeline.text.readers.reader import Reader
from tests.loaders import assert_raises
from tests.text_samples import KINDS, make_texts, spelled, write_tar, write_texts

TEXTS = [make_texts(count, seed) for seed, count in enumerate((70, 1, 45, 90))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    return [write_texts(folder / f"part{n}.jsonl.zst", texts) for n, texts in enumerate(TEXTS)]


def make(files: Any, **options: Any) -> pipeline.Stream:
    return pipeline.TextDataset(files, tokenizer="bytes", **options).shuffle(seed=3, window=144, lanes=36)


def packed(files: Any, ranks: int = 1, **options: Any) -> pipeline.Stream:
    """A global batch of 6 rows, whatever the number of ranks."""
    return make(files, **options).pack(64).batch(6 // ranks)


def joined(ranks: list[list[Any]]) -> list[Any]:
    """Return the global batches of ranks: their rows, rank after rank."""
    return [[row for batch in step for row in batch] for step in zip(*ranks, strict=True)]


def ids(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


def is_short(record: Any) -> bool:
    return len(record.text) < 150


def comes_from_last_file(record: Any) -> bool:
    return record.file.endswith("part3.jsonl.zst")


def is_nothing(record: Any) -> bool:
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_without_shuffle_every_kind_of_file_streams_its_documents_in_their_order(tmp_path: Path, kind: str) -> None:
    found = [write_texts(tmp_path / f"part{n}.{kind}", texts) for n, texts in enumerate(TEXTS)]
    stream = pipeline.TextDataset(found, tokenizer="bytes", epochs=1).documents()
    assert [spelled(item["input_ids"]) for item in stream] == [text for texts in TEXTS for text in texts]
    joined = np.concatenate([item["input_ids"] for item in stream])
    rows = list(pipeline.TextDataset(found, tokenizer="bytes", epochs=1).pack(64))
    assert np.array_equal(np.concatenate([row["input_ids"] for row in rows])[: len(joined)], joined)
    assert sum(row["valid_tokens"] for row in rows) == len(joined) - 1


def test_a_text_is_a_txt_member_or_the_field_of_a_json_member_of_a_tar(tmp_path: Path) -> None:
    members = {
        "a.txt": b"one",
        "a.png": b"\x89PNG",
        "b.json": orjson.dumps({"text": "two", "id": 7}),
        "c.txt": b"three",
    }
    file = write_tar(tmp_path / "plain.tar", members)
    stream = pipeline.TextDataset(file, tokenizer="bytes", epochs=1).documents()
    assert [spelled(item["input_ids"]) for item in stream] == ["one", "two", "three"]


@pytest.mark.parametrize("lanes", [1, 5, 48])
def test_two_epochs_hold_every_document_twice_in_other_orders(files: list[Path], lanes: int) -> None:
    stream = pipeline.TextDataset(files, tokenizer="bytes", epochs=2).shuffle(1, window=50, lanes=lanes).documents()
    found = [spelled(item["input_ids"]) for item in stream]
    assert Counter(found) == Counter(text for texts in TEXTS for text in texts for _ in range(2))
    other = pipeline.TextDataset(files, tokenizer="bytes", epochs=2).shuffle(2, window=50, lanes=lanes).documents()
    assert found != [spelled(item["input_ids"]) for item in other]
    if lanes == 1:
        assert found[: len(found) // 2] != found[len(found) // 2 :]


def test_packed_epochs_give_every_token_once_with_the_next_one_as_its_label(files: list[Path]) -> None:
    whole = sorted(text for texts in TEXTS for text in texts)
    batches = list(packed(files, epochs=1))
    rows = [(row, label) for b in batches for row, label in zip(b["input_ids"], b["labels"], strict=True)]
    size = sum(len(text.encode()) + 1 for text in whole)
    assert sum(int((row > 2).sum()) for row, _ in rows) == size - len(whole)
    for row, label in rows:
        counted = label[:-1] != -100
        assert torch.equal(label[:-1][counted], row[1:][counted])
    # All batches but the last are full of sequences, each lane's last of which is short.
    assert all((batch["labels"] != -100).any(1).all() for batch in batches[:-1])


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("fork", 3), ("spawn", 2), ("forkserver", 3)])
def test_workers_of_a_loader_give_the_order_without_workers(files: list[Path], start: str, workers: int) -> None:
    expected = ids(islice(packed(files), 12))
    stream = packed(files).take(12)
    assert ids(DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=start)) == expected


def test_a_bounded_stream_has_the_same_order_in_workers(files: list[Path]) -> None:
    expected = ids(packed(files, epochs=1))
    assert ids(DataLoader(packed(files, epochs=1), batch_size=None, num_workers=2)) == expected


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_ranks_take_rows_of_each_global_batch(files: list[Path], world_size: int) -> None:
    expected = ids(islice(packed(files), 12))
    ranks = [ids(islice(packed(files, world_size).shard(rank, world_size), 12)) for rank in range(world_size)]
    assert joined(ranks) == expected


def test_it_resumes_after_every_batch_on_other_ranks_too(files: list[Path]) -> None:
    def few(**options: Any) -> pipeline.Stream:
        return pipeline.TextDataset(files, "bytes", **options).shuffle(seed=3, window=40, lanes=12)

    pipeline.assert_resumes(lambda: packed(files), items=3)
    pipeline.assert_resumes(lambda: few().pack(50, stride=20, boundaries=True).batch(3), items=3)
    pipeline.assert_resumes(lambda: few().documents(30).batch(4), items=3)
    pipeline.assert_resumes(lambda: few().pack(64), items=3)
    pipeline.assert_resumes(lambda: few(epochs=1).pack(512).batch(12), items=9)
    pipeline.assert_resumes(lambda: few(epochs=1).documents().batch(12, last="drop").take(5), items=9)
    pipeline.assert_resumes(lambda: packed(files).take(3), items=9)
    pipeline.assert_resumes(lambda: few().filter(is_short).pack(64, best_fit=True).batch(2), items=3)
    pipeline.assert_resumes(lambda: pipeline.TextDataset(files, "bytes", epochs=1).pack(99).batch(40), items=9)


def drop_some(items: Any) -> Any:
    for item in items:
        if int(item["input_ids"][0]) % 3:
            yield item


def test_it_resumes_inside_a_batch_where_a_stage_drops_samples(files: list[Path]) -> None:
    pipeline.assert_resumes(lambda: make(files).pack(32).apply(drop_some).batch(3), items=3)
    pipeline.assert_resumes(lambda: make(files).pack(32).batch(3).apply(drop_some_batches), items=3)


def drop_some_batches(items: Any) -> Any:
    for item in items:
        if int(item["input_ids"][0, 0]) % 3:
            yield item


def test_a_loader_that_saves_its_workers_states_resumes(files: list[Path]) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    expected = ids(islice(packed(files), 13))
    loader = stateful.StatefulDataLoader(packed(files), batch_size=None, num_workers=3)
    assert ids(islice(loader, 5)) == expected[:5]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = stateful.StatefulDataLoader(packed(files), batch_size=None, num_workers=3)
    resumed.load_state_dict(state)
    assert ids(islice(resumed, 8)) == expected[5:]


def test_states_of_ranks_merge_for_any_other_topology(files: list[Path]) -> None:
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
    with pytest.raises(StateError, match=r"lacks lanes 0, 1, 4, 5, 6, 7, 10, 11, \.\.\. \(24 of 36\).*merge_states"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="lacks lanes 0, 1, 4, 5"):
        pipeline.merge_states([state])
    ahead = packed(files, 3).shard(0, 3)
    list(islice(ahead, 3))
    with pytest.raises(StateError, match="sequence_index is 12 in state 0, but 18 in state 1"):
        pipeline.merge_states([state, ahead.state_dict()])
    moved = {**state, "lanes": {**state["lanes"], "2": [0, 0, 0, 0, 1]}}
    with pytest.raises(StateError, match="lane 2 stands at"):
        pipeline.merge_states([state, moved])
    with pytest.raises(StateError, match="none"):
        pipeline.merge_states([])
    broken = {**state, "lanes": {"1": [0, 0]}}
    with pytest.raises(StateError, match="no state of a sequential stream"):
        other.load_state_dict(broken)


@pytest.mark.parametrize(("ranks", "batch_size"), [(3, 6), (2, 2), (1, 7)])
def test_a_state_of_another_global_batch_is_refused_with_the_cure(
    files: list[Path], ranks: int, batch_size: int
) -> None:
    state = packed(files).state_dict()
    other = pipeline.TextDataset(files, "bytes").shuffle(3, window=144).pack(64).batch(batch_size).shard(0, ranks)
    with pytest.raises(StateError, match=r"(global_batch|lanes) was (6|36) when"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match=r"global_batch was 6 .* but is 12 .* as many rows together"):
        packed(files).shard(0, 2).load_state_dict(state)


def test_states_of_a_stream_that_knows_its_counts_merge_to_any_of_them() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    states = []
    for rank in range(2):
        stream = pipeline.ShardDataset.from_tokens(tokens).shuffle(lanes=3).pack(16).batch(2).shard(rank, 2)
        list(islice(stream, 3))
        states.append(stream.state_dict())
    assert pipeline.merge_states(states) == states[0]


def test_the_state_is_small_json_that_a_weights_only_load_reads(files: list[Path], tmp_path: Path) -> None:
    stream = pipeline.TextDataset(files, tokenizer="bytes").shuffle(0, lanes=48).pack(64).batch(2)
    list(islice(stream, 70))
    state = stream.state_dict()
    assert len(json.dumps(state)) < 2048 + 64 * 48
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda files: make(files).pack(64).batch(3), "global_batch"),
        (lambda files: make(files).pack(32).batch(6), "seq_len"),
        (lambda files: make(files).documents().batch(6), "kind"),
        (lambda files: make(files).pack(64, best_fit=True).batch(6), "best_fit"),
        (lambda files: make(files).filter(is_short).pack(64).batch(6), "filters"),
        (lambda files: make(files, eos=False).pack(64).batch(6), "data"),
        (lambda files: make(files[:3]).pack(64).batch(6), "data"),
        (
            lambda files: pipeline.TextDataset(files, "bytes").shuffle(3, window=41, lanes=36).pack(64).batch(6),
            "window",
        ),
    ],
)
def test_a_state_of_another_shape_is_refused_naming_the_field(files: list[Path], change: Any, field: str) -> None:
    stream = packed(files)
    next(iter(stream))
    with pytest.raises(StateError, match=f"^{field} was"):
        change(files).load_state_dict(stream.state_dict())


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


def test_every_rank_takes_as_many_steps_though_one_keeps_hardly_anything(files: list[Path]) -> None:
    documents = make(files).filter(comes_from_last_file).documents()
    assert all(spelled(item["input_ids"]).startswith("3.") for item in islice(documents, 200))

    def stream(ranks: int) -> pipeline.Stream:
        return make(files).filter(comes_from_last_file).pack(64).batch(6 // ranks)

    whole = stream(1)
    expected = ids(islice(whole, 12))
    assert joined([ids(islice(stream(3).shard(rank, 3), 12)) for rank in range(3)]) == expected
    counted = whole.stats()
    assert counted["rejected"] > counted["documents"] // 3


def is_one_of_few(record: Any) -> bool:
    return record.text.startswith(("3.17 ", "0.5 ", "2.30 "))


def test_a_lane_of_which_an_epoch_is_rejected_goes_on_to_the_next(files: list[Path]) -> None:
    stream = pipeline.TextDataset(files, "bytes").shuffle(0, lanes=4).filter(is_one_of_few).documents().batch(2)
    rows = [spelled(row) for batch in islice(stream, 10) for row in batch["input_ids"]]
    assert {row.partition(" ")[0] for row in rows} == {"3.17", "0.5", "2.30"}
    assert stream.stats()["epoch"] > 0


def test_an_epoch_of_which_all_lanes_of_a_rank_keep_nothing_raises_and_never_spins(files: list[Path]) -> None:
    with pytest.raises(
        ConfigError, match=r"no document was kept of a whole epoch, in any of the 36 lanes .* 206 rejected"
    ):
        next(iter(make(files).filter(is_nothing).pack(64).batch(6)))
    assert list(make(files, epochs=2).filter(is_nothing).pack(64).batch(6)) == []


def test_ranks_and_workers_that_cannot_share_the_lanes_are_refused_naming_what_can(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"lanes=36 is no multiple of the 24 rows .* use lanes=48 or 24"):
        iter(packed(files).shard(0, 4))
    with pytest.raises(ConfigError, match=r"unshuffled stream has one lane.*2 ranks.*add \.shuffle\(\)"):
        iter(pipeline.TextDataset(files, "bytes").pack(64).batch(2).shard(0, 2))
    loader = DataLoader(make(files).pack(64).batch(12), batch_size=None, num_workers=2)
    assert_raises(ConfigError, r"3 lanes, which 2 workers .* one of \[1, 3\], or .*lanes=48\)", loader)
    few = pipeline.TextDataset(files[:2], "bytes").shuffle().pack(8).batch(80)
    assert next(iter(few))["input_ids"].shape == (80, 8)
    with pytest.raises(ConfigError, match="there are 71 records for the 160 rows of a global batch"):
        iter(few.shard(1, 2))


def test_a_bounded_stream_on_several_ranks_is_refused_when_iteration_begins(files: list[Path]) -> None:
    stream = packed(files, epochs=1).shard(0, 2)
    with pytest.raises(ConfigError, match=r"epochs=1 on 2 ranks.*\.take\(n\)"):
        iter(stream)
    bounded = [list(packed(files).take(5).shard(rank, 2)) for rank in range(2)]
    assert [len(batches) for batches in bounded] == [5, 5]


@pytest.mark.parametrize("count", [5, 12])
def test_take_before_batch_is_the_first_sequences_of_all_ranks(files: list[Path], count: int) -> None:
    whole = [row for batch in ids(islice(packed(files), 2)) for row in batch][:count]
    ranks = [list(make(files).pack(64).take(count).batch(3).shard(rank, 2)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    rows = [
        row
        for step in zip(*ranks, strict=True)
        for batch in step
        for row, valid in zip(batch["input_ids"].tolist(), batch["labels"], strict=True)
        if (valid != -100).any()
    ]
    assert rows == whole


def test_the_last_batch_of_a_bounded_stream_is_padded_or_dropped(files: list[Path]) -> None:
    batches = list(make(files, epochs=1).documents().batch(4))
    assert [int(batch["attention_mask"].any(1).sum()) for batch in batches] == [4] * 51 + [2]
    assert len(list(make(files, epochs=1).documents().batch(4, last="drop"))) == 51


def test_set_epoch_begins_that_epoch_in_every_lane(files: list[Path]) -> None:
    single = pipeline.TextDataset(files, "bytes").shuffle(3, window=40, lanes=1).documents()
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


def test_bad_records_raise_with_file_and_line_or_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    lines = [json.dumps({"text": text, "id": str(n)}) for n, text in enumerate(TEXTS[0])]
    lines[10] = '{"text": '
    lines[11] = '{"body": "no text"}'
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    stream = pipeline.TextDataset(file, "bytes", epochs=1).documents()
    with pytest.raises(InputError, match=r"bad\.jsonl, line 11: .*on_error='records'"):
        list(stream)
    for on_error in ("records", "skip"):
        skipping = pipeline.TextDataset(file, "bytes", epochs=1, on_error=on_error).documents()
        found = [spelled(item["input_ids"]) for item in skipping]
        assert found == [text for n, text in enumerate(TEXTS[0]) if n not in (10, 11)]
        assert skipping.stats()["bad_records"] == 2
    with pytest.raises(ConfigError, match="stop, records, skip, got 'ignore'"):
        pipeline.TextDataset(file, "bytes", on_error="ignore")


@pytest.mark.parametrize("workers", [0, 3])
def test_every_rank_skips_the_same_records_and_takes_equally_many_steps(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "bad.jsonl"
    lines = [json.dumps({"text": text}) if n % 5 else '{"text": ' for n, text in enumerate(TEXTS[3])]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = ids(islice(packed(file, on_error="skip"), 10))
    text = spelled(np.concatenate([row for batch in whole for row in batch]))
    assert not any(bad[:40] in text for bad in TEXTS[3][::5] if len(bad) > 40)
    ranks = [
        ids(DataLoader(packed(file, 2, on_error="skip").shard(rank, 2).take(10), batch_size=None, num_workers=workers))
        for rank in range(2)
    ]
    assert joined(ranks) == whole


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "tar"])
def test_a_cut_file_raises_or_gives_what_comes_before_the_cut(tmp_path: Path, kind: str) -> None:
    texts = make_texts(1500, 9)
    whole = write_texts(tmp_path / f"b.{kind}", texts)
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    good = write_texts(tmp_path / "a.jsonl", TEXTS[0])
    with pytest.raises(InputError, match=rf"b\.{kind}"):
        list(pipeline.TextDataset([good, whole], "bytes", epochs=1).documents())
    with pytest.raises(InputError, match=rf"b\.{kind}"):
        list(pipeline.TextDataset([good, whole], "bytes", epochs=1, on_error="records").documents())
    skipping = make([good, whole], epochs=1, on_error="skip").documents()
    found = {spelled(item["input_ids"]) for item in skipping}
    before: list[str] = []
    with suppress(InputError):
        for record in Reader(find_inputs(whole)[0]):
            assert isinstance(record, Document)
            before.append(record.text)
    assert 0 < len(before) < len(texts)
    assert found == {*TEXTS[0], *texts[: len(before)]}
    assert skipping.stats()["damaged_files"] == 1
    pipeline.assert_resumes(lambda: make([good, whole], on_error="skip").pack(64).batch(36), items=2, world_sizes=(2,))


def test_plain_files_are_read_in_any_place_without_what_comes_before(tmp_path: Path) -> None:
    texts = make_texts(1800, 5)
    file = write_texts(tmp_path / "large.jsonl", texts)

    def make_stream() -> pipeline.Stream:
        return pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, window=100, lanes=4).documents().batch(4)

    stream = make_stream()
    found = [spelled(row) for batch in stream for row in batch["input_ids"]]
    assert Counter(found) == Counter(texts)
    assert stream.stats()["bytes_read"] < 1.3 * file.stat().st_size
    state: dict[str, Any] = {}
    for _ in islice(stream, 375):
        state = stream.state_dict()
    resumed = make_stream()
    resumed.load_state_dict(state)
    assert [spelled(row) for batch in resumed for row in batch["input_ids"]] == found[1500:]
    assert resumed.stats()["bytes_read"] < file.stat().st_size // 2


def test_documents_of_plain_files_without_an_id_are_named_by_their_byte(tmp_path: Path) -> None:
    texts = make_texts(500, 5)
    file = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text}) for text in texts]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)]).tolist()
    seen: dict[str, str] = {}

    def note(record: Any) -> bool:
        seen[record.text] = record.id
        assert (record.line, record.byte) == (0, int(record.id.rpartition(" ")[2]))
        return True

    shuffled = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, lanes=4)
    assert len(list(shuffled.filter(note, name="note").documents())) == 500
    assert seen == {text: f"a.jsonl:byte {start}" for text, start in zip(texts, starts, strict=False)}
    rest, held = (
        {spelled(row["input_ids"]) for row in half.shuffle(seed).documents()}
        for seed, half in enumerate(pipeline.TextDataset(file, "bytes", epochs=1).split(val=0.3))
    )
    unshuffled = pipeline.TextDataset(file, "bytes", epochs=1).split(val=0.3)[1].documents()
    assert held == {spelled(row["input_ids"]) for row in unshuffled}
    assert rest | held == set(texts)
    lines[400] = '{"text": '
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"a\.jsonl, byte {starts[400]}: .*on_error='records'"):
        list(pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, lanes=4).documents())


def test_row_groups_of_one_parquet_file_are_read_apart_and_keep_their_row_numbers(tmp_path: Path) -> None:
    texts = make_texts(400, 6)
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}), file, row_group_size=50)
    names: dict[str, str] = {}

    def note(record: Any) -> bool:
        names[record.text] = record.id
        return True

    stream = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, lanes=8).filter(note, name="note").documents()
    first = [spelled(batch["input_ids"]) for batch in islice(stream, 8)]
    assert len({texts.index(text) // 50 for text in first}) > 4
    assert Counter(spelled(item["input_ids"]) for item in stream) == Counter(texts)
    assert names == {text: f"a.parquet:{n}" for n, text in enumerate(texts, 1)}


def test_a_compressed_file_under_a_plain_name_gives_each_document_once(tmp_path: Path) -> None:
    texts = make_texts(500, 7)
    packed_file = write_texts(tmp_path / "a.jsonl.gz", texts)
    file = packed_file.rename(tmp_path / "b.jsonl")
    stream = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, lanes=4).documents()
    assert Counter(spelled(item["input_ids"]) for item in stream) == Counter(texts)


def test_the_first_batch_reads_only_what_it_needs_of_many_files(tmp_path: Path) -> None:
    paths = [write_texts(tmp_path / f"{n:03d}.jsonl", make_texts(200, n)) for n in range(60)]
    size = sum(path.stat().st_size for path in paths)
    stream = pipeline.TextDataset(paths, "bytes").shuffle(0, window=200).pack(64).batch(2)
    next(iter(stream))
    assert stream.stats()["bytes_read"] < size // 10


def test_a_lane_far_ahead_of_the_others_makes_nobody_lose_or_repeat(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / f"{n}.jsonl.gz", make_texts(150, n)) for n in range(3)]
    stream = pipeline.TextDataset(files, "bytes", epochs=1).shuffle(0, window=60, lanes=4)
    layout = LaneLayout(rows=1, lanes=4)
    windows = TextWindows(
        stream._config.data,
        layout=layout,
        places=dict.fromkeys(range(4), (0, 0, 0)),
        seed=0,
        window=WindowSize(0),
        filters=(),
        epochs=1,
        held_bytes=2000,  # what is passed over is hardly ever still there
    )
    found: Counter[str] = Counter()
    for lane in range(4):
        place = (0, 0, 0)
        while (window := windows.window(lane, place)) is not None:
            chunk = window.take(0, None)
            found.update(spelled(ids) for ids in np.split(chunk.ids, np.cumsum(chunk.lengths)[:-1]))
            place = window.following
    del found[""]
    assert found == Counter(text for n in range(3) for text in make_texts(150, n))


def test_split_puts_every_document_in_one_half_wherever_it_lies(tmp_path: Path) -> None:
    texts = make_texts(600, 11)
    one = write_texts(tmp_path / "all.jsonl", texts)
    for line, path in ((300, "a.jsonl"), (600, "b.jsonl")):
        lines = one.read_text(encoding="utf-8").splitlines(keepends=True)[line - 300 : line]
        (tmp_path / path).write_text("".join(lines), encoding="utf-8")

    def halves(files: Any, val: float) -> list[list[str]]:
        parts = pipeline.TextDataset(files, "bytes", epochs=1).split(val=val)
        return [sorted(spelled(item["input_ids"]) for item in part.documents()) for part in parts]

    rest, held = halves(one, 0.1)
    assert sorted(rest + held) == sorted(texts)
    assert 30 < len(held) < 90
    assert halves([tmp_path / "b.jsonl", tmp_path / "a.jsonl"], 0.1) == [rest, held]
    assert set(held) < set(halves(one, 0.3)[1])
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, *texts]), encoding="utf-8")
    rest, held = halves(plain, 0.2)
    assert not set(rest) & set(held)  # without ids equal texts go together
    assert len(rest) + len(held) == 1200
    stream = pipeline.TextDataset(one, "bytes").split(val=0.5)[1].shuffle(0, lanes=2).pack(32).batch(2)
    next(iter(stream))
    with pytest.raises(StateError, match=r"^data was"):
        pipeline.TextDataset(one, "bytes").shuffle(0, lanes=2).pack(32).batch(2).load_state_dict(stream.state_dict())
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        pipeline.TextDataset(one, "bytes").split(val=1)


def test_a_mix_of_text_is_refused_with_the_cure(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match="build shards"):
        pipeline.mix({"a": pipeline.TextDataset(files, "bytes")}, weights={"a": 1})


def test_unknown_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.jsonl"):
        pipeline.TextDataset(tmp_path / "missing.jsonl", "bytes")
    with pytest.raises(ConfigError, match="epochs must be an integer of at least 1, got 0"):
        pipeline.TextDataset(tmp_path, "bytes", epochs=0)
    with pytest.raises(ConfigError, match="text_key must be the name of a field, got 3"):
        pipeline.TextDataset(tmp_path, "bytes", text_key=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no files were given"):
        pipeline.TextDataset([], "bytes")
    write_texts(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(ConfigError, match=r"tokenizer must be .* got int"):
        pipeline.TextDataset(tmp_path / "a.jsonl", 42)


def test_a_file_that_changes_or_goes_before_it_is_read_is_refused_though_a_state_was_saved(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / f"{n}.jsonl", make_texts(1500, n)) for n in range(2)]
    stream = pipeline.TextDataset(files, "bytes", epochs=1).documents()
    iterator = iter(stream)
    next(iterator)
    stream.state_dict()
    write_texts(files[1], make_texts(1500, 5))
    with pytest.raises(InputError, match=r"1\.jsonl changed since the stream was made"):
        list(iterator)
    gone = pipeline.TextDataset(files, "bytes", epochs=1).documents()
    files[1].unlink()
    with pytest.raises(InputError, match=r"1\.jsonl: cannot be read any more: No such file"):
        list(gone)
    with pytest.raises(InputError, match="cannot be read any more"):
        gone.state_dict()


def fails_on_questions(record: Any) -> bool:
    if "question" in record.text:
        raise RuntimeError("a question")
    return True


def test_an_error_in_a_filter_names_the_document(tmp_path: Path) -> None:
    file = write_texts(tmp_path / "a.jsonl", ["one", "two", "question", "three"])
    stream = pipeline.TextDataset(file, "bytes").filter(fails_on_questions).pack(64)
    with pytest.raises(RuntimeError, match="a question") as caught:
        next(iter(stream))
    assert caught.value.__notes__ == ["in a filter, of the document of a.jsonl, line 3, id 'a-2'"]


def test_functions_without_a_module_filter_too(files: list[Path]) -> None:
    for function in ({1: 1}.get, str.isupper):
        shape = json.loads(make(files).filter(function).pack(64).state_dict()["shape"])
        assert "builtins." in shape["filters"][0]


def test_files_of_equal_names_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    for folder, text in (("a", "one"), ("b", "another one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text(json.dumps({"text": text}) + "\n")
    files = [tmp_path / "a/x.jsonl", tmp_path / "b/x.jsonl"]
    seen: list[str] = []
    stream = pipeline.TextDataset(files, "bytes", epochs=1).filter(lambda document: seen.append(document.id) is None)
    lengths = [len(item["input_ids"]) for item in stream.documents()]
    assert lengths == [len("one") + 1, len("another one") + 1]
    assert seen == ["a/x.jsonl:1", "b/x.jsonl:1"]
    twice = pipeline.TextDataset([files[0], files[0]], "bytes", epochs=1).documents()
    assert [len(item["input_ids"]) for item in twice] == [4, 4]


def test_streams_name_no_format_of_files() -> None:
    named = {form.module for form in FORMATS}
    folder = Path(pipeline.__file__).parent / "stream"
    for path in folder.rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert named.isdisjoint(texts), path
