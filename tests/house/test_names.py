"""What messages and docstrings name is there: names of the package, files, flags."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pipeline
from tests.house.test_glossary import known_flags
from tests.house.test_house import FILES, ROOT, relative

PRODUCT = [
    path for path in FILES if not relative(path).startswith("scripts/")
]  # scripts name modules of other projects


def texts_in(path: Path) -> list[str]:
    """Return the strings of a file: messages, docstrings and helps; of an f-string its parts."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def is_there(name: str) -> bool:
    """Say whether a name such as ``pipeline.stream.order`` is a module, or what one holds."""
    found: Any = pipeline
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            if importlib.util.find_spec(f"{found.__name__}.{part}") is None:
                return False
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)
    return True


def test_names_and_files_that_messages_and_docstrings_name_are_there() -> None:
    assert is_there("pipeline.stream.order")
    assert is_there("pipeline.Stream.take")
    assert not is_there("pipeline.load_token")
    folders = ("pipeline", "filters", "scripts", "docs", ".")
    files = {
        f"/{relative(path)}"
        for folder in folders
        for path in (ROOT / folder).glob("*.*" if folder == "." else "**/*.*")
    }
    of_users = {
        "mine.toml",
        "run.toml",
        "shards/README.md",
        "text/c4_utils.py",
        "dev/data/data_common.py",
    }  # and of other projects
    for path in PRODUCT:
        for text in texts_in(path):
            for name in re.findall(r"\bpipeline(?:\.[A-Za-z]\w*)+", text):
                assert name == "pipeline.py" or is_there(name), f"{relative(path)}: {name}"
            for name in re.findall(r"(?<![\w/.*<%}-])(?:[\w-]+/)*[\w-]+\.(?:md|py|toml)\b", text):
                assert name in of_users or any(file.endswith(f"/{name}") for file in files), f"{relative(path)}: {name}"


def test_flags_that_messages_and_docstrings_name_exist() -> None:
    others = set("--include --local-dir --repo-type --query-gpu --dereference --hard-dereference --version".split())
    for path in PRODUCT:
        if path.name != "template.py":  # style sheets
            flags = {flag for text in texts_in(path) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}
            assert flags - known_flags() - others == set(), relative(path)
