from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.documentation import ROOT, blocks_of
from tests.helpers.local_server import new_socket
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


TWO_PROCESSES = """
import sys, jax, pipeline
jax.distributed.initialize("127.0.0.1:" + sys.argv[2], 2, int(sys.argv[1]))
stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4)
try:
    next(iter(stream))
except pipeline.ConfigError as error:
    print(str(error).partition(":")[0])
print(next(iter(stream.shard(jax.process_index(), jax.process_count())))["input_ids"].tolist())
"""


def test_processes_of_jax_that_state_no_part_are_an_error() -> None:
    pytest.importorskip("jax")
    with new_socket() as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES, str(rank), port], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        refusal, read = process.communicate()[0].splitlines()
        assert "each of the 2 processes would read the whole stream" in refusal
        assert read == str(list(range(4 * rank, 4 * rank + 4)))
