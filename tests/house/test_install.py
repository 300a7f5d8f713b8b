"""The wheel, installed outside the checkout, beside files of the user's own that bear the package's names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.helpers import interpreters
from tests.helpers.corpus import write_inputs

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "filters")
SHADOW = "raise SystemExit('this is a file of the user, not of shardwright')\n"
FLAGS = ("--tokenizer", "bytes", "--rules", "gopher_quality", "--workers", "1", "--quiet")
FIRST_BATCH = """
import pipeline
stream = pipeline.ShardDataset("shards").shuffle(seed=0).pack(64).batch(4)
print(pipeline.__file__, tuple(next(iter(stream))["input_ids"].shape))
"""


def execute(*command: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    environment["NUMBA_DISABLE_JIT"] = (
        "1"  # a fresh installation would compile its loops, for longer than all else takes
    )
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources: setuptools leaves files beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / "source" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    done = execute(sys.executable, "-m", "pip", "wheel", *flags, folder / "source", cwd=folder)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a virtual environment with the wheel, and with the dependencies of this interpreter."""
    folder = tmp_path_factory.mktemp("environment")
    done = execute(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python")
    done = execute(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    paths = sysconfig.get_paths()
    # A line of a .pth file adds a folder, but reads no .pth files there: an editable shardwright stays out of sight.
    (site / "dependencies.pth").write_text("".join(f"{paths[name]}\n" for name in ("purelib", "platlib")))
    return folder / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the user with raw text, and with a module and a package that are named as the package's are."""
    write_inputs(tmp_path, 20)
    (tmp_path / "filters").mkdir()
    (tmp_path / "filters/__init__.py").write_text(SHADOW)
    (tmp_path / "pipeline.py").write_text(SHADOW)
    return tmp_path


def files_of_packages() -> set[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


LIST = """
from setuptools.dist import Distribution
distribution = Distribution({"script_name": "setup.py"})
distribution.parse_config_files()
command = distribution.get_command_obj("build_py")
command.ensure_finalized()
for path in command.get_outputs(include_bytecode=False):
    print(path.removeprefix(f"{command.build_lib}/"))
"""


def test_setuptools_takes_every_file_of_the_packages() -> None:
    listed = interpreters.run("-c", LIST, cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    assert files_of_packages() > {"filters/presets/gopher.toml", "pipeline/py.typed", "filters/py.typed"}
    assert files_of_packages() - set(listed.stdout.split()) == set()


@pytest.mark.nightly
def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    assert files_of_packages() - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.nightly
def test_the_installed_command_works_beside_files_of_its_packages_names(environment: Path, elsewhere: Path) -> None:
    inputs = sorted(elsewhere.glob("*.jsonl*"))
    for arguments in (["build", *inputs, "--output", "shards", *FLAGS], ["verify", "shards"]):
        done = execute(environment / "shardwright", *arguments, cwd=elsewhere)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no problem in ")
    # A training script of the user lies in another folder: beside a pipeline.py it would import that one.
    script = elsewhere / "training" / "train.py"
    script.parent.mkdir()
    script.write_text(FIRST_BATCH)
    trained = execute(environment / "python", script, cwd=elsewhere)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.split(maxsplit=1)[0].startswith(str(environment.parent))
    assert trained.stdout.endswith("(4, 64)\n")


@pytest.mark.nightly
def test_a_filters_folder_of_the_user_does_not_stand_for_our_own(environment: Path, elsewhere: Path) -> None:
    (elsewhere / "pipeline.py").unlink()  # Python runs that one for `python -m pipeline`, whatever is installed
    sample = next(elsewhere.glob("*.jsonl"))
    tried = execute(environment / "python", "-m", "pipeline", "try-rules", sample, "--limit", "4", cwd=elsewhere)
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.startswith("judged 4 of 4 documents read: ")


@pytest.mark.nightly
def test_a_folder_of_the_user_that_comes_first_is_named_with_its_cure(environment: Path, elsewhere: Path) -> None:
    (elsewhere / "pipeline.py").unlink()
    refused = execute(environment / "shardwright", "build", "--help", cwd=elsewhere, PYTHONPATH=str(elsewhere))
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert f"'filters' is imported from {elsewhere}" in refused.stderr
    assert "PYTHONPATH" in refused.stderr
