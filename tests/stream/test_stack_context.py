"""Context parallelism on processes that find each other by torch.distributed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import pipeline
from pipeline.errors import ConfigError
from tests.stream.ranks import run_ranks

pytestmark = pytest.mark.stacks
LENGTH, STEPS, BEFORE = 16, 6, 3


def packed(kind: str, file: str) -> Any:
    """Return batches of four rows in all: of an indexed stream, or of one on whose end ranks agree."""
    data: Any
    if kind == "indexed":
        data = pipeline.ShardDataset.from_tokens(np.arange(600, dtype=np.uint16), lengths=[50] * 12)
    else:
        data = pipeline.TextDataset(file, "bytes", epochs=1)
    return data.shuffle(seed=4).pack(LENGTH)


def _steps(kind: str, file: str, data_ranks: int, state: Any) -> list[Any]:
    """Return the rows of each step, joined from all ranks of a mesh of data and context, and the state after some of them."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (data_ranks, ranks // data_ranks), mesh_dim_names=("dp", "cp"))
    stream = packed(kind, file).batch(4 // data_ranks).shard(mesh["dp", "cp"])
    if state is not None:
        stream.load_state_dict(state)
    steps, saved = [], None
    for number, batch in enumerate(stream if kind == "text" else islice(stream, STEPS), 1):
        parts: list[Any] = [None] * ranks
        dist.all_gather_object(
            parts, (mesh.get_coordinate(), batch["position_ids"].tolist(), batch["input_ids"].tolist())
        )
        rows: dict[Any, Any] = {}
        for (data_rank, _), positions, ids in parts:
            for row, (at, tokens) in enumerate(zip(positions, ids, strict=True)):
                rows.setdefault((data_rank, row), {}).update(zip(at, tokens, strict=True))
        assert all(sorted(row) == list(range(LENGTH)) for row in rows.values())
        steps.append(sorted([row[at] for at in range(LENGTH)] for row in rows.values()))
        if number == BEFORE:
            states: list[Any] = [None] * ranks
            dist.all_gather_object(states, stream.state_dict())
            saved = pipeline.merge_states(states)
    return [steps, saved]


@pytest.mark.parametrize("kind", ["indexed", "text"])
def test_slices_of_a_mesh_are_the_rows_and_go_on_with_fewer_peers(kind: str, tmp_path: Any) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": f"line {number} " * (number % 9)}) + "\n" for number in range(40)))
    if kind == "indexed":
        whole = [sorted(batch["input_ids"].tolist()) for batch in islice(packed(kind, "").batch(4).shard(0, 1), STEPS)]
    else:  # its last steps depend on how many ranks read it
        [[whole, _], _] = run_ranks(_steps, 2, kind, str(file), 2, None)
    four = run_ranks(_steps, 4, kind, str(file), 2, None)
    assert [steps for steps, _ in four] == [whole] * 4
    state = four[0][1]
    for ranks, data_ranks in ((4, 1), (2, 1), (2, 2)) if kind == "indexed" else ((2, 2),):
        for steps, _ in run_ranks(_steps, ranks, kind, str(file), data_ranks, state):
            assert steps[: len(whole) - BEFORE] == whole[BEFORE:], (ranks, data_ranks)


def _alone() -> list[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = packed("indexed", "")
    said = []
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    cube = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "cp"))
    makes: list[Callable[[], Any]] = [
        lambda: iter(rows.shard(context=(rank // 2, 2))),
        lambda: rows.shard(mesh),
        lambda: rows.shard(cube),
        lambda: rows.shard(mesh["dp", "cp"], context=mesh["cp"]),
    ]
    for refused in makes:
        try:
            refused()
            said.append("")
        except ConfigError as error:
            said.append(str(error))
    made = [rows.shard(context=(rank % 2, 2)), rows.shard(mesh["dp"], context=mesh["cp"]), rows.shard(mesh["cp"])]
    return [said, [next(iter(stream))["input_ids"].tolist() for stream in made]]


def test_neighbouring_ranks_are_peers_and_others_are_refused() -> None:
    results = run_ranks(_alone, 4)
    for rank, (said, made) in enumerate(results):
        own = packed("indexed", "").shard(rank // 2, 2, context=(rank % 2, 2))
        assert made == [next(iter(own))["input_ids"].tolist()] * 3
        assert bool(said[0]) == (rank in (1, 2))
        assert not said[0] or (
            f"on rank {rank} of 4" in said[0] and "give the mesh, .shard(mesh['dp', 'cp'])" in said[0]
        )
        assert said[1] == ""
        assert (
            said[2] == "a mesh of pp, dp, cp: give .shard(mesh['dp', 'cp']), or .shard(mesh['dp'], context=mesh['cp'])"
        )
        assert said[3].startswith("a mesh of dp, cp: give")


def test_a_model_has_the_loss_of_the_row_over_its_slices() -> None:
    import transformers

    shape: dict[str, Any] = {"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 0}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=640, hidden_size=8, intermediate_size=8, **shape)
    model = transformers.LlamaForCausalLM(config)  # without attention, so that a slice needs nothing of the other peer
    whole = packed("indexed", "").batch(2)
    losses = []
    for stream in (whole, *(whole.shard(0, 1, context=(peer, 2)) for peer in range(2))):
        batch = next(iter(stream))
        kept = next(iter(stream.loader(keys="hf")))
        counted = batch["valid_tokens"] - 2 * ("shift_labels" not in kept)  # it loses the last label of a whole row
        losses.append(model(**kept).loss.item() * counted)
    last = next(iter(whole))
    logits = model(last["input_ids"]).logits[:, -1]
    lost = torch.nn.functional.cross_entropy(logits, last["labels"][:, -1], reduction="sum").item()
    assert losses[1] + losses[2] == pytest.approx(losses[0] + lost, rel=1e-5)
