"""The files of the project, each read and parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for room in ("pipeline", "filters", "scripts") for path in (ROOT / room).rglob("*.py"))
PRODUCT = [path for path in FILES if ROOT / "scripts" not in path.parents]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def texts_in(path: Path) -> tuple[str, ...]:
    """Return the strings of a file: messages, docstrings and helps; of an f-string its parts."""
    return tuple(node.value for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str))
