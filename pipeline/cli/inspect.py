"""``shardwright inspect``: a dataset at a glance, or one document and its origin."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.builder.counts.stats import BuildStats, descending
from pipeline.builder.counts.waterfall import Row, waterfall
from pipeline.builder.recipe import command_line
from pipeline.builder.report.console import damage_said
from pipeline.builder.report.html import group_rows
from pipeline.builder.stages.registry import changes
from pipeline.errors import ConfigError, ManifestError
from pipeline.shards.folder import Folder
from pipeline.shards.manifest import Manifest, ShardInfo
from pipeline.shards.store import Store
from pipeline.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

from .command import Command, Parser

DESCRIPTION = """\
Show a dataset at a glance, or one document and its origin.

  %(prog)s shards                     # or a url: s3://bucket/shards
  %(prog)s shards --document 12       # the 13th of the split
  %(prog)s shards --key 000000000040  # by its key in the tar
  %(prog)s shards --id page-7         # by its id in the input"""

EPILOG = "exit status: 0 shown; 1 an error; 2 wrong usage, or a value that cannot be used; 130 interrupted"

_COLUMNS = 100
_BAR = 20  # columns of the bar of what is left
_SMALL = 0.002  # rows that take a smaller share are shown as one
_MOST_GROUPS = 8  # sources and languages shown by name

console = Console(highlight=False, soft_wrap=True)


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="DATASET", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "dataset", metavar="DATASET", help="directory or url of a dataset; shards of a url are read through the cache"
    )
    parser.add_argument("--split", default="train", help="split of the document (default: train)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--document", type=int, metavar="N", help="number of a document in the split, from 0")
    which.add_argument("--key", help="key of a tar member")
    which.add_argument("--id", help="id of the document in the input; the first that has it is shown")
    parser.add_argument("--tokens", action="store_true", help="show each token id beside its text")
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    folder = Folder(options.dataset)
    manifest = folder.manifest()
    try:
        manifest.split(options.split)
    except ManifestError as error:  # the manifest is right, and the flag is not
        raise ConfigError(f"--split: {error}") from error
    if options.document is None and options.key is None and options.id is None:
        glance(folder.base, manifest)
    else:
        show(folder, manifest, options)
    return 0


def glance(directory: str, manifest: Manifest) -> None:
    """Print splits, what was dropped, sources, languages, and the command: 100 columns, or as many as the terminal has."""
    page = Console(highlight=False)
    page.width = min(_COLUMNS, page.width) if page.is_terminal else _COLUMNS
    tokenizer, counts = manifest.tokenizer, manifest.counts
    page.print(Text(directory, "bold", overflow="fold"))
    page.print(
        f"dataset {manifest.fingerprint[:16]}; {len(manifest.inputs):,} input files, "
        f"{sum(item['bytes'] for item in manifest.inputs) / 1e6:,.1f} MB"
    )
    page.print(
        f"tokenizer {tokenizer['name']}, {tokenizer['vocab_size']:,} ids, end of text {tokenizer['eos_id']}, "
        f"stored as {manifest.token_dtype}",
        markup=False,
    )
    table = _table("split", "documents", "tokens", "tokens/document", "shards")
    for name, split in manifest.splits.items():
        mean = split.tokens / max(1, split.documents)
        table.add_row(Text(name), *(f"{n:,.0f}" for n in (split.documents, split.tokens, mean, len(split.shards))))
    page.print("", table, "", sep="\n")
    if "read" not in counts:  # not written by a build
        return
    page.print(_waterfall(counts, "#" if page.options.ascii_only else "█"), "", sep="\n")
    for kind in ("source", "language"):
        table = _table(kind, "read", "kept", "tokens")
        for row in group_rows(counts[f"by_{kind}"], _MOST_GROUPS):
            table.add_row(Text(row.name or "(unnamed)"), f"{row.read:,}", f"{row.kept:,}", f"{row.tokens:,}")
        page.print(table, "", sep="\n")
    for reason, number in descending(counts["bad"]):
        page.print(f"{number:,}  unreadable: {reason}", markup=False)
    for kind in ("lines", "paragraphs"):
        if number := counts.get("repeats", {}).get(kind):
            page.print(f"{number:,}  cut: {kind} that occur earlier")
    if damaged := counts["damaged"]:
        page.print(f"warning: {damage_said(damaged)}")
    for note in counts.get("notes", ()):
        page.print(f"warning: {note}", markup=False)
    command = command_line(manifest.recipe["settings"], [item["source"] for item in manifest.inputs])
    page.print(command, markup=False, soft_wrap=True)  # in one line, to be copied


