"""Faults that are seeded on purpose, one a claim, and the tests that notice each: ``make test-faults``.

A fault is a line of the product, replaced by one that breaks a claim. Its tests run against a copy of the checkout that has
the fault, and must fail: tests that are cut, merged or rewritten must still notice every fault. ``faults/*.toml`` list them:
``claim``, ``file``, ``before`` (a text that occurs once in the file), ``after``, and ``tests``, of which one must fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "faults"
COPIED = "pipeline filters scripts tests docs setup.cfg pyproject.toml README.md CHANGELOG.md CONTRIBUTING.md".split()

OPTIONS = "-p no:cacheprovider -p no:xdist".split()
TIME_LIMIT = 300  # seconds of one fault's tests: a fault that makes them hang is noticed, too


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One line of the product that breaks a claim, and the tests that must notice it."""

    claim: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def occurrences(self, root: Path) -> int:
        return (root / self.file).read_text(encoding="utf-8").count(self.before) if (root / self.file).is_file() else 0


def load() -> list[Fault]:
    """Return all faults, file by file."""
    entries = [entry for path in sorted(LISTS.glob("*.toml")) for entry in tomllib.loads(path.read_text())["fault"]]
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def copy_checkout(target: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name)
        else:
            shutil.copy2(ROOT / name, target / name)


def result_of(fault: Fault, copy: Path) -> str:
    """Run the fault's tests in a copy of the checkout that has the fault; say whether one fails, or all are skipped."""
    path = copy / fault.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(fault.before, fault.after), encoding="utf-8")
    # By a variable, as doctests load no conftest.py, which an option of pytest would need.
    environment = {**os.environ, "PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "fault"}
    if "@compiled" in whole:  # numba keeps a caller's code as long as the caller's own file stays as it is
        environment["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(dir=copy)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", *OPTIONS, *fault.tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "noticed"
    finally:
        path.write_text(whole, encoding="utf-8")
    # It did not run; a fault may stop the import of a test (2), or end the process (below 0).
    if ended.returncode in (3, 4, 5):
        raise SystemExit(f"{fault.claim}: pytest ended with {ended.returncode}\n{ended.stdout.decode()[-2000:]}")
    # They need what this machine lacks. A second -q, after that of setup.cfg, would leave out the line that tells.
    if ended.returncode == 0 and b" passed" not in ended.stdout:
        return "skipped"
    return "noticed" if ended.returncode else "MISSED"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only the faults whose claim or file has one of these words in it")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the checkout that run side by side (default: 2)")
    given = parser.parse_args(arguments)
    chosen = [f for f in load() if not given.words or any(w in f.claim or w in f.file for w in given.words)]
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="shardwright-faults-") as folder:
        for number in range(given.jobs):
            copy = Path(folder, str(number))
            copy.mkdir()
            copy_checkout(copy)
            copies.put(copy)

        def run(fault: Fault) -> str:
            if fault.occurrences(ROOT) != 1:
                return "stale"  # the line is gone, or no longer the only one
            copy = copies.get()
            try:
                return result_of(fault, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(given.jobs) as threads:
            results = []
            for fault, result in zip(chosen, threads.map(run, chosen), strict=True):
                results.append(result)
                print(f"{result:8}{fault.file}: {fault.claim}", flush=True)
    print(
        ", ".join(f"{results.count(result)} {result.lower()}" for result in ("noticed", "MISSED", "stale", "skipped"))
    )
    return int(bool({"MISSED", "stale"} & {*results}))
