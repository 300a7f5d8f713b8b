"""What setup.cfg says of the project is so: tests are found, and what is announced is in the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import interpreters

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "filters")


def modules_with_examples() -> list[str]:
    """Return the modules whose docstrings hold an example, as paths relative to the root."""
    found = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if _can_have_docstring(node)]
        if any(">>> " in (ast.get_docstring(node) or "") for node in nodes):
            found.append(path.relative_to(ROOT).as_posix())
    return found


def _can_have_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)


def test_pytest_collects_every_module_that_has_an_example() -> None:
    done = interpreters.run("-m", "pytest", "--collect-only", "-n0", "-p", "no:cacheprovider", *PACKAGES)
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    wanted = modules_with_examples()
    assert len(wanted) > 50
    assert sorted(set(wanted) - collected) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_built_package_holds_the_marker_of_type_hints(tmp_path: Path, package: str) -> None:
    build = "from setuptools import setup; setup()"
    command = [sys.executable, "-c", build, "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / package / "__init__.py").is_file()
    assert (tmp_path / package / "py.typed").is_file()
