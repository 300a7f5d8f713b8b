"""Scores made elsewhere: exported texts, keys, and rules on what comes back."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.builder.transforms.score_table import Scores
from pipeline.cli.main import run_command
from pipeline.errors import ConfigError, PlanChangedError
from tests.builder.test_transforms import make, write_records
from tests.helpers.builds import table
from tests.helpers.commands import Says

TEXTS = ["One text.\r\n", "Another\u00a0text.", "A third.", "Without a score."]


def key(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_scores(path: Path, columns: dict[str, list[Any]]) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def quality_rule(path: Path, least: float) -> str:
    path.write_text(f'"column:quality" = {{ min = {least} }}\n')
    return str(path)


def test_texts_are_exported_with_their_keys_and_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], says: Says
) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS, n=[1, 2, 3, 4])
    with open(source, "a") as file:
        file.write("no json\n")
    assert run_command("texts", [str(source), "--output", str(tmp_path / "texts.parquet")]) == 0
    assert pq.read_table(tmp_path / "texts.parquet").to_pydict() == {
        "key": [*map(key, TEXTS)],
        "id": ["d0", "d1", "d2", "d3"],
        "text": TEXTS,
    }
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/texts.parquet: 4 texts\n"
    assert (
        "in.jsonl: it is an input, which would be replaced; choose another name"
        in says(2, "texts", source, "--output", source).err
    )
    assert "1 bad records; the first" in said.err
    assert run_command("texts", [str(source), "--output", str(tmp_path / "some.parquet"), "--where", "n > 2"]) == 0
    assert pq.read_table(tmp_path / "some.parquet")["text"].to_pylist() == TEXTS[2:]


def test_scores_are_mapped_so_that_workers_share_them(tmp_path: Path) -> None:
    keys = np.arange(100_000, dtype=">u8").repeat(2).view("S16")
    Scores(["quality"], keys, np.zeros((len(keys), 1))).save(tmp_path)
    tracemalloc.start()
    scores = Scores.load(tmp_path)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < keys.nbytes / 10
    assert scores.look_up(["not there"]) == [None]


@pytest.mark.parametrize("binary", [False, True])
def test_rules_read_the_scores_of_texts_as_they_were_read(tmp_path: Path, binary: bool) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    keys: list[Any] = [bytes.fromhex(key(text)) if binary else key(text) for text in TEXTS[:3]]
    scores = write_scores(tmp_path / "scores.parquet", {"key": [*keys, keys[0]], "quality": [0.9, 0.1, 0.5, 0.9]})
    settings = {"rules": quality_rule(tmp_path / "r.toml", 0.5), "keep_fields": "quality:float"}
    manifest = make(source, tmp_path / "out", scores=scores, **settings)
    assert table(tmp_path / "out")["column:quality"] == [0.9, 0.5]
    assert manifest.counts["dropped"] == {"column:quality": 2}
    assert manifest.counts["cut"] == {"documents without a score": 1}
    assert manifest.recipe["settings"]["scores"] == "scores.parquet"
    assert manifest.recipe["definitions"]["scores"] == hashlib.sha256(Path(scores).read_bytes()).hexdigest()
    write_scores(tmp_path / "scores.parquet", {"key": keys, "quality": [0.9, 0.8, 0.5]})
    with pytest.raises(PlanChangedError, match="definitions: scores"):
        make(source, tmp_path / "out", scores=scores, **settings)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"quality": [1.0]}, "no column 'key'"),
        ({"key": ["0" * 32]}, "no column of numbers"),
        ({"key": ["0" * 31], "quality": [1.0]}, "row 0: key '0{31}' is not 32 hexadecimal digits"),
        ({"key": ["0" * 32], "quality": ["good"]}, "column 'quality' is string, not numbers"),
        ({"key": ["0" * 32, "0" * 32], "quality": [1.0, 2.0]}, "key 0{32} has several rows with different numbers"),
    ],
)
def test_a_file_of_scores_that_cannot_be_used_is_refused(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    with pytest.raises(ConfigError, match=said):
        make(source, tmp_path / "out", scores=write_scores(tmp_path / "scores.parquet", columns))
    (tmp_path / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"scores .*scores\.parquet: not a whole parquet file \("):
        make(source, tmp_path / "out", scores=str(tmp_path / "scores.parquet"))


def test_a_condition_on_a_score_is_refused_with_the_rule_to_use(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    scores = write_scores(tmp_path / "scores.parquet", {"key": [key(TEXTS[0])], "quality": [1.0]})
    with pytest.raises(ConfigError, match="where reads 'quality', which is a score"):
        make(source, tmp_path / "out", scores=scores, where="quality > 0.5")
