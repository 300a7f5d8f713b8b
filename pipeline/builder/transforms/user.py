"""Runs a transform of the user: calls it, checks what it returns, and counts what it edits and adds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ...errors import BuildError, ConfigError
from ...text.document import Document
from ...text.fields import surrogate_in
from ..report.stats import PartitionCounts
from .transform import Decision, Drop, Transform

_RETURNS = "it must return the document, a list of documents that take its place, or a Drop"


class UserTransform(Transform):
    """A function or object of the user as a transform. Errors name it and the document."""

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.name = name
        self._function = function
        self._batch: int | None = getattr(function, "batch", None)
        self._loaded_in: int | None = None  # the process in which `load` was called
        if self._batch is not None and (type(self._batch) is not int or self._batch < 1):
            raise ConfigError(f"transform {name!r}: batch must be a whole number of at least 1, got {self._batch!r}")

    def __call__(self, documents: Sequence[Document], counts: PartitionCounts) -> Sequence[Decision]:
        self._load()
        texts = [document.text for document in documents]
        if self._batch is None:
            returned = [self._call(document) for document in documents]
        else:
            returned = []
            for first in range(0, len(documents), self._batch):
                returned += self._call_batch(list(documents[first : first + self._batch]))
        decisions: list[Decision] = []
        edited = 0
        for document, text, value in zip(documents, texts, returned, strict=True):
            if value is not document:
                value = self._decision(document, value)
            if value is document and document.text is not text and document.text != text:
                self._check_text(document, document.text)
                edited += 1
            decisions.append(value)
        if edited:
            counts.edited[self.name] += edited
        return decisions

    def _load(self) -> None:
        """Call the user's ``load`` in each process once, after it was forked."""
        if self._loaded_in == os.getpid():
            return
        load = getattr(self._function, "load", None)
        if callable(load):
            try:
                load()
            except Exception as error:
                raise BuildError(f"transform {self.name!r}: load() raised {_said(error)}") from error
        self._loaded_in = os.getpid()

    def _call(self, document: Document) -> object:
        try:
            return self._function(document)
        except Exception as error:
            raise BuildError(f"{document.where()}: transform {self.name!r} raised {_said(error)}") from error

    def _call_batch(self, documents: list[Document]) -> list[object]:
        given = list(documents)
        try:
            returned = self._function(given)
        except Exception as error:
            where = f"{documents[0].where()} to {documents[-1].where()}" if len(documents) > 1 else documents[0].where()
            raise BuildError(f"{where}: transform {self.name!r} raised {_said(error)}") from error
        if not isinstance(returned, list | tuple) or len(returned) != len(documents):
            found = f"{len(returned)} results" if isinstance(returned, list | tuple) else _shown(returned)
            raise BuildError(
                f"{documents[0].where()}: transform {self.name!r} returned {found} for a batch of {len(documents)} documents; "
                "it must return a list with one result for each"
            )
        return list(returned)

    def _decision(self, document: Document, value: object) -> Decision:
        """Return the decision that a user's result makes on a document, whose id, file and line stay as they are."""
        if isinstance(value, Drop):
            return Drop(str(value.reason), self.name)
        if isinstance(value, Document):
            document.text, document.metadata = value.text, dict(value.metadata)
            return document
        if isinstance(value, list | tuple) and value and all(isinstance(each, Document) for each in value):
            parts = [
                Document(
                    each.text,
                    document.id,
                    document.file,
                    document.line,
                    document.source,
                    document.start,
                    dict(each.metadata),
                    f"{document.part}#{number}",
                    document.language,
                )
                for number, each in enumerate(value, 1)
            ]
            for part in parts:
                self._check_text(part, part.text)
            return parts
        raise BuildError(f"{document.where()}: transform {self.name!r} returned {_shown(value)}; {_RETURNS}")

    def _check_text(self, document: Document, text: object) -> None:
        if not isinstance(text, str):
            raise BuildError(
                f"{document.where()}: transform {self.name!r} made its text {_shown(text)}; it must be text"
            )
        if (at := surrogate_in(text)) is not None:
            raise BuildError(
                f"{document.where()}: transform {self.name!r} put a lone surrogate at character {at} of its text, "
                "which cannot be written as UTF-8"
            )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
