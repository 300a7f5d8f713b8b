"""Units run in this process, in worker processes or on Ray: each to its end, whatever dies, and with errors as they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.builder.engines.local import report_progress
from pipeline.builder.engines.options import EngineOptions
from pipeline.builder.engines.ray import check_address
from pipeline.errors import BuildError, ConfigError
from pipeline.signals import reraise_swallowed_signals
from tests.helpers import interpreters
from tests.helpers.local_server import answering


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
    with EngineOptions(workers=workers, start_method=method).open() as engine:
        assert sorted(engine.map(square, range(20))) == [(k, k * k) for k in range(20)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_exception_of_a_unit_ends_the_map_as_itself(workers: int) -> None:
    with (
        EngineOptions(workers=workers, start_method="fork").open() as engine,
        pytest.raises(ConfigError, match="three is too many"),
    ):
        list(engine.map(fail_on_three, range(9)))


def test_a_killed_worker_is_replaced_until_a_unit_kills_three(tmp_path: Path) -> None:
    units = [str(tmp_path / str(k)) for k in range(4)]
    with EngineOptions(workers=2, start_method="fork").open() as engine:
        retries: list[tuple[int, str]] = []
        engine.on_retry = lambda index, reason: retries.append((index, reason))
        assert sorted(engine.map(die_once, units)) == list(enumerate(units))
        assert sorted(retries) == [(k, "killed by SIGKILL") for k in range(4)]
        with pytest.raises(BuildError, match=r"killed by SIGKILL\) 3 times on unit"):
            list(engine.map(die_always, ["unit"]))


def test_no_more_workers_are_started_than_there_are_units() -> None:
    others = set(multiprocessing.active_children())
    with EngineOptions(workers=5, start_method="fork").open() as engine:
        for units, started in ((2, 2), (3, 3), (1, 3), (9, 5)):
            assert sorted(engine.map(square, range(units))) == [(k, k * k) for k in range(units)]
            assert len(set(multiprocessing.active_children()) - others) == started


def report(unit: int) -> int:
    for _ in range(4):
        time.sleep(0.15)
        report_progress(10)
    return unit


@pytest.mark.parametrize("workers", [1, 2])
def test_engines_pass_on_the_progress_of_units_while_they_run(workers: int) -> None:
    told: list[tuple[int, int]] = []
    with EngineOptions(workers=workers, start_method="fork").open() as engine:
        engine.on_progress = lambda index, amount: told.append((index, amount))
        before_results = [len(told) for _ in engine.map(report, [0, 1])]
    assert before_results[0] > 0
    assert {index for index, _ in told} == {0, 1}
    assert sum(amount for _, amount in told) <= 80


def test_a_process_forked_after_a_training_trains_the_same() -> None:
    code = (
        "import os, signal\n"
        "from pipeline.text.tokens.tokenizer import train_tokenizer\n"
        "from tests.helpers.corpus import english\n"
        "texts = [english(k) for k in range(30)]\n"
        "whole = train_tokenizer(texts, 400).definition\n"
        "if not (child := os.fork()):\n"
        "    signal.alarm(60)\n"
        "    os._exit(train_tokenizer(texts, 400).definition != whole)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    assert interpreters.run("-c", code).stdout == "0\n"


def test_a_ray_address_where_nothing_answers_is_refused_at_once_with_the_cure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(ConfigError, match=f"--ray-address {address}: nothing answers there.*`ray start --head"):
                check_address(address)
        unused.listen()
        with pytest.raises(ConfigError, match=f"--ray-address 127.0.0.1:{port}: nothing answers there .*timed out"):
            check_address(f"127.0.0.1:{port}", answer_seconds=0.01)
    with answering(b"\0\0", b"\6\4\0\0\0\0\0") as address:
        check_address(address)
    check_address("auto")


def swallow() -> None:
    with suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


def replace() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("a compiled module could not be loaded") from None


def nest() -> None:
    with reraise_swallowed_signals():
        signal.raise_signal(signal.SIGINT)
    pytest.fail("it went on")


@pytest.mark.parametrize("block", [swallow, replace, nest])
def test_an_interrupt_that_a_library_swallows_or_replaces_is_raised(block: Callable[[], None]) -> None:
    def work() -> None:
        with reraise_swallowed_signals():
            block()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    thread = threading.Thread(target=reraise_swallowed_signals().__enter__)  # where no handler may be set
    thread.start()
    thread.join()


def stay(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(300)


def map_two(folder: str, method: str) -> None:
    with EngineOptions(workers=2, start_method=method).open() as engine:
        list(engine.map(stay, [folder, folder]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_end_at_once_when_their_build_is_killed(method: str, tmp_path: Path) -> None:
    build = multiprocessing.get_context("spawn").Process(target=map_two, args=(str(tmp_path), method))
    build.start()
    while len(names := os.listdir(tmp_path)) < 2 and build.is_alive():
        time.sleep(0.02)
    build.kill()
    build.join()
    assert len(names) == 2
    while any(Path("/proc", name).exists() and Path("/proc", name, "cmdline").read_bytes() for name in names):
        time.sleep(0.02)  # a worker that stays outlasts the time limit of this test
