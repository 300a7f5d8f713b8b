"""A seed draws what is chosen of a corpus, and nothing else; what is drawn for a text depends on it, seed and purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.draws import draws
from pipeline.shards.manifest import Manifest
from pipeline.shards.reader import Shard
from tests.corpus import english
from tests.order_oracle import mix64

PURPOSES = ("val", "max_tokens", "samples", "tokenizer")
MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents: a quarter too short, and of every tenth a near duplicate."""
    path = tmp_path_factory.mktemp("draws") / "in.jsonl"
    texts = [
        english(k - k % 10 if k % 10 == 1 else k, 3 if k % 4 == 2 else 20) + " End." * (k % 10) for k in range(400)
    ]
    path.write_text("".join(json.dumps({"id": f"d{k}", "text": text}) + "\n" for k, text in enumerate(texts)))
    return path


def run(source: Path, output: Path, **options: Any) -> Manifest:
    settings = {"tokenizer": "bytes", "rules": "gopher_quality", "val_fraction": 0.2}
    return build(source, output, progress=Progress(quiet=True), **{**settings, **options})


def ids(output: Path, split: str) -> set[str]:
    return {name for path in output.glob(f"{split}-*.tar") for name in Shard(path).table()["id"]}


def reference(digest: bytes, key: bytes) -> int:
    """The docstring of draws.py in integers of Python."""
    h0, h1, k0, k1 = (int.from_bytes(part[at : at + 8], "little") for part in (digest, key) for at in (0, 8))
    return mix64(mix64(h0 ^ k0) + (h1 ^ k1) & MASK)


@given(st.binary(min_size=16, max_size=16), st.integers(), st.sampled_from(PURPOSES))
def test_what_is_drawn_is_what_the_definition_says(digest: bytes, seed: int, purpose: str) -> None:
    from hashlib import blake2b

    key = blake2b(f"{purpose}\0{seed}".encode(), digest_size=16).digest()
    hashes = np.frombuffer(digest, np.uint8).reshape(1, 16)
    assert draws(hashes, seed, purpose).tolist() == [reference(digest, key)]


def test_draws_are_uniform_and_those_of_seeds_and_purposes_independent() -> None:
    hashes = np.arange(40_000 * 16, dtype=np.uint32).astype(np.uint8).reshape(-1, 16).copy()
    hashes[:, :4] = np.arange(40_000, dtype="<u4").view(np.uint8).reshape(-1, 4)
    drawn = {(seed, name): draws(hashes, seed, name) < np.uint64(1 << 62) for seed in (0, 1, -1) for name in PURPOSES}
    for one, chosen in drawn.items():
        assert 0.24 < chosen.mean() < 0.26, one
        for other, held in drawn.items():
            assert one == other or 0.055 < (chosen & held).mean() < 0.07, (one, other)  # a sixteenth


def test_another_seed_draws_another_validation_set_quota_and_samples(source: Path, tmp_path: Path) -> None:
    first, second = (run(source, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    held = [ids(tmp_path / name, "val") for name in "01"]
    assert held[0] != held[1]
    assert 20 < len(held[0]) < 90
    assert first.counts["samples"]["kept"] != second.counts["samples"]["kept"]
    assert first.counts["samples"]["words"] != second.counts["samples"]["words"]
    quota = first.counts["tokens"] // 2
    for seed in (0, 1):
        run(source, tmp_path / f"cut {seed}", seed=seed, max_tokens=str(quota), val_fraction=0)
    kept = [ids(tmp_path / f"cut {seed}", "train") for seed in (0, 1)]
    assert kept[0] != kept[1]
    assert all(kept)


def test_no_seed_changes_what_is_a_duplicate(source: Path, tmp_path: Path) -> None:
    first, second = (run(source, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert first.counts["duplicates"] == second.counts["duplicates"] != {"exact": 0, "near": 0}
    names = [ids(tmp_path / name, "train") | ids(tmp_path / name, "val") for name in "01"]
    assert names[0] == names[1]
    signatures = {}
    for seed in "01":
        hashes = np.load(tmp_path / seed / "signatures" / "hashes.npy")
        signatures[seed] = (hashes, np.load(tmp_path / seed / "signatures" / "signatures.npy"))
    np.testing.assert_array_equal(signatures["0"][0], signatures["1"][0])
    np.testing.assert_array_equal(signatures["0"][1], signatures["1"][1])


def test_validation_depends_on_neither_shards_nor_what_else_is_read(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "whole", seed=5)
    run(source, tmp_path / "shards", seed=5, tokens_per_shard=3_000)
    lines = source.read_text().splitlines(keepends=True)
    (tmp_path / "half.jsonl").write_text("".join(lines[200:]))
    run(tmp_path / "half.jsonl", tmp_path / "half", seed=5)
    assert ids(tmp_path / "shards", "val") == ids(tmp_path / "whole", "val")
    kept = ids(tmp_path / "half", "train") | ids(tmp_path / "half", "val")
    assert ids(tmp_path / "half", "val") == ids(tmp_path / "whole", "val") & kept
