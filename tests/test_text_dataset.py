"""Raw text as a stream: every document as often as it should come, in one order, resumed exactly."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, InputError, StateError
from pipeline.text.discovery import find_inputs
from pipeline.text.document import Document
from pipeline.text.readers.reader import Reader
from tests.text_samples import KINDS, make_texts, spelled, write_tar, write_texts

TEXTS = [make_texts(count, seed) for seed, count in enumerate((70, 1, 45, 90))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    return [write_texts(folder / f"part{n}.jsonl.zst", texts) for n, texts in enumerate(TEXTS)]


def make(files: Any, **options: Any) -> pipeline.Stream:
    return pipeline.TextDataset(files, tokenizer="bytes", **options).shuffle(seed=3, window=40, lanes=6)


def packed(files: Any, **options: Any) -> pipeline.Stream:
    return make(files, **options).pack(64).batch(2)


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
    # All batches but the last are full.
    assert all(int(batch["valid_tokens"]) > 64 for batch in batches[:-1])


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("fork", 3), ("spawn", 2), ("forkserver", 3)])
def test_workers_of_a_loader_give_the_order_without_workers(files: list[Path], start: str, workers: int) -> None:
    expected = ids(islice(packed(files), 12))
    stream = packed(files).take(12)
    assert ids(DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=start)) == expected


def test_a_bounded_stream_has_the_same_order_in_workers(files: list[Path]) -> None:
    expected = ids(packed(files, epochs=1))
    assert ids(DataLoader(packed(files, epochs=1), batch_size=None, num_workers=2)) == expected


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_ranks_take_the_batches_of_all_in_turn(files: list[Path], world_size: int) -> None:
    expected = ids(islice(packed(files), 12))
    ranks = [ids(islice(packed(files).shard(rank, world_size), 12 // world_size)) for rank in range(world_size)]
    assert [ranks[k % world_size][k // world_size] for k in range(12)] == expected


def test_it_resumes_after_every_batch_on_other_ranks_too(files: list[Path]) -> None:
    pipeline.assert_resumes(lambda: packed(files), items=10)
    pipeline.assert_resumes(lambda: make(files).pack(50, stride=20, boundaries=True).batch(3), items=5)
    pipeline.assert_resumes(lambda: make(files).documents(30).batch(4), items=5)
    pipeline.assert_resumes(lambda: make(files).pack(64), items=8)
    pipeline.assert_resumes(lambda: make(files, epochs=1).pack(512).batch(4), items=99)
    pipeline.assert_resumes(lambda: make(files, epochs=1).documents().batch(7), items=99)
    pipeline.assert_resumes(lambda: packed(files).take(5), items=9)
    pipeline.assert_resumes(lambda: make(files).filter(is_short).pack(64, best_fit=True).batch(2), items=6)


def drop_some(items: Any) -> Any:
    for item in items:
        if int(item["input_ids"][0]) % 3:
            yield item


def test_it_resumes_inside_a_batch_where_a_stage_drops_samples(files: list[Path]) -> None:
    pipeline.assert_resumes(lambda: make(files).pack(32).apply(drop_some).batch(3), items=8)
    pipeline.assert_resumes(lambda: make(files).pack(32).batch(3).apply(drop_some_batches), items=6)


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
    expected = ids(islice(packed(files), 24))
    states = []
    for rank in range(3):
        stream = packed(files).shard(rank, 3)
        list(islice(stream, 4))
        states.append(json.loads(json.dumps(stream.state_dict())))
    merged = pipeline.merge_states(states)
    for rank in range(2):
        stream = packed(files).shard(rank, 2)
        stream.load_state_dict(merged)
        assert stream.state_dict() == merged
        assert ids(islice(stream, 6)) == expected[12:][rank::2]


def test_a_state_that_lacks_lanes_is_refused_naming_them(files: list[Path]) -> None:
    stream = packed(files).shard(1, 3)
    list(islice(stream, 2))
    state = stream.state_dict()
    other = packed(files)
    with pytest.raises(StateError, match=r"lacks lanes 0, 2, 3, 5 \(4 of 6\).*merge_states"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="lacks lanes 0, 2, 3, 5"):
        pipeline.merge_states([state])
    ahead = packed(files).shard(0, 3)
    list(islice(ahead, 3))
    with pytest.raises(StateError, match="sequence_index is 12 in state 0, but 18 in state 1"):
        pipeline.merge_states([state, ahead.state_dict()])
    moved = {**state, "lanes": {**state["lanes"], "1": [0, 0, 0, 0, 1]}}
    with pytest.raises(StateError, match="lane 1 stands at"):
        pipeline.merge_states([state, moved])
    with pytest.raises(StateError, match="none"):
        pipeline.merge_states([])
    broken = {**state, "lanes": {"1": [0, 0]}}
    with pytest.raises(StateError, match="no state of a cursor stream"):
        other.load_state_dict(broken)


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
        (lambda files: make(files).pack(64).batch(3), "batch_size"),
        (lambda files: make(files).pack(32).batch(2), "seq_len"),
        (lambda files: make(files).documents().batch(2), "kind"),
        (lambda files: make(files).pack(64, best_fit=True).batch(2), "best_fit"),
        (lambda files: make(files).filter(is_short).pack(64).batch(2), "filters"),
        (lambda files: make(files, eos=False).pack(64).batch(2), "data"),
        (lambda files: make(files[:3]).pack(64).batch(2), "data"),
        (lambda files: pipeline.TextDataset(files, "bytes").shuffle(3, window=41, lanes=6).pack(64).batch(2), "window"),
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
    stream = make(files).filter(comes_from_last_file).pack(64).batch(2)
    expected = ids(islice(stream, 12))
    ranks = [ids(islice(make(files).filter(comes_from_last_file).pack(64).batch(2).shard(r, 6), 2)) for r in range(6)]
    assert [ranks[k % 6][k // 6] for k in range(12)] == expected
    counted = stream.stats()
    assert counted["rejected"] > counted["documents"] // 3


def test_a_lane_of_which_a_whole_epoch_is_rejected_raises_and_never_spins(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"lane 0 of 6 found no document to keep in a whole epoch .* rejected"):
        next(iter(make(files).filter(is_nothing).pack(64).batch(2)))
    assert list(make(files, epochs=2).filter(is_nothing).pack(64).batch(2)) == []


def test_ranks_and_workers_that_do_not_divide_the_lanes_are_refused_naming_what_does(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"6 lanes .* 4 ranks: .* one of \[1, 2, 3, 6\]"):
        iter(packed(files).shard(0, 4))
    with pytest.raises(ConfigError, match=r"one of \[1\].*an unshuffled stream has one: add .shuffle\(\)"):
        iter(pipeline.TextDataset(files, "bytes").pack(64).batch(2).shard(0, 2))
    with pytest.raises(ConfigError, match="3 ranks of 4 workers"):
        list(DataLoader(packed(files).shard(0, 3), batch_size=None, num_workers=4))


def test_a_bounded_stream_on_several_ranks_is_refused_when_iteration_begins(files: list[Path]) -> None:
    stream = packed(files, epochs=1).shard(0, 2)
    with pytest.raises(ConfigError, match=r"epochs=1 on 2 ranks.*\.take\(n\)"):
        iter(stream)
    bounded = [list(packed(files).take(5).shard(rank, 2)) for rank in range(2)]
    assert [len(batches) for batches in bounded] == [5, 5]


@pytest.mark.parametrize("count", [5, 12])
def test_take_before_batch_is_the_first_sequences_of_all_ranks(files: list[Path], count: int) -> None:
    whole = [row for batch in ids(islice(make(files).pack(64).batch(2), 6)) for row in batch][:count]
    ranks = [list(make(files).pack(64).take(count).batch(2).shard(rank, 2)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    rows = [
        row
        for turn in range(len(ranks[0]))
        for rank in range(2)
        for row, valid in zip(ranks[rank][turn]["input_ids"].tolist(), ranks[rank][turn]["labels"], strict=True)
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
    with pytest.raises(InputError, match=r"bad\.jsonl, line 11: .*on_error='skip'"):
        list(stream)
    skipping = pipeline.TextDataset(file, "bytes", epochs=1, on_error="skip").documents()
    found = [spelled(item["input_ids"]) for item in skipping]
    assert found == [text for n, text in enumerate(TEXTS[0]) if n not in (10, 11)]
    assert skipping.stats()["bad_records"] == 2
    with pytest.raises(ConfigError, match="'stop' or 'skip', got 'ignore'"):
        pipeline.TextDataset(file, "bytes", on_error="ignore")


@pytest.mark.parametrize("workers", [0, 3])
def test_every_rank_skips_the_same_records_and_takes_equally_many_steps(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "bad.jsonl"
    lines = [json.dumps({"text": text}) if n % 5 else '{"text": ' for n, text in enumerate(TEXTS[3])]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = ids(islice(packed(file, on_error="skip"), 20))
    text = spelled(np.concatenate([row for batch in whole for row in batch]))
    assert not any(bad[:40] in text for bad in TEXTS[3][::5] if len(bad) > 40)
    ranks = [
        ids(DataLoader(packed(file, on_error="skip").shard(rank, 2).take(10), batch_size=None, num_workers=workers))
        for rank in range(2)
    ]
    assert [batch for step in zip(*ranks, strict=True) for batch in step] == whole


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "tar"])
def test_a_cut_file_raises_or_gives_what_comes_before_the_cut(tmp_path: Path, kind: str) -> None:
    texts = make_texts(4000, 9)
    whole = write_texts(tmp_path / f"b.{kind}", texts)
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    good = write_texts(tmp_path / "a.jsonl", TEXTS[0])
    with pytest.raises(InputError, match=rf"b\.{kind}"):
        list(pipeline.TextDataset([good, whole], "bytes", epochs=1).documents())
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
    pipeline.assert_resumes(lambda: make([good, whole], on_error="skip").pack(64).batch(40), items=6)


def test_large_plain_files_are_read_in_any_place_without_what_comes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.text.readers import record_blocks

    monkeypatch.setattr(record_blocks, "_CUT_BY_BYTES", 1 << 16)
    monkeypatch.setattr(record_blocks, "_BLOCK_BYTES", 1 << 12)
    texts = make_texts(3000, 5)
    file = write_texts(tmp_path / "large.jsonl", texts)
    assert file.stat().st_size > 1 << 17
    stream = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, window=100, lanes=4).documents()
    found = [spelled(item["input_ids"]) for item in stream]
    assert Counter(found) == Counter(texts)
    state: dict[str, Any] = {}
    stream = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, window=100, lanes=4).documents()
    for _ in islice(stream, 2500):
        state = stream.state_dict()
    resumed = pipeline.TextDataset(file, "bytes", epochs=1).shuffle(1, window=100, lanes=4).documents()
    resumed.load_state_dict(state)
    assert [spelled(item["input_ids"]) for item in resumed] == found[2500:]
    assert resumed.stats()["bytes_read"] < file.stat().st_size // 2


def test_the_first_batch_reads_only_what_it_needs_of_many_files(tmp_path: Path) -> None:
    paths = [write_texts(tmp_path / f"{n:03d}.jsonl", make_texts(200, n)) for n in range(60)]
    size = sum(path.stat().st_size for path in paths)
    stream = pipeline.TextDataset(paths, "bytes").shuffle(0, window=200).pack(64).batch(2)
    next(iter(stream))
    assert stream.stats()["bytes_read"] < size // 10


def test_a_lane_far_ahead_of_the_others_makes_nobody_lose_or_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.stream.sequential import text_blocks as module

    monkeypatch.setattr(module, "_HELD_BYTES", 2000)  # what is passed over is hardly ever still there
    files = [write_texts(tmp_path / f"{n}.jsonl.gz", make_texts(150, n)) for n in range(3)]
    stream = pipeline.TextDataset(files, "bytes", epochs=1).shuffle(0, window=60, lanes=4).documents()
    found = Counter(spelled(item["input_ids"]) for item in stream)
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
