"""``docs/api.md`` lists the public names, each with the first sentence of its docstring, and is what the docstrings say.

To renew it: ``python -m tests.house.test_api_page``.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pipeline
from tests.house.test_glossary import public_methods

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
GROUPS: dict[str, Any] = {
    "Methods of a stream": pipeline.Stream,
    "Of datasets, beyond these": pipeline.ShardDataset,
}


def sentence(value: Any) -> str:
    """Return the first sentence of a docstring in one line."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"\.(?: (?=[A-Z`])|$)", text)[0]


def page() -> str:
    """Return the page as the docstrings make it."""
    names = {name: getattr(pipeline, name) for name in pipeline.__all__ if name != "errors"}
    errors = {name: value for name, value in names.items() if getattr(pipeline.errors, name, None) is value}
    lines = [
        "# API",
        "",
        "Every public name, by the first sentence of its docstring: `help(pipeline.mix)` has all of it.",
        "",
    ]
    lines += ["| `pipeline.` | |", "| --- | --- |"]
    lines += [f"| `{name}` | {sentence(value)} |" for name, value in sorted(names.items()) if name not in errors]
    known: set[str] = set()
    for title, owner in GROUPS.items():
        methods = {name: method for name, method in public_methods(owner).items() if name not in known}
        known |= methods.keys()
        lines += ["", f"## {title}", "", "| method | |", "| --- | --- |"]
        lines += [f"| `.{name}` | {sentence(method)} |" for name, method in sorted(methods.items())]
    lines += ["", "## Errors", "", "| `pipeline.` | |", "| --- | --- |"]
    lines += [f"| `{name}` | {sentence(value)} |" for name, value in sorted(errors.items())]
    return "\n".join(lines) + "\n"


def test_the_page_of_the_api_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "renew it: python -m tests.house.test_api_page"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
