"""``shardwright doctor``: what this machine and this installation are, for a look and for a report of a bug."""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pipeline
from pipeline.user_cache import default_directory

from .command import Command, Parser

DESCRIPTION = """\
Say what this machine and this installation are: versions, extras, cache, disk, limits, GPU.

  %(prog)s                        # of the current directory
  %(prog)s --output /shared/sets  # does a build there hold its lock, and has the disk room?"""

EPILOG = "exit status: 0 nothing stands against a build; 1 something does, and the line says what; 130 interrupted"

_NEEDED = ("torch", "transformers", "tokenizers", "fastokens", "numpy", "pyarrow", "numba", "fsspec")
_EXTRAS = {
    "s3": ("s3fs",),
    "gcs": ("gcsfs",),
    "azure": ("adlfs",),
    "ray": ("ray",),
    "warc": ("fastwarc", "resiliparse"),
    "trafilatura": ("trafilatura",),
    "datatrove": ("spacy",),
    "stateful": ("torchdata",),
}
_LEAST_FILES = 1024


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="[--output DIR]", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where builds go (default: here)")
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    problems = 0
    for name, said, problem in (*_installation(), *_machine(options.output)):
        problems += bool(problem)
        print(f"{name:16} {said}{f'  <- {problem}' if problem else ''}")
    return 1 if problems else 0


def _installation() -> Iterator[tuple[str, str, str]]:
    """Yield what is installed: a name, what to say of it, and what stands against a build, '' for nothing."""
    yield "shardwright", f"{pipeline.__version__}, {Path(pipeline.__file__).parent}", ""
    yield "python", f"{platform.python_version()} on {platform.platform()}", ""
    for name in _NEEDED:
        found = _version(name)
        yield name, found or "not installed", "" if found else f"pip install {name}"
    for extra, names in _EXTRAS.items():
        versions = [_version(name) for name in names]
        whole = ", ".join(f"{name} {found}" for name, found in zip(names, versions, strict=True) if found)
        yield f"extra {extra}", whole if all(versions) else f"no (pip install 'shardwright[{extra}]')", ""


def _machine(output: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the same of the machine, and of the directory of a build."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield "machine", f"{cores} cores, {memory / 1e9:.0f} GB of memory", ""
    yield "gpu", _gpus(), ""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield "open files", f"{files:,}", "" if files >= _LEAST_FILES else f"ulimit -n {_LEAST_FILES}"
    cache = default_directory()
    size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.is_dir() else 0
    yield "cache", f"{cache}, {size / 1e9:.2f} GB", ""
    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.is_dir())
    yield "disk", f"{there}, {shutil.disk_usage(there).free / 1e9:.0f} GB free", ""
    try:
        locks = _locks(there)
    except OSError as error:
        yield "locks", f"{there}: {error.strerror}", "nothing can be written there; name another --output"
        return
    why = "two builds there would not see each other; name another --output, or start one at a time"
    yield "locks", "yes" if locks else "no", "" if locks else why


def _gpus() -> str:
    """Return the names of the GPUs that NVIDIA's driver knows."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "none that nvidia-smi knows"
    return ", ".join(said.split("\n")).strip(", ")


def _locks(folder: Path) -> bool:
    """Whether the file system of a folder holds locks (flock), as a build and the cache take them."""
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


COMMAND = Command(make_parser=make_parser, run=run)
