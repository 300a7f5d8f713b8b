from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.build.dedup import EXACT, KEPT, NEAR, Duplicates, find_duplicates
from pipeline.build.minhash import MinHasher, text_hashes
from pipeline.errors import ConfigError
from tests.corpus import english


def dedup(texts: list[str], **options: object) -> Duplicates:
    return find_duplicates(text_hashes(texts), MinHasher().signatures(texts), **options)  # type: ignore[arg-type]


def edited(text: str, words: int, seed: int = 0) -> str:
    """Replace ``words`` neighbouring words, which costs ``words + 4`` shingles."""
    parts = text.split()
    at = random.Random(seed).randrange(len(parts) - words)
    parts[at : at + words] = [f"changed{seed}x{k}" for k in range(words)]
    return " ".join(parts)


def test_cat_dog_cat_gives_two() -> None:
    found = dedup(["cat", "dog", "cat"])
    assert found.keeper.tolist() == [0, 1, 0]
    assert found.kind.tolist() == [KEPT, KEPT, EXACT]
    assert found.cluster_size.tolist() == [2, 1, 2]


def test_texts_without_words_never_match_by_emptiness() -> None:
    assert dedup(["...", "!!!", "", "?"]).keeper.tolist() == [0, 1, 2, 3]
    assert dedup(["...", "..."]).keeper.tolist() == [0, 0]


def test_an_edited_copy_is_near_and_the_first_in_input_order_stays() -> None:
    text = english(1, 40)
    found = dedup(["something else entirely, and not short", edited(text, 2), text, english(2, 40)])
    assert found.keeper.tolist() == [0, 1, 1, 3]
    assert found.kind.tolist() == [KEPT, KEPT, NEAR, KEPT]


def test_a_copy_below_the_threshold_stays() -> None:
    text = english(1, 20)
    half = " ".join(text.split()[: len(text.split()) // 2])
    assert dedup([text, half]).keeper.tolist() == [0, 1]


def test_a_chain_is_one_cluster_and_its_first_document_stays() -> None:
    text = english(1, 60)
    once = edited(text, 20, 1)
    assert dedup([text, once, edited(once, 20, 2)]).keeper.tolist() == [0, 0, 0]


def test_the_longest_stays_where_asked() -> None:
    text = english(1, 40)
    texts = [text, edited(text, 2) + " and more", text]
    found = dedup(texts, keep="longest", lengths=np.array([len(t) for t in texts]))
    assert found.keeper.tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="lengths"):
        dedup(texts, keep="longest")


def test_documents_of_earlier_builds_stay_and_win() -> None:
    text = english(1, 40)
    found = dedup([text, text, edited(text, 2), "new text here"], before=2)
    assert found.keeper.tolist() == [0, 1, 0, 3]
    assert found.kind.tolist() == [KEPT, KEPT, NEAR, KEPT]


@pytest.mark.parametrize("near", [False, True])
def test_a_hundred_thousand_copies_are_one_cluster(near: bool) -> None:
    count = 100_000  # pairs would be five thousand million
    signatures = np.repeat(MinHasher().signatures([english(1, 40)]), count, axis=0)
    hashes = np.zeros((count, 16), np.uint8)
    if near:
        hashes[:, :8] = np.arange(count, dtype="<u8")[:, None].view(np.uint8)
    found = find_duplicates(hashes, signatures)
    assert (found.keeper == 0).all()
    assert (found.cluster_size == count).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40), st.integers(0, 5))
def test_clusters_are_closed_and_kept_by_their_first(numbers: list[int], before: int) -> None:
    texts = [english(number, 10) for number in numbers]
    before = min(before, len(texts))
    found = dedup(texts, before=before)
    for k in range(before, len(texts)):
        assert found.keeper[k] == numbers.index(numbers[k])
        assert found.cluster_size[k] == numbers.count(numbers[k])
    assert found.keeper[:before].tolist() == list(range(before))


def test_real_duplicates_are_found_as_often_as_theory_says(shared_data: Path) -> None:
    texts, ids = [], {}
    for path in sorted((shared_data / "dev").glob("*.zst")):
        for line in zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read().splitlines():
            record = orjson.loads(line)
            ids[record["id"]] = len(texts)
            texts.append(record["text"])
    keeper = dedup(texts).keeper
    raw = zstandard.ZstdDecompressor().stream_reader((shared_data / "dev-truth/dups.jsonl.zst").open("rb")).read()
    pairs = [orjson.loads(line) for line in raw.splitlines()]

    def recall(least: float) -> float:
        true = [pair for pair in pairs if pair["jaccard"] >= least]
        return sum(keeper[ids[pair["a"]]] == keeper[ids[pair["b"]]] for pair in true) / len(true)

    assert recall(0.85) >= 0.99
    assert recall(0.8) >= 0.96
