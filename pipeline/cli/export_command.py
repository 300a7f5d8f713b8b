"""``shardwright export``: a dataset as files that other tools read."""

from __future__ import annotations

import argparse

from pipeline.progress import Progress

from .command import Command, Parser, add_requests, requests_of

DESCRIPTION = """\
Write the documents of a dataset, split by split and in order, as files that other tools read.

  %(prog)s shards --to megatron --output megatron    (train.bin and train.idx, for IndexedDataset)
  %(prog)s shards --to nanogpt --output flat         (train.bin: only ids; the dtype is printed)
  %(prog)s shards --to parquet --output hub          (data/train-*.parquet: input_ids, and the origin of documents)

The tokenizer is copied. export.json has dtype, end-of-text id and files. The checksum of each document is compared."""


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="DATASET --to FORMAT --output DIR", description=DESCRIPTION)
    parser.add_argument("dataset", metavar="DATASET", help="directory or url of a dataset")
    parser.add_argument("--to", required=True, help="megatron, nanogpt or parquet")
    parser.add_argument("--output", required=True, help="directory of the files: empty or new")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    from pipeline.exchange.export import export_tokens

    progress = Progress(quiet=options.quiet)
    done = export_tokens(options.dataset, options.output, options.to, requests=requests_of(options), progress=progress)
    if not options.quiet:
        for name, size in done["files"].items():
            print(f"{options.output}/{name}: {size:,} bytes")
        for name, split in done["splits"].items():
            print(f"{name}: {split['documents']:,} documents, {split['tokens']:,} tokens as {done['dtype']}")
    return 0


COMMAND = Command(make_parser=make_parser, run=run)
