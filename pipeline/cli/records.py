"""The records of inputs as commands read them, and what they say of bad ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.builder.recipe import Recipe
from pipeline.text.fields import Field
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, InputFile


class BadRecords:
    """Reads documents and counts them; counts the records that gave none, and says why the first did not."""

    def __init__(self) -> None:
        self.read = 0
        self._count = 0
        self._first: BadRecord | None = None

    def documents(self, file: InputFile, recipe: Recipe, keep: Sequence[Field] = ()) -> Iterator[Document]:
        """Yield the documents of a file, read as a recipe says, with the fields to ``keep`` of their records."""
        keys: dict[str, Any] = {"text_key": recipe.text_key, "id_key": recipe.id_key}
        for record in DocumentReader(file, **keys, where=recipe.condition, keep=keep, extract=recipe.extract):
            if isinstance(record, Document):
                self.read += 1
                yield record
            elif isinstance(record, BadRecord):
                self._count += 1
                self._first = self._first or record

    def print(self) -> None:
        if (first := self._first) is not None:
            reason = f"{first.reason}{': ' * bool(first.detail)}{first.detail}"
            print(f"{self._count:,} bad records; the first, {first.file}, line {first.line}: {reason}", file=sys.stderr)
