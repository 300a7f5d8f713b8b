"""``shardwright find``: whether a dataset has a text, or the texts of a file."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from pipeline.atomic import atomic_file
from pipeline.builder.recipe import Recipe
from pipeline.errors import ConfigError
from pipeline.finished.documents import DatasetDocuments
from pipeline.finished.find import EXACT, NEAR, PASSAGE, FoundItem, Match, check_threshold, find, find_items
from pipeline.objects.request_options import RequestOptions
from pipeline.objects.urls import is_remote
from pipeline.paths import matching
from pipeline.progress import Progress
from pipeline.text.readers.document_reader import ENDINGS, find_inputs

from .command import Command, Parser, check_output
from .flags import LocalFile
from .inspect_command import console
from .texts_options import CountingReader
from .trace_command import seen_in_run
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
CLEAN, DIRTY, SHORT = "clean", "dirty", "short"

FLAGS = """\
DATASET           directory or url of a dataset
TEXT|FILE...      a text, or files, directories, globs or urls of texts
--passages        look for texts within documents
--items           say of each text, an item of a benchmark, if it is clean
--clean FILE      with --items: write the ids of clean items here
--dirty FILE      with --items: write the ids of dirty items here
--state FILE      with --items: state of a run, as JSON, to name the first step that read a document of each item
--global-batch N  with --state: batch size times number of ranks
--ranks N         with --state: ranks of the run
--threshold       lowest similarity of documents to show (default: 0.8); with --items: lowest share of a dirty item's runs of 13
                  words (default: one run)
