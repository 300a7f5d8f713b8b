"""``shardwright index``: writes the table of extents of a dataset that has none."""

from __future__ import annotations

import argparse
import os
import sys
import time

from pipeline.shards.extents.file import EXTENTS_NAME
from pipeline.shards.extents.indexing import index_dataset

from .command import Command, Parser

DESCRIPTION = """\
Write the table of extents of a dataset that has none, so that streams start without reading every shard's index.

  %(prog)s DIRECTORY... [--workers N]

Every shard is read once and compared with the manifest. The table is written as extents.bin; then manifest.json is replaced
by version 2, which names it. No shard changes."""

EPILOG = "exit status: 0 done; 1 a shard or manifest is wrong; 2 an error, or wrong usage; 130 interrupted"


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="DIRECTORY...", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("directories", nargs="+", metavar="DIRECTORY", help="directories with a manifest.json")
    parser.add_argument(
        "--workers",
        type=int,
        default=min(8, os.cpu_count() or 1),
        help="threads that read (default: all cores, at most 8)",
    )
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    if options.workers < 1:
        parser.error(f"--workers must be 1 or more, got {options.workers}")
    for directory in options.directories:
        began = time.monotonic()
        try:
            manifest = index_dataset(directory, workers=options.workers, progress=_show)
        finally:
            _show(0, 0)
        shards = len(manifest.shards)
        print(f"{directory}: {EXTENTS_NAME} describes {shards:,} shards ({time.monotonic() - began:.1f} s)")
    return 0


def _show(done: int, total: int) -> None:
    """Draw a line of progress on a terminal; clear it at the end."""
    if sys.stderr.isatty():
        line = f"\r{done / total:4.0%} of {total / 1e6:,.1f} MB" if done < total else "\r\033[K"
        print(line, end="", file=sys.stderr, flush=True)


COMMAND = Command(make_parser=make_parser, run=run, hint="the dataset is as it was; run the same command again")
