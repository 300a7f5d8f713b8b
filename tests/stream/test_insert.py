"""Texts come in place of tokens at stated rows, and every other token, label and boundary is that of the plain stream."""

from __future__ import annotations

import json
import logging
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError, StateError

EOS, TEXT = 3_000, 5_000  # no token of the data
LENGTHS = [7, 13, 20, 1, 30, 9, 2, 41, 5, 16]
SEQ_LEN = 24
PLAIN: dict[str, Any] = {
    "packed": lambda data, **keys: data.pack(SEQ_LEN, **keys),
    "strided": lambda data, **keys: data.pack(SEQ_LEN, stride=17, shift=2, **keys),
    "same": lambda data, **keys: data.pack(SEQ_LEN, labels="same", **keys),
    "samples": lambda data, **keys: data.sample(SEQ_LEN, **keys),
    "best fit": lambda data, **keys: data.pack(SEQ_LEN, best_fit=True, **keys),
    "filtered": lambda data, **keys: data.filter(lambda ids: len(ids) > 1, name="long").pack(SEQ_LEN, **keys),
    "masked": lambda data, **keys: data.map_documents(odd_ones, same_length=True, name="odd").pack(SEQ_LEN, **keys),
}


def odd_ones(ids: Any, mask: Any) -> Any:
    return ids, ids % 2


def data(epochs: int | None = None, seed: int | None = 1) -> Any:
    tokens = np.arange(8 * sum(LENGTHS), dtype=np.uint16)
    made = pipeline.ShardDataset.from_tokens(tokens, lengths=LENGTHS * 8, eos_id=EOS, epochs=epochs)
    return made if seed is None else made.shuffle(seed=seed)


def source(is_mix: bool) -> Any:
    if not is_mix:
        return data()
    change = pipeline.Schedule([(0, {"a": 2, "b": 1}), (5, {"a": 1, "b": 3})], unit="steps", global_batch=6)
    return pipeline.mix({"a": data(seed=None), "b": data(seed=None)}, change).shuffle(seed=2)


def texts_of(lengths: list[int]) -> list[list[int]]:
    firsts = np.cumsum([TEXT, *lengths]).tolist()
    return [list(range(first, first + length)) for first, length in zip(firsts, lengths, strict=False)]


