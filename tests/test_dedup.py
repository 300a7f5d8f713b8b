from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.build.dedup import EXACT, KEPT, NEAR, REPRESENTATIVES, Duplicates, find_duplicates, verified_edges
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


def with_values(base: np.ndarray, places: list[int], value: int) -> np.ndarray:
    """Return a signature that differs from ``base`` at ``places``."""
    changed = base.copy()
    changed[places] = value
    return changed


def numbered(count: int) -> np.ndarray:
    return np.arange(2 * count, dtype="<u8").reshape(count, 2).view(np.uint8)


@pytest.mark.parametrize(("equal", "keeper"), [(90, [0, 0]), (89, [0, 1])])
def test_candidates_that_agree_on_too_few_values_stay(equal: int, keeper: list[int]) -> None:
    base = np.arange(112, dtype=np.uint32)  # 90 of 112 is the first share above 0.8; 8 equal values make a candidate
    signatures = np.stack([base, with_values(base, list(range(equal, 112)), 999)])
    assert find_duplicates(numbered(2), signatures).keeper.tolist() == keeper


@pytest.mark.parametrize(("strangers", "found"), [(1, True), (REPRESENTATIVES - 1, True), (REPRESENTATIVES, False)])
def test_candidates_that_fail_against_the_first_are_held_against_the_next_few(strangers: int, found: bool) -> None:
    base = np.arange(112, dtype=np.uint32)
    rest = list(range(8, 112))  # all agree on the first band alone
    signatures = np.stack([with_values(base, rest, 1000 + min(k, strangers)) for k in range(strangers + 2)])
    edges = list(verified_edges(signatures, np.arange(len(signatures)), 0, 8, 0.8))
    assert any(len(members) for _, members in edges) == found


def test_the_order_of_the_bands_does_not_matter() -> None:
    texts = [edited(english(k % 7, 40), 1 + k % 5, k) for k in range(60)]
    hashes, signatures = text_hashes(texts), MinHasher().signatures(texts)
    turned = np.ascontiguousarray(signatures.reshape(-1, 14, 8)[:, ::-1].reshape(-1, 112))
    one, other = find_duplicates(hashes, signatures), find_duplicates(hashes, turned)
    assert (one.keeper == other.keeper).all()
    assert (one.keeper != np.arange(60)).any()


def test_a_memory_map_gives_what_an_array_gives(tmp_path: Path) -> None:
    texts = [edited(english(k % 5, 40), 2, k) for k in range(30)]
    hashes, signatures = text_hashes(texts), MinHasher().signatures(texts)
    signatures.tofile(tmp_path / "signatures")
    mapped = np.memmap(tmp_path / "signatures", np.uint32, "r").reshape(-1, 112)
    assert (find_duplicates(hashes, mapped).keeper == find_duplicates(hashes, signatures).keeper).all()


def test_cost_grows_linearly_where_no_candidate_is_verified() -> None:
    def seconds(count: int) -> float:
        signatures = np.arange(count * 112, dtype=np.uint32).reshape(count, 112)
        signatures[:, :8] = 7  # one run that holds every document, and no two are alike
        hashes = numbered(count)
        started = time.process_time()
        assert (find_duplicates(hashes, signatures).keeper == np.arange(count)).all()
        return time.process_time() - started

    seconds(1_000)
    assert seconds(80_000) < 8 * 4 * seconds(10_000) + 0.5


def test_no_documents_and_options_that_cannot_be() -> None:
    assert len(find_duplicates(np.zeros((0, 16), np.uint8), np.zeros((0, 112), np.uint32)).keeper) == 0
    with pytest.raises(ConfigError, match="shortest"):
        dedup(["a"], keep="shortest")
    with pytest.raises(ConfigError, match="15 bands"):
        dedup(["a"], bands=15)


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
