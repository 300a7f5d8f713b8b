"""``shardwright find``: whether a dataset has a text, or the texts of a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.atomic import atomic_file
from pipeline.errors import ConfigError
from pipeline.finished.documents import DatasetDocuments
from pipeline.finished.find import EXACT, NEAR, PASSAGE, Match, check_threshold, find, find_items
from pipeline.objects.urls import is_remote
from pipeline.paths import matching
from pipeline.progress import Progress
from pipeline.text.readers.document_reader import ENDINGS, find_inputs

from .command import Command, Parser, add_requests, check_output, local_file, requests_of
from .inspect_command import console
from .texts_options import CountingReader, add_setting, recipe_of
from .trace_command import add_run, seen_in_run
from .try_rules_command import excerpt

DESCRIPTION = """\
Say whether a dataset has a text, or the texts of a benchmark: as an equal or similar document, or within a document.

  %(prog)s shards "It was the best of times, it was the worst of times"
  %(prog)s shards gsm8k.jsonl --text-key question --passages
  %(prog)s shards opt-outs.parquet --index shards.index --json
  %(prog)s shards --items gsm8k.jsonl --text-key question --clean clean.txt --dirty dirty.txt
  %(prog)s shards --items gsm8k.jsonl --text-key question --state run.json --global-batch 256

Equal and similar documents are found by the signatures that a build keeps. With --passages, the whole dataset is searched, as
a build does for --decontaminate: for 13 words in a row of a text, or for a whole text of 8 to 12 words. --items searches in
the same way. It says whether each item of a benchmark is clean or dirty, how much of it the documents have together, and when
a run first read one of these documents."""

EPILOG = "exit status: 0 a text was found; 1 none was; 2 an error, or wrong usage; 130 interrupted"
_SETTINGS = ("format", "text_key", "id_key")


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="DATASET TEXT|FILE...", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("dataset", metavar="DATASET", help="directory or url of a dataset")
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT|FILE", help="a text, or files, directories, globs or urls of texts"
    )
    parser.add_argument("--passages", action="store_true", help="look for texts within documents")
    parser.add_argument("--items", action="store_true", help="say of each text, an item of a benchmark, if it is clean")
    parser.add_argument(
        "--clean", type=local_file, metavar="FILE", help="with --items: write the ids of clean items here"
    )
    parser.add_argument(
        "--dirty", type=local_file, metavar="FILE", help="with --items: write the ids of dirty items here"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="with --items: state of a run, as JSON, to name the first step that read a document of each item",
    )
    add_run(parser)
    parser.add_argument(
        "--threshold",
        type=float,
        help="lowest similarity of documents to show (default: 0.8); with --items: lowest share of a dirty item's runs of 13 "
        "words (default: one run)",
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
    passages = "--items" if options.items else "--passages"
    if (options.items or options.passages) and options.index:
        parser.error(f"--index keeps tables of signatures, which {passages} does not use; leave one of them out")
    if options.items:
        return run_items(options)
    for flag in ("clean", "dirty", "state"):
        if getattr(options, flag) is not None:
            parser.error(f"--{flag} says something of the items of a benchmark; add --items")
    requests = requests_of(options)
    texts = read_texts(options)
    found = find(
        options.dataset,
        [text for _, text in texts],
        passages=options.passages,
        threshold=0.8 if options.threshold is None else options.threshold,
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


CLEAN, DIRTY, SHORT = "clean", "dirty", "short"


def run_items(options: argparse.Namespace) -> int:
    """Print of each item of a benchmark whether it is clean, and write the lists of ids."""
    if options.threshold is not None:
        check_threshold(options.threshold)
    lists = {kind: path for kind in (CLEAN, DIRTY) if (path := getattr(options, kind)) is not None}
    for kind, path in lists.items():
        check_output(path, options.texts, f"--{kind}")
    if len({path.absolute() for path in lists.values()}) < len(lists):
        raise ConfigError(f"--clean and --dirty are both {lists[CLEAN]}; name two files")
    seen = None if options.state is None else seen_in_run(options.state, options, "find items")
    texts = read_texts(options)
    if lists:
        check_ids([name for name, _ in texts])
    documents = DatasetDocuments(options.dataset, requests_of(options))
    found = find_items(documents, [text for _, text in texts], options.most, Progress(quiet=not sys.stderr.isatty()))
    steps = first_steps(seen(sorted({each for item in found for each in item.documents}))) if seen else {}
    ids: dict[str, list[str]] = {CLEAN: [], DIRTY: [], SHORT: []}
    for (name, text), item in zip(texts, found, strict=True):
        is_dirty = item.found > 0 and item.share >= (options.threshold or 0)
        kind = DIRTY if is_dirty else CLEAN if item.runs else SHORT
        ids[kind].append(name)
        step = min((steps[each] for each in item.documents if each in steps), default=None)
        if options.json:
            line = {"id": name, "item": kind, "share": item.share, "documents": item.documents}
            line |= {"first_step": step} if seen else {}
            line["found"] = [match._asdict() for match in item.matches]
            print(json.dumps(line, ensure_ascii=False))
            continue
        number = len(item.documents)
        where = f", {item.share:.0%} of its windows in {number:,} document{'s' * (number > 1)}" if number else ""
        if seen and number:
            where += ", which the run has not read" if step is None else f", first read at step {step:,}"
        print_matches(f"{kind} {name or excerpt(text)}{where}", item.matches)
    for kind, path in lists.items():
        with atomic_file(path) as file:
            file.write("".join(f"{name}\n" for name in ids[kind]).encode("utf-8", "surrogatepass"))
    if not options.json:
        short = f", {len(ids[SHORT]):,} too short to compare" if ids[SHORT] else ""
        share = f"{len(ids[DIRTY]) / len(texts):.1%}"
        print(
            f"{len(ids[DIRTY]):,} of {len(texts):,} items ({share}) are dirty, {len(ids[CLEAN]):,} clean{short}: "
            f"{options.dataset}"
        )
    return 0 if ids[DIRTY] else 1


def check_ids(names: Sequence[str]) -> None:
    """Raise ``ConfigError`` if a list of ids, one a line, cannot tell the items apart."""
    if "" in names:
        raise ConfigError(
            "a text of the command line has no id, so --clean and --dirty cannot name it; put it in a file"
        )
    [(name, count)] = Counter(names).most_common(1)
    if count > 1:
        raise ConfigError(
            f"{count:,} items have the id {name!r}, so --clean and --dirty cannot tell them apart; name the field of ids that "
            "differ with --id-key"
        )
    if broken := [name for name in names if len(name.splitlines()) > 1]:
        raise ConfigError(f"the id {broken[0]!r} has several lines, but --clean and --dirty hold one id a line")


def first_steps(spans: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the first step of each document, as SHARD:NUMBER, from spans in the order of a run."""
    steps: dict[str, int] = {}
    for span in spans:
        steps.setdefault(f"{span['origin']['shard']}:{span['origin']['document']}", span["step"])
    return steps


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
    return is_name or (len(item) < 4096 and (os.path.exists(item) or bool(matching(item))))


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
