"""The command line: every command and flag is documented, and all commands end in the same ways."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

import pipeline
from pipeline.builder.recipe import Recipe
from pipeline.cli import COMMANDS
from pipeline.cli.command import exit_status
from pipeline.cli.main import load_command, main
from pipeline.errors import ConfigError, InputError
from pipeline.signals import deferred_signals, kept_handlers, reraise_swallowed_signals
from tests.helpers import interpreters
from tests.helpers.commands import Says
from tests.helpers.faulty_server import FaultyServer
from tests.helpers.shard_samples import make_documents, write_dataset

ROOT = Path(__file__).resolve().parents[2]
SHARDWRIGHT = [sys.executable, "-m", "pipeline"]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(20, seed=seed) for seed in range(3)])
    return tmp_path / "data"


def flags_of(command: str) -> list[argparse.Action]:
    return load_command(command).make_parser(None)._actions


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_each_of_its_flags(command: str, says: Says) -> None:
    shown = says(0, command, "--help-all" if command == "build" else "--help").out
    assert re.match(rf"usage: shardwright {command} .*\[flags\]\n\n[A-Z]", shown), "one line, then what it does"
    assert "exit status:" in shown
    assert shown.split("options:")[0].count(f"\n  shardwright {command} ") >= 2, "two examples come first"
    parameters = {*inspect.signature(load_command(command).run).parameters}
    assert parameters <= {action.dest for action in flags_of(command)} | {
        "list_rules",
        "settings",
        "requests",
        "parser",
    }
    for action in flags_of(command):
        assert action.help, f"{command}: {action.option_strings or action.dest} has no help"
        assert all(flag in shown for flag in action.option_strings)
        default = re.search(r"\(default: (\S+)\)", action.help)
        if default and action.default not in (None, Path(), 1):
            assert default[1] == f"{action.default:g}" if isinstance(action.default, float) else str(action.default)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("doctor", "near-vectors")])
def test_every_command_asks_a_server_as_often_as_it_is_told(
    command: str, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], says: Says
) -> None:
    data, output = "http://127.0.0.1:9/data", ["--output", f"{tmp_path}/out"]
    (tmp_path / "ids.txt").write_text("a\n")
    state = tmp_path / "state.json"
    state.write_text(json.dumps(pipeline.ShardDataset.from_tokens(range(9)).pack(4).state_dict()))
    arguments = {
        "build": [f"{data}.jsonl", *output],
        "diff": [data, str(dataset)],
        "export": [data, *output, "--to", "nanogpt"],
        "find": [data, f"{tmp_path}/ids.txt"],
        "import": [f"{data}.jsonl", *output],
        "plan": [f"a={data}:1", "--tokens", "9"],
        "redact": [data, "--ids", f"{tmp_path}/ids.txt", "--reason", "a"],
        "texts": [f"{data}.jsonl", *output],
        "trace": [data, "--state", str(state), "--step", "0", "--global-batch", "1"],
        "try-rules": [f"{data}.jsonl"],
        "view": [data, "--state", str(state), "--step", "0", "--global-batch", "1"],
    }.get(command, [data])
    assert main([command, *arguments, "--tries", "1", "--timeout", "3"]) != 0
    assert "gave up after 1 tries" in capsys.readouterr().err
    assert "tries must be an integer of 1 or more, got 0" in says(2, command, *arguments, "--tries", "0").err


def test_every_command_is_listed_with_one_line_and_named_in_the_readme(
    capsys: pytest.CaptureFixture[str], says: Says
) -> None:
    shown = says(0, "--help").out
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = (ROOT / "pipeline/cli").glob("*.py")
    modules = [path for path in files if "\nCOMMAND = " in path.read_text(encoding="utf-8")]
    assert {path.stem.removesuffix("_command").replace("_", "-") for path in modules} == set(COMMANDS)
    assert {item.name for item in fields(Recipe)} <= {action.dest for action in flags_of("build")}
    for command, summary in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(summary)}$", shown, re.MULTILINE)
        assert f"shardwright {command}" in readme or f", `{command}`" in readme
    alone = main([])
    assert (alone, capsys.readouterr().out) == (2, shown)


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = "import sys; sys.argv = ['shardwright', '--help']\nimport pipeline.cli.main as cli\ntry: cli.main()\n"
    code += "except SystemExit: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(loaded.stdout.split())
    assert "pipeline.cli.command" in modules
    assert modules.isdisjoint({"numpy", "rich", "torch", "pipeline.builder.recipe", "pipeline.cli.build_command"})


def test_commands_run_without_torch(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n')
    build = ["build", "in.jsonl", "--output", "out", "--tokenizer", "bytes", "--workers", "1", "--rules", "none"]
    commands = [build, ["verify", "data"], ["inspect", "data"]]
    code = "import sys; from pipeline.cli.main import main\n"
    code += f"print([main(command) for command in {commands}], 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0] False", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["biuld"], "no command 'biuld' (did you mean 'build'?)"),
        (["--verison"], "(did you mean '--version'?)"),
        (["verify", "--quik", "x"], "(did you mean '--quick'?)"),
        (["verify"], "required: DIRECTORY|SHARD|URL"),
        (["build", "--input_files", "x"], "unrecognized arguments: --input_files\n"),
        (["build", "--text_key=x"], "(did you mean '--text-key'?)"),
        (["build", "--ngram", "3"], "(did you mean '--dedup-ngram'?)"),
        (["try-rules", "x", "--examples", "-1"], "--examples must be 0 or more, got -1"),
        (["diff", "a", "b", "--samples", "-1"], "--samples must be 0 or more, got -1"),
        (["diff", "a", "b", "--judged", "0"], "--judged must be 1 or more, got 0"),
        (["find", "x", "y", "--most", "0"], "--most must be 1 or more, got 0"),
        (["try-rules", "x", "--limit", "0"], "--limit must be 1 or more, got 0"),
        (["card", "x", "--croissant", "--eu-summary"], "not allowed with argument"),
        (["trace", "x", "--state", "s"], "one of the arguments --step --document --receipts is required"),
        (["trace", "x", "--step", "1"], "required: --state"),
        (["trace", "x", "--state", "s", "--step", "1", "--document", "a"], "not allowed with argument"),
        (["redact", "x"], "required: --ids, --reason"),
        (["plan", "a=x:1"], "required: --tokens"),
        (["export", "x"], "required: --to, --output"),
        (["import", "x"], "required: --output"),
        (["texts", "x"], "required: --output"),
        (["near-vectors", "x"], "required: --threshold, --output"),
        (["verify", "x", "--workers", "0"], "--workers must be 1 or more, got 0"),
        (["build"], "name at least one INPUT and --output"),
        (["inspect", "x", "--key", "a", "--document", "1"], "not allowed with argument"),
    ],
)
def test_wrong_usage_ends_in_two_lines(arguments: list[str], message: str, says: Says) -> None:
    error = says(2, *arguments).err
    assert message in error
    assert error.count("\n") == 2
    assert "usage: shardwright " in error


def raises(error: BaseException) -> Callable[[], int]:
    def action() -> NoReturn:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("seed must be whole"), 2, "error: seed must be whole"),
        (InputError("a.jsonl: cut"), 7, "error: a.jsonl: cut"),
        (
            OSError(28, "No space left on device", "a.tar"),
            7,
            "error: a.tar: No space left on device; make room; run it again",
        ),
        (BrokenPipeError(32, "Broken pipe"), 7, "error: Broken pipe; run it again"),  # of a socket, not of stdout
        (KeyboardInterrupt(), 130, "interrupted: run it again"),
        (KeyboardInterrupt("3 problems so far"), 130, "interrupted: 3 problems so far"),
    ],
)
def test_expected_ends_are_one_line_and_a_status(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert exit_status(raises(error), error_status=7, hint="run it again") == status
    assert capsys.readouterr().err == line + "\n"
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        exit_status(raises(ZeroDivisionError()))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond ``size`` bytes until the block ends, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "command",
    [
        *("texts {inputs} --output {output}", "card {dataset} --output {output}"),
        *("export {dataset} --to nanogpt --output {output}", "import {ids} --tokenizer bytes --output {output}"),
    ],
)
def test_what_cannot_be_written_is_named_as_it_was_given_with_the_cure(
    command: str, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "A text."}\n')
    (tmp_path / "ids.jsonl").write_text(json.dumps({"input_ids": [9] * 500}))
    paths = {"inputs": tmp_path / "in.jsonl", "ids": tmp_path / "ids.jsonl", "dataset": dataset}
    arguments = command.format(**paths, output=tmp_path / "out").split()
    with largest_file(100):
        assert main(arguments) == 1
    said = rf"error: {tmp_path}/out(/[\w.]+)?: File too large; raise the largest size of a file"
    assert re.match(said, capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "ids.jsonl", "in.jsonl"]


@pytest.mark.parametrize(
    "command",
    [
        *("inspect {none}", "verify {none}", "card {none}", "export {none} --to nanogpt --output {none}"),
        *("find {none} text", "diff {none} {none}"),
    ],
)
def test_a_missing_dataset_is_exit_status_2_of_every_command_that_reads_one(
    command: str, tmp_path: Path, says: Says
) -> None:
    assert re.match(
        r"error: \S+/none(/manifest\.json: not there| was not found)",
        says(2, *command.format(none=tmp_path / "none").split()).err,
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (PermissionError(13, "Permission denied", "/out"), "/out: Permission denied; give this user access"),
        (OSError(30, "Read-only file system", "/out"), "/out: Read-only file system; choose another directory"),
        (OSError(28, "No space left on device", "/out"), "/out: No space left on device; make room"),
        (OSError(122, "Quota exceeded", "/out"), "/out: Quota exceeded; make room; then go on"),
        (
            PermissionError(1, "Not permitted", "/out"),
            "/out: Not permitted; give this user access, or choose another directory",
        ),
        (FileNotFoundError(2, "No such file", "/none"), "/none: No such file; then go on"),
        (
            FileNotFoundError(2, "No such file", "/no/out"),
            "/no/out: No such file; /no is not a directory; make it first",
        ),
    ],
)
def test_an_error_of_the_system_has_a_cure(error: OSError, cure: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(raises(error), hint="then go on") == 1
    assert capsys.readouterr().err.startswith(f"error: {cure}")


def test_a_command_runs_in_a_thread_and_not_with_other_filters(tmp_path: Path) -> None:
    ends: list[int] = []
    thread = threading.Thread(target=lambda: ends.append(exit_status(lambda: 3)))
    thread.start()
    thread.join()
    assert ends == [3]
    (tmp_path / "filters").mkdir()
    (tmp_path / "filters" / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([*SHARDWRIGHT, "doctor"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = f"error: 'filters' is imported from {tmp_path}/filters, which hides {ROOT}/filters: rename"
    assert (done.returncode, done.stderr.startswith(said)) == (2, True)


def test_an_interrupt_that_passes_through_executed_text_ends_with_130_too() -> None:
    code = "import sys; from pipeline.cli.command import exit_status\n"
    code += "sys.exit(exit_status(lambda: exec('raise KeyboardInterrupt')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 130


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "in.jsonl", "--output", "out", "--val-fraction", "2"],
        ["build", "in.jsonl", "--output", "in.jsonl"],
        ["build", "in.jsonl", "--output", "out", "--rules", "gophr"],
        ["build", "in.jsonl", "--output", "out", "--config", "none.yml"],
        ["build", "in.jsonl", "--dry-run", "--language", "e n"],
        ["try-rules", "in.jsonl", "--language", "en=x"],
        ["texts", "in.jsonl", "--output", "out.parquet", "--where", "n >"],
        ["inspect", "data", "--split", "none"],
        ["verify", "data", "--workers", "0"],
    ],
)
def test_a_value_that_cannot_be_ends_every_command_with_2(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(dataset.parent)
    Path("in.jsonl").write_text('{"text": "one"}\n')
    try:
        status = main(arguments)
    except SystemExit as end:  # of the parser
        status = int(end.code or 0)
    assert (status, capsys.readouterr().err.startswith("error: ")) == (2, True)
    assert "; 2 " in load_command(arguments[0]).make_parser(None).format_help()


@pytest.mark.parametrize(("arguments", "unbuffered"), [(["build", "--help"], ""), (["inspect", "data"], "1")])
def test_a_closed_output_ends_a_command_in_silence(dataset: Path, arguments: list[str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*SHARDWRIGHT, *arguments], cwd=dataset.parent, env=environment, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, error = process.communicate()
    assert error == b""
    assert process.returncode == 141


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_a_second_interrupt_while_the_interpreter_ends_shows_no_traceback(first: str) -> None:
    code = "import atexit, os, signal, sys, time\nfrom pipeline.cli.command import exit_status\n"
    code += "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    code += f"def action():\n    os.kill(os.getpid(), signal.{first})\n    time.sleep(60)\n"
    code += "sys.exit(exit_status(lambda: exit_status(action)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_an_import_and_a_second_does_not(number: signal.Signals, again: bool) -> None:
    # An exception inside the start-up of a compiled module may end the process by SIGSEGV.
    code = f"""
