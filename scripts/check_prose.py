"""Print the sentences that are hard to read, the worst first, with file and line: long ones, and a few patterns.

    python scripts/check_prose.py                 # docstrings, comments, messages and pages of this checkout
    python scripts/check_prose.py docs/train.md pipeline/stream --words 25

It helps a writer and decides nothing: it always ends with status 0.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "pipeline", "filters", "scripts")
# A reader stops at these; each costs as much as `COST` words.
PATTERNS = {
    r"^(Of|What|Whoever|That|Where neither) ": "begins with its object",
    r"\bbe[h]ind\b": "perhaps means after",
    r"\b(from a[f]ar|a[n]ew|the sa[m]e of)\b": "is no plain English",
}
COST = 8


def paragraphs(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each paragraph of a page, or of a module's strings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from blocks(re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), text, flags=re.S), 1)
        return
    read: set[ast.AST] = set()  # the walk reaches a text before its parts
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (docstring := ast.get_docstring(node)):
            yield from blocks(docstring, node.body[0].lineno)
            read.update(ast.walk(node.body[0]))
        elif isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values]
            yield from blocks("".join(parts), node.lineno)
            read.update(node.values)
        elif isinstance(node, ast.Constant) and node not in read and re.search(r" (a|the|of|is) ", str(node.value)):
            yield from blocks(str(node.value), node.lineno)  # others are data or code
    for comment in re.finditer(r"(?m)(^ *# .*\n)+", text):
        yield text.count("\n", 0, comment.start()) + 1, re.sub(r"\s*\n? *# ", " ", comment[0]).strip()


def blocks(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield each paragraph of a text that begins at a line; code, tables, lists of files, headings and templates are left out."""
    for block in re.split(r"(\n\s*\n)", text):
        begin = line + len(block) - len(block.lstrip("\n"))
        if (
            block.strip()
            and not re.match(r"\s*(>>>|\||#|- \[|python |%\(prog)|    \S", block)
            and not re.search(r"\S {3,}\S|[<{]%|</", block)
        ):
            yield begin, " ".join(block.split())
        line += block.count("\n")


def faults(sentence: str, words: int) -> tuple[int, list[str]]:
    """Return how hard a sentence is to read, 0 if it is not, and why.

    >>> faults("Of proxies, the environment is asked.", 30)
    (8, ['begins with its object'])
    """
    count = len(re.findall(r"\w+", re.sub(r"`[^`]*`|\([^)]*\)", "x", sentence)))
    why = [reason for pattern, reason in PATTERNS.items() if re.search(pattern, sentence)]
    cost = max(0, count - words) + COST * len(why)
    return cost, [*([f"{count} words"] if count > words else []), *why]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders (default: all of this checkout)")
    parser.add_argument("--words", type=int, default=30, help="a longer sentence is long (default: 30)")
    parser.add_argument("--most", type=int, default=50, help="sentences to print (default: 50)")
    args = parser.parse_args(arguments)
    found = []
    for path in args.paths or [ROOT / name for name in DEFAULT]:
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.suffix in (".py", ".md"))
        for file in files:
            for line, text in paragraphs(file):
                for sentence in re.split(r"(?<=[.;:!?])\** +", text):
                    cost, why = faults(sentence, args.words)
                    if cost:
                        found.append((cost, file, line, why, sentence))
    found.sort(key=lambda one: (-one[0], one[1], one[2]))
    for _, file, line, why, sentence in found[: args.most]:
        print(f"{file}:{line}: {', '.join(why)}\n    {sentence}")
    print(f"{len(found)} sentences, of which {min(len(found), args.most)} are shown")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
