"""Raw text as a stream: every document as often as it should come, in one order, on any ranks and workers."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, InputError, StateError
from tests.helpers.builds import run
from tests.helpers.corpus import documents, english
from tests.helpers.rule_samples import rule_file
from tests.helpers.text_samples import KINDS, jsonl, make_texts, spelled, write_sources, write_texts
from tests.helpers.text_streams import TEXTS, ids, is_short, joined, make, packed
from tests.helpers.tokenizer_samples import train
from tests.stream.loaders import assert_raises
from tests.stream.order_oracle_mixes import PERIOD


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    return [write_texts(folder / f"part{n}.jsonl.zst", texts) for n, texts in enumerate(TEXTS)]


def is_nothing(record: Any) -> bool:
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_streams_its_documents_in_order(tmp_path: Path, kind: str) -> None:
    found = [write_texts(tmp_path / f"part{n}.{kind}", texts) for n, texts in enumerate(TEXTS)]
    stream = pipeline.TextDataset(found, tokenizer="bytes", epochs=1).documents()
    assert [spelled(item["input_ids"]) for item in stream] == [text for texts in TEXTS for text in texts]
    joined = np.concatenate([item["input_ids"] for item in stream])
    rows = list(pipeline.TextDataset(found, tokenizer="bytes", epochs=1).pack(64))
    assert np.array_equal(np.concatenate([row["input_ids"] for row in rows])[: len(joined)], joined)
    assert sum(row["valid_tokens"] for row in rows) == len(joined) - 1


def test_workers_of_a_loader_give_the_order_without_workers(files: list[Path]) -> None:
    expected = ids(islice(packed(files), 12))
    sent = pickle.loads(pickle.dumps(packed(files).take(12)))  # as to workers that are started by spawn
    assert ids(DataLoader(sent, batch_size=None, num_workers=3, multiprocessing_context="fork")) == expected


def is_one_of_few(record: Any) -> bool:
    return record.text.startswith(("3.17 ", "0.5 ", "2.30 "))


@pytest.mark.parametrize("is_live", [False, True])
def test_a_document_must_pass_every_filter(files: list[Path], is_live: bool) -> None:
    records = [{"text": text} for texts in TEXTS for text in texts]
    stream = pipeline.TextDataset((lambda: iter(records)) if is_live else files, "bytes", epochs=1)
    stream = stream.filter(lambda record: "1" in record.text).filter(lambda record: "2" in record.text).documents()
    texts = [text for texts in TEXTS for text in texts if "1" in text and "2" in text]
    assert len(texts) > 1
    assert [spelled(item["input_ids"]) for item in stream] == texts


def test_a_lane_of_which_an_epoch_is_rejected_goes_on_to_the_next(files: list[Path]) -> None:
    stream = pipeline.TextDataset(files, "bytes").shuffle(seed=0, lanes=4).filter(is_one_of_few).documents().batch(2)
    rows = [spelled(row) for batch in islice(stream, 10) for row in batch["input_ids"]]
    assert {row.partition(" ")[0] for row in rows} == {"3.17", "0.5", "2.30"}
    assert stream.stats()["epoch"] > 0


def test_an_epoch_of_which_nothing_is_kept_raises(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"no document was kept .* 36 lanes .* 206 rejected"):
        next(iter(make(files).filter(is_nothing).pack(64).batch(6)))
    with pytest.raises(ConfigError, match=r"0 rejected by filters, \d+ bad.*on_error='stop'"):
        next(iter(make(files, text_key="body", on_error="records").pack(64).batch(6)))


@pytest.mark.parametrize("layout", ["pack", "best fit", "documents"])
def test_a_bounded_stream_without_a_row_is_an_error(files: list[Path], layout: str) -> None:
    def laid_out(stream: Any) -> Any:
        stream = stream.documents() if layout == "documents" else stream.pack(64, best_fit=layout == "best fit")
        return stream.batch(6)

    with pytest.raises(ConfigError, match=r"of the whole stream.* 412 rejected .*\(412 by filter\)"):
        list(laid_out(make(files, epochs=2).filter(is_nothing)))
    with pytest.raises(ConfigError, match=r"\(0 read so far.*loosen the filter or the condition"):
        list(laid_out(make(files, epochs=1, where="n > 3")))
    few = laid_out(make(files, epochs=1).filter(is_one_of_few))
    list(few)
    few.load_state_dict(few.state_dict())
    assert list(few) == []


def test_ranks_and_workers_that_cannot_share_lanes_are_refused(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"lanes=36 .*no multiple of .*24 rows .*use lanes=48 or 24"):
        iter(packed(files).shard(0, 4))
    with pytest.raises(ConfigError, match=r"unshuffled stream has one lane.*2 ranks.*add \.shuffle\(\)"):
        iter(pipeline.TextDataset(files, "bytes").pack(64).batch(2).shard(0, 2))
    loader = DataLoader(make(files).pack(64).batch(12), batch_size=None, num_workers=2)
    assert_raises(ConfigError, r"3 lanes, which 2 workers .* one of \[1, 3\], or .*lanes=48\)", loader)
    few = pipeline.TextDataset(files[:2], "bytes").shuffle().pack(8).batch(80)
    assert next(iter(few))["input_ids"].shape == (80, 8)
    with pytest.raises(ConfigError, match="71 records for the 160 rows"):
        iter(few.shard(1, 2))


def test_split_puts_every_document_in_one_half_wherever_it_lies(tmp_path: Path) -> None:
    texts = make_texts(300, 11)
    one = write_texts(tmp_path / "all.jsonl", texts)
    for line, path in ((150, "a.jsonl"), (300, "b.jsonl")):
        lines = one.read_text(encoding="utf-8").splitlines(keepends=True)[line - 150 : line]
        (tmp_path / path).write_text("".join(lines), encoding="utf-8")

    def halves(files: Any, val: float) -> list[list[str]]:
        parts = pipeline.TextDataset(files, "bytes", epochs=1).split(val=val)
        return [sorted(spelled(item["input_ids"]) for item in part.documents()) for part in parts]

    rest, held = halves(one, 0.1)
    assert sorted(rest + held) == sorted(texts)
    assert 15 < len(held) < 45
    assert halves([tmp_path / "b.jsonl", tmp_path / "a.jsonl"], 0.1) == [rest, held]
    assert set(held) < set(halves(one, 0.3)[1])
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, *texts]), encoding="utf-8")
    rest, held = halves(plain, 0.2)
    assert not set(rest) & set(held)  # without ids equal texts go together
    assert len(rest) + len(held) == 600
    stream = pipeline.TextDataset(one, "bytes").split(val=0.5)[1].shuffle(seed=0, lanes=2).pack(32).batch(2)
    next(iter(stream))
    with pytest.raises(StateError, match=r"^data was"):
        pipeline.TextDataset(one, "bytes").shuffle(seed=0, lanes=2).pack(32).batch(2).load_state_dict(
            stream.state_dict()
        )
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        pipeline.TextDataset(one, "bytes").split(val=1)


def test_a_stream_of_many_compressed_files_keeps_few_of_them_open(tmp_path: Path) -> None:
    many = [write_texts(tmp_path / f"{n:02}.jsonl.gz", make_texts(60, seed=n)) for n in range(60)]
    before = len(os.listdir("/proc/self/fd"))
    batches = iter(pipeline.TextDataset(many, "bytes").shuffle(seed=0, lanes=4, window=4).pack(64).batch(4))
    most = max(len(os.listdir("/proc/self/fd")) for _ in islice(batches, 60))
    assert most - before <= 4 + 8 + 2


def test_little_text_is_read_once_for_all_epochs(tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(5)))
    stream = pipeline.TextDataset(file, "bytes").shuffle(seed=0).pack(64).batch(2)
    list(islice(stream, 20))
    assert stream.stats()["epoch"] > 20
    assert stream.stats()["bytes_read"] < 2 * file.stat().st_size


# A mix of texts: exact shares, weights that change, filters and functions of its documents.


COUNTS = {"web": 200, "wiki": 60, "tiny": 5}
WEIGHTS = {"web": 0.6, "wiki": 0.3, "tiny": 0.1}
SEQ_LEN, LANES, ROWS = 24, 12, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("texts"), COUNTS)


def bare(folder: Path, weights: Any = None) -> pipeline.Stream:
    sources = {name: pipeline.TextDataset(folder / f"{name}.jsonl", "bytes") for name in COUNTS}
    return pipeline.mix(sources, weights or WEIGHTS)


def mixed(folder: Path, weights: Any = None) -> pipeline.Stream:
    return bare(folder, weights).shuffle(seed=3, lanes=LANES).pack(SEQ_LEN).batch(ROWS)


def rows(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


def sources_of(batches: list[list[list[int]]], folder: Path) -> dict[str, int]:
    """Return how many rows each source gave; texts of source ``n`` begin with ``n.``, and "bytes" adds 3 to each byte."""
    counts = dict.fromkeys(COUNTS, 0)
    for row in (row for batch in batches for row in batch):
        text = bytes(max(0, token - 3) for token in row).decode(errors="replace")
        found = {name for seed, name in enumerate(COUNTS) if f"\0{seed}." in text}
        assert len(found) <= 1
        for name in found:
            counts[name] += 1
    return counts


def test_each_source_serves_its_share_of_a_period(tmp_path: Path) -> None:
    for name, count in (("one", 40), ("two", 30)):
        jsonl(tmp_path / f"{name}.jsonl", [f"{name[0]}{n:02}" for n in range(count)])
    sources = {name: pipeline.TextDataset(tmp_path / f"{name}.jsonl", "bytes") for name in ("one", "two")}
    stream = pipeline.mix(sources, {"one": 3, "two": 1}).shuffle(seed=1, lanes=2).pack(4).batch(2)  # a document a row
    found = torch.cat([batch["input_ids"] for batch in islice(stream, PERIOD)])[:, :3] - 3
    texts = ["".join(map(chr, row)) for row in found.tolist()]
    stats = stream.stats()["sources"]
    for name, count, share in (("one", 40, 3 / 4), ("two", 30, 1 / 4)):
        own = [text for text in texts if text[0] == name[0]]
        assert len(own) == stats[name]["sequences"] == 2 * PERIOD * share
        assert stats[name] == {
            "sequences": len(own), "asked": share, "served": share, "tokens": 4 * len(own), "epoch": stats[name]["epoch"],
        }  # fmt: skip
        times = np.unique_counts(own).counts
        assert len(times) == count
        assert times.max() - times.min() <= 4  # the two lanes may be in neighbouring epochs
        assert abs(stats[name]["epoch"] - len(own) / count) <= 4


def test_a_state_keeps_a_change_of_weights_by_schedule_and_by_hand(folder: Path) -> None:
    first, second = {"web": 1, "wiki": 0, "tiny": 0}, {"web": 0, "wiki": 1, "tiny": 0}
    stream = mixed(folder, weights=[(0, first), (10 * LANES, second)])
    found = rows(islice(stream, 40))
    assert sources_of(found[:20], folder)["wiki"] == sources_of(found[20:], folder)["web"] == 0
    stream.set_weights({"web": 0, "wiki": 0, "tiny": 1})
    whole = rows(islice(stream, 8))
    assert sources_of(whole, folder) == {"web": 0, "wiki": 0, "tiny": sources_of(whole, folder)["tiny"]}
    again = mixed(folder, weights=[(0, first), (10 * LANES, second)])
    _ = list(islice(stream, 5))
    again.load_state_dict(stream.state_dict())
    assert rows(islice(again, 3)) == whole[5:]
    assert again.stats()["sources"]["tiny"]["asked"] == 1


def test_a_mix_of_texts_is_filtered_and_mapped_as_one_text_is(folder: Path) -> None:
    stream = bare(folder).filter(lambda record: not record.text.startswith("1."), name="no wiki but")
    with pytest.raises(ConfigError, match=r"of source 'wiki'.* 12 lanes"):
        next(iter(stream.shuffle(lanes=LANES).pack(SEQ_LEN).batch(ROWS)))
    masked = bare(folder).map_documents(lambda ids, mask: (ids, ids > 50), name="masked").shuffle().pack(SEQ_LEN)
    row = next(iter(masked))
    assert ((row["labels"] == -100) | (row["labels"] > 50)).all()


def test_what_cannot_be_mixed_is_an_error_that_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    other = pipeline.TextDataset(folder / "wiki.jsonl", train("wordpiece", tmp_path / "bpe"))
    text, tokens = pipeline.TextDataset(folder / "web.jsonl", "bytes"), pipeline.ShardDataset.from_tokens(range(9))
    for sources, options, message in (
        (
            {"a": text, "b": tokens},
            {"weights": {"a": 1, "b": 1}},
            r"tokenizer, but 'b' has an unknown one, and 'a' has bytes \(",
        ),
        (
            {
                "a": pipeline.ShardDataset.from_tokens(np.arange(9)),
                "b": pipeline.ShardDataset.from_tokens(np.arange(9, dtype=np.uint16)),
            },
            {"weights": {"a": 1, "b": 1}},
            "'b' has uint16, and 'a' has int64",
        ),
        ({"a": text}, {"temperature": 1}, "give weights"),
        ({"a": text.shuffle()}, {"weights": {"a": 1}}, "'a' must be a bare dataset"),
        (
            {"a": text.split(val=0.5)[0], "b": other},
            {"weights": {"a": 1, "b": 1}},
            r"one tokenizer, but 'b' has .*bpe \(SHA-256 .{8}\.\.\.\), and 'a' has bytes",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            pipeline.mix(sources, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="know in advance where tokens are"):
        bare(folder).sample(8)
    state = mixed(folder).state_dict()
    state["lanes"]["0"] = [0, 0, 0, 0]
    with pytest.raises(StateError, match="must be 12 numbers"):
        mixed(folder).load_state_dict(state)


# Streams of raw text resume exactly, on other ranks too, and refuse states that are not theirs.


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    return [write_texts(folder / f"part{n}.jsonl.zst", texts) for n, texts in enumerate(TEXTS)]


def test_it_resumes_after_every_batch(two_files: list[Path]) -> None:
    def few(**options: Any) -> pipeline.Stream:
        return pipeline.TextDataset(two_files, "bytes", **options).shuffle(seed=3, window=24, lanes=12)

    pipeline.assert_resumes(lambda: few().pack(50, stride=20, boundaries=True).batch(3), items=3)
    pipeline.assert_resumes(lambda: few(epochs=1).pack(512).batch(12), steps=(2, 5))
    pipeline.assert_resumes(lambda: few().filter(is_short).pack(64, best_fit=True).batch(2), items=3)


def drop_some(items: Any) -> Any:
    for item in items:
        if int(item["input_ids"].ravel()[0]) % 3:
            yield item


def test_it_resumes_inside_a_batch_where_a_stage_drops_samples(two_files: list[Path]) -> None:
    pipeline.assert_resumes(lambda: make(two_files).pack(32).apply(drop_some).batch(3), items=3)
    pipeline.assert_resumes(lambda: make(two_files).pack(32).batch(3).apply(drop_some), items=3)


def test_a_loader_that_saves_its_workers_states_resumes(two_files: list[Path]) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    expected = ids(islice(packed(two_files), 13))
    loader = stateful.StatefulDataLoader(packed(two_files), batch_size=None, num_workers=3)
    assert ids(islice(loader, 5)) == expected[:5]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = stateful.StatefulDataLoader(packed(two_files), batch_size=None, num_workers=3)
    resumed.load_state_dict(state)
    assert ids(islice(resumed, 8)) == expected[5:]
    ranks = [
        stateful.StatefulDataLoader(packed(two_files, 3).shard(rank, 3), batch_size=None, num_workers=1)
        for rank in range(2)
    ]
    next(iter(ranks[0]))
    ranks[1].load_state_dict(ranks[0].state_dict())
    assert_raises(StateError, r"lacks lanes 2, 3, 8, .* \(12 of 36\)", ranks[1])


def test_states_of_ranks_are_small_and_merge_for_other_ranks(two_files: list[Path]) -> None:
    expected = ids(islice(packed(two_files), 14))
    states = []
    for rank in range(3):
        stream = packed(two_files, 3).shard(rank, 3)
        list(islice(stream, 4))
        states.append(json.loads(json.dumps(stream.state_dict())))
        assert len(states[-1]["lanes"]) == 12
        assert len(json.dumps(states[-1]["lanes"])) < 64 * 12
    merged = pipeline.merge_states(states)
    ranks = []
    for rank in range(2):
        stream = packed(two_files, 2).shard(rank, 2)
        stream.load_state_dict(merged)
        assert stream.state_dict() == merged
        ranks.append(ids(islice(stream, 10)))
    assert joined(ranks) == expected[4:]


def test_a_state_that_lacks_lanes_is_refused_naming_them(two_files: list[Path]) -> None:
    stream = packed(two_files, 3).shard(1, 3)
    list(islice(stream, 2))
    state = stream.state_dict()
    other = packed(two_files)
    with pytest.raises(StateError, match=r"lacks lanes 0, 1, 4, .* \(24 of 36\).*merge_states"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match=r"lacks lanes 0, 1, 4, .* \(24 of 36\)"):
        pipeline.merge_states([state])
    ahead = packed(two_files, 3).shard(0, 3)
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
    two_files: list[Path], ranks: int, batch_size: int
) -> None:
    state = packed(two_files).state_dict()
    other = (
        pipeline.TextDataset(two_files, "bytes").shuffle(seed=3, window=72).pack(64).batch(batch_size).shard(0, ranks)
    )
    with pytest.raises(StateError, match=r"(global_batch|lanes) was (6|36) when"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match=r"global_batch was 6 .* but is 12 .* needs as many rows"):
        packed(two_files).shard(0, 2).load_state_dict(state)


def test_a_state_of_another_shape_is_refused_naming_the_field(two_files: list[Path]) -> None:
    stream = packed(two_files)
    next(iter(stream))
    others = {
        "global_batch": make(two_files).pack(64).batch(3),
        "data": make(two_files, eos=False).pack(64).batch(6),
        "window": pipeline.TextDataset(two_files, "bytes").shuffle(seed=3, window=73, lanes=36).pack(64).batch(6),
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


def test_set_epoch_begins_that_epoch_in_every_lane(two_files: list[Path]) -> None:
    single = pipeline.TextDataset(two_files, "bytes").shuffle(seed=3, window=2, lanes=1).documents()
    count = sum(map(len, TEXTS))
    second = [spelled(item["input_ids"]) for item in islice(single, count, count + 9)]
    single.set_epoch(1)
    assert [spelled(item["input_ids"]) for item in islice(single, 9)] == second
    assert single.stats()["epoch"] == 1
    with pytest.raises(ConfigError, match="use epochs=1"):
        packed(two_files, epochs=2).set_epoch(2)


def test_batches_cannot_be_counted_ahead_and_the_error_says_what_works(two_files: list[Path]) -> None:
    with pytest.raises(StateError, match="StatefulDataLoader"):
        packed(two_files).state_dict(batches=3)
    stream = packed(two_files)
    list(islice(DataLoader(stream, batch_size=None, num_workers=2), 3))
    with pytest.raises(StateError, match="without workers") as error:
        stream.state_dict()
    assert "batches=n" not in str(error.value)


# Rules and languages filter a stream of text as they filter a build: the same texts, counted by the same reasons.


CUT = "words = { min = 30 }\n[cut]\nduplicate_lines = {}\n"
FIELD = '"column:score" = { min = 3 }\n'


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of a corpus: too short, German, empty, of lines that repeat, and with marks that normalising takes away."""
    path = tmp_path_factory.mktemp("texts") / "in.jsonl"
    found = [record["text"] for record in documents(90)]
    found += ["", " \n", "\ufeff" + english(1).replace(" ", "\r\n", 1), "Cafe\u0301. " + english(2)]
    found += ["\n".join([english(3, 2)] * 9 + [english(4, 6)])]
    path.write_text("".join(json.dumps({"text": text, "score": n % 6}) + "\n" for n, text in enumerate(found)))
    return path