import os, sys
from pipeline.cli.main import run_command
class Sends:
    def find_spec(self, name, *_):
        if name == "pipeline.cli.inspect_command":
            os.kill(os.getpid(), {number})
            print("goes on", flush=True)
            {again} and os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Sends())
sys.exit(run_command("inspect", ["none"]))
"""
    done = interpreters.run("-c", code)
    ended = (-number, "") if again else (130, "interrupted\n")
    assert (done.stdout, done.returncode, done.stderr) == ("goes on\n", *ended)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_workers_wait_for_a_server_is_one_line(
    number: signal.Signals, dataset: Path, server: FaultyServer
) -> None:
    """SIGINT goes to all processes of the command, as a terminal sends it."""
    url = server.serve(dataset)
    server.stalled = {path for path in server.files if path.endswith(".tar")}
    command = [*SHARDWRIGHT, "verify", url, "--workers", "2"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True) as process:
        while not server.count("/data/train"):
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        _, error = process.communicate()
    assert (process.returncode, error.startswith(b"interrupted"), error.count(b"\n")) == (130, True, 1), error


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_one_line_whatever_the_command_is_doing(number: signal.Signals, tmp_path: Path) -> None:
    """SIGINT goes to all processes of the command, as a terminal sends it, also while the workers are starting."""
    documents = make_documents(2)
    large = [np.full(5_000_000, 7, documents[0].dtype) for _ in range(2)]
    write_dataset(tmp_path / "data", [large] * 4)
    ends: list[int] = []
    for tenths in (2, 5, 8, *range(10, 100, 5)):
        if tenths > 5 and 130 in ends:  # a busy machine takes longer to come so far
            break
        command = [*SHARDWRIGHT, "verify", str(tmp_path / "data"), "--workers", "3", "--json"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=pipe, start_new_session=True
        ) as process:
            time.sleep(tenths / 10)
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            _, error = process.communicate()
        # An interpreter that is still loading the entry point ends as Python does, which shows where it was.
        loading = (
            process.returncode == -number and error.endswith(b"KeyboardInterrupt\n") and b", in main\n" not in error
        ) or error.startswith(b"Fatal Python error: init_import_site")
        assert loading or re.fullmatch(rb"(interrupted.*\n)?", error), error
        assert process.returncode != 130 or error
        ends.append(process.returncode)
    assert 130 in ends
    # 1: problems were found first. By the signal: it came while the interpreter was starting or ending.
    assert set(ends) <= {130, 1, -number}


def test_a_signal_during_a_call_of_a_library_is_handled_at_its_end() -> None:
    done: list[str] = []

    def interrupted(block: AbstractContextManager[None]) -> None:
        with block, suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            done.append("deferred")

    for block in (deferred_signals(), reraise_swallowed_signals()):
        with pytest.raises(KeyboardInterrupt):
            interrupted(block)
    assert done == ["deferred"]
    before = signal.getsignal(signal.SIGINT)
    with kept_handlers():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before