def _table(*names: str) -> Table:
    """Return a table of a name and numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for k, name in enumerate(names):
        table.add_column(name, justify="right" if k else "left", overflow="fold")
    return table


def _waterfall(counts: Mapping[str, Any], block: str) -> Table:
    """Return what removed documents, with a bar of what was left; small rows are one."""
    stats = BuildStats.from_json(counts)
    rows = waterfall(stats, changes(stats))
    small = [row for row in rows if row.is_change and row.share < _SMALL]
    if len(small) > 1:
        sums = sum(row.documents for row in small), sum(row.share for row in small)
        one = Row(f"{len(small)} others", *sums, rows[-1].left_share, sum(row.tokens for row in small))
        rows = [*(row for row in rows[:-1] if row not in small), one, rows[-1]]
    table = _table("stage", "documents", "share", "tokens")
    table.add_column("left")
    for row in rows:
        tokens = f"{'' if row.is_exact else '~'}{row.tokens:,}"
        bar = block * round(_BAR * row.left_share)
        table.add_row(Text(row.what), f"{row.documents:,}", f"{row.share:.1%}", tokens, bar)
    return table


def show(folder: Folder, manifest: Manifest, options: argparse.Namespace) -> None:
    """Print one document: its provenance, then its text."""
    store = Store()
    info, number = find(folder, store, manifest, options)
    shard = store.open(folder.path(info.name), info)
    tokens = shard.document(number)
    console.print(f"{info.name}, document {number} of {len(shard)}, {len(tokens):,} tokens", style="bold")
    table: dict[str, list[Any]] = shard.table()
    for name, column in table.items():
        console.print(f"{name:>14}: {column[number]}", markup=False)
    tokenizer = dataset_tokenizer(folder, manifest)
    if options.tokens:
        for token in tokens.tolist():
            console.print(f"{token:>14}  {tokenizer.decode([token])!r}", markup=False)
    console.print(tokenizer.decode(tokens.tolist()), markup=False)


def dataset_tokenizer(folder: Folder, manifest: Manifest) -> Tokenizer:
    """Load the tokenizer of a dataset from the files that its manifest names."""
    with TemporaryDirectory() as directory:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (data := folder.read_bound(name, manifest)) is not None:
                Path(directory, name).write_bytes(data)
        return load_tokenizer(directory if any(Path(directory).iterdir()) else folder.base)


def find(folder: Folder, store: Store, manifest: Manifest, options: argparse.Namespace) -> tuple[ShardInfo, int]:
    """Return the shard that holds the document asked for, and its number there."""
    split = manifest.split(options.split)
    before = 0
    for info in split.shards:
        if options.document is None:
            column, wanted = ("key", options.key) if options.key is not None else ("id", options.id)
            values = store.table(folder.path(info.name), info).get(column, [])
            if wanted in values:
                return info, values.index(wanted)
        elif before <= options.document < before + info.documents:
            return info, options.document - before
        before += info.documents
    raise ConfigError(
        f"no {_asked(options)} in split {options.split!r} of {before:,} documents{_hint(options, manifest)}"
    )


def _asked(options: argparse.Namespace) -> str:
    if options.key is not None:
        return f"key {options.key!r}"
    return f"document {options.document}" if options.id is None else f"id {options.id!r}"


def _hint(options: argparse.Namespace, manifest: Manifest) -> str:
    others = " or ".join(f"--split {name}" for name in manifest.splits if name != options.split)
    if options.key is not None:
        return "; keys look like 000000000040" + (f"; it may be in {others}" if others else "")
    return f"; it may be in {others}, or have been dropped" if options.id is not None and others else ""


COMMAND = Command(make_parser=make_parser, run=run)
