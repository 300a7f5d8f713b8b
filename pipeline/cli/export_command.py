"""``shardwright export``: a dataset as files that other tools read."""

from __future__ import annotations

from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress

from .command import Command

DESCRIPTION = """\
Write the documents of a dataset, split by split and in order, as files that other tools read.

  %(prog)s shards --to megatron --output megatron    (train.bin and train.idx, for IndexedDataset)
  %(prog)s shards --to nanogpt --output flat         (train.bin: only ids; the dtype is printed)
  %(prog)s shards --to parquet --output hub          (data/train-*.parquet: input_ids, and the origin of documents)

The tokenizer is copied. export.json has dtype, end-of-text id and files. The checksum of each document is compared."""

FLAGS = """\
DATASET       directory or url of a dataset
--to FORMAT   megatron, nanogpt or parquet
--output DIR  directory of the files: empty or new
--quiet       print errors only"""


def run(dataset: str, *, to: str, output: str, quiet: bool = False, requests: RequestOptions) -> int:
    from pipeline.exchange.export import export_tokens

    done = export_tokens(dataset, output, to, requests=requests, progress=Progress(quiet=quiet))
    if not quiet:
        for name, size in done["files"].items():
            print(f"{output}/{name}: {size:,} bytes")
        for name, split in done["splits"].items():
            print(f"{name}: {split['documents']:,} documents, {split['tokens']:,} tokens as {done['dtype']}")
    return 0


COMMAND = Command(run=run, flags=FLAGS, brief="DATASET --to FORMAT --output DIR", description=DESCRIPTION)
