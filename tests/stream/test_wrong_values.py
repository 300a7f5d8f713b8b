"""Every argument of the streaming API with wrong values: each is refused at the call, by an error that names the argument."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
from pipeline.errors import ConfigError, InputError, ShardwrightError
from tests.helpers.builds import run
from tests.helpers.tokenizer_samples import train
from tests.stream.streams import ids

NAN = math.nan
HUGE = 10**30
NO_COUNT = (0, -1, True, 1.5, "3", NAN, HUGE, b"3", [3], np.float32(3), torch.tensor(3))
NO_FLAG = (0, 1, -1, "no", "", 1.5, NAN, [], {}, torch.tensor(True))
NO_NAME = (1, True, 1.5, NAN, b"next", ["next"], {}, "nxt", "")
NO_FUNCTION = (None, 3, "len", [len], NAN)
NO_SHARE = (None, 0, 1, -0.1, 1.5, "0.1", True, NAN, math.inf, [0.1], HUGE)
NO_PATH = (1, True, 1.5, NAN, b"x", {}, "a\0b", "\ud800", [])
NO_BUFFER = r".* no buffer is filled; write \.shuffle\(seed=0\), or \.shuffle\(seed=0, window=64\)"
NO_OPTIONS = (1, True, "key", NAN, ["key"], {1: 2})


def tokens(**options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset.from_tokens(range(640), lengths=[64] * 10, **options)


def packed() -> pipeline.Stream:
    return tokens().pack(8)


def batches() -> pipeline.Stream:
    return packed().batch(2)


def mixed(**options: Any) -> pipeline.Stream:
    return pipeline.mix({"web": tokens(), "wiki": tokens()}, **options)


def text(tmp_path: Path, **options: Any) -> pipeline.Stream:
    (tmp_path / "x.jsonl").write_text('{"text": "to be"}\n')
    return pipeline.TextDataset(**{"source": tmp_path / "x.jsonl", "tokenizer": "bytes", **options})


Case = tuple[str, Callable[[Any], Any], tuple[Any, ...], str]
CASES: list[Case] = [
    # function and argument, the call, wrong values, expected words
    ("ShardDataset(source)", pipeline.ShardDataset, (None, 3, True, NAN, b"x", {}, object()), "dataset is named by"),
    ("ShardDataset([source])", lambda v: pipeline.ShardDataset([v]), (None, *NO_PATH), "each shard must be a path"),
    ("ShardDataset(cache_dir)", lambda v: pipeline.ShardDataset("x.tar", cache_dir=v), NO_PATH, "cache_dir must be a path"),
    ("from_tokens(tokens)", pipeline.ShardDataset.from_tokens, (None, "3", 1.5, [1.5], [[1]], NAN), "tokens must be"),
    ("from_tokens(lengths)",
     lambda v: pipeline.ShardDataset.from_tokens([1, 2], lengths=v), ("3", 1.5, [[1]], [True], [3, -1], [3]), "lengths "),
    ("from_texts(tokenizer)",
     lambda v: pipeline.ShardDataset.from_texts(["a"], v), (3, None, len, {"a": 1}), "a loaded tokenizer"),
    ("from_tokens(eos_id)", lambda v: tokens(eos_id=v), (-1, True, 1.5, "3", NAN, HUGE), "eos_id must be an integer"),
    ("from_tokens(epochs)", lambda v: tokens(epochs=v), NO_COUNT, "epochs must be"),
    ("from_texts(texts)",
     lambda v: pipeline.ShardDataset.from_texts(v, "bytes"), (None, 3, NAN, "a", b"a", {}, [1], ["a", None]), "texts must"),
    ("from_texts(bos)", lambda v: pipeline.ShardDataset.from_texts(["a"], "bytes", bos=v), NO_FLAG, "bos must be True or False"),
    ("from_texts(epochs)", lambda v: pipeline.ShardDataset.from_texts(["a"], "bytes", epochs=v), NO_COUNT, "epochs must be"),
    ("pack(seq_len)", lambda v: tokens().pack(v), (None, *NO_COUNT), "seq_len must be"),
    ("pack(stride)", lambda v: tokens().pack(8, stride=v), NO_COUNT, "stride"),
    ("pack(shift)", lambda v: tokens().pack(8, shift=v), (None, *NO_COUNT), "shift must be"),
    ("pack(shift=None)", lambda v: tokens().pack(8, shift=v), (None, "even", 1.5), "at least 1 or 'divisors', got"),
    ("pack(boundaries)", lambda v: tokens().pack(8, boundaries=v), (None, *NO_FLAG), "boundaries must be True or False"),
    ("pack(best_fit)", lambda v: tokens().pack(8, best_fit=v), (None, *NO_FLAG), "best_fit must be True or False"),
    ("pack(labels)", lambda v: tokens().pack(8, labels=v), (None, *NO_NAME), "labels must be 'next'"),
    ("sample(seq_len)", lambda v: tokens().sample(v), (None, *NO_COUNT), "seq_len must be"),
    ("sample(shift)", lambda v: tokens().sample(8, shift=v), (None, *NO_COUNT), "shift must be"),
    ("sample(boundaries)", lambda v: tokens().sample(8, boundaries=v), (None, *NO_FLAG), "boundaries must be True or False"),
    ("sample(labels)", lambda v: tokens().sample(8, labels=v), (None, *NO_NAME), "labels must be 'next'"),
    ("documents(max_length)", lambda v: tokens().documents(v), NO_COUNT, "max_length must be"),
    ("documents(pad_to_multiple_of)",
     lambda v: tokens().documents(pad_to_multiple_of=v), (None, *NO_COUNT), "pad_to_multiple_of"),
    ("documents(labels)", lambda v: tokens().documents(labels=v), (None, *NO_NAME), "labels must be 'next'"),
    ("documents(bucket)", lambda v: tokens().documents(bucket=v), NO_COUNT, "bucket must be"),
    ("shuffle(number)", lambda v: tokens().shuffle(v), (None, 1000, -1, True, "3", NAN), rf"shuffle\([^,]+\): {NO_BUFFER}"),
    ("shuffle(number, buffer_size)",
     lambda v: tokens().shuffle(1, buffer_size=v, seed=3), (9, -1), rf"1, buffer_size=-?\d\): {NO_BUFFER}"),
    ("shuffle(seed)", lambda v: tokens().shuffle(seed=v), (-1, True, 1.5, "3", NAN, b"3", [3]), "seed must be"),
    ("shuffle(window)", lambda v: tokens().shuffle(seed=0, window=v), NO_COUNT, "window must be"),
    ("shuffle(lanes)", lambda v: tokens().shuffle(seed=0, lanes=v), NO_COUNT, "lanes must be"),
    ("batch(batch_size)", lambda v: packed().batch(v), (None, *NO_COUNT), "batch_size must be"),
    ("batch(last)", lambda v: packed().batch(2, last=v), (None, *NO_NAME), "last must be 'pad' or 'drop'"),
    ("batch(dtype)", lambda v: packed().batch(2, dtype=v), (None, int, *NO_NAME), "dtype must be 'int64' or 'stored'"),
    ("take(count)", lambda v: batches().take(v), (None, *NO_COUNT[1:]), "count must be"),
    ("shard(rank)", lambda v: batches().shard(v, 2), (None, *NO_COUNT[1:], 2), "rank must be"),
    ("shard(world_size)", lambda v: batches().shard(0, v), NO_COUNT, "world_size must be"),
    ("shard(group)", lambda v: batches().shard(v), (None, 0, True, "dp", NAN), "a rank and a world size"),
    ("to(device)", lambda v: batches().to(v), ("gpu", 1.5, NAN, HUGE, [], "cuda:x"), r"is no device of torch \(\w"),
    ("prefetch(count)", lambda v: batches().prefetch(v), (None, *NO_COUNT[1:]), "count must be"),
    ("loader(keys)", lambda v: batches().loader(keys=v), (1, True, "HF", "", NAN, ["hf"], b"hf"), "keys must be 'hf'"),
    ("loader(length)", lambda v: batches().loader(length=v), NO_COUNT, "length must be"),
    ("loader(repeat)", lambda v: batches().take(2).loader(repeat=v), (None, *NO_FLAG), "repeat must be True or False"),
    ("Loader.set_epoch(epoch)", lambda v: batches().loader().set_epoch(v), (None, *NO_COUNT[1:]), "epoch must be"),
    ("Loader.load_state_dict(state)", lambda v: batches().loader().load_state_dict(v), (None, 3, "{}", [], {}), "state"),
    ("split(val)", lambda v: tokens().split(val=v), NO_SHARE, "val must be a share"),
    ("filter(predicate)", lambda v: tokens().filter(v), NO_FUNCTION, "filter needs a function"),
    ("filter(name)", lambda v: tokens().filter(len, name=v), (1, True, "", NAN, b"x", []), "name"),
    ("map_documents(function)", lambda v: tokens().map_documents(v), NO_FUNCTION, "map_documents needs a function"),
    ("map_documents(name)", lambda v: tokens().map_documents(len, name=v), (1, True, "", NAN, b"x", []), "name"),
    ("map_documents(same_length)", lambda v: tokens().map_documents(len, same_length=v), (None, *NO_FLAG), "same_length must be"),
    ("map_documents(vocab_size)", lambda v: tokens().map_documents(len, name="m", vocab_size=v), NO_COUNT[:6], "vocab_size must"),
    ("map(function)", lambda v: packed().map(v), NO_FUNCTION, "map needs a function"),
    ("apply(stage)", lambda v: packed().apply(v), NO_FUNCTION, "a stage must be callable"),
    ("set_epoch(epoch)", lambda v: packed().set_epoch(v), (None, *NO_COUNT[1:]), "epoch must be"),
    ("state_dict(batches)", lambda v: batches().state_dict(batches=v), NO_COUNT[1:], "batches must be"),
    ("load_state_dict(state)", lambda v: batches().load_state_dict(v), (None, 3, True, "{}", b"{}", [], {}, {1: 2}), "state"),
    ("load_state_dict({skip})", lambda v: batches().load_state_dict(batches().state_dict() | {"skip": v}), NO_COUNT[1:], "skip"),
    ("merge_states(states)", pipeline.merge_states, (None, 3, True, "x", b"x", [], {}, NAN, object()), "merge_states needs"),
    ("merge_states([state])",
     lambda v: pipeline.merge_states([v]), (None, 3, "x", b"x", [], {1: 2}, NAN), "no state of a stream"),
    ("set_weights(weights)", lambda v: mixed(temperature=1).pack(4).set_weights(v), (None, 3, "web", [], {}, {1: 2}), "weights"),
    ("set_weights({web})",
     lambda v: mixed(temperature=1).set_weights({"web": v, "wiki": 1}), (None, True, "3", -1, NAN), "weights must"),
    ("mix(sources)", lambda v: pipeline.mix(v, weights={}), (None, 3, "x", [], [1], {}, NAN), "a mix needs a dict of datasets"),
    ("mix({web})", lambda v: pipeline.mix({"web": v}, weights={"web": 1}), (None, 3, "x", [], {}), "must be a dataset"),
    ("mix({name})",
     lambda v: pipeline.mix({v: tokens()}, weights={}), (None, 3, True, b"web", 1.5), "sources of a mix have names"),
    ("mix(weights)", lambda v: mixed(weights=v), (3, True, "web", [], [1], NAN, {1: 2}, {}, [(0, 1)]), "weights|schedule"),
    ("mix(weights={web})",
     lambda v: mixed(weights={"web": v, "wiki": 1}), (None, True, "3", "1/0", -1, NAN, math.inf, []), "weights must"),
    ("mix(weights=[(at, ...)])",
     lambda v: mixed(weights=[(v, {"web": 1, "wiki": 1})]), (None, True, "0", 1.5, -1, NAN), "a global sequence"),
    ("mix(temperature)", lambda v: mixed(temperature=v), (0, -1, True, "1", NAN, math.inf, []), "temperature must be a number"),
]  # fmt: skip
TEXT_CASES: list[tuple[str, tuple[Any, ...], str]] = [
    ("source", (None, 3, True, 1.5, NAN, b"x", object(), torch.tensor(3), [3], [None]), "type"),
    ("source", ([],), "no files were given"),
    ("tokenizer", (None, 3, True, NAN, b"x", [], {}, "no/where"), "tokenizer|no/where"),
    ("text_key", (None, 3, True, b"text", ["text"]), "text_key must be the name of a field"),
    ("id_key", (None, 3, True, b"id", ["id"]), "id_key must be the name of a field"),
    ("epochs", NO_COUNT, "epochs must be"),
    ("on_error", (None, True, 1, "ignore", "", ["stop"], {}), "on_error must be one of"),
    ("eos", (None, *NO_FLAG, "always"), "eos must be True or False"),
    ("bos", (None, *NO_FLAG, "always"), "bos must be True or False"),
    ("fields", (None, 3, True, NAN, b"url", [None], [3], {"url": "str"}, torch.tensor(3)), "fields must be names"),
    ("where", (3, True, NAN, b"a > 1", [], {}), "where must be a condition"),
    ("normalize", (None, *NO_FLAG), "normalize must be True or False"),
    ("tokens_key", (3, True, b"ids", ["ids"]), "tokens_key must be the name of a field"),
    ("format", (None, 3, True, NAN, b"text", ["text"], "txt"), "format must be one of"),
    ("storage_options", NO_OPTIONS, "storage_options must be a dict"),
]
SHARD_CASES: list[tuple[str, tuple[Any, ...], str]] = [
    ("split", (3, True, NAN, b"train", ["train"], {}, "trian"), "split"),
    ("epochs", NO_COUNT, "epochs must be"),
    ("verify", (None, *NO_FLAG), "verify must be True or False"),
    ("cache_limit", NO_COUNT[:6], "cache_limit must be"),
    ("storage_options", NO_OPTIONS, "storage_options must be a dict"),
    ("eos_id", (-1, True, 1.5, "3", NAN, HUGE, [1]), "eos_id must be an integer"),
    ("whole_shards", (None, *NO_FLAG), "whole_shards must be True or False"),
]


@pytest.mark.parametrize(("call", "wrong", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_wrong_value_is_an_error_that_names_the_argument(
    call: Callable[[Any], Any], wrong: tuple[Any, ...], words: str
) -> None:
    for value in wrong:
        with pytest.raises(ShardwrightError, match=words) as error:
            call(value)
        assert_shows(str(error.value), value, 0 in wrong)


def assert_shows(message: str, value: Any, from_one: bool) -> None:
    """Hold a message to the value or its type, of which a part will do, and to the bounds of a count."""
    parts = [value, *value] if isinstance(value, list | dict) else [value]
    parts += [each for part in parts if isinstance(part, tuple) for each in part]
    shown = [(repr(part), type(part).__name__, str(np.asarray(part).dtype), f"{part}:") for part in parts]
    is_empty = isinstance(value, list | dict) and not value
    assert is_empty or any(each in message for each in chain(*shown)), value
    if "integer of at least" in message and "divisors" not in message:
        assert f"at least {int(from_one)}, got" in message
    if value is HUGE and "must be at most" in message:
        assert f"at most {2**31 - 1}, got" in message or f"at most {2**62 - 1}, got" in message


def test_the_greatest_number_is_taken_and_no_greater_one() -> None:
    for call, most in ((tokens().pack, 2**31 - 1), (batches().take, 2**62 - 1), (lambda v: batches().shard(v, 3), 2)):
        call(most)
        with pytest.raises(
            ConfigError, match=rf"must be (at most {most}, got|below world_size, got rank) {most + 1}\b"
        ):
            call(most + 1)


@pytest.mark.parametrize(("name", "wrong", "words"), TEXT_CASES, ids=[case[0] for case in TEXT_CASES])
def test_a_wrong_value_for_texts_names_the_argument(
    tmp_path: Path, name: str, wrong: tuple[Any, ...], words: str
) -> None:
    for value in wrong:
        with pytest.raises(ShardwrightError, match=words) as error:
            text(tmp_path, **{name: value})
        assert_shows(str(error.value), value, 0 in wrong)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    lines = [json.dumps({"text": f"to be or not to be, {number}"}) for number in range(40)]
    (folder / "x.jsonl").write_text("\n".join(lines))
    run(folder / "x.jsonl", folder / "shards", tokenizer="bytes", rules=(), language=(), dedup=False, val_fraction=0.25)
    return folder / "shards"


@pytest.mark.parametrize(("name", "wrong", "words"), SHARD_CASES, ids=[case[0] for case in SHARD_CASES])
def test_a_wrong_value_for_shards_names_the_argument(
    shards: Path, name: str, wrong: tuple[Any, ...], words: str
) -> None:
    for value in wrong:
        with pytest.raises(ShardwrightError, match=words) as error:
            pipeline.ShardDataset(shards, **{name: value})
        assert_shows(str(error.value), value, 0 in wrong)


@pytest.mark.parametrize("name", ["x.jsonl", "raw/*.parquet", "part-{0..9}.txt.gz", "https://host/x.csv"])
def test_text_given_as_shards_is_sent_to_where_text_is_read(tmp_path: Path, name: str) -> None:
    for given in (name, [name]):
        with pytest.raises(ConfigError, match=r"text, .*stream it with pipeline\.TextDataset"):
            pipeline.ShardDataset(given)


def test_names_of_the_hub_and_texts_are_answered_with_what_to_write() -> None:
    with pytest.raises(InputError, match=r"no such file.*hf://datasets/HuggingFaceFW/fineweb-edu$"):
        pipeline.TextDataset("HuggingFaceFW/fineweb-edu", "bytes")
    for given in ("to be, or not to be", "to be? that is [so]", "to be or not to be " * 60):
        with pytest.raises(InputError, match=r"\[\{'text': \.\.\.\}\], or to pipeline\.ShardDataset\.from_texts"):
            pipeline.TextDataset([given], "bytes")


def test_relative_paths_hold_when_the_process_changes_its_directory(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shards.parent)
    made = [
        pipeline.ShardDataset("shards", cache_dir="cache"),
        pipeline.ShardDataset([f"shards/{path.name}" for path in shards.glob("train-*.tar")]),
        pipeline.TextDataset("x.jsonl", "bytes"),
        pipeline.TextDataset("x.jsonl", "bytes").filter(lambda record: True, name="all").shuffle(seed=1),
    ]
    streams = [stream.pack(8).batch(2) for stream in made]
    os.chdir(tmp_path)
    for stream in streams:
        state = stream.state_dict()
        first = next(iter(stream))["input_ids"]
        stream.load_state_dict(state)
        assert torch.equal(next(iter(stream))["input_ids"], first)
    assert list(tmp_path.iterdir()) == []


def test_fewer_documents_than_rows_are_an_error_with_the_cure(tmp_path: Path) -> None:
    for most in (1, 3):
        (tmp_path / "x.jsonl").write_text('{"text": "to be"}\n' * most)
        stream = pipeline.TextDataset(tmp_path / "x.jsonl", "bytes").shuffle(seed=1).pack(4).batch(4).shard(0, 2)
        with pytest.raises(ConfigError, match=rf"{most} records? for the 8 rows .*; give more input") as error:
            next(iter(stream))
        assert "shuffle" not in str(error.value)


def test_documents_begin_with_the_begin_of_text_id_as_in_a_build(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    train("llama", folder / "tokenizer.json")
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["post_processor"] = {  # a template, which neither applies
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "bos_token": "<s>"}')
    (tmp_path / "x.jsonl").write_text('{"text": "one two"}\n{"text": "three"}\n')
    found = {}
    for bos in ("always", "never"):
        options: dict[str, Any] = {"tokenizer": str(folder), "bos": bos, "rules": (), "language": (), "val_fraction": 0}
        run(tmp_path / "x.jsonl", tmp_path / bos, dedup=False, **options)
        built = [item["input_ids"].tolist() for item in pipeline.ShardDataset(tmp_path / bos, epochs=1).documents()]
        stream = pipeline.TextDataset(tmp_path / "x.jsonl", str(folder), epochs=1, bos=bos == "always")
        assert [item["input_ids"].tolist() for item in stream.documents()] == built
        texts = pipeline.ShardDataset.from_texts(["one two", "three"], str(folder), epochs=1, bos=bos == "always")
        assert [item["input_ids"].tolist() for item in texts.documents()] == built
        found[bos] = built
    assert found["always"] == [[1, *ids] for ids in found["never"]]
    state = pipeline.TextDataset(tmp_path / "x.jsonl", str(folder), bos=True).pack(4).state_dict()
    with pytest.raises(pipeline.StateError, match="data"):
        pipeline.TextDataset(tmp_path / "x.jsonl", str(folder)).pack(4).load_state_dict(state)
    with pytest.raises(ConfigError, match="bos=True: tokenizer 'bytes'"):
        text(tmp_path, bos=True)


def test_integers_of_numpy_are_those_of_python() -> None:
    def state(number: Any) -> dict[str, Any]:
        data = pipeline.ShardDataset.from_tokens(range(640), lengths=[64] * 10, eos_id=number(3), epochs=number(1))
        mixed = pipeline.mix({"web": tokens()}, weights=[(number(0), {"web": number(1)})])
        stream = data.shuffle(seed=number(1), lanes=number(2), window=number(1))
        stream = stream.pack(number(16), stride=number(8), shift=number(1)).batch(number(4), cut=number(8))
        stream = stream.take(number(9)).shard(number(0), number(2)).prefetch(number(0))
        stream.set_epoch(number(1))
        stream.skip(number(2))
        others = [
            mixed.shuffle(seed=number(1), lanes=number(2)).pack(number(8)).batch(number(2)),
            tokens().shuffle(seed=number(2)).documents(number(9), pad_to_multiple_of=number(4), bucket=number(2)),
        ]
        states = [stream.state_dict(batches=number(3)), stream.state_dict(), *(other.state_dict() for other in others)]
        return {"states": json.dumps(states), "text": repr(stream), "trace": stream.trace(number(2), number(1))}

    assert state(np.int64) == state(int) == state(np.uint16)


def test_booleans_of_numpy_are_those_of_python() -> None:
    def state(flag: Any) -> str:
        mapped = tokens().map_documents(lambda ids, mask: ids[::-1], same_length=flag, name="back")
        return json.dumps([each.state_dict() for each in (mapped.pack(8), tokens().pack(8, best_fit=flag))])

    assert state(np.True_) == state(True)


def test_more_lanes_than_documents_of_an_endless_stream_are_refused_where_a_lane_would_wait_for_ever() -> None:
    def rows(documents: int, epochs: int | None = None) -> pipeline.Stream:
        data = pipeline.ShardDataset.from_tokens(range(3 * documents), lengths=[3] * documents, epochs=epochs)
        return data.shuffle(seed=0, lanes=6).pack(4, best_fit=True).batch(2)

    with pytest.raises(ConfigError, match=r"lanes=6: an epoch has 5 documents.* leave lanes out"):
        next(iter(rows(5)))
    assert len(ids(islice(rows(6), 9))) == 9
    assert ids(rows(5, epochs=1))
