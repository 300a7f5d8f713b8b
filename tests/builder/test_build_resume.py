"""A build that is stopped, or killed again and again, gives the bytes of one that never was, and does nothing twice."""

from __future__ import annotations

import functools
import multiprocessing
import random
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.atomic import temporary_path
from pipeline.builder.limits import Limits
from pipeline.cli.main import run_command
from pipeline.errors import BuildError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import HALVES, digests, run, run_plain, write_jsonl
from tests.helpers.corpus import english, write_inputs
from tests.helpers.interruptions import Units, interrupt_after, killed_at, run_to_operation
from tests.helpers.text_samples import jsonl

FLAGS = ["--tokenizer", "train:400", "--rules", "gopher_quality", "--language", "en=0.2", "--quiet"]
FLAGS += ["--val-fraction", "0.1", "--workers", "2"]
COUNTING = """\
from pathlib import Path

FOLDER = Path({folder!r})


def count(page):
    with open(FOLDER / "log", "a") as file:
        file.write(".")
    if (FOLDER / "stop").exists() and (FOLDER / "log").stat().st_size == 200:
        raise ValueError("stop here")
    return 0
"""


def test_dedup_goes_on_where_it_was_killed_even_elsewhere(inputs: list[str], built: Path, tmp_path: Path) -> None:
    def fail(name: str, count: int) -> None:
        if name == "near duplicates" and count == 5:
            raise KeyboardInterrupt

    first, second = Units(fail), Units()
    with pytest.raises(KeyboardInterrupt):
        run(inputs, tmp_path / "out", progress=first)
    assert len(list((tmp_path / "out/.build/round/dedup_work/edges").iterdir())) == 6
    (tmp_path / "out").rename(tmp_path / "moved")
    run(inputs, tmp_path / "moved", progress=second)
    assert (first.counts["exact duplicates"], second.counts.get("exact duplicates")) == (1, None)
    assert first.counts["near duplicates"] + second.counts["near duplicates"] == 14
    assert digests(tmp_path / "moved") == digests(built)


def test_a_stopped_stage_goes_on_with_the_units_that_are_left(tmp_path: Path) -> None:
    texts = [[english(number * 10 + k) for k in range(10)] for number in range(8)]
    names = [write_jsonl(tmp_path / f"{number}.jsonl", some) for number, some in enumerate(texts)]
    options: dict[str, Any] = {"tokens_per_shard": 4_000, "limits": Limits(smallest_unit_bytes=1, units_wanted=12)}

    def build_until_half_of(stage: str) -> Units:
        def stop(name: str, count: int) -> None:
            if name == stage and units.amounts[name] > units.totals[name] / 2:
                raise KeyboardInterrupt

        units = Units(stop)
        with pytest.raises(KeyboardInterrupt):
            run_plain(names, tmp_path / "out", progress=units, **options)
        return units

    stages = ("ingest", "tokenize", "split", "write")
    runs = [*map(build_until_half_of, stages), Units()]
    run_plain(names, tmp_path / "out", progress=runs[-1], **options)
    for stage, stopped, continued in zip(stages, runs, runs[1:], strict=False):
        assert 0 < continued.totals[stage] < 0.6 * stopped.totals[stage]
        assert next(name for name in stages if name in continued.totals) == stage
    run_plain(names, tmp_path / "whole", **options)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_shard_removed_from_an_unfinished_output_is_written_again(tmp_path: Path) -> None:
    path, options = write_jsonl(tmp_path / "in.jsonl", [english(k) for k in range(60)]), {"tokens_per_shard": 3_000}
    with pytest.raises(KeyboardInterrupt):
        run_plain(path, tmp_path / "out", after_stage=interrupt_after("write"), **options)
    first, *_ = sorted((tmp_path / "out").glob("*.tar"))
    first.unlink()
    run_plain(path, tmp_path / "out", **options)
    run_plain(path, tmp_path / "whole", **options)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_unit_of_many_parts_goes_on_after_those_that_are_done(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING.format(folder=str(tmp_path)))
    (tmp_path / "own.toml").write_text('"counting:count" = { max = 0 }\n')
    monkeypatch.syspath_prepend(tmp_path)
    options = {"rules": str(tmp_path / "own.toml")}
    run_plain(inputs, tmp_path / "whole", **options)
    judged = (tmp_path / "log").stat().st_size
    (tmp_path / "log").write_text("")
    (tmp_path / "stop").touch()
    limits = Limits(partition_characters=30_000, batch_records=7)
    with pytest.raises(BuildError, match="stop here"):
        run_plain(inputs, tmp_path / "out", **options, limits=limits)
    assert len(list((tmp_path / "out/.build/ingest/000000").glob("0*"))) > 3
    assert list(tmp_path.glob("out/*.tar")) == []
    (tmp_path / "stop").unlink()
    run_plain(inputs, tmp_path / "out", **options)  # the plan keeps the limits of the first run
    assert 200 <= (tmp_path / "log").stat().st_size < judged + 60
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def _run(arguments: list[str]) -> None:
    raise SystemExit(run_command("build", arguments))


def start(inputs: list[str], output: Path) -> ForkServerProcess:
    """Start a build in a process of its own, forked from one that has its libraries loaded."""
    arguments = [*inputs, "--output", str(output), *FLAGS]
    process = multiprocessing.get_context("forkserver").Process(target=_run, args=(arguments,))
    process.start()
    return process


