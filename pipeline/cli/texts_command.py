"""``shardwright texts``: the texts that a build would read, with their keys, to score them elsewhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from pipeline.atomic import atomic_file
from pipeline.builder.recipe import Recipe
from pipeline.progress import Progress
from pipeline.text.hashes import text_hashes
from pipeline.text.readers.document_reader import Document, InputFile, find_inputs

from .command import Command, Parser, add_requests, check_output, local_file, requests_of
from .texts_options import CountingReader, add_setting, recipe_of

DESCRIPTION = """\
Export the texts that a build would read, with their ids and keys. A key is BLAKE2b of the UTF-8: 128 bits, 32 hex digits.

  %(prog)s raw/*.parquet --output texts.parquet
  %(prog)s s3://bucket/raw --text-key body --output texts.parquet

Score them with your own model, and write a Parquet file with the column key and a column for each score. Then run
`shardwright build --scores scores.parquet` with rules such as "column:quality" = { min = 0.5 }.
Or embed the texts with a model, and list near texts with `shardwright near-vectors`."""

_SETTINGS = ("where", "format", "text_key", "id_key", "extract")
_ROWS = 4096


def make_parser(prog: str | None = None) -> Parser:
    parser = Parser(prog, brief="INPUT... --output FILE", description=DESCRIPTION)
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files, directories, globs or brace patterns")
    parser.add_argument("--output", required=True, type=local_file, help="Parquet file with columns key, id and text")
    for name in _SETTINGS:
        add_setting(parser, name)
    add_requests(parser)
    return parser


def run(options: argparse.Namespace, parser: Parser) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"key": pa.string(), "id": pa.string(), "text": pa.large_string()})
    recipe = recipe_of(options, _SETTINGS)
    files = find_inputs(options.inputs, requests=requests_of(options), format=recipe.format)
    check_output(options.output, (file for file in files if file.stored is None))
    reader = CountingReader()
    count = 0
    progress = Progress(quiet=not sys.stderr.isatty())
    reading = progress.bar("read", sum(file.size for file in files), "bytes")
    with (
        reading as advance,
        atomic_file(options.output) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for documents in _batches(files, recipe, reader, advance):
            ids, texts = [document.id for document in documents], [document.text for document in documents]
            keys = [digest.tobytes().hex() for digest in text_hashes(texts)]
            writer.write_table(pa.table({"key": keys, "id": ids, "text": texts}, schema=schema))
            count += len(texts)
    reader.print()
    print(f"{options.output}: {count:,} texts")
    return 0


def _batches(
    files: Sequence[InputFile], recipe: Recipe, reader: CountingReader, advance: Callable[[int], None]
) -> Iterator[list[Document]]:
    documents = chain.from_iterable(reader.documents(file, recipe, advance=advance, files=files) for file in files)
    while some := list(islice(documents, _ROWS)):
        yield some


COMMAND = Command(make_parser=make_parser, run=run)
