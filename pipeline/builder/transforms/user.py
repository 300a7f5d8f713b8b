"""Calls a transform of the user, checks its results, and counts the documents that it edits and adds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NoReturn

from ...errors import BuildError, ConfigError, value_text
from ...text.document import Document
from ...text.fields import surrogate_in
from ...text.judging import Drop
from ..counts.sums import Counts
from .transform import Decision, Transform

_RETURNS = "it must return the document, a list of documents that take its place, or a Drop"
_FIXED = ("id", "file", "line", "source", "start", "part", "language", "byte")  # fields that no transform may set
_CURES = {"source": "name sources where inputs are named (NAME=PATH)"}
_CURE = "put it into document.metadata, and keep it with keep_fields"
_fixed = attrgetter(*_FIXED)


class UserTransform(Transform):
    """A transform that calls a function or an object of the user. Errors name the function and the document."""

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.name = name
        self._function = function
        self._batch: int | None = getattr(function, "batch", None)
        self._loaded_in: int | None = None  # the id of the process that called `load`
        if self._batch is not None and (type(self._batch) is not int or self._batch < 1):
            raise ConfigError(f"transform {name!r}: batch must be a whole number of at least 1, got {self._batch!r}")

    def __call__(self, documents: Sequence[Document], counts: Counts) -> Sequence[Decision]:
        self._load()
        texts = [document.text for document in documents]
        fixed = [_fixed(document) for document in documents]
        if self._batch is None:
            returned = [self._called(document, document.location) for document in documents]
        else:
            returned = []
            for first in range(0, len(documents), self._batch):
                returned += self._call_batch(list(documents[first : first + self._batch]))
        decisions: list[Decision] = []
        edited = 0
        for document, text, was, value in zip(documents, texts, fixed, returned, strict=True):
            self._check_fixed(document, was, document)
            if value is not document:
                value = self._decision(document, was, text, value)
            if value is document and document.text is not text and document.text != text:
                self._check_text(document, document.text)
                edited += 1
            decisions.append(value)
        if edited:
            counts.add("edited", self.name, number=edited)
        return decisions

    def _fail(self, document: Document, what: str) -> NoReturn:
        raise BuildError(f"{document.location()}: transform {self.name!r} {what}")

    def _load(self) -> None:
        """Call the user's ``load`` once in each process, after the fork."""
        if self._loaded_in == os.getpid():
            return
        load = getattr(self._function, "load", None)
        if callable(load):
            try:
                load()
            except BaseException as error:
                raise BuildError(f"transform {self.name!r}: load() raised {_description(error)}") from error
        self._loaded_in = os.getpid()

    def _call_batch(self, documents: list[Document]) -> list[object]:
        def location() -> str:
            first, last = documents[0].location(), documents[-1].location()
            return f"{first} to {last}" if len(documents) > 1 else first

        returned = self._called(list(documents), location)
        if not isinstance(returned, list | tuple) or len(returned) != len(documents):
            got = f"{len(returned)} results" if isinstance(returned, list | tuple) else value_text(returned)
            raise BuildError(
                f"{documents[0].location()}: transform {self.name!r} returned {got} for a batch of {len(documents)} documents; "
                "it must return a list with one result for each"
            )
        return list(returned)

    def _called(self, argument: Document | list[Document], location: Callable[[], str]) -> Any:
        """Call the function. Anything that it raises, even ``SystemExit``, becomes a ``BuildError``.

        A signal may also raise inside the function: `reraise_swallowed_signals` raises it again.
        """
        try:
            return self._function(argument)
        except BaseException as error:
            raise BuildError(f"{location()}: transform {self.name!r} raised {_description(error)}") from error

    def _decision(self, document: Document, was: Sequence[Any], text: str, value: object) -> Decision:
        """Return the user's result ``value`` as a decision on a document, whose text was ``text``."""
        if isinstance(value, Drop):
            reason = str(value.reason)
            if (at := surrogate_in(reason)) is not None:
                self._fail(document, f"returned a Drop with a lone surrogate at character {at} of its reason")
            return Drop(reason, self.name)
        if isinstance(value, Document):
            self._check_fixed(document, was, value)
            document.text, document.metadata = value.text, dict(value.metadata)
            return document
        if isinstance(value, list | tuple) and value and all(isinstance(part, Document) for part in value):
            for part in value:
                self._check_fixed(document, was, part)
            whole = text if document.whole is None else document.whole
            parts = [
                replace(
                    document,
                    text=part.text,
                    metadata=dict(part.metadata),
                    part=f"{document.part}#{number}",
                    whole=whole,
                )
                for number, part in enumerate(value, 1)
            ]
            for part in parts:
                self._check_text(part, part.text)
            return parts
        self._fail(document, f"returned {value_text(value)}; {_RETURNS}")

    def _check_fixed(self, document: Document, was: Sequence[Any], made: Document) -> None:
        """Refuse a document whose fixed fields differ from ``was``. In a new document they may also be '', 0 or None."""
        for name, expected in zip(_FIXED, was, strict=True):
            got = getattr(made, name)
            if got != expected and (made is document or got not in ("", 0, None)):
                for field, value in zip(_FIXED, was, strict=True):
                    setattr(document, field, value)  # so that the error names the document as it was read
                self._fail(
                    document,
                    f"returned a document whose {name} is {value_text(got)}: a transform may not change it, and must return "
                    f"documents in the order given; {_CURES.get(name, _CURE)}",
                )
        if not isinstance(made.metadata, dict):
            self._fail(document, f"set its metadata to {value_text(made.metadata)}; it must be a dict")

    def _check_text(self, document: Document, text: object) -> None:
        if not isinstance(text, str):
            self._fail(document, f"made its text {value_text(text)}; it must be text")
        if (at := surrogate_in(text)) is not None:
            self._fail(
                document, f"put a lone surrogate at character {at} of its text, which cannot be written as UTF-8"
            )


def _description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