def tokens_of(stream: pipeline.Stream) -> Counter[tuple[int, ...]]:
    return Counter(tuple(item["input_ids"].tolist()) for item in stream.documents())


@pytest.mark.parametrize(
    ("rules", "language", "reasons"),
    [
        ("gopher,fineweb", "en", {"language", "empty text"}),
        ("gopher", None, {"words", "empty text"}),
        (CUT, None, {"words", "empty text"}),
        ("none", "de=0.5", {"language", "empty text"}),
        (FIELD, None, {"column:score"}),
    ],
)
def test_a_stream_keeps_the_ids_that_a_build_keeps(
    rules: str, language: str | None, reasons: set[str], texts: Path, tmp_path: Path
) -> None:
    if "=" in rules:
        rules = rule_file(tmp_path, rules)
    manifest = run(
        [texts], tmp_path / "out", tokenizer="bytes", rules=rules, language=language or (), val_fraction=0, dedup=False,
    )  # fmt: skip
    built = tokens_of(pipeline.ShardDataset(tmp_path / "out", epochs=1))
    data = pipeline.TextDataset(texts, "bytes", normalize=True, epochs=1, fields="score:int")
    stream = data.filter(rules=rules, language=language).documents()
    assert Counter(tuple(item["input_ids"].tolist()) for item in stream) == built
    assert 0 < built.total() == sum(info.documents for info in manifest.split("train").shards)
    stats = stream.stats()
    assert stats["documents"] - stats["rejected"] == built.total()
    assert sum(stats["rejected_by"].values()) == stats["rejected"]
    assert reasons <= stats["rejected_by"].keys()


