"""One build at a time, also where the file system has no locks: real processes, refused by the kernel itself."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.limits import Limits
from pipeline.builder.workspace.locking import locked
from pipeline.errors import BuildError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.builder import no_locks
from tests.builds import ROOT
from tests.corpus import english

HOLD = """
import sys, time
from pathlib import Path
from pipeline.builder.workspace.locking import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
COUNT = """
import sys
from pathlib import Path
from pipeline.builder.workspace.locking import locked
folder, counter = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    with locked(folder / "out" / ".build", patience=60):
        value = int(counter.read_text())
        counter.write_text("")
        counter.write_text(str(value + 1))
"""
needs_filters = pytest.mark.skipif(not no_locks.possible(), reason="seccomp filters of Linux on x86_64 or aarch64")


def python(path: Path, program: str, error: str | None, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a program; where ``error`` is named, in a process that no lock is given to."""
    if not path.exists():  # written once: a process that starts would read half of it
        path.write_text(program)
    wrapper = ["-m", "tests.builder.no_locks", error] if error else []
    command = [sys.executable, *wrapper, str(path), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})


@contextmanager
def holding(tmp_path: Path, error: str | None) -> Iterator[int]:
    """Hold ``tmp_path/out/.build`` in another process; give its number. It is killed in the end."""
    with python(tmp_path / "hold.py", HOLD, error, tmp_path / "out" / ".build") as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            yield holder.pid
        finally:
            holder.kill()


def unlockable(error: int) -> Any:
    def lock(file: object, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    return lock


def refused(message: str, work: Path, **options: Any) -> None:
    with pytest.raises(BuildError, match=message), locked(work, **options):
        pass


@pytest.mark.parametrize(
    "error", [None, pytest.param("ENOSYS", marks=needs_filters), pytest.param("ENOLCK", marks=needs_filters)]
)
def test_a_directory_is_held_against_other_processes_and_freed_with_its_holder(
    tmp_path: Path, error: str | None
) -> None:
    work = tmp_path / "out" / ".build"
    options: dict[str, Any] = {"patience": 0.2} | ({"lock": unlockable(getattr(errno, error))} if error else {})
    with holding(tmp_path, error) as process:
        message = rf"another build works here \(process {process}\); wait for it, end it, or choose another --output"
        with pytest.raises(BuildError, match=message), locked(work, **options):
            pass
    with locked(work, **options):
        pass
    assert not (tmp_path / "out" / ".build").exists()


@needs_filters
@pytest.mark.parametrize("first", [None, "ENOLCK"])
def test_a_directory_mounted_with_and_without_locks_is_held_against_both(tmp_path: Path, first: str | None) -> None:
    options = {} if first else {"lock": unlockable(errno.ENOLCK)}
    with holding(tmp_path, first) as process:
        refused(rf"\(process {process}\)", tmp_path / "out" / ".build", patience=0.2, **options)
    with locked(tmp_path / "out" / ".build", patience=0.2, **options):
        pass


@needs_filters
@pytest.mark.parametrize("errors", [(None, None), ("ENOSYS", "ENOSYS"), (None, "ENOSYS")])
def test_no_two_processes_hold_a_directory_at_once_while_locks_come_and_go(
    tmp_path: Path, errors: tuple[str | None, str | None]
) -> None:
    (tmp_path / "count").write_text("0")
    arguments = (tmp_path, tmp_path / "count", 15)
    workers = [python(tmp_path / "count.py", COUNT, error, *arguments) for error in errors * 2]
    assert [worker.wait(100) for worker in workers] == [0] * 4
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.close()
    assert (tmp_path / "count").read_text() == "60"
    assert list(tmp_path.glob("out/.build/*")) == []


def test_a_lease_of_another_machine_is_refused_naming_the_file_to_remove(tmp_path: Path) -> None:
    work = tmp_path / "out" / ".build"
    work.mkdir(parents=True)
    lease = {"process": 7, "started": 1, "machine": "elsewhere", "host": "node-17"}
    (work / "lease").write_text(json.dumps(lease))
    for lock in (unlockable(errno.ENOSYS), None):
        options = {"lock": lock} if lock else {}
        message = r"process 7 on node-17\).* has no locks .* remove .*/\.build/lease and"
        refused(message, work, patience=0, **options)
    (work / "lease").unlink()
    with locked(work, lock=unlockable(errno.ENOSYS)):
        assert json.loads((work / "lease").read_text())["process"] == os.getpid()
    assert not work.exists()


def test_a_lease_is_stale_where_its_process_number_belongs_to_another_process(tmp_path: Path) -> None:
    work = tmp_path / "out" / ".build"
    with locked(work, lock=unlockable(errno.ENOSYS)):
        mine = json.loads((work / "lease").read_text())
    if mine["started"] is None:
        pytest.skip("this system does not tell when a process started")
    work.mkdir(parents=True)
    (work / "lease").write_text(json.dumps({**mine, "started": mine["started"] - 1}))
    with locked(work, lock=unlockable(errno.ENOSYS), patience=0):
        assert json.loads((work / "lease").read_text()) == mine


@pytest.mark.parametrize("error", [errno.EACCES, errno.EAGAIN])
def test_a_lock_that_is_held_is_told_from_one_that_there_is_not(tmp_path: Path, error: int) -> None:
    def lock(file: Any, operation: int) -> None:
        if Path(file.name).name == "lock":
            raise OSError(error, os.strerror(error))

    with (
        pytest.raises(BuildError, match="another build works here"),
        locked(tmp_path / ".build", lock=lock, patience=0),
    ):
        pass


def test_an_error_that_says_nothing_of_locks_is_told_as_it_is(tmp_path: Path) -> None:
    message = "cannot be written: Input/output error; choose another --output"
    refused(message, tmp_path / ".build", lock=unlockable(errno.EIO))


@needs_filters
def test_a_build_without_locks_gives_the_same_dataset_and_goes_on_after_kill_9(tmp_path: Path) -> None:
    lines = [json.dumps({"text": english(number)}) + "\n" for number in range(60)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    script, flags = str(ROOT / "scripts/build_shards.py"), ["--tokenizer", "bytes", "--workers", "1", "--quiet"]
    command = [sys.executable, "-m", "tests.builder.no_locks", "ENOSYS", script, str(tmp_path / "in.jsonl"), *flags]
    with holding(tmp_path, "ENOSYS"):
        pass
    assert (tmp_path / "out" / ".build" / "lease").exists()  # it was killed
    done = subprocess.run([*command, "--output", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "manifest.json").exists()
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_two_threads_of_one_process_do_not_build_in_one_directory_at_once(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": english(k)}) + "\n" for k in range(20)))
    settings: dict[str, Any] = {
        "tokenizer": "bytes",
        "rules": (),
        "progress": Progress(quiet=True),
        "start_method": "fork",
    }
    impatient = Limits(lock_seconds=0.2)
    inside, go_on = threading.Event(), threading.Event()

    def wait(stage: str) -> None:
        inside.set()
        assert go_on.wait(60)

    def first() -> Manifest:
        return build(tmp_path / "in.jsonl", tmp_path / "out", after_stage=wait, **settings)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(first)
        try:
            assert inside.wait(60)
            for _ in range(2):  # a refused one must not free the directory
                with pytest.raises(
                    BuildError, match=rf"another build works here \(process {os.getpid()}\); wait for it"
                ):
                    build(tmp_path / "in.jsonl", tmp_path / "out", limits=impatient, **settings)
            with python(tmp_path / "hold.py", HOLD, None, tmp_path / "out" / ".build") as other:
                assert other.wait(60) == 1
        finally:
            go_on.set()
        manifest = running.result()
    assert build(tmp_path / "in.jsonl", tmp_path / "out", **settings) == manifest
    assert not (tmp_path / "out" / ".build").exists()


def test_builds_that_start_over_in_one_directory_take_turns(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": english(k)}) + "\n" for k in range(20)))
    settings: dict[str, Any] = {
        "tokenizer": "bytes",
        "rules": (),
        "progress": Progress(quiet=True),
        "start_method": "fork",
    }

    def again(number: int) -> list[Any]:
        for _ in range(3):
            build(tmp_path / "in.jsonl", tmp_path / "out", overwrite=True, limits=Limits(lock_seconds=60), **settings)
        return []

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(again, range(2))) == [[], []]
    assert list(verify_dataset(tmp_path / "out")) == []


def test_what_others_keep_in_a_new_output_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": english(k)}) + "\n" for k in range(20)))
    settings: dict[str, Any] = {
        "tokenizer": "bytes",
        "rules": (),
        "progress": Progress(quiet=True),
        "start_method": "fork",
    }
    (tmp_path / "out" / ".build").mkdir(parents=True)
    (tmp_path / "out" / ".build" / "notes.txt").write_text("mine")
    (tmp_path / "out" / ".draft.tmp").write_text("mine")
    with pytest.raises(BuildError, match=r"out/\.build/notes\.txt is there, but neither .*--overwrite"):
        build(tmp_path / "in.jsonl", tmp_path / "out", **settings)
    assert [path.name for path in (tmp_path / "out" / ".build").iterdir()] == ["notes.txt"]
    (tmp_path / "out" / ".build" / "notes.txt").unlink()
    build(tmp_path / "in.jsonl", tmp_path / "out", **settings)
    assert (tmp_path / "out" / ".draft.tmp").read_text() == "mine"


def test_what_a_plan_counted_that_came_to_nothing_is_not_used_by_the_next(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name} {k}"}}\n' for k in range(6_000)))
    settings: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "dedup": False, "start_method": "fork"}
    settings["limits"] = Limits(unit_bytes=200_000, smallest_unit_bytes=1_000, units_wanted=1)
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]

    class Stop(Progress):
        def bar(self, name: str, total: int, *, bytes: bool = False) -> Any:
            if name == "filter":  # records are counted by now
                raise KeyboardInterrupt
            return super().bar(name, total, bytes=bytes)

    with pytest.raises(KeyboardInterrupt):
        build(files, tmp_path / "out", limit=11_000, progress=Stop(quiet=True), **settings)
    manifest = build(files, tmp_path / "out", limit=10_500, progress=Progress(quiet=True), **settings)
    assert manifest.counts["read"] == 10_500
