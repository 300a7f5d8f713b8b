"""``shardwright inspect``: a dataset at a glance, one document and its origin, or the rows of a batch."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

import pipeline
from pipeline.builder.counts.build_stats import BuildStats
from pipeline.builder.recipe import command_line
from pipeline.builder.report.console import make_page, make_table, print_counts
from pipeline.builder.report.funnel import funnel
from pipeline.builder.report.html import group_rows
from pipeline.errors import ConfigError, ManifestError
from pipeline.finished.why import why as reasons
from pipeline.objects.request_options import RequestOptions
from pipeline.shards.dataset_folder import DatasetFolder
from pipeline.shards.manifest import Manifest, ShardInfo
from pipeline.shards.shard_access import ShardAccess
from pipeline.text.tokens.tokenizer import tokenizer_of_dataset

from .command import Command

DESCRIPTION = """\
Show a dataset at a glance, one document and its origin, or the rows of a batch.

  %(prog)s shards                     # or a url: s3://bucket/shards
  %(prog)s shards --document 12       # the 13th of the split
  %(prog)s shards --key 000000000040  # by its key in the tar
  %(prog)s shards --id page-7         # by its id in the input
  %(prog)s shards --batch 0           # the rows of a batch as text
  %(prog)s shards --why page-7        # why a document was kept or dropped"""

EPILOG = (
    "exit status: 0 shown; 1 an error, or nothing known; 2 wrong usage, or a value that cannot be used; 130 interrupted"
)

_MOST_GROUPS = 8  # sources and languages shown by name

console = Console(highlight=False, emoji=False, soft_wrap=True)

FLAGS = """\
DATASET         directory or url of a dataset; shards of a url are cached
--split         split of the document
--document N |  number of a document in the split, from 0
--key |         key of a tar member
--id |          id of a document in the input; the first document with this id is shown
--batch N |     number of a batch, from 0, in a stream shuffled by seed 0
--why ID |      key or id of a document, or FILE:LINE of a record: why it was kept or dropped
--seq-len N     tokens of a row of --batch
--rows N        rows of --batch
--tokens        show each token id next to its text"""


def run(
    dataset: str,
    *,
    split: str = "train",
    document: int | None = None,
    key: str | None = None,
    id: str | None = None,
    batch: int | None = None,
    why: str | None = None,
    seq_len: int = 256,
    rows: int = 4,
    tokens: bool = False,
    requests: RequestOptions,
) -> int:
    folder = DatasetFolder(dataset, requests)
    manifest = folder.manifest()
    try:
        manifest.split(split)
    except ManifestError as error:  # the flag is wrong, not the manifest
        raise ConfigError(f"--split: {error}") from error
    if why is not None:
        lines, is_known = reasons(folder, manifest, why)
        console.print("\n".join(lines), markup=False)
        return 0 if is_known else 1
    if batch is not None:
        show_batch(folder, split, batch, seq_len, rows)
    elif wanted := {
        name: value for name, value in (("document", document), ("key", key), ("id", id)) if value is not None
    }:
        show(folder, manifest, split, *wanted.popitem(), tokens=tokens)
    else:
        glance(folder.base, manifest)
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


def show(folder: DatasetFolder, manifest: Manifest, split: str, kind: str, wanted: Any, *, tokens: bool) -> None:
    """Print the origin of one document, then its text."""
    access = ShardAccess(requests=folder.requests)
    info, number = find(folder, access, manifest, split, kind, wanted)
    path = folder.path(info.name)
    ids = access.document(path, number, info).tolist()
    console.print(f"{info.name}, document {number} of {info.documents}, {len(ids):,} tokens", style="bold")
    for name, column in access.table(path, info).items():
        console.print(f"{name:>14}: {column[number]}", markup=False)
    if not manifest.tokenizer.get("sha256"):  # ids imported without a tokenizer
        console.print(str(ids))
        return
    tokenizer = tokenizer_of_dataset(folder, manifest)
    if tokens:
        for token in ids:
            console.print(f"{token:>14}  {tokenizer.decode([token])!r}", markup=False)
    console.print(f"\n{tokenizer.decode(ids)}", markup=False)


def show_batch(folder: DatasetFolder, split: str, batch: int, seq_len: int, rows: int) -> None:
    """Print the rows of a batch. Text between ⟦ and ⟧ does not count in the loss."""
    data = pipeline.ShardDataset(folder.base, split, tries=folder.requests.tries, timeout=folder.requests.timeout)
    stream = data.shuffle(seed=0).pack(seq_len, boundaries=True).batch(rows)
    stream.skip(batch)
    for number, text in enumerate(stream.decode(next(iter(stream)))):
        console.print(f"row {number}", style="bold")
        console.print(f"{text}\n", markup=False)


def find(
    folder: DatasetFolder, access: ShardAccess, manifest: Manifest, split: str, kind: str, wanted: Any
) -> tuple[ShardInfo, int]:
    """Return the shard of a document, by its number in the split, its key or its id, and the document's number in the shard."""
    earlier = 0
    for info in manifest.split(split).shards:
        if kind != "document":
            values = access.table(folder.path(info.name), info).get(kind, [])
            if wanted in values:
                return info, values.index(wanted)
        elif earlier <= wanted < earlier + info.documents:
            return info, wanted - earlier
        earlier += info.documents
    others = " or ".join(f"--split {name}" for name in manifest.splits if name != split)
    hint = f"; it may be in {others}, or have been dropped" if kind == "id" and others else ""
    if kind == "key":
        hint = "; keys look like 000000000040" + (f"; it may be in {others}" if others else "")
    raise ConfigError(f"no {kind} {wanted!r} in split {split!r} of {earlier:,} documents{hint}")


COMMAND = Command(run=run, flags=FLAGS, brief="DATASET", description=DESCRIPTION, epilog=EPILOG)
