from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.documentation import ROOT, blocks_of
from tests.helpers.shard_samples import write_dataset

pytestmark = pytest.mark.stacks

VOCABULARY = 50


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Documents in which each token but a few follows from the one before."""
    generator = np.random.default_rng(0)
    shards = []
    for _ in range(3):
        tokens = (np.arange(40_000) * 7) % (VOCABULARY - 1) + 1
        surprising = generator.random(len(tokens)) < 0.05
        tokens[surprising] = generator.integers(1, VOCABULARY, surprising.sum())
        shards.append(list(tokens.astype("<u2").reshape(40, -1)))
    write_dataset(tmp_path / "shards", shards, vocab_size=VOCABULARY)
    return tmp_path / "shards"


def test_the_jax_recipe_learns_on_batches_without_torch_tensors(dataset: Path) -> None:
    pytest.importorskip("jax")
    (block,) = (text for _, text in blocks_of("docs/frameworks.md") if "import jax" in text)
    loop = block.replace("    weights -=", "    print(float(value), type(batch['input_ids']).__name__)\n    weights -=")
    done = subprocess.run(  # of its own, for JAX starts threads, and other tests fork
        [sys.executable, "-W", "error", "-c", "import pipeline\n" + loop],
        cwd=dataset.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    steps = [line.split() for line in done.stdout.splitlines()]
    losses = [float(value) for value, _ in steps]
    assert len(losses) == 20
    assert {kind for _, kind in steps} == {"ndarray"}
    assert losses[0] > 3.5
    assert losses[-1] < losses[0] / 2
