"""What messages and docstrings name is there: names of the package, files, flags."""

from __future__ import annotations

import importlib
import importlib.util
import re
from typing import Any

import pipeline
from tests.house.sources import PRODUCT, ROOT, relative, texts_in
from tests.house.test_glossary import known_flags


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
    found = [(ROOT / folder).glob("*.*" if folder == "." else "**/*.*") for folder in folders]
    files = {f"/{relative(path)}" for paths in found for path in paths}
    of_others = set(
        "pipeline.py filters.py mine.toml run.toml shards/README.md text/c4_utils.py dev/data/data_common.py".split()
    )
    for path in PRODUCT:  # scripts name modules of other projects
        for text in texts_in(path):
            for name in re.findall(r"\bpipeline(?:\.[A-Za-z]\w*)+", text):
                assert name == "pipeline.py" or is_there(name), f"{relative(path)}: {name}"
            for name in re.findall(r"(?<![\w/.*<%}-])(?:[\w-]+/)*[\w-]+\.(?:md|py|toml)\b", text):
                assert name in of_others or any(file.endswith(f"/{name}") for file in files), (
                    f"{relative(path)}: {name}"
                )


def test_flags_that_messages_and_docstrings_name_exist() -> None:
    others = set("--include --local-dir --repo-type --query-gpu --dereference --hard-dereference --version".split())
    for path in PRODUCT:
        flags = {flag for text in texts_in(path) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}
        assert flags - known_flags() - others == set(), relative(path)
