"""``shardwright near-vectors``: documents whose vectors are near an earlier document's, for ``build --drop-ids``."""

from __future__ import annotations

import argparse

from pipeline.atomic import atomic_file
from pipeline.finished.near_vectors import near_vectors

from .command import Command, Parser, check_output, local_file

DESCRIPTION = """\
List the documents whose vectors are near an earlier document's; the earlier one stays. Your own model makes the vectors.

  %(prog)s vectors.npy --keys texts.parquet --threshold 0.95 --output near.txt
  %(prog)s embedded.parquet --column embedding --threshold 0.95 --output near.txt

`shardwright texts` exports texts with their ids. `shardwright build --drop-ids near.txt` builds without the documents. The pairs
with the lowest cosines are shown: raise the threshold if both documents of such a pair should stay."""

_SHOWN = 3  # pairs


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="VECTORS --threshold COSINE --output FILE", description=DESCRIPTION)
    add = parser.add_argument
    add("vectors", metavar="VECTORS", help="a .npy file with a row for each document, or Parquet or JSON Lines")
    add("--threshold", type=float, required=True, metavar="COSINE", help="lowest cosine of two near vectors")
    add("--output", required=True, type=local_file, metavar="FILE", help="the ids of near documents, one a line")
    add(
        "--keys",
        metavar="FILE",
        help="file of the ids of the rows: text with an id a line, Parquet or JSON Lines (default: VECTORS)",
    )
    add("--column", default="vector", help="column of the vectors in Parquet or JSON Lines (default: vector)")
    add("--id-key", default="id", help="column of the ids in Parquet or JSON Lines (default: id)")
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    check_output(options.output, (options.vectors, options.keys))
    columns = {"column": options.column, "id_key": options.id_key}
    near = near_vectors(options.vectors, options.keys, options.threshold, **columns)
    with atomic_file(options.output) as file:
        file.writelines(f"{each.key}\n".encode() for each in near)
    for each in sorted(near, key=lambda each: each.cosine)[:_SHOWN]:
        print(f"  {each.cosine:.4f}  {each.key} is near {each.stays}, which stays")
    print(f"{options.output}: {len(near):,} ids of near documents")
    return 0


COMMAND = Command(make_parser=make_parser, run=run)
