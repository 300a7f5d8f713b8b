"""``shardwright inspect``: a dataset at a glance, one document and its origin, or the rows of a batch."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.text import Text

import pipeline
from pipeline.builder.counts.build_stats import BuildStats
from pipeline.builder.recipe import command_line
from pipeline.builder.report.console import make_page, make_table, print_counts
from pipeline.builder.report.funnel import funnel
from pipeline.builder.report.html import group_rows
from pipeline.errors import ConfigError, ManifestError
from pipeline.shards.dataset_folder import DatasetFolder
from pipeline.shards.manifest import Manifest, ShardInfo
from pipeline.shards.shard_access import ShardAccess
from pipeline.text.tokens.tokenizer import tokenizer_of_dataset

from .command import Command, Parser, add_requests, requests_of

DESCRIPTION = """\
Show a dataset at a glance, one document and its origin, or the rows of a batch.

  %(prog)s shards                     # or a url: s3://bucket/shards
  %(prog)s shards --document 12       # the 13th of the split
  %(prog)s shards --key 000000000040  # by its key in the tar
  %(prog)s shards --id page-7         # by its id in the input
  %(prog)s shards --batch 0           # the rows of a batch as text"""

EPILOG = "exit status: 0 shown; 1 an error; 2 wrong usage, or a value that cannot be used; 130 interrupted"

_MOST_GROUPS = 8  # sources and languages shown by name

console = Console(highlight=False, emoji=False, soft_wrap=True)


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="DATASET", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("dataset", metavar="DATASET", help="directory or url of a dataset; shards of a url are cached")
    parser.add_argument("--split", default="train", help="split of the document (default: train)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--document", type=int, metavar="N", help="number of a document in the split, from 0")
    which.add_argument("--key", help="key of a tar member")
    which.add_argument("--id", help="id of a document in the input; the first document with this id is shown")
    which.add_argument(
        "--batch", type=int, metavar="N", help="number of a batch, from 0, in a stream shuffled by seed 0"
    )
    parser.add_argument(
        "--seq-len", type=int, default=256, metavar="N", help="tokens of a row of --batch (default: 256)"
    )
    parser.add_argument("--rows", type=int, default=4, metavar="N", help="rows of --batch (default: 4)")
    parser.add_argument("--tokens", action="store_true", help="show each token id next to its text")
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    folder = DatasetFolder(options.dataset, requests_of(options))
    manifest = folder.manifest()
    try:
        manifest.split(options.split)
    except ManifestError as error:  # the flag is wrong, not the manifest
        raise ConfigError(f"--split: {error}") from error
    if options.batch is not None:
        show_batch(folder, options)
    elif options.document is None and options.key is None and options.id is None:
        glance(folder.base, manifest)
    else:
        show(folder, manifest, options)
    return 0


def glance(directory: str, manifest: Manifest) -> None:
    """Print the funnel, splits, sources and languages of a dataset, and the command that builds it."""
    page, tokenizer, inputs = make_page(), manifest.tokenizer, manifest.inputs
    page.print(Text(directory, "bold", overflow="fold"))
    size = sum(item["bytes"] for item in inputs) / 1e6
    page.print(f"dataset {manifest.fingerprint[:16]}; {len(inputs):,} input files, {size:,.1f} MB")
    vocabulary = (
        f"tokenizer {tokenizer['name']}, {tokenizer['vocab_size']:,} ids" if tokenizer["name"] else "no tokenizer"
    )
    page.print(f"{vocabulary}, end of text {tokenizer['eos_id']}, stored as {manifest.token_dtype}\n", markup=False)
    stats = BuildStats.from_json(manifest.counts)
    print_counts(page, manifest, funnel(manifest.counts) if stats.characters else [])
    for kind, groups in (("source", stats.by_source), ("language", stats.by_language)):
        table = make_table(kind, "read", "kept", "tokens")
        for row in group_rows(groups, _MOST_GROUPS):
            table.add_row(row.name or "(unnamed)", f"{row.read:,}", f"{row.kept:,}", f"{row.tokens:,}")
        if groups:
            page.print("", table, sep="\n")
    if settings := manifest.recipe.get("settings"):
        command = command_line(settings, [item["source"] for item in inputs])
        page.print(f"\n{command}", markup=False, soft_wrap=True)  # in one line, for copying


def show(folder: DatasetFolder, manifest: Manifest, options: argparse.Namespace) -> None:
    """Print the origin of one document, then its text."""
    access = ShardAccess(requests=folder.requests)
    info, number = find(folder, access, manifest, options)
    path = folder.path(info.name)
    tokens = access.document(path, number, info)
    console.print(f"{info.name}, document {number} of {info.documents}, {len(tokens):,} tokens", style="bold")
    for name, column in access.table(path, info).items():
        console.print(f"{name:>14}: {column[number]}", markup=False)
    if not manifest.tokenizer.get("sha256"):  # ids imported without a tokenizer
        console.print(str(tokens.tolist()))
        return
    tokenizer = tokenizer_of_dataset(folder, manifest)
    if options.tokens:
        for token in tokens.tolist():
            console.print(f"{token:>14}  {tokenizer.decode([token])!r}", markup=False)
    console.print(f"\n{tokenizer.decode(tokens.tolist())}", markup=False)


def show_batch(folder: DatasetFolder, options: argparse.Namespace) -> None:
    """Print the rows of a batch. Text between ⟦ and ⟧ does not count in the loss."""
    data = pipeline.ShardDataset(
        folder.base, options.split, tries=folder.requests.tries, timeout=folder.requests.timeout
    )
    stream = data.shuffle(seed=0).pack(options.seq_len, boundaries=True).batch(options.rows)
    stream.skip(options.batch)
    for number, text in enumerate(stream.decode(next(iter(stream)))):
        console.print(f"row {number}", style="bold")
        console.print(f"{text}\n", markup=False)


def find(
    folder: DatasetFolder, access: ShardAccess, manifest: Manifest, options: argparse.Namespace
) -> tuple[ShardInfo, int]:
    """Return the shard of the document that the flags name, and the document's number in it."""
    split = manifest.split(options.split)
    before = 0
    for info in split.shards:
        if options.document is None:
            column, wanted = ("key", options.key) if options.key is not None else ("id", options.id)
            values = access.table(folder.path(info.name), info).get(column, [])
            if wanted in values:
                return info, values.index(wanted)
        elif before <= options.document < before + info.documents:
            return info, options.document - before
        before += info.documents
    raise ConfigError(
        f"no {_selection(options)} in split {options.split!r} of {before:,} documents{_hint(options, manifest)}"
    )


def _selection(options: argparse.Namespace) -> str:
    if options.key is not None:
        return f"key {options.key!r}"
    return f"document {options.document}" if options.id is None else f"id {options.id!r}"


def _hint(options: argparse.Namespace, manifest: Manifest) -> str:
    others = " or ".join(f"--split {name}" for name in manifest.splits if name != options.split)
    if options.key is not None:
        return "; keys look like 000000000040" + (f"; it may be in {others}" if others else "")
    return f"; it may be in {others}, or have been dropped" if options.id is not None and others else ""


COMMAND = Command(make_parser=make_parser, run=run)