@pytest.mark.nightly
def test_kills_at_random_moments_change_no_byte(inputs: list[str], built: Path, tmp_path: Path) -> None:
    """Moments inside units and of the command's start and end; those between units are in the test below."""
    generator, killed = random.Random(5), 0
    for _ in range(6):
        process = start(inputs, tmp_path / "killed")
        process.join(generator.uniform(0.5, 3))
        killed += process.exitcode is None
        process.kill()
        process.join()
        if killed == 2:
            break
    process = start(inputs, tmp_path / "killed")
    process.join()
    assert process.exitcode == 0
    assert digests(tmp_path / "killed") == digests(built)
    assert_clean(tmp_path / "killed")


def assert_clean(output: Path) -> None:
    assert list(output.rglob(".*")) == []
    assert list(verify_dataset(output)) == []


def test_what_any_killed_writer_left_half_written_is_swept(inputs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_plain(inputs, out, keep_texts="parquet", after_stage=interrupt_after("split"))
    for name in ("train-00000.tar", "texts/train-00000.parquet", "report.html", ".build/plan.json", ".build/round/x"):
        path = temporary_path(out / name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    temporary_path(out / "signatures").mkdir()
    left: list[list[Path]] = []
    run_plain(inputs, out, keep_texts="parquet", after_stage=lambda _: left.append([*out.rglob(".*.tmp")]))
    assert left[0] == [], "before the first stage goes on"
    assert_clean(out)


EVERYTHING: dict[str, Any] = {
    "tokenizer": "bytes",
    "transforms": [HALVES],
    "where": "text != 'Too short.'",
    "dedup_lines": True,
    "shortest_passage": 20,
    "words_left": 5,
    "dedup_passages": 10,
    "dedup_keep": "longest",
    "keep_rejected": True,
    "keep_texts": "jsonl.zst",
    "limits": Limits(smallest_unit_bytes=20_000, partition_characters=20_000, batch_records=20, bucket_hashes=500),
}


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Manifest]:
    """A build with every stage, into a folder."""
    inputs = write_inputs(tmp_path / "in", 100)
    (tmp_path / "gone.txt").write_text("doc-1\ndoc-20\n")
    notice = " ".join(f"notice{k}" for k in range(12))
    inputs.append(str(write_jsonl(tmp_path / "in/notices.jsonl", [f"{k} {notice} {english(k, 9)}" for k in range(40)])))
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [english(4, 2)])
    inputs = [f"{name}={path}" for name, path in zip("abcabca", inputs, strict=True)]
    named = {"drop_ids": str(tmp_path / "gone.txt"), "decontaminate": str(quiz)}
    return functools.partial(run, inputs, **named, **EVERYTHING)


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_build_killed_at_any_file_operation_goes_on_to_the_same_bytes(
    build: Callable[..., Manifest], tmp_path: Path, kills: int
) -> None:
    status, operations = run_to_operation(-1, functools.partial(build, tmp_path / "whole"))
    assert (status, operations > 150) == (0, True)
    for count in random.Random(44).sample(range(operations), kills):
        output = tmp_path / f"killed before operation {count}"
        assert run_to_operation(count, functools.partial(build, output)) == (-signal.SIGKILL, count)
        build(output)
        assert digests(output) == digests(tmp_path / "whole"), output.name
        assert_clean(output)


def test_a_build_killed_after_any_unit_goes_on(build: Callable[..., Manifest], tmp_path: Path) -> None:
    units = Units()
    build(tmp_path / "whole", progress=units)
    some = "ingest decontaminate drop_ids passages split".split()
    assert units.counts.keys() > {*some, "find repeats", "cut repeats", "sort windows"}
    done = sum(units.counts.values())
    for count in [1] + 6 * [done // 8]:  # each goes on where the one before was killed
        assert killed_at(count, functools.partial(build, tmp_path / "killed")) == -signal.SIGKILL
    build(tmp_path / "killed")
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert_clean(tmp_path / "killed")
    counts = Manifest.read(tmp_path / "whole").counts
    assert min(counts["dropped"]["contaminated"], counts["dropped"]["drop_ids"], counts["passages"]["cut"]) > 0


def test_an_interrupt_counts_the_units_that_are_kept_and_the_next_start_says_that_it_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = [True]

    @pipeline.transform(version="1")
    def stop_at_the_last(document: pipeline.Document) -> pipeline.Document:
        if stopping and "last" in document.text:
            signal.raise_signal(signal.SIGINT)
        return document

    inputs = [f"{name}={jsonl(tmp_path / f'{name}.jsonl', [name])}" for name in ("first", "second", "last")]
    settings: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "val_fraction": 0, "transforms": [stop_at_the_last]}
    for number in range(2):
        with pytest.raises(KeyboardInterrupt, match=r"ingest: 2 of 3 units .*kept; run the same command again"):
            pipeline.build(inputs, tmp_path / "out", **settings)
        said = f"{tmp_path}/out: continues the build that was interrupted here\ningest: 2 of 3 units are kept from before\n"
        assert (said in capsys.readouterr().err) == (number > 0)
    stopping.clear()
    assert pipeline.build(inputs, tmp_path / "out", **settings).counts["kept"] == 3
