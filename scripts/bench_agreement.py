"""Compare the decisions of rule sets with those of datatrove's Gopher filters, document by document.

    python scripts/bench_agreement.py corpus/*.jsonl.zst --where 'lang == "en"' --datatrove ~/datatrove/bin/python

``--datatrove`` names an interpreter that has ``datatrove[processing]`` and spaCy. The documents are compared unchanged, and
with tags, URLs, emoji, ellipses or code inserted between words, so many that documents come near the limits. Each row of
the table has the documents that a rule set keeps, those that datatrove keeps, and the share of equal decisions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from filters.rules.ruleset import load_rules
from scripts.bench.data import read_inputs
from scripts.bench.report import table

RULES = ("gopher", "gopher_datatrove")
AS_THEY_ARE = "as they are"
SPACINGS = (2, 3, 5, 8, 13, 21)  # words between two insertions
INSERTED = {
    "with tags": ("<br /><br />", "<p>", "</p>", '<a href="page.html">', "<b>so</b>"),
    "with URLs": ("http://www.example.com/a/b-c?d=e&f=g", "www.example.org", "me@mail.example.net", "(https://x.io/)"),
    "with emoji": ("😀", "❤️", "👍🏽👍🏽", "👨‍👩‍👧", "(☺)", "wow🔥"),
    "with ellipses": ("...", "so...", "…", "well… I", "....", "no...but"),
    "with code": ("x[i] += 1;", "if (a != b) {", "foo.bar(self, x=3)", "#include <stdio.h>", "a->b", "**kw"),
}
PEER = """
import json, sys
from datatrove.data import Document
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter

filters = [GopherRepetitionFilter(), GopherQualityFilter()]
for line in sys.stdin:
    document = Document(text=json.loads(line), id="")
    reason = ""
    for rule in filters:
        result = rule.filter(document) if document.text.strip() else (False, "empty")
        if result is not True and not reason:
            reason = result[1]
    print(json.dumps(reason), flush=True)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("inputs", nargs="+", help="raw text, as for build_shards.py")
    add("--datatrove", required=True, metavar="PYTHON", help="interpreter that has datatrove")
    add("--where", help="compare only records that this condition selects, as for build_shards.py")
    add("--limit", type=int, help="compare only the first N documents")
    options = parser.parse_args(argv)
    documents = read_inputs(options.inputs, options.where)
    texts = [document.text for document in itertools.islice(documents, options.limit)]
    rows = [
        row
        for name in (AS_THEY_ARE, *INSERTED)
        for row in compare(name, [insert(text, name) for text in texts], options.datatrove)
    ]
    heads = ("documents", "rules", "keep", "datatrove keeps", "agree", "most frequent differences")
    table(f"{len(texts):,} documents", heads, rows)
    return 0


def insert(text: str, name: str) -> str:
    """Return a text with the snippets of a variant between its words. The hash of the text chooses the spacing."""
    if name not in INSERTED:
        return text
    key = zlib.crc32(f"{name} {text}".encode("utf-8", "surrogatepass"))
    snippets, spacing = itertools.cycle(INSERTED[name]), SPACINGS[key % len(SPACINGS)]
    glue = " " if key // len(SPACINGS) % 2 else ""
    words = text.split(" ")
    for at in range(spacing - 1, len(words), spacing):
        words[at] += glue + next(snippets)
    return " ".join(words)


def compare(name: str, texts: Sequence[str], interpreter: str) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each rule set."""
    theirs = [reason or "kept" for reason in datatrove_reasons(texts, interpreter)]
    for rules in RULES:
        loaded = load_rules(rules)
        violations = loaded.judge_all(loaded.measure_all(texts))
        ours = [violation.rule if violation else "kept" for violation in violations]
        pairs = Counter(pair for pair in zip(ours, theirs, strict=True) if (pair[0] == "kept") != (pair[1] == "kept"))
        equal = 1 - pairs.total() / max(1, len(texts))
        most = ", ".join(f"{count:,} {mine}/{reason}" for (mine, reason), count in pairs.most_common(3))
        yield name, rules, f"{ours.count('kept'):,}", f"{theirs.count('kept'):,}", f"{equal:.2%}", most


def datatrove_reasons(texts: Sequence[str], interpreter: str) -> list[str]:
    """Return the reason why datatrove drops each text, or '' if it keeps it."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as lines:
        lines.writelines(json.dumps(text) + "\n" for text in texts)
        lines.seek(0)
        done = subprocess.run([interpreter, "-c", PEER], stdin=lines, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
