"""``shardwright doctor``: checks this machine and this installation, for users and for reports of bugs."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pipeline
from pipeline.user_cache import CACHE_VARIABLE, default_directory

from .command import Command

DESCRIPTION = """\
Check this machine and this installation: versions, extras, cache, disk, limits, GPU.

  %(prog)s                        # for builds in the current directory
  %(prog)s --output /shared/sets  # can a build lock that directory, and how much disk is free?"""

EPILOG = "exit status: 0 no problem; 1 a problem, with the cure in its line; 130 interrupted"

_LEAST_FILES = 1024

FLAGS = """\
--output DIR  where builds go (default: here)"""


def run(*, output: Path = Path()) -> int:
    problems = 0
    for name, state, problem in (*_installation(), *_machine(output)):
        problems += bool(problem)
        print(f"{name:18} {state}{f'  <- {problem}' if problem else ''}")
    return 1 if problems else 0


def _installation() -> Iterator[tuple[str, str, str]]:
    """Yield for each installed part its name, its state, and the cure of a problem or ''."""
    own = Path(pipeline.__file__).parents[1]
    names_here = [name for name in ("pipeline", "filters", "pipeline.py", "filters.py") if Path(name).exists()]
    hiding = names_here if Path.cwd() != own else []
    problem = f"scripts beside {' and '.join(hiding)} import that instead of the package: rename it" if hiding else ""
    yield "shardwright", f"{pipeline.__version__}, {own / 'pipeline'}", problem
    yield "python", f"{platform.python_version()} on {platform.platform()}", ""
    for extra, names in _requirements().items():
        versions = {name: _version(name) for name in names}
        missing = " ".join(name for name, installed in versions.items() if not installed)
        if extra:
            there = ", ".join(f"{name} {installed}" for name, installed in versions.items())
            yield f"extra {extra}", f"no (pip install {missing})" if missing else there, ""
            continue
        for name, installed in versions.items():
            yield name, installed or "not installed", "" if installed else f"pip install {name}"


def _requirements() -> dict[str, list[str]]:
    """Return the packages that the metadata require, by extra; the key '' has the packages that every installation needs."""
    packages: dict[str, list[str]] = {"": []}
    with suppress(PackageNotFoundError):  # a checkout that is not installed
        for line in requires("shardwright") or ():
            name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
            if name is not None and (extra is None or extra[1] != "dev"):
                packages.setdefault(extra[1] if extra else "", []).append(name[0])
    return packages


def _machine(output: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, state and cure of each part of the machine and of the directory of a build."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield "machine", f"{cores} cores, {memory / 1e9:.0f} GB of memory", ""
    yield "gpu", _gpus(), ""
    lanes = ".shuffle(lanes=ranks * batch size * workers), or 2 workers read 2.0 times the bytes"
    yield "DataLoader workers", f"not needed, a stream reads ahead in threads; with workers, {lanes}", ""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield "open files", f"{files:,}", "" if files >= _LEAST_FILES else f"ulimit -n {_LEAST_FILES}"
    cache = default_directory()
    if cache is None:
        yield "cache", "none: this user has no home directory to write in", f"set {CACHE_VARIABLE} to a folder"
    else:
        size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.is_dir() else 0
        yield "cache", f"{cache}, {size / 1e9:.2f} GB", ""
    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.is_dir())
    yield "disk", f"{there}, {shutil.disk_usage(there).free / 1e9:.0f} GB free", ""
    try:
        locks = _locks(there)
    except OSError as error:
        yield "locks", f"{there}: {error.strerror}", "this user cannot write there; name another --output"
        return
    why = "two builds would not notice each other there; name another --output, or run one at a time"
    yield "locks", "yes" if locks else "no", "" if locks else why


def _gpus() -> str:
    """Return the names of the GPUs that ``nvidia-smi`` lists."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "nvidia-smi lists none"
    return ", ".join(names.split("\n")).strip(", ")


def _locks(folder: Path) -> bool:
    """Whether the file system of a folder has the locks (flock) that a build and the cache need."""
    with tempfile.NamedTemporaryFile(dir=folder) as first, open(first.name) as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


COMMAND = Command(run=run, flags=FLAGS, description=DESCRIPTION, epilog=EPILOG, brief="[--output DIR]")
