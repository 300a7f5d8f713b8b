"""Examples in docstrings are tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers import interpreters

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "filters")
WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef)


def modules_with_examples() -> list[str]:
    """Return the modules whose docstrings hold an example, as paths relative to the root."""
    modules = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, WITH_DOCSTRINGS)]
        if any(">>> " in (ast.get_docstring(node) or "") for node in nodes):
            modules.append(path.relative_to(ROOT).as_posix())
    return modules


@pytest.mark.nightly
def test_pytest_collects_every_module_that_has_an_example() -> None:
    done = interpreters.run("-m", "pytest", "--collect-only", "-n0", "-p", "no:cacheprovider", *PACKAGES)
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    wanted = modules_with_examples()
    assert len(wanted) > 50
    assert sorted(set(wanted) - collected) == []
