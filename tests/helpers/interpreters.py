"""Scripts in interpreters that have the libraries loaded, where a fresh one takes five seconds of computing to load them.

One interpreter loads them and forks for each script. The fork runs the script as ``__main__`` and ends as any interpreter
does: it runs the functions of ``atexit``, joins threads and clears modules. A test takes ``subprocess`` instead where it
is about what an interpreter loads, or about variables that are read while it starts.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import types
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
LOADED = (
    "torch.utils.data",
    "pipeline.stream.datasets.open_dataset",
    "pipeline.cli.build_command",
    "pipeline.builder.dedup.kernels",
    "filters.compiled.scan",
    "fasttext",
)


class Interpreter:
    """A script that runs; its arguments are those of ``python``: ``"-c", CODE``, ``"-m", MODULE`` or a path, and what follows.

    ``stdout`` and ``stderr`` are file descriptors that it writes to.
    """

    def __init__(
        self,
        *arguments: object,
        stdout: int,
        stderr: int,
        cwd: Path = ROOT,
        variables: dict[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._status, status = socket.socketpair()
        environment = {**os.environ, **(variables or {})}
        request = [list(map(str, arguments)), str(cwd), environment, new_session]
        with status:
            socket.send_fds(_forking(), [b"x"], [status.fileno(), stdout, stderr])
        self._status.sendall(json.dumps(request).encode() + b"\n")
        self._received = b""
        self.pid = self._number(120)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the script, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the status that the script ended with, or None while it runs."""
        with suppress(TimeoutError, BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        """Return the status that the script ends with: a signal's number negative, as ``subprocess`` does."""
        if self.returncode is None:
            self.returncode = self._number(timeout)
        return self.returncode

    def _number(self, timeout: float) -> int:
        """Return what the next line says."""
        self._status.settimeout(timeout)
        while b"\n" not in self._received:
            received = self._status.recv(64)
            assert received, "the interpreter that forks has ended"
            self._received += received
        line, self._received = self._received.split(b"\n", 1)
        return int(line)


def run(*arguments: object, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script to its end and return what it wrote."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        interpreter = Interpreter(*arguments, stdout=out.fileno(), stderr=error.fileno(), **options)
        try:
            code = interpreter.wait(timeout)
        finally:
            interpreter.kill()
        return subprocess.CompletedProcess(arguments, code, _read(out), _read(error))


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@cache
def _forking() -> socket.socket:
    """Start the interpreter that forks, and return what it is asked through; it ends with this process."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", "import tests.helpers.interpreters as own; own.serve()", str(theirs.fileno())]
    with theirs:
        started = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(lambda: (ours.close(), started.wait()))
    return ours


def serve() -> None:
    """Load the libraries and fork for each request. In the fork, run the script and return: the interpreter ends."""
    for name in (*LOADED, "torch._dynamo"):  # the latter is of optimizers and of DistributedDataParallel
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        while received := socket.recv_fds(asked, 1, 3)[1]:
            if os.fork() == 0:
                asked.close()
                _answer(*received)
                return
            for descriptor in received:
                os.close(descriptor)
            with suppress(ChildProcessError):  # none is left
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _answer(status: int, stdout: int, stderr: int) -> None:
    """Fork once more, for the script; here, tell its number and how it ends."""
    with socket.socket(fileno=status) as asked, asked.makefile("rw") as file:
        request = json.loads(file.readline())
        if pid := os.fork():
            os.close(stdout)
            os.close(stderr)
            file.write(f"{pid}\n")
            file.flush()
            file.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
            file.flush()
            os._exit(0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    _run(*request)


def _run(arguments: list[str], cwd: str, environment: dict[str, str], new_session: bool) -> None:
    if new_session:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:  # read when torch is loaded
        importlib.import_module("torch").set_num_threads(int(environment["OMP_NUM_THREADS"]))
    kind = arguments[0] if arguments[0] in ("-c", "-m") else "script"
    sys.argv = arguments if kind != "-m" else arguments[1:]
    if kind == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *arguments[2:]]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.path[0] = cwd
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
