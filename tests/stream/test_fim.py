"""Fill in the middle: the parts are the document, the form is drawn by the document alone, and ids are checked at once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.text.tokens.tokenizer import Tokenizer, train_tokenizer
from tests.helpers.text_samples import make_texts
from tests.helpers.tokenizer_samples import CORPUS

NAMES = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
TEXTS = [
    *CORPUS,
    *make_texts(300, seed=1),
    "a",
    "é\U0001f600 naïve 中文。",
    "<|fim_middle|> spelled",
    "\U0001f468\u200d\U0001f469",
]


@pytest.fixture(scope="module")
def coder() -> Tokenizer:
    """A tokenizer that has the marks, as ids 1 to 3, and two reserved ids."""
    return train_tokenizer(CORPUS, 400, special_tokens=NAMES, reserved=2)


def parts_of(ids: Any, prefix: int = 1, suffix: int = 2, middle: int = 3) -> tuple[list[Any], bool] | None:
    """Return the prefix, middle and suffix of a document, and whether the suffix is first; None if it has no mark."""
    ids = list(ids)
    if prefix not in ids:
        return None
    assert ids[0] == prefix
    assert [ids.count(mark) for mark in (prefix, suffix, middle)] == [1, 1, 1]
    one, two = ids.index(suffix), ids.index(middle)
    if one == 1:
        return [ids[two + 1 :], [], ids[one + 1 : two]], True
    return [ids[1:one], ids[two + 1 :], ids[one + 1 : two]], False


@pytest.mark.parametrize("seed", [4, 5])
def test_parts_are_the_text_each_tokenized_alone_at_the_asked_rates(coder: Tokenizer, seed: int) -> None:
    function = pipeline.fim(coder, rate=0.7, spm=0.3, seed=seed)
    filled = suffix_first = inside = 0
    places = []
    for text in TEXTS:
        ids = np.append(coder.encode(text), coder.eos_id).astype(np.uint16)
        made, mask = function(ids, None)
        assert mask is None
        assert made[-1] == coder.eos_id
        found = parts_of(made[:-1])
        if found is None:
            assert made.tolist() == ids.tolist()
            continue
        parts, is_spm = found
        texts = [coder.decode(part) for part in parts]
        filled, suffix_first = filled + 1, suffix_first + is_spm
        assert "".join(texts) == text
        for part, told in zip(parts, texts, strict=True):
            assert is_spm or part == coder.encode(told).tolist()
        if not is_spm:
            places += [len(texts[0]) / len(text), (len(text) - len(texts[2])) / len(text)] * (len(text) > 20)
            inside += parts[0] + parts[1] + parts[2] != ids[:-1].tolist()
    assert abs(filled / len(TEXTS) - 0.7) < 0.1
    assert abs(suffix_first / filled - 0.3) < 0.1
    assert inside > filled * 0.25  # a cut between characters of one token
    assert abs(np.mean(places) - 0.5) < 0.06  # uniform cuts
    assert abs(np.std(places) - 12**-0.5) < 0.04


def test_the_form_depends_on_the_document_and_the_seed_alone(coder: Tokenizer) -> None:
    function, other = pipeline.fim(coder), pipeline.fim(coder, seed=1)
    forms = [function(coder.encode(text), None)[0].tolist() for text in TEXTS]
    assert forms[::-1] == [function(coder.encode(text).astype(np.int64), None)[0].tolist() for text in TEXTS[::-1]]
    differ = sum(form != other(coder.encode(text), None)[0].tolist() for form, text in zip(forms, TEXTS, strict=True))
    assert differ > len(TEXTS) / 2

    def stream() -> pipeline.Stream:
        data = pipeline.ShardDataset.from_texts(TEXTS[:80], coder, epochs=2).map_documents(pipeline.fim(coder))
        return data.shuffle(seed=1).documents().batch(4)

    rows = [row[row != coder.eos_id].tolist() for batch in stream() for row in batch["input_ids"].numpy()]
    assert sorted(filter(None, rows)) == sorted([form for form in forms[:80] if form] * 2)
    pipeline.assert_resumes(stream, items=3)


def test_a_mask_moves_with_its_tokens_and_marks_do_not_count(coder: Tokenizer) -> None:
    for spm in (0, 1):
        function = pipeline.fim(coder, rate=1, spm=spm)
        for text in TEXTS:
            ids = np.append(coder.encode(text), coder.eos_id)
            mask = (np.arange(len(ids)) % 3 > 0).astype(np.uint8)
            numbered = np.arange(10, 10 + len(ids), dtype=np.uint16)
            numbered[-1] = coder.eos_id
            made, moved = function(numbered, mask)
            by_id = dict(zip(numbered.tolist(), mask.tolist(), strict=True)) | dict.fromkeys((1, 2, 3), 0)
            assert moved.tolist() == [by_id[id] for id in made.tolist()]
            assert sorted(made.tolist()) == sorted([*numbered.tolist(), 1, 2, 3])


def test_what_no_cut_of_the_text_can_give_back_is_cut_between_tokens(
    coder: Tokenizer, definitions: dict[str, Any]
) -> None:
    broken = coder.encode("\U0001f600 half a character")[1:]  # bytes that are not UTF-8
    special = np.array([*coder.encode("one"), 4, *coder.encode("two")], np.uint16)  # a reserved id within
    spaced = pipeline.load_tokenizer(definitions["unigram"])  # encode puts a space before each text
    size = spaced.vocab_size
    cases = [(coder, [1, 2, 3], broken), (coder, [1, 2, 3], special)]
    cases += [(spaced, [size, size + 1, size + 2], spaced.encode("some words of a text"))]
    for tokenizer, marks, ids in cases:
        for seed in range(5):
            made, _ = pipeline.fim(tokenizer, rate=1, spm=0, marks=marks, seed=seed)(ids, None)
            found = parts_of(made.tolist(), *marks)
            assert found is not None
            assert [id for part in found[0] for id in part] == ids.tolist()


def test_begin_and_end_of_text_stay_where_they_are(coder: Tokenizer) -> None:
    both = Tokenizer(coder.definition, "both", {**coder.roles, "bos_token": "<|reserved_special_token_0|>"})
    function, text = pipeline.fim(both, rate=1, spm=0), both.encode("a few words").tolist()
    bare = function(np.array(text, np.uint16), None)[0].tolist()
    assert len(bare) == len(text) + 3
    for first, last in (([4], [0]), ([4], []), ([], [0])):
        assert function(np.array(first + text + last, np.uint16), None)[0].tolist() == first + bare + last
        assert function(np.array(first + last, np.uint16), None)[0].tolist() == first + last
        numbered = np.array([*first, *range(20, 40), *last], np.uint16)
        made, mask = function(numbered, (numbered > 30).astype(np.uint8))
        assert sorted(made.tolist()) == sorted([*numbered.tolist(), 1, 2, 3])
        assert mask.tolist() == [id > 30 for id in made.tolist()]


def test_marks_and_rates_that_cannot_work_are_refused_at_the_call(coder: Tokenizer) -> None:
    data = pipeline.ShardDataset.from_texts(TEXTS, "bytes")
    with pytest.raises(
        ConfigError, match=r"bytes: .*none of the usual marks.*<\|fim_prefix\|>.*marks=.*--special-tokens"
    ):
        pipeline.fim("bytes")
    with pytest.raises(ConfigError, match=r"mark 386 is outside .* 384 ids.*vocab_size=387"):
        data.map_documents(pipeline.fim("bytes", marks=[384, 385, 386]))
    widened = data.map_documents(pipeline.fim("bytes", marks=[384, 385, 386]), vocab_size=387)
    assert widened.vocab_size == 387
    for marks in (["<|a|>", 4, 5], [4, 4, 5], [4, 5], [4, 5, -1], NAMES):
        said = f"marks must be three tokens of bytes, by name or id, got {re.escape(repr([*marks]))}"
        with pytest.raises(ConfigError, match=said):
            pipeline.fim("bytes", marks=marks)
    for wrong in (2, -0.1, "0.5", True, float("nan")):
        with pytest.raises(ConfigError, match=f"rate must be a share from 0 to 1, got {wrong!r}"):
            pipeline.fim(coder, rate=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"spm must be .*from 0 to 1, got 1\.5"):
        pipeline.fim(coder, rate=1, spm=1.5)
    with pytest.raises(ConfigError, match=r"seed must be .*at least 0, got -1"):
        pipeline.fim(coder, rate=1, seed=-1)


def test_a_state_is_refused_by_a_stream_with_another_rate(coder: Tokenizer) -> None:
    data = pipeline.ShardDataset.from_texts(TEXTS, coder)
    stream = data.map_documents(pipeline.fim(coder, rate=0.5)).pack(16)
    next(iter(stream))
    data.map_documents(pipeline.fim(coder, rate=0.5)).pack(16).load_state_dict(stream.state_dict())
    with pytest.raises(StateError, match=r"document_maps"):
        data.map_documents(pipeline.fim(coder, rate=0.9)).pack(16).load_state_dict(stream.state_dict())
