"""``shardwright texts``: the texts that a build would read, with their keys, to score them elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from pipeline.atomic import atomic_file
from pipeline.builder.recipe import Recipe
from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress
from pipeline.text.hashes import text_hashes
from pipeline.text.readers.document_reader import Document, InputFile, find_inputs

from .command import Command, check_output
from .flags import LocalFile
from .texts_options import CountingReader

DESCRIPTION = """\
Export the texts that a build would read, with their ids and keys. A key is BLAKE2b of the UTF-8: 128 bits, 32 hex digits.

  %(prog)s raw/*.parquet --output texts.parquet
  %(prog)s s3://bucket/raw --text-key body --output texts.parquet

Score them with your own model, and write a Parquet file with the column key and a column for each score. Then run
`shardwright build --scores scores.parquet` with rules such as "column:quality" = { min = 0.5 }.
Or embed the texts with a model, and list near texts with `shardwright near-vectors`."""

_SETTINGS = ("where", "format", "text_key", "id_key", "extract")
_ROWS = 4096

FLAGS = """\
INPUT...       files, directories, globs or brace patterns
--output FILE  Parquet file with columns key, id and text"""


def run(inputs: list[str], *, output: LocalFile, settings: dict[str, Any], requests: RequestOptions) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"key": pa.string(), "id": pa.string(), "text": pa.large_string()})
    recipe = Recipe.from_json(settings)
    files = find_inputs(inputs, requests=requests, format=recipe.format)
    check_output(output, (file for file in files if file.stored is None))
    reader = CountingReader()
    count = 0
    progress = Progress(quiet=not sys.stderr.isatty())
    reading = progress.bar("read", sum(file.size for file in files), "bytes")
    with (
        reading as advance,
        atomic_file(output) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for documents in _batches(files, recipe, reader, advance):
            ids, texts = [document.id for document in documents], [document.text for document in documents]
            keys = [digest.tobytes().hex() for digest in text_hashes(texts)]
            writer.write_table(pa.table({"key": keys, "id": ids, "text": texts}, schema=schema))
            count += len(texts)
    reader.print()
    print(f"{output}: {count:,} texts")
    return 0


def _batches(
    files: Sequence[InputFile], recipe: Recipe, reader: CountingReader, advance: Callable[[int], None]
) -> Iterator[list[Document]]:
    documents = chain.from_iterable(reader.documents(file, recipe, advance=advance, files=files) for file in files)
    while some := list(islice(documents, _ROWS)):
        yield some


COMMAND = Command(
    run=run,
    flags=FLAGS,
    brief="INPUT... --output FILE",
    description=DESCRIPTION,
    settings=_SETTINGS,
)
