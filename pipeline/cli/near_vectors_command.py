"""``shardwright near-vectors``: documents whose vectors are near an earlier document's, for ``build --drop-ids``."""

from __future__ import annotations

from pipeline.atomic import atomic_file
from pipeline.finished.near_vectors import near_vectors

from .command import Command, check_output
from .flags import LocalFile

DESCRIPTION = """\
List the documents whose vectors are near an earlier document's; the earlier one stays. Your own model makes the vectors.

  %(prog)s vectors.npy --keys texts.parquet --threshold 0.95 --output near.txt
  %(prog)s embedded.parquet --column embedding --threshold 0.95 --output near.txt

`shardwright texts` exports texts with their ids. `shardwright build --drop-ids near.txt` builds without the documents. The pairs
with the lowest cosines are shown: raise the threshold if both documents of such a pair should stay."""

_SHOWN = 3  # pairs

FLAGS = """\
VECTORS             a .npy file with a row for each document, or Parquet or JSON Lines
--threshold COSINE  lowest cosine of two near vectors
--output FILE       the ids of near documents, one a line
--keys FILE         file of the ids of the rows: text with an id a line, Parquet or JSON Lines (default: VECTORS)
--column            column of the vectors in Parquet or JSON Lines
--id-key            column of the ids in Parquet or JSON Lines"""


def run(
    vectors: str,
    *,
    threshold: float,
    output: LocalFile,
    keys: str | None = None,
    column: str = "vector",
    id_key: str = "id",
) -> int:
    check_output(output, (vectors, keys))
    near = near_vectors(vectors, keys, threshold, column=column, id_key=id_key)
    with atomic_file(output) as file:
        file.writelines(f"{each.key}\n".encode() for each in near)
    for each in sorted(near, key=lambda each: each.cosine)[:_SHOWN]:
        print(f"  {each.cosine:.4f}  {each.key} is near {each.stays}, which stays")
    print(f"{output}: {len(near):,} ids of near documents")
    return 0


COMMAND = Command(run=run, flags=FLAGS, brief="VECTORS --threshold COSINE --output FILE", description=DESCRIPTION)
