"""Write pipeline/builder/settings.pyi: the settings of `Recipe` as type checkers and editors see them in `pipeline.build`.

python scripts/type_settings.py     # after a field of Recipe changed; a test compares the file
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

BUILDER = Path(__file__).resolve().parents[1] / "pipeline/builder"
HEAD = '''\
"""Written by scripts/type_settings.py from the fields of `Recipe`."""

from collections.abc import Callable, Sequence
from typing import TypedDict

from ..text.document import OnError
from .recipe import Bos, DecontaminateAction, RepeatedPassages

Names = str | Sequence[str]  # joined by commas, or listed

class Settings(TypedDict, total=False):
'''


def taken(name: str, held: str, declaration: str) -> str:
    """Return the type that `pipeline.build` takes for a field: a list may be one text, its entries joined by commas."""
    if held != "tuple[str, ...]":
        return held
    if name == "transforms":
        return "str | Sequence[str | Callable[..., object]] | None"
    return "int | Names" if "numbers=True" in declaration else "Names"


def settings() -> str:
    """Return the contents of the file."""
    tree = ast.parse((BUILDER / "recipe.py").read_text(encoding="utf-8"))
    [recipe] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Recipe"]
    lines = [
        f"    {node.target.id}: {taken(node.target.id, ast.unparse(node.annotation), ast.unparse(node))}\n"
        for node in recipe.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    (BUILDER / "settings.pyi").write_text(settings(), encoding="utf-8")