--most N          documents shown for a text
--index DIR       keep the tables of signatures here, for later calls
--json            print a line of JSON for each text"""


def run(
    dataset: str,
    texts: list[str],
    *,
    passages: bool = False,
    items: bool = False,
    clean: LocalFile | None = None,
    dirty: LocalFile | None = None,
    state: Path | None = None,
    global_batch: int | None = None,
    ranks: int = 1,
    threshold: float | None = None,
    most: Annotated[int, 1] = 3,
    index: str | None = None,
    json: bool = False,
    settings: dict[str, Any],
    requests: RequestOptions,
    parser: Parser,
) -> int:
    if (items or passages) and index:
        searched = "--items" if items else "--passages"
        parser.error(f"--index keeps tables of signatures, which {searched} does not use; leave one of them out")
    lists = {kind: path for kind, path in ((CLEAN, clean), (DIRTY, dirty)) if path is not None}
    if not items:
        for flag in (*lists, *(["state"] if state else [])):
            parser.error(f"--{flag} says something of the items of a benchmark; add --items")
        named = read_texts(texts, settings, requests)
        found = find(
            dataset,
            [text for _, text in named],
            passages=passages,
            threshold=0.8 if threshold is None else threshold,
            most=most,
            index=index,
            progress=Progress(quiet=not sys.stderr.isatty()),
            tries=requests.tries,
            timeout=requests.timeout,
        )
        return print_found(dataset, named, found, passages=passages, as_json=json)
    if threshold is not None:
        check_threshold(threshold)
    for kind, path in lists.items():
        check_output(path, texts, f"--{kind}")
    if len({path.absolute() for path in lists.values()}) < len(lists):
        raise ConfigError(f"--clean and --dirty are both {lists[CLEAN]}; name two files")
    seen = None
    if state is not None:
        seen = seen_in_run(dataset, state, global_batch, ranks, requests, "find items")
    named = read_texts(texts, settings, requests)
    if lists:
        check_ids([name for name, _ in named])
    documents = DatasetDocuments(dataset, requests)
    looked_for = [text for _, text in named]
    of_items = find_items(documents, looked_for, most, Progress(quiet=not sys.stderr.isatty()))
    steps = first_steps(seen(sorted({each for item in of_items for each in item.documents}))) if seen else None
    ids = print_items(dataset, named, of_items, threshold or 0, steps, as_json=json)
    for kind, path in lists.items():
        with atomic_file(path) as file:
            file.write("".join(f"{name}\n" for name in ids[kind]).encode("utf-8", "surrogatepass"))
    return 0 if ids[DIRTY] else 1


def print_found(
    dataset: str, named: Sequence[tuple[str, str]], found: Sequence[Sequence[Match]], *, passages: bool, as_json: bool
) -> int:
    """Print the documents that were found for each text; return the exit status."""
    for (name, text), matches in zip(named, found, strict=True):
        if as_json:
            print(dumps({"id": name, "found": [match._asdict() for match in matches]}, ensure_ascii=False))
        elif matches:
            print_matches(name or excerpt(text), matches)
    if not as_json:
        print(summary(found, dataset, passages=passages))
    return 0 if any(found) else 1


def print_items(
    dataset: str,
    named: Sequence[tuple[str, str]],
    found: Sequence[FoundItem],
    threshold: float,
    steps: Mapping[str, int] | None,
    *,
    as_json: bool,
) -> dict[str, list[str]]:
    """Print of each item of a benchmark whether it is clean; return the ids of clean, dirty and short items."""
    ids: dict[str, list[str]] = {CLEAN: [], DIRTY: [], SHORT: []}
    for (name, text), item in zip(named, found, strict=True):
        is_dirty = item.found > 0 and item.share >= threshold
        kind = DIRTY if is_dirty else CLEAN if item.runs else SHORT
        ids[kind].append(name)
        step = min((steps[each] for each in item.documents if each in steps), default=None) if steps else None
        if as_json:
            line = {"id": name, "item": kind, "share": item.share, "documents": item.documents}
            line |= {"first_step": step} if steps is not None else {}
            line["found"] = [match._asdict() for match in item.matches]
            print(dumps(line, ensure_ascii=False))
            continue
        number = len(item.documents)
        places = f", {item.share:.0%} of its windows in {number:,} document{'s' * (number > 1)}" if number else ""
        if steps is not None and number:
            places += ", which the run has not read" if step is None else f", first read at step {step:,}"
        print_matches(f"{kind} {name or excerpt(text)}{places}", item.matches)
    if not as_json:
        short = f", {len(ids[SHORT]):,} too short to compare" if ids[SHORT] else ""
        share = f"{len(ids[DIRTY]) / len(named):.1%}"
        print(
            f"{len(ids[DIRTY]):,} of {len(named):,} items ({share}) are dirty, {len(ids[CLEAN]):,} clean{short}: "
            f"{dataset}"
        )
    return ids


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


def read_texts(items: Sequence[str], settings: Mapping[str, Any], requests: RequestOptions) -> list[tuple[str, str]]:
    """Return the id and text of each text; the id is '' for a text of the command line. Raises ``ConfigError`` without a text."""
    texts: list[tuple[str, str]] = []
    reader, recipe = CountingReader(), Recipe.from_json(settings)
    for item in items:
        if not names_file(item):
            if not item.strip():
                raise ConfigError(f"TEXT {item!r} has no words; give a text, or files of texts")
            texts.append(("", item))
            continue
        for file in find_inputs([item], requests=requests, format=recipe.format):
            texts += [(document.id, document.text) for document in reader.documents(file, recipe)]
    reader.print()
    if not texts:
        raise ConfigError(f"{', '.join(items)}: no text; name the field of the texts with --text-key")
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
        place = ", ".join([match.shard, f"document {match.document}", f"key {match.key}", *details])
        console.print(f"  {match.kind} {what}  {place}", markup=False)
        console.print(f"    | {excerpt(match.passage)}", markup=False)


def summary(found: Sequence[Sequence[Match]], dataset: str, *, passages: bool) -> str:
    """Return a sentence: how many texts, and which share of all, the dataset has."""
    kinds = [matches[0].kind for matches in found if matches]
    counts = "" if passages else f": {kinds.count(EXACT):,} exactly, {kinds.count(NEAR):,} nearly"
    hint = "" if passages or kinds else ". Whole documents were compared; --passages looks within them"
    return f"{len(kinds):,} of {len(found):,} texts ({len(kinds) / len(found):.1%}) are in {dataset}{counts}{hint}"


COMMAND = Command(
    run=run,
    flags=FLAGS,
    brief="DATASET TEXT|FILE...",
    description=DESCRIPTION,
    epilog=EPILOG,
    settings=("format", "text_key", "id_key"),
    error_status=2,
)
