"""``shardwright import``: token ids of other tools -> a dataset."""

from __future__ import annotations

import argparse

from pipeline.progress import Progress

from .command import Command, Parser, add_requests, requests_of
from .texts_options import add_setting

DESCRIPTION = """\
Make a dataset from files of token ids: check the ids, split off validation documents, write shards and verify them.

  %(prog)s tokens/*.parquet --output shards --tokenizer gpt2 --tokens-key input_ids
  %(prog)s megatron/text_document.bin --output shards --tokenizer /models/llama
  %(prog)s fineweb_train_000001.bin --output shards --eos-id 50256

Parquet, Arrow and JSON Lines hold lists of ids in a column. NAME.bin next to NAME.idx is Megatron's. Any other .bin is a
flat array, as nanoGPT's; .bin and .npy are cut after each end-of-text id. Rules, languages and near dedup need text, so
they do not run. Exact copies are counted."""

EPILOG = (
    "exit status: 0 the dataset is complete; 1 an error; 2 wrong usage, or a value that cannot be used; 130 interrupted"
)
_SETTINGS = ("id_key", "keep_fields", "where", "val_fraction", "tokens_per_shard", "tokens_per_sample", "seed")


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="SOURCE... --output DIR", description=DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="files, directories or patterns; Parquet, Arrow and JSON also by url",
    )
    add("--output", required=True, help="directory of the dataset: empty or new")
    add("--tokens-key", default="input_ids", help="field or column of the lists of ids (default: input_ids)")
    add("--tokenizer", help="the tokenizer that made the ids: it checks them, and is copied to the output")
    add("--eos-id", type=int, metavar="N", help="the id that ends documents (default: the tokenizer's)")
    add("--dtype", default="uint16", help="dtype of a flat .bin: uint16 or uint32 (default: uint16)")
    add(
        "--on-error",
        default="stop",
        choices=("stop", "records", "skip"),
        help="if a document is bad: stop (default); records: skip and count it; skip: skip the rest of a damaged file, too",
    )
    for name in _SETTINGS:
        add_setting(parser, name)
    add("--quiet", action="store_true", help="print errors only")
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    from pipeline.exchange.token_sources import import_tokens

    names = ("tokenizer", "tokens_key", "eos_id", "dtype", "on_error", *_SETTINGS)
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    if "keep_fields" in settings:
        settings["keep_fields"] = settings["keep_fields"].split(",")
    progress = Progress(quiet=options.quiet)
    manifest = import_tokens(
        options.sources, options.output, requests=requests_of(options), progress=progress, **settings
    )
    if not options.quiet:
        documents, tokens = manifest.counts["kept"], manifest.counts["tokens"]
        print(f"{options.output}: {documents:,} documents, {tokens:,} tokens, verified")
        for reason, number in manifest.counts["bad"].items():
            print(f"{number:,} skipped: {reason}")
        print(*manifest.counts.get("notes", ()), sep="\n", end="\n" * bool(manifest.counts.get("notes")))
    return 0


COMMAND = Command(make_parser=make_parser, run=run)