def rows_of(batches: list[Any], key: str) -> list[Any]:
    return list(chain.from_iterable(batch[key].tolist() for batch in batches))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_outside_of_the_texts_every_token_and_label_is_that_of_the_plain_stream(draws: st.DataObject) -> None:
    draw = draws.draw
    name, boundaries = draw(st.sampled_from([*PLAIN])), draw(st.booleans())
    shift = {"strided": 2, "same": 0}.get(name, 1)
    plain = PLAIN[name](source(draw(st.booleans())), boundaries=boundaries, document_ids=True)
    texts = texts_of(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    options: dict[str, Any] = {"at": range(2, 7), "times": draw(st.integers(1, 4)), "seed": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        begin = 0 if name == "best fit" else draw(st.integers(0, SEQ_LEN - 9))
        options = {"at": [(2 + n, draw(st.integers(0, 5)), begin) for n in range(len(texts))]}
    changed = plain.insert(texts, **options)
    places = changed.batch(6).insertions()["places"]
    assert len(places) == len(texts) * options.get("times", 1)

    # As one process reads it
    whole, other = list(islice(plain.batch(6), 9)), list(islice(changed.batch(6), 9))
    ids, labels = rows_of(whole, "input_ids"), rows_of(whole, "labels")
    documents = rows_of(whole, "document_ids")
    for place in places:
        row, (begin, end) = 6 * place["step"] + place["row"], (place["begin"], place["end"])
        assert row == place["sequence_index"]
        text = texts[place["text"]]
        ids[row][begin:end] = text
        if shift == 0:
            labels[row][begin:end] = text if not boundaries else [-100, *text[1:]]
            if boundaries and end < SEQ_LEN and documents[row][end] >= 0:
                labels[row][end] = -100  # the first token of what is left of a document
        else:
            # Tokens whose labels are in the text, and tokens of the text whose labels come after it.
            for column in range(max(0, begin - shift), end):
                if begin <= column + shift < end:
                    is_across = boundaries and column < begin
                    labels[row][column] = -100 if is_across else text[column + shift - begin]
                elif boundaries and column >= begin:
                    labels[row][column] = -100
        own, after = documents[row], documents[row][end:]
        number = own[begin - 1] + 1 if begin else 0
        left = [n for n in after if n >= 0]
        documents[row] = (
            own[:begin] + [number] * (end - begin) + [n if n < 0 else number + 1 + n - left[0] for n in after]
        )
    assert rows_of(other, "input_ids") == ids
    assert rows_of(other, "document_ids") == documents
    assert rows_of(other, "labels") == labels

    # On other ranks, with a stop, in slices and cut rows: the same global batches
    ranks, stop = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 8))
    states = []
    for part in (range(stop), range(stop, 9)):
        streams = [changed.shard(rank, ranks).batch(6 // ranks) for rank in range(ranks)]
        for stream in streams:
            if states:
                stream.load_state_dict(pipeline.merge_states(states))
        found = [list(islice(stream, len(part))) for stream in streams]
        for number, step in enumerate(part):
            rows = sorted(chain.from_iterable(rows_of([of_rank[number]], "input_ids") for of_rank in found))
            assert rows == sorted(ids[6 * step : 6 * step + 6])
        states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
        ranks = draw(st.sampled_from([1, 2, 3]))
    if name not in ("same", "best fit"):
        cut = changed.batch(6, cut=12)
        pieces = rows_of(list(islice(cut, 9)), "input_ids")
        assert [first + second for first, second in zip(pieces[::2], pieces[1::2], strict=True)] == ids
        peers = [list(islice(changed.batch(6).shard(0, 1, context=(peer, 2)), 9)) for peer in range(2)]
        middle, ends = (rows_of(each, "document_ids") for each in reversed(peers))
        assert [e[:6] + m + e[6:] for m, e in zip(middle, ends, strict=True)] == documents


@pytest.mark.parametrize("name", ["packed", "strided", "best fit", "filtered", "samples"])
def test_a_trace_shows_each_text_and_what_it_overwrites_and_seen_leaves_that_out(name: str) -> None:
    plain = PLAIN[name](data(), document_ids=True)
    texts = texts_of([5, 9])
    changed = plain.insert(texts, at=range(3), times=[2, 3]).batch(4)
    plain, found = plain.batch(4), []
    for step, batch in zip(range(3), changed, strict=False):
        for row, before, ids, numbers in zip(
            changed.trace(step, with_ids=True), plain.trace(step, with_ids=True), batch["input_ids"].tolist(),
            batch["document_ids"].tolist(), strict=True,
        ):  # fmt: skip
            spans = row["documents"]
            assert [token for span in spans for token in span["ids"]] == ids[: spans[-1]["row_end"]]
            assert [n for n, span in enumerate(spans) for _ in span["ids"]] == [n for n in numbers if n >= 0]
            covered = [part for span in spans for part in span.get("overwrites", ())]
            kept = [span for span in spans if "inserted" not in span["origin"]]
            whole = sorted([*kept, *covered], key=lambda span: span["row_begin"])
            assert [token for span in whole for token in span["ids"]] == [
                t for s in before["documents"] for t in s["ids"]
            ]
            inserted = [span for span in spans if "inserted" in span["origin"]]
            found += [
                (row["sequence_index"], span["origin"]["inserted"], span["row_begin"], span["row_end"])
                for span in inserted
            ]
            for span in kept:
                [seen] = [
                    each for each in changed.seen(span["origin"]["document"], steps=3)
                    if (each["sequence_index"], each["row_begin"]) == (row["sequence_index"], span["row_begin"])
                ]  # fmt: skip
                assert (seen["row_end"], seen["document_begin"]) == (span["row_end"], span["document_begin"])
    places = changed.insertions()["places"]
    assert sorted(found) == [(p["sequence_index"], p["text"], p["begin"], p["end"]) for p in places]


def test_a_text_replaces_the_document_of_a_row_of_documents() -> None:
    stream = data().documents(document_ids=True).batch(3)
    changed = stream.insert(texts_of([4]), at=[(1, 2)])
    before, after = list(islice(stream, 2)), list(islice(changed, 2))
    assert after[0]["input_ids"].tolist() == before[0]["input_ids"].tolist()
    assert after[1]["input_ids"][:2].tolist() == [
        ids[: after[1]["input_ids"].shape[1]].tolist() for ids in before[1]["input_ids"][:2]
    ]
    row = after[1]["input_ids"][2]
    assert row[: after[1]["attention_mask"][2].sum()].tolist() == texts_of([4])[0]
    [span] = changed.trace(1)[2]["documents"]
    [overwritten] = span["overwrites"]
    assert overwritten["document_end"] == int(before[1]["attention_mask"][2].sum())
    assert changed.seen(overwritten["origin"]["document"], steps=2) == []


def test_more_repeats_and_other_texts_leave_the_places_of_a_text_and_each_row_has_one() -> None:
    stream, texts = data().pack(SEQ_LEN).batch(8), [np.array(text) for text in texts_of([3, 4, 5])]

    def places(chosen: list[Any], times: list[int], seed: int = 0) -> set[Any]:
        made = stream.insert(chosen, at=range(10, 40), times=times, seed=seed).insertions()
        return {(made["texts"][p["text"]][0], p["step"], p["row"], p["begin"]) for p in made["places"]}

    few, many = places(texts, [1, 4, 16]), places(texts, [2, 4, 20])
    assert few < many
    assert len({place[1:3] for place in many}) == 26
    assert {step for _, step, _, _ in many} <= {*range(10, 40)}
    assert places(texts[:1], [1]) < few
    assert places(texts, [1, 4, 16], seed=1).isdisjoint(few)


def test_the_manifest_is_json_and_a_string_gets_an_end_of_text_id(tmp_path: Path) -> None:
    texts = pipeline.ShardDataset.from_texts(["to be or not"] * 50, "bytes")
    stream = (
        texts.shuffle(seed=0).pack(16, boundaries=True).batch(2).insert(["A passage"], at=[(1, 0), (4, 1, 3)], times=2)
    )
    manifest = stream.insertions(tmp_path / "places.json")
    assert json.loads((tmp_path / "places.json").read_text()) == manifest
    assert manifest["texts"] == ["A passage"]
    assert [(p["step"], p["row"], p["begin"], p["end"]) for p in manifest["places"]] == [(1, 0, 0, 10), (4, 1, 3, 13)]
    *_, batch = islice(stream, 5)
    assert "⟧ passage</s>⟦" in stream.decode(batch)[1]
    assert {3, 13} <= {int(n) - 16 for n in batch["cu_seqlens"]}


def test_a_plain_state_goes_on_in_the_changed_stream_and_other_insertions_refuse_its_states(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = data().pack(SEQ_LEN).batch(6)
    changed = plain.insert(texts_of([5]), at=range(2, 9), times=3)
    whole = [batch["input_ids"].tolist() for batch in islice(changed, 9)]
    fork = plain.insert(texts_of([5]), at=range(2, 9), times=3)
    next(iter(plain))
    with caplog.at_level(logging.WARNING):
        fork.load_state_dict(plain.state_dict())
    assert sum("before .insert()" in record.message for record in caplog.records) == 1
    assert [batch["input_ids"].tolist() for batch in islice(fork, 8)] == whole[1:]
    state = fork.state_dict()
    for other in (
        data().pack(SEQ_LEN).batch(6),
        plain.insert(texts_of([5]), at=range(2, 9), times=2),
        plain.insert(texts_of([6]), at=range(2, 9), times=3),
    ):
        with pytest.raises(StateError, match=r"insert was .*same texts, places and global batch"):
            other.load_state_dict(state)
    changed.load_state_dict(state)
    with pytest.raises(StateError, match="global batch"):
        data().pack(SEQ_LEN).batch(3).insert(texts_of([5]), at=range(2, 9), times=3).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "one"}, "texts must be a list"),
        ({"texts": [[]]}, "text 0 has 0 tokens"),
        ({"texts": [7]}, "text 0 has 0 tokens"),
        ({"texts": [[1] * 25]}, "text 0 has 25 tokens, .* 1 to 24: cut the text"),
        ({"texts": ["words"]}, "tokenizer"),
        ({"texts": [[70_000]]}, "at most 65535"),
        ({"times": [1, 2]}, "times has 2 numbers for 1 texts"),
        ({"times": 0}, "times must be .* at least 1"),
        ({"at": [(1, 2), (3, 4)]}, "at has 2 places for 1 texts"),
        ({"at": [(1, 2, 23)]}, "at tokens 23 to 25, .* begin at token 0"),
        ({"at": 7}, "at must be a range"),
        ({"at": range(2), "times": 13}, "13 texts .* 12 rows .* give more steps"),
        ({"at": [(0, 6)]}, "step 0 has no row 6"),
        ({"at": [(0, 1, 0), (0, 1, 1)], "times": 2}, "texts 0 and 0 overlap in row 1 of step 0"),
    ],
)
def test_texts_and_places_that_cannot_be_are_refused_with_the_cure(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        next(iter(data().pack(SEQ_LEN).batch(6).insert(**{"texts": [[1, 2]], "at": range(9), **arguments})))
    with pytest.raises(ConfigError, match=r"add .pack"):
        data().insert([[1]], at=range(2))
