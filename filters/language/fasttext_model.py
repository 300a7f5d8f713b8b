"""A fastText model in a file: its labels, and its predictions.

The library's loader crashes on some files that were cut short, and misreads others. So the length of a file is first
compared with the length that its header and matrices need. A model is loaded when it first predicts, once in a process.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import ConfigError, did_you_mean
from pipeline.paths import special_kind

_MAGIC, _VERSION = 793712314, 12
_SUPERVISED = 3
_CENTROIDS = 256
COPY_AGAIN = "copy it again"


class FastTextModel:
    """A fastText model of any kind. Raises ConfigError with the cure if the file is missing, of another kind, or not whole.

    >>> from filters.language.identifier import bundled_model
    >>> model = FastTextModel(bundled_model())
    >>> len(model.labels), model.best("ein ganz normaler Satz")[0]
    (176, '__label__de')
    """

    def __init__(self, path: Path, cure: str = COPY_AGAIN) -> None:
        if kind := special_kind(path):
            raise ConfigError(f"model {path} is {kind}: write it to a file")
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                if _take(file, "ii") != (_MAGIC, _VERSION):
                    raise ConfigError(f"model {path} is not a fastText model of format {_VERSION}: {cure}")
                self.is_supervised, self.labels = _read_description(file)
                _skip_matrix(file)
                _skip_matrix(file)
                needed = file.tell()
        except OSError as error:
            raise ConfigError(f"model {path} cannot be read ({error.strerror}); name a readable file") from error
        except (struct.error, OverflowError, EOFError):
            needed = -1
        if needed != size:
            raise ConfigError(f"model {path} is truncated or damaged at {size:,} bytes: {cure}")

    def best(self, line: str) -> tuple[str, float] | None:
        """Return the most probable label of a text and its probability; None if the model has no answer."""
        predictions = self._predict(line, 1)
        return (predictions[0][1], min(predictions[0][0], 1.0)) if predictions else None

    def probability(self, line: str, label: str) -> float:
        """Return the probability of one label, 0 if the model states none."""
        return min(1.0, next((score for score, name in self._predict(line, -1) if name == label), 0.0))

    def load(self) -> None:
        """Load the model. Call this before worker processes are forked, so that they share its memory."""
        self._predict("", 1)

    @functools.cached_property
    def _library(self) -> Any:
        status = self.path.stat()
        return _load(self.path, status.st_mtime_ns, status.st_size)

    def _predict(self, line: str, count: int) -> list[tuple[float, str]]:
        """Return the library's most probable labels of a text, whose lines are joined.

        The library reads up to the first line feed, and needs one. It refuses lone surrogates, which are replaced by "?".
        """
        line = line.replace("\n", " ") + "\n"
        try:
            predictions = self._library(line, count, 0.0, "strict")
        except (TypeError, UnicodeError):
            predictions = self._library(line.encode("utf-8", "replace").decode("utf-8"), count, 0.0, "strict")
        return list(predictions)


def check_label(path: Path, label: str) -> None:
    """Raise ConfigError if a file is not a supervised fastText model, or the model lacks the label."""
    model = FastTextModel(path)
    if not model.is_supervised or not model.labels:
        raise ConfigError(f"model {path} has no labels: it is not a supervised fastText model")
    if label not in model.labels:
        raise ConfigError(f"model {path} has no label {label!r}{did_you_mean(label, model.labels)}")


@functools.lru_cache(maxsize=4)
def _load(path: Path, modified: int, size: int) -> Any:
    """Return the library's ``predict`` for a model. It is loaded again only if its file changes."""
    import fasttext

    try:
        return fasttext.load_model(str(path)).f.predict
    except (ValueError, MemoryError, RuntimeError) as error:
        raise ConfigError(f"model {path} cannot be loaded: {error}") from error


def _take(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack("<" + layout, file.read(struct.calcsize("<" + layout)))


def _read_description(file: BinaryIO) -> tuple[bool, list[str]]:
    """Read training arguments and dictionary; return whether the model is supervised, and its labels."""
    arguments = _take(file, "12id")
    entries, _, _, _, pruned = _take(file, "iiiqq")
    labels = _read_labels(file, entries)
    file.seek(8 * max(pruned, 0), 1)
    return arguments[7] == _SUPERVISED, labels


def _read_labels(file: BinaryIO, entries: int) -> list[str]:
    """Return the labels among `entries` words and labels, each followed by a zero byte, a count (8 bytes) and a type (1)."""
    start, block, at = file.tell(), b"", 0
    labels = []
    for _ in range(entries):
        end = block.find(b"\0", at)
        while end < 0 or end + 10 > len(block):
            more = file.read(1 << 20)
            if not more:
                raise EOFError
            start, block, at = start + at, block[at:] + more, 0
            end = block.find(b"\0")
        if block[end + 9]:
            labels.append(block[at:end].decode("utf-8", "replace"))
        at = end + 10
    file.seek(start + at)
    return labels


def _skip_matrix(file: BinaryIO) -> None:
    """Skip a matrix: a plain one, or one compressed to codes and centroids, perhaps with norms of its rows."""
    (compressed,) = _take(file, "?")
    if not compressed:
        rows, columns = _take(file, "qq")
        file.seek(4 * rows * columns, 1)
        return
    norms, rows, _, codes = _take(file, "?qqi")
    file.seek(codes, 1)
    _skip_centroids(file)
    if norms:
        file.seek(rows, 1)
        _skip_centroids(file)


def _skip_centroids(file: BinaryIO) -> None:
    dimensions, *_ = _take(file, "4i")
    file.seek(4 * _CENTROIDS * dimensions, 1)
