"""The documents of raw text, as benches of the builder take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.text.readers.reader import Document, find_inputs, read_documents


def read_inputs(inputs: Sequence[str]) -> Iterator[Document]:
    """Yield the documents of files, directories or globs; records that give none are left out."""
    for file in find_inputs(inputs):
        yield from (record for record in read_documents(file) if isinstance(record, Document))
