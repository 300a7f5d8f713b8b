"""``shardwright find``: whether a dataset has a text, or the texts of a file."""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections.abc import Sequence

from pipeline.audit.find import EXACT, NEAR, PASSAGE, Match, find
from pipeline.errors import ConfigError
from pipeline.objects.urls import is_remote
from pipeline.progress import Progress
from pipeline.text.readers.document_reader import ENDINGS, find_inputs

from .command import Command, Parser, add_requests, requests_of
from .inspect_command import console
from .texts_options import CountingReader, add_setting, recipe_of
from .try_rules_command import excerpt

DESCRIPTION = """\
Say whether a dataset has a text, or the texts of a benchmark: as an equal or similar document, or within a document.

  %(prog)s shards "It was the best of times, it was the worst of times"
  %(prog)s shards gsm8k.jsonl --text-key question --passages
  %(prog)s shards opt-outs.parquet --index shards.index --json

Equal and similar documents are found by the signatures that a build keeps. With --passages, the whole dataset is searched, as
a build does for --decontaminate: for 13 words in a row of a text, or for a whole text of 8 to 12 words."""

EPILOG = "exit status: 0 a text was found; 1 none was; 2 an error, or wrong usage; 130 interrupted"
_SETTINGS = ("format", "text_key", "id_key")


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="DATASET TEXT|FILE...", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("dataset", metavar="DATASET", help="directory or url of a dataset")
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT|FILE", help="a text, or files, directories, globs or urls of texts"
    )
    parser.add_argument("--passages", action="store_true", help="look for texts within documents")
    parser.add_argument(
        "--threshold", type=float, default=0.8, help="lowest similarity of documents to show (default: 0.8)"
    )
    parser.add_argument("--most", type=int, default=3, metavar="N", help="documents shown for a text (default: 3)")
    parser.add_argument("--index", metavar="DIR", help="keep the tables of signatures here, for later calls")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each text")
    for name in _SETTINGS:
        add_setting(parser, name)
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    parser.refuse_less(options, most=1)
    if options.passages and options.index:
        parser.error("--index keeps tables of signatures, which --passages does not use; leave one of them out")
    requests = requests_of(options)
    texts = read_texts(options)
    found = find(
        options.dataset,
        [text for _, text in texts],
        passages=options.passages,
        threshold=options.threshold,
        most=options.most,
        index=options.index,
        progress=Progress(quiet=not sys.stderr.isatty()),
        tries=requests.tries,
        timeout=requests.timeout,
    )
    for (name, text), matches in zip(texts, found, strict=True):
        if options.json:
            print(json.dumps({"id": name, "found": [match._asdict() for match in matches]}, ensure_ascii=False))
        elif matches:
            print_matches(name or excerpt(text), matches)
    if not options.json:
        print(summary(found, options.dataset, passages=options.passages))
    return 0 if any(found) else 1


def read_texts(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the id and text of each text; the id is '' for a text of the command line. Raises ``ConfigError`` without a text."""
    texts: list[tuple[str, str]] = []
    reader, recipe = CountingReader(), recipe_of(options, _SETTINGS)
    for item in options.texts:
        if not names_file(item):
            if not item.strip():
                raise ConfigError(f"TEXT {item!r} has no words; give a text, or files of texts")
            texts.append(("", item))
            continue
        for file in find_inputs([item], requests=requests_of(options), format=recipe.format):
            texts += [(document.id, document.text) for document in reader.documents(file, recipe)]
    reader.print()
    if not texts:
        raise ConfigError(f"{', '.join(options.texts)}: no text; name the field of the texts with --text-key")
    return texts


def names_file(item: str) -> bool:
    """Whether an argument is a file, a url, or one word with a folder, a star or the ending of a file."""
    is_name = len(item.split()) == 1 and (
        is_remote(item) or item.endswith(tuple(ENDINGS)) or not {"/", "*"}.isdisjoint(item)
    )
    return is_name or (len(item) < 4096 and (os.path.exists(item) or bool(glob.glob(item))))


def print_matches(name: str, matches: Sequence[Match]) -> None:
    console.print(name, style="bold", markup=False)
    for match in matches:
        estimate = "" if match.estimate is None or match.kind == EXACT else f" (estimated {match.estimate:.2f})"
        what = f"{match.likeness:.0%} of its windows" if match.kind == PASSAGE else f"{match.likeness:.2f}{estimate}"
        details = [f"{title} {value}" for title, value in (("id", match.id), ("source", match.source)) if value]
        where = ", ".join([match.shard, f"document {match.document}", f"key {match.key}", *details])
        console.print(f"  {match.kind} {what}  {where}", markup=False)
        console.print(f"    | {excerpt(match.passage)}", markup=False)


def summary(found: Sequence[Sequence[Match]], dataset: str, *, passages: bool) -> str:
    """Return a sentence: how many texts, and which share of all, the dataset has."""
    kinds = [matches[0].kind for matches in found if matches]
    counts = "" if passages else f": {kinds.count(EXACT):,} exactly, {kinds.count(NEAR):,} nearly"
    hint = "" if passages or kinds else ". Whole documents were compared; --passages looks within them"
    return f"{len(kinds):,} of {len(found):,} texts ({len(kinds) / len(found):.1%}) are in {dataset}{counts}{hint}"


COMMAND = Command(make_parser=make_parser, run=run, error_status=2)
