"""``shardwright redact``: takes documents out of a finished dataset, in place."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.errors import ConfigError, first_few
from pipeline.finished.redaction.redact import drop, redact

from .command import Command, Parser, add_requests, requests_of
from .trace_command import add_run, seen_in_run

DESCRIPTION = """\
Overwrite the tokens of documents in a finished dataset by end-of-text ids, in place.

  %(prog)s shards --ids optout.txt --reason "opt-out of 26 November"
  %(prog)s s3://bucket/shards --ids optout.txt --reason "court order 17" --texts
  %(prog)s shards --ids optout.txt --reason "opt-out 18" --drop shards-2
  %(prog)s shards --ids optout.txt --reason "opt-out 18" --state run-1.json run-2.json --global-batch 256

Each line of --ids is the key or the id of a document. Documents keep their lengths, so the order of streams, their states
and traces stay valid, and no label counts in a redacted document. Signatures, rejected documents and the samples of the
report are cleaned, too, and kept texts with --texts. The disk must have room for a second copy of the shards that change.
If the command is killed, run it again to continue. It writes a certificate into the dataset, redaction-1.json and .html:
the hashes of files before and after, the result of a search for copies, and the steps of --state that saw the documents."""

EPILOG = "exit status: 0 done; 1 an error, or a copy is left; 2 wrong usage, or an unknown key; 130 interrupted"


_SHOWN = 10  # steps


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="DATASET --ids FILE --reason TEXT", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("dataset", metavar="DATASET", help="directory or url of a dataset")
    parser.add_argument("--ids", required=True, type=Path, metavar="FILE", help="keys or ids of documents, one a line")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="the reason, which the manifest keeps")
    parser.add_argument(
        "--drop",
        metavar="OUTPUT",
        help="leave DATASET as it is, and write a copy without the documents to a new directory",
    )
    parser.add_argument("--texts", action="store_true", help="empty the kept texts of these documents, too")
    parser.add_argument(
        "--no-lock", action="store_true", help="for file systems without locks: see shardwright build --help"
    )
    parser.add_argument(
        "--state",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="states of runs, as JSON, to list the steps that saw the documents",
    )
    add_run(parser)
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    try:
        names = options.ids.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--ids {options.ids}: cannot be read: {error}; give a text file of one key or id a line"
        ) from None
    if options.drop is not None:
        new = drop(options.dataset, names, options.reason, options.drop, requests=requests_of(options))
        print(f"{options.drop}: {len(new.removals[-1]['keys']):,} documents are left out; begin new runs with it")
        return 0
    certificate = redact(
        options.dataset,
        names,
        options.reason,
        texts=options.texts,
        runs={str(path): seen_in_run(path, options, "redact") for path in options.state},
        requests=requests_of(options),
        lock=not options.no_lock,
    )
    if certificate is None:
        print(f"{options.dataset}: nothing to do; these documents were redacted before")
        return 0
    if before := certificate["before"]:
        print(f"{options.dataset}: {len(before):,} of the list were redacted before: {first_few(before)}")
    documents, found = certificate["documents"], certificate["search"]["found"]
    tokens = sum(document["tokens"] for document in documents)
    copies = f"{len(found)} cop{'y' if len(found) == 1 else 'ies'}"
    rejected = f", {certificate['rejected']:,} rejected documents removed" if "rejected" in certificate else ""
    searched = f" in {certificate['search']['files']:,} files that changed" if "://" in str(options.dataset) else ""
    print(
        f"{options.dataset}: {len(documents):,} documents of {tokens:,} tokens redacted{rejected}; {copies} left{searched}"
    )
    for copy in found:
        where = f"document {copy['document']}" if "document" in copy else f"byte {copy['byte']}"
        print(f"{copy['file']}, {where}: holds a copy of document {copy['key']}")
    for seen in certificate["runs"]:
        lines = [
            f"step {one['step']}, rank {one['rank']}, row {one['row']}: document {one['key']}" for one in seen["seen"]
        ]
        more = f"; {len(lines) - _SHOWN:,} more are in the certificate" if len(lines) > _SHOWN else ""
        print(f"{seen['state']}: {'; '.join(lines[:_SHOWN]) or 'no step had these documents'}{more}")
    print(f"certificate: {str(options.dataset).rstrip('/')}/{certificate['name']}.html, and .json")
    return 1 if found else 0


COMMAND = Command(make_parser=make_parser, run=run, hint="the same command continues")
