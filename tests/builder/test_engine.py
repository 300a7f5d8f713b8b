from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from pipeline.builder.engine.registry import open_engine
from pipeline.errors import BuildError, ConfigError
from tests import interpreters


def square(number: int) -> int:
    return number * number


def fail_on_three(number: int) -> int:
    if number == 3:
        raise ConfigError("three is too many")
    return number


def die_once(path: str) -> str:
    """Kill this worker the first time, as the kernel does when memory runs out."""
    mark = Path(path)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def die_always(unit: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("workers", "method"), [(1, None), (2, "fork"), (2, "spawn")])
def test_every_unit_is_run_once_and_results_carry_their_unit(workers: int, method: str | None) -> None:
    with open_engine(workers=workers, start_method=method) as engine:
        assert sorted(engine.map(square, range(20))) == [(k, k * k) for k in range(20)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_exception_of_a_unit_ends_the_map_as_itself(workers: int) -> None:
    with (
        open_engine(workers=workers, start_method="fork") as engine,
        pytest.raises(ConfigError, match="three is too many"),
    ):
        list(engine.map(fail_on_three, range(9)))


def test_a_worker_killed_in_mid_unit_is_replaced_and_its_unit_run_again(tmp_path: Path) -> None:
    units = [str(tmp_path / str(k)) for k in range(4)]
    with open_engine(workers=2, start_method="fork") as engine:
        assert sorted(engine.map(die_once, units)) == list(enumerate(units))


def test_a_unit_that_kills_every_worker_ends_the_build_naming_the_signal() -> None:
    with open_engine(workers=2, start_method="fork") as engine, pytest.raises(BuildError, match="SIGKILL"):
        list(engine.map(die_always, ["unit"]))


def test_leaving_the_engine_ends_its_workers_at_once() -> None:
    with open_engine(workers=2, start_method="fork") as engine:
        started = time.monotonic()
        next(iter(engine.map(square, range(4))))
    assert time.monotonic() - started < 30


def test_no_more_workers_are_started_than_there_are_units() -> None:
    others = set(multiprocessing.active_children())
    with open_engine(workers=5, start_method="fork") as engine:
        for units, started in ((2, 2), (3, 3), (1, 3), (9, 5)):
            assert sorted(engine.map(square, range(units))) == [(k, k * k) for k in range(units)]
            assert len(set(multiprocessing.active_children()) - others) == started


@pytest.mark.parametrize(("name", "workers"), [("rey", 1), ("local", 0)])
def test_settings_that_cannot_work_are_refused(name: str, workers: int) -> None:
    with pytest.raises(ConfigError, match=r"rey.*ray|workers must be .*at least 1"):
        open_engine(name, workers=workers)


def test_a_process_that_is_forked_after_a_tokenizer_was_trained_trains_the_same() -> None:
    code = (
        "import os, signal\n"
        "from pipeline.text.tokenizer.tokenizer import train_tokenizer\n"
        "from tests.corpus import english\n"
        "texts = [english(k) for k in range(100)]\n"
        "whole = train_tokenizer(texts, 400).definition\n"
        "if not (child := os.fork()):\n"
        "    signal.alarm(60)\n"
        "    os._exit(train_tokenizer(texts, 400).definition != whole)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    assert interpreters.run("-c", code).stdout == "0\n"