def test_rules_go_with_functions_shuffles_mixes_workers_and_states(texts: Path) -> None:
    def make(rules: Any = "gopher") -> pipeline.Stream:
        sources = {name: pipeline.TextDataset(texts, "bytes") for name in ("a", "b")}
        mix = pipeline.mix(sources, {"a": 1, "b": 1}).filter(lambda record: len(record.text) < 2000, name="short")
        return mix.filter(rules=rules, language="en").shuffle(lanes=4).pack(64).batch(2)

    stream = make()
    whole = [batch["input_ids"].tolist() for batch in islice(stream, 8)]
    assert {"filter", "language", "empty text"} <= stream.stats()["rejected_by"].keys()
    again = make(pipeline.load_rules("gopher"))
    assert [
        batch["input_ids"].tolist() for batch in islice(DataLoader(again, batch_size=None, num_workers=2), 8)
    ] == whole
    state = stream.state_dict()
    make().load_state_dict(state)
    with pytest.raises(StateError, match="filters was"):
        make("gopher,fineweb").load_state_dict(state)


@pytest.mark.nightly
def test_filters_compile_where_they_are_named() -> None:
    code = (
        "import sys, pipeline; data = pipeline.TextDataset([{'text': 'x'}], 'bytes')\n"
        "assert 'filters.compiled.scan_kernels' not in sys.modules\n"
        "data.filter(rules='gopher'); assert 'filters.compiled.scan_kernels' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rules_that_cannot_judge_are_an_error_that_says_what_to_do(texts: Path, tmp_path: Path) -> None:
    data = pipeline.TextDataset(texts, "bytes")
    shards = pipeline.ShardDataset.from_tokens(range(9), lengths=[9])
    for stream, arguments, message in (
        (shards, {"rules": "gopher"}, "shards hold tokens; filter when they are built"),
        (data, {"rules": "gofer"}, "gopher"),
        (data, {"rules": "none"}, "rules='none' and language=None keep everything"),
        (data, {"language": "xx"}, "not one of the 176 languages"),
        (data, {"predicate": bool, "rules": "gopher"}, "one .filter\\(\\) for each"),
        (data, {"rules": rule_file(tmp_path, FIELD)}, r"give TextDataset fields=\('score:float',\)"),
        (data, {}, "filter needs a function"),
    ):
        with pytest.raises(ConfigError, match=message):
            stream.filter(**arguments)  # type: ignore[arg-type]
