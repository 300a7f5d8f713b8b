"""One build at a time works in a directory, and what it writes there is whole or not there at all."""

from __future__ import annotations

import errno
import fcntl
import os
import posix
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.atomic import atomic_file, temporary_path
from pipeline.atomic_directory import result_directory, sweep
from pipeline.builder.limits import Limits
from pipeline.builder.work.lock import locked
from pipeline.cli.main import run_command
from pipeline.errors import BuildError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import ROOT, run_plain, write_jsonl
from tests.helpers.corpus import english

WAIT = """
import sys, time
from pathlib import Path
from pipeline.builder.work.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""
COUNT = """
import sys
from pathlib import Path
from pipeline.builder.work.lock import locked
folder, counter = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(15):
    with locked(folder / "out" / ".build", patience=60):
        value = int(counter.read_text())
        counter.write_text("")
        counter.write_text(str(value + 1))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", [english(k) for k in range(20)])


def start(program: str, *arguments: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE)


def test_a_directory_is_locked_until_its_process_is_killed(tmp_path: Path) -> None:
    work = tmp_path / "out" / ".build"
    with start(WAIT, work) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        message = rf"works here \(process {other.pid} on .*\); wait for it"
        with pytest.raises(BuildError, match=message), locked(work, patience=0.2):
            pass
        other.kill()
    with locked(work):
        pass
    assert not (tmp_path / "out").exists() or not work.exists()


def test_no_two_processes_work_in_a_directory_at_once_while_locks_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    workers = [start(COUNT, tmp_path, tmp_path / "count") for _ in range(3)]
    assert [(worker.communicate()[0], worker.returncode) for worker in workers] == [(b"", 0)] * 3
    assert (tmp_path / "count").read_text() == "45"
    assert list(tmp_path.glob("out/.build/*")) == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errno.ENOLCK, r"\.build/lock: this file system has no locks .* no other build works here and give --no-lock"),
        (errno.EIO, "cannot be written: Input/output error; choose another --output"),
    ],
)
def test_a_directory_that_cannot_be_locked_is_refused_with_the_cure(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, message: str
) -> None:
    def flock(*arguments: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BuildError, match=message):
        run_plain(source, tmp_path / "out", limits=Limits(lock_seconds=0))
    flags = ["--output", str(tmp_path / "out"), "--tokenizer", "bytes", "--rules", "none", "--workers", "1", "--quiet"]
    assert run_command("build", [str(source), "--no-lock", *flags]) == 0
    assert not (tmp_path / "out" / ".build").exists()


def test_two_threads_of_one_process_do_not_build_in_one_directory_at_once(source: Path, tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(stage: str) -> None:
        inside.set()
        assert go_on.wait(60)

    def first() -> Manifest:
        return run_plain(source, tmp_path / "out", after_stage=wait)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(first)
        try:
            assert inside.wait(60)
            for _ in range(2):  # a refused one must not free the directory
                with pytest.raises(BuildError, match=rf"works here \(process {os.getpid()} on .*\); wait"):
                    run_plain(source, tmp_path / "out", limits=Limits(lock_seconds=0.2))
        finally:
            go_on.set()
        manifest = running.result()
    assert run_plain(source, tmp_path / "out") == manifest
    assert not (tmp_path / "out" / ".build").exists()


def test_builds_that_start_over_in_one_directory_take_turns(source: Path, tmp_path: Path) -> None:
    def again(number: int) -> None:
        for _ in range(3):
            run_plain(source, tmp_path / "out", overwrite=True, limits=Limits(lock_seconds=60))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(again, range(2))) == [None, None]
    assert list(verify_dataset(tmp_path / "out")) == []


def test_a_result_is_there_whole_or_not_at_all_and_one_that_is_there_stays(tmp_path: Path) -> None:
    with suppress(ValueError), result_directory(tmp_path / "result") as directory:
        (directory / "one").write_text("1")
        assert not (tmp_path / "result").exists()
        raise ValueError("half way")
    assert list(tmp_path.iterdir()) == []
    for text in ("first", "second"):
        with result_directory(tmp_path / "result") as directory:
            (directory / "one").write_text(text)
    assert (tmp_path / "result" / "one").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are brought to disk, by the fsync of the system, which other tests leave out."""
    paths = list[str]()

    def sync(handle: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        posix.fsync(handle)

    monkeypatch.setattr("os.fsync", sync)
    return paths


def test_files_and_folders_within_a_result_are_on_disk_before_it_has_its_name(
    tmp_path: Path, synced: list[str]
) -> None:
    with result_directory(tmp_path / "result") as directory:
        (directory / "texts" / "more").mkdir(parents=True)
        for name in ("one", "texts/two", "texts/more/three"):
            (directory / name).write_text(name)
        assert synced == []
    *before, last = synced
    assert last == str(tmp_path), "the rename"
    names = {".", "one", "texts", "texts/two", "texts/more", "texts/more/three"}
    assert {Path(path).relative_to(directory).as_posix() for path in before} == names


def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_before_the_writer_goes_on(
    tmp_path: Path, synced: list[str]
) -> None:
    with atomic_file(tmp_path / "one") as file:
        file.write(b"1")
        assert synced == []
    assert synced == [file.name, str(tmp_path)]


def test_files_of_others_stay_and_those_of_killed_builds_are_swept(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "out" / ".build"
    left = temporary_path(work / "references")
    left.mkdir(parents=True)
    (left / "half").write_text("")
    (work / "notes.txt").write_text("mine")
    (tmp_path / "out" / ".draft.tmp").write_text("mine")
    temporary_path(tmp_path / "out" / "train-000000.tar").write_text("")
    with pytest.raises(BuildError, match=r"out/\.draft\.tmp: the output is not empty.*--overwrite"):
        run_plain(source, tmp_path / "out")
    (tmp_path / "out" / ".draft.tmp").rename(tmp_path / "draft")
    with pytest.raises(BuildError, match=r"out/\.build/notes\.txt: the output is not empty.*--overwrite"):
        run_plain(source, tmp_path / "out")
    (work / "notes.txt").unlink()
    run_plain(source, tmp_path / "out", after_stage=lambda stage: (tmp_path / "out" / ".draft.tmp").touch())
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == [".draft.tmp"]


def test_what_is_swept_while_a_dead_build_finishes_it_is_never_half_there(tmp_path: Path) -> None:
    unit = temporary_path(tmp_path / "unit")
    unit.mkdir()
    for number in range(3000):
        (unit / str(number)).touch()
    with ThreadPoolExecutor(1) as threads, suppress(FileNotFoundError):
        swept = threads.submit(sweep, tmp_path)
        while len(os.listdir(unit)) == 3000:  # it ends by an error where no name for it is left
            pass
        unit.rename(tmp_path / "unit")
    swept.result()
    assert not list(tmp_path.iterdir())
