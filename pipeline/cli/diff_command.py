"""``shardwright diff``: what differs between two builds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from json import dumps
from typing import Annotated, Any

from pipeline.builder.report.console import make_page, make_table
from pipeline.finished.diff import CHANGED, ONLY_A, ONLY_B, SAME, diff
from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress

from .command import Command
from .try_rules_command import excerpt

DESCRIPTION = """\
Show what differs between two builds: documents, counts by source and language, settings, and what changed rules did.

  %(prog)s shards-old shards-new
  %(prog)s shards-old shards-new --samples 10 --judged 10000 --json

A document has changed if both builds have its source and id, but with different texts. If only one build has a
document, the languages and rules of the other build's manifest are tried on it, to show why it is missing there. Documents
that were redacted in a copy are counted by the date and the reason of the redaction."""

TITLES = {SAME: "same text", CHANGED: "changed text", ONLY_A: "only in A", ONLY_B: "only in B"}

EPILOG = "exit status: 0 the same documents; 1 other documents; 2 an error, or wrong usage; 130 interrupted"

FLAGS = """\
DATASET      directory or url of a dataset
DATASET      directory or url of a dataset
--samples N  documents shown for each reason
--judged N   missing documents of each side to try again
--json       print everything as JSON"""


def run(
    a: str,
    b: str,
    *,
    samples: Annotated[int, 0] = 3,
    judged: Annotated[int, 1] = 1000,
    json: bool = False,
    requests: RequestOptions,
) -> int:
    progress = Progress(quiet=not sys.stderr.isatty())
    found = diff(a, b, judged=judged, samples=samples, requests=requests, progress=progress)
    if json:
        print(dumps(found, ensure_ascii=False))
    else:
        print_tables(found)
        for kind, name in ((ONLY_A, "B"), (ONLY_B, "A")):
            print_reasons(found["why"][kind], kind, name, found["documents"][kind])
        if found["changed"]:
            print(f"\nchanged texts, {found['documents'][CHANGED]:,}")
        for sample in found["changed"]:
            print(f"  key {sample['key']}, id {sample['id']}, from character {sample['character']:,}")
            print("\n".join(f"    {side} {excerpt(text)}" for side, text in zip("AB", sample["texts"], strict=True)))
    counts = found["documents"]
    return int(counts[CHANGED] + counts[ONLY_A] + counts[ONLY_B] > 0)


def print_tables(found: Mapping[str, Any]) -> None:
    """Print the counts of documents, by source and by language, and the settings and rules that differ."""
    page = make_page()
    groups = make_table("documents", *TITLES.values())
    for title, rows in (
        ("", {"all": found["documents"]}),
        ("source", found["by_source"]),
        ("language", found["by_language"]),
    ):
        for name, counts in rows.items():
            groups.add_row(f"{title} {name or '(unnamed)'}".strip(), *(f"{counts[kind]:,}" for kind in TITLES))
    page.print(groups)
    for name, (one, other) in found["settings"].items():
        page.print(f"setting {name}: {one} in A, {other} in B", markup=False, soft_wrap=True)
    rules = make_table("rule", "limits in A", "in B", "dropped by A", "by B")
    for name, rule in found["rules"].items():
        rules.add_row(name, *(limits or "-" for limits in rule["limits"]), *(f"{n:,}" for n in rule["dropped"]))
    if rules.rows:
        page.print("", rules, sep="\n")


def print_reasons(reasons: Mapping[str, Any], kind: str, other: str, count: int) -> None:
    """Print why the other dataset lacks documents, with samples."""
    judged = sum(reason["documents"] for reason in reasons.values())
    if judged:
        print(f"\n{TITLES[kind]}, {count:,}: why {other} lacks {judged:,} of them")
    for rule, reason in reasons.items():
        print(f"  {rule}  {reason['documents']:,}")
        for sample in reason["samples"]:
            print(f"    {sample['reason']}   [{sample['language']}] key {sample['key']}, id {sample['id']}")
            print(f"      {excerpt(sample['text'])}")


COMMAND = Command(run=run, flags=FLAGS, description=DESCRIPTION, epilog=EPILOG, brief="A B", error_status=2)
