"""``shardwright plan``: the plan of a mix of datasets on disk."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

import pipeline
from pipeline.cli.main import run_command
from tests.helpers.commands import Says
from tests.helpers.shard_samples import make_documents, write_dataset

plan = partial(run_command, "plan")
POINTS = "linear = true\npoints = [[0, {web = 0.9, wiki = 0.1}], [0.5, {web = 0.9, wiki = 0.1}], [1, {web = 0.5, wiki = 0.5}]]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plan")
    write_dataset(directory / "web", [make_documents(400, seed=1)] * 4)
    write_dataset(directory / "wiki", [make_documents(40, seed=2)])
    return directory


def mixed(folder: Path, weights: object = None) -> pipeline.Stream:
    sources = {name: pipeline.ShardDataset(folder / name) for name in ("web", "wiki")}
    return pipeline.mix(sources, weights or {"web": 0.9, "wiki": 0.1}).shuffle(seed=0)  # type: ignore[arg-type]


def test_it_shows_the_plan_of_the_stream(folder: Path, says: Says) -> None:
    what = [f"web={folder}/web:0.9", f"wiki={folder}/wiki:0.1", "--tokens", "4e4"]
    for flags, stream in (
        (["--seq-len", "16"], mixed(folder).pack(16)),
        (["--rows", "documents"], mixed(folder).documents()),
        (["--rows", "best-fit", "--seq-len", "64"], mixed(folder).pack(64, best_fit=True)),
    ):
        assert says(0, "plan", *what, *flags).out == f"{stream.plan(4e4)}\n"
        assert json.loads(says(0, "plan", *what, *flags, "--json").out) == json.loads(
            json.dumps(stream.plan(4e4).to_json())
        )


def test_a_schedule_is_a_file_or_a_table_of_one(folder: Path, tmp_path: Path, says: Says) -> None:
    first, half = {"web": 0.9, "wiki": 0.1}, {"web": 0.5, "wiki": 0.5}
    schedule = pipeline.Schedule([(0, first), (0.5, first), (1, half)], unit="shares", linear=True, tokens=20_000)
    expected = f"{mixed(folder, schedule).pack(16).plan()}\n"
    flags = ["--schedule", str(tmp_path / "run.toml"), "--tokens", "20000", "--seq-len", "16"]
    for head in ("", "[weights]\n", 'steps = 9\n[weights]\nunit = "shares"\ntokens = 20000\n'):
        (tmp_path / "run.toml").write_text(head + POINTS)
        assert says(0, "plan", f"web={folder}/web", f"wiki={folder}/wiki", *flags).out == expected


def test_a_cap_is_an_error_with_weights_that_fit(folder: Path, capsys: pytest.CaptureFixture[str], says: Says) -> None:
    flags = ["--tokens", "4e4", "--seq-len", "16", "--max-epochs", "wiki=1.5"]
    assert plan([f"web={folder}/web:0.9", f"wiki={folder}/wiki:0.1", *flags]) == 2
    fit = mixed(folder).pack(16).plan(4e4, max_epochs={"wiki": 1.5}, on_cap="renormalize")
    rows = {name: int(share * 4096) for name, share in fit.weights.items()}
    assert f"give the weights that fit, {rows}" in capsys.readouterr().err
    assert (
        f"weights that keep wiki within max_epochs: {rows}"
        in says(0, "plan", f"web={folder}/web:0.9", f"wiki={folder}/wiki:0.1", *flags, "--on-cap", "renormalize").out
    )
    given = [f"{name}={folder}/{name}:{share}" for name, share in rows.items()]
    assert plan([*given, *flags]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["web={0}/web"], "{0}/web: a source is NAME=DATASET:WEIGHT, as web=shards/web:0.9"),
        (["{0}/web", "--schedule", "{0}/run.toml"], "a source is NAME=DATASET, as web=shards/web"),
        (["web={0}/web:1", "--max-epochs", "web"], "--max-epochs web: write NAME=N, as wiki=4"),
        (["web={0}/web", "--schedule", "{0}/no.toml"], "no.toml: "),
        (["web={0}/web", "--schedule", "{0}/bad.toml"], "unexpected keyword argument 'lienar'"),
        (["web={0}/web:1", "--tokens", "0"], "tokens must be a whole number from 1 to 9e+15, as 10e9, got 0"),
        (["web={0}/web:1", "web={0}/wiki:2"], "two sources are named 'web'; give each its own name"),
    ],
)
def test_what_cannot_be_planned_is_an_error_in_one_line(
    folder: Path, says: Says, arguments: list[str], message: str
) -> None:
    (folder / "bad.toml").write_text("lienar = true\npoints = [[0, {web = 1}]]")
    err = says(2, "plan", "--tokens", "100", *(argument.format(folder) for argument in arguments)).err
    assert message.format(folder) in err
    assert err.count("\n") == 1
