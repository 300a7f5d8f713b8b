"""Every block of docs/start.md and docs/speed.md runs as it stands, in order, and does what the page says."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.shards.manifest import Manifest
from tests.helpers.builds import table, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.documentation import blocks_of, run_block
from tests.helpers.faulty_server import running_server
from tests.helpers.input_server import InputServer, running_inputs

pytestmark = pytest.mark.stacks

JOINED, FILES, AT_ONCE, HUB, TRAIN, SHOW, EXPORT, BIN, BUCKET, *ROWS = blocks_of("docs/start.md")
GROUPED, SMALL_STREAM, SMALL_BUILD = blocks_of("docs/speed.md")
CARD = b"---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"


@pytest.fixture
def hub() -> Iterator[InputServer]:
    """A hub that has a small dataset under the name, the configuration and the columns of FineWeb-Edu."""
    with running_inputs() as server:
        server.repository = "HuggingFaceFW/fineweb-edu"
        server.files["README.md"] = CARD
        for number in range(2):
            ids = range(number * 500, number * 500 + 500)
            columns = {"text": [english(n) for n in ids], "id": [f"<urn:uuid:{n}>" for n in ids]}
            columns |= {"dump": ["CC-MAIN-2024-10"] * 500, "score": [3.25] * 500, "int_score": [3] * 500}
            file = io.BytesIO()
            pq.write_table(pa.table(columns), file)
            server.files[f"sample/10BT/{number:03}_00000.parquet"] = file.getvalue()
        yield server


def test_a_dataset_of_the_hub_becomes_a_model_whose_loss_falls(tmp_path: Path, hub: InputServer) -> None:
    homes = {"HF_ENDPOINT": hub.root, "HF_HOME": str(tmp_path / "home"), "SHARDWRIGHT_CACHE": str(tmp_path / "kept")}
    assert "no problem" in run_block(*HUB, tmp_path, **homes)
    assert {*table(tmp_path / "edu")["column:int_score"]} == {3}
    steps = [json.loads(line) for line in run_block(*TRAIN, tmp_path).splitlines() if line.startswith('{"step"')]
    assert len(steps) == 60
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    assert run_block(*SHOW, tmp_path).strip()
    run_block(*EXPORT, tmp_path)
    run_block(*BIN, tmp_path)
    with running_server() as bucket:
        url = bucket.serve(tmp_path / "edu").rsplit("/", 1)[0]
        cache = str(tmp_path / "cache")
        program = BUCKET[1].replace("s3://bucket/edu", f"{url}/data").replace("/tmp/shardwright-cache", cache)
        run_block("python", program, tmp_path)
    shown = "".join(run_block(*block, tmp_path) for block in ROWS)
    assert "⟧It is" in shown


def test_files_of_text_become_batches_with_a_build_and_without(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "raw/a.jsonl", [english(number) for number in range(400)])
    assert "no problem" in run_block(FILES[0], FILES[1].replace("train:32000", "train:400"), tmp_path)
    for block in (JOINED, AT_ONCE):
        run_block(*block, tmp_path)


def test_samples_are_grouped_windows_are_small_and_giants_are_dropped(tmp_path: Path) -> None:
    texts = [english(number) for number in range(60)]
    write_jsonl(tmp_path / "pages/a.jsonl", [*texts, "giant " * 1_700_000])
    run_block(*GROUPED, tmp_path)
    tar = tmp_path / "shards-grouped/train-000000.tar"
    members = subprocess.run(["tar", "tf", tar], capture_output=True, text=True, check=True).stdout.split()
    assert sum(name.endswith(".npy") for name in members) < 30
    run_block(*SMALL_STREAM, tmp_path)
    run_block(*SMALL_BUILD, tmp_path)
    assert Manifest.read(tmp_path / "shards-small").counts["dropped"] == {"characters": 1}
