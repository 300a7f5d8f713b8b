"""A seed draws what is chosen of a corpus, and nothing else; what is drawn for a text depends on it, seed and purpose."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.builder.stages.quotas import do_not_fit
from pipeline.draws import drawn, draws
from pipeline.shards.manifest import Manifest
from tests.helpers.builds import run_plain, table, write_jsonl
from tests.helpers.corpus import english
from tests.stream.order_oracle import mix64

PURPOSES = ("val", "max_tokens", "samples", "tokenizer")
MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents: a quarter too short, and of every tenth a near duplicate."""
    texts = [
        english(k - k % 10 if k % 10 == 1 else k, 3 if k % 4 == 2 else 20) + " End." * (k % 10) for k in range(400)
    ]
    return write_jsonl(tmp_path_factory.mktemp("draws") / "in.jsonl", texts)


def run(source: Path, output: Path, **options: Any) -> Manifest:
    return run_plain(source, output, **{"rules": "gopher_quality", "val_fraction": 0.2, **options})


def ids(output: Path, *splits: str) -> set[str]:
    return {name for split in splits for name in table(output, split)["id"]}


@given(st.binary(min_size=16, max_size=16), st.integers(), st.sampled_from(PURPOSES))
def test_what_is_drawn_is_what_the_definition_says(digest: bytes, seed: int, purpose: str) -> None:
    key = blake2b(f"{purpose}\0{seed}".encode(), digest_size=16).digest()
    h0, h1, k0, k1 = (int.from_bytes(part[at : at + 8], "little") for part in (digest, key) for at in (0, 8))
    hashes = np.frombuffer(digest, np.uint8).reshape(1, 16)
    assert draws(hashes, seed, purpose).tolist() == [mix64(mix64(h0 ^ k0) + (h1 ^ k1) & MASK)]


def test_draws_are_uniform_and_those_of_seeds_and_purposes_independent() -> None:
    hashes = np.zeros((40_000, 16), np.uint8)
    hashes[:, :4] = np.arange(40_000, dtype="<u4").view(np.uint8).reshape(-1, 4)
    drawn = {(seed, name): draws(hashes, seed, name) < np.uint64(1 << 62) for seed in (0, 1, -1) for name in PURPOSES}
    for one, chosen in drawn.items():
        assert 0.24 < chosen.mean() < 0.26, one
        for other, held in drawn.items():
            assert one == other or 0.055 < (chosen & held).mean() < 0.07, (one, other)  # a sixteenth


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_share_draws_all_that_a_smaller_one_does(texts: list[bytes], one: float, other: float) -> None:
    hashes = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, 16)
    nothing, less, more, every = (
        drawn(hashes, 0, "val", share) for share in (0.0, min(one, other), max(one, other), 1.0)
    )
    assert not nothing.any()
    assert every.all()
    assert not (less & ~more).any()
    assert less.tolist() == [int(draw) < int(min(one, other) * 2.0**64) for draw in draws(hashes, 0, "val")]


@given(
    documents=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40),
    quota=st.integers(0, 200),
)
def test_documents_fill_a_quota_in_the_order_of_their_draws(documents: list[tuple[int, int]], quota: int) -> None:
    kinds, lengths = np.array(documents, np.int64).T
    drawn = np.array([5, 6, 1 << 48, 3 << 62], np.uint64)[kinds]  # many alike
    beyond = do_not_fit(drawn, lengths, quota)
    left = quota
    for at in sorted(range(len(documents)), key=lambda k: (int(drawn[k]), k)):
        left -= int(lengths[at])
        assert beyond[at] == (left < 0)


def test_another_seed_draws_other_documents_but_the_same_duplicates(source: Path, tmp_path: Path) -> None:
    first, second = (run(source, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    validation = [ids(tmp_path / name, "val") for name in "01"]
    assert validation[0] != validation[1]
    assert 20 < len(validation[0]) < 90
    for outcome in ("kept", "words"):
        assert first.counts["samples"][outcome] != second.counts["samples"][outcome]
    assert first.counts["duplicates"] == second.counts["duplicates"] != {"exact": 0, "near": 0}
    assert ids(tmp_path / "0", "train", "val") == ids(tmp_path / "1", "train", "val")
    for name in ("hashes", "signatures"):
        files = [tmp_path / seed / "signatures" / f"{name}.npy" for seed in "01"]
        assert files[0].read_bytes() == files[1].read_bytes()
    for seed in (0, 1):
        quota = str(first.counts["tokens"] // 2)
        run(source, tmp_path / f"cut {seed}", seed=seed, max_tokens=quota, val_fraction=0)
    chosen = [ids(tmp_path / f"cut {seed}", "train") for seed in (0, 1)]
    assert chosen[0] != chosen[1]
    assert all(chosen)


def test_validation_depends_on_texts_alone_and_grows_with_its_share(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "whole", seed=5)
    run(source, tmp_path / "shards", seed=5, tokens_per_shard=3_000, val_fraction=0.4)
    (tmp_path / "half.jsonl").write_text("".join(source.read_text().splitlines(keepends=True)[200:]))
    run(tmp_path / "half.jsonl", tmp_path / "half", seed=5)
    assert ids(tmp_path / "shards", "val") > ids(tmp_path / "whole", "val")
    assert ids(tmp_path / "half", "val") == ids(tmp_path / "whole", "val") & ids(tmp_path / "half", "train", "val")
