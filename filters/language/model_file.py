"""Checks that a file is a complete fastText model.

fastText's own loader crashes on some files that were cut short and misreads others, so the size of a file is checked first.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pipeline.errors import ConfigError, did_you_mean
from pipeline.paths import special_kind

_MAGIC, _VERSION = 793712314, 12
_SUPERVISED = 3
COPY_AGAIN = "copy it again"


def check_model(path: Path, cure: str = COPY_AGAIN) -> list[str]:
    """Return the labels of a fastText model; ConfigError, with the cure, unless the file is as long as its parts say."""
    labels: list[str] = []
    if kind := special_kind(path):
        raise ConfigError(f"model {path} is {kind}: write it to a file")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if _take(file, "ii") != (_MAGIC, _VERSION):
                raise ConfigError(f"model {path} is not a fastText model of format {_VERSION}: {cure}")
            needed = _model_size(file, labels)
    except OSError as error:
        raise ConfigError(f"model {path} cannot be read ({error.strerror}); name a readable file") from error
    except (struct.error, OverflowError, EOFError):
        needed = -1
    if needed != size:
        raise ConfigError(f"model {path} is truncated or damaged at {size:,} bytes: {cure}")
    return labels


def check_label(model: Path, label: str) -> None:
    """Raise ConfigError for a file that is not a supervised fastText model, and for a label that it lacks."""
    labels = check_model(model)
    with model.open("rb") as file:
        kind = read_header(file).kind
    if kind != _SUPERVISED or not labels:
        raise ConfigError(f"model {model} has no labels: it is not a supervised fastText model")
    if label not in labels:
        raise ConfigError(f"model {model} has no label {label!r}{did_you_mean(label, labels)}")


class ModelHeader(NamedTuple):
    """The beginning of a model file: training arguments, and how many entries, words, labels and kept buckets it has."""

    dim: int
    word_ngrams: int
    loss: int
    kind: int
    bucket: int
    minn: int
    maxn: int
    entries: int
    words: int
    labels: int
    pruned: int


def read_header(file: BinaryIO) -> ModelHeader:
    """Read the header of a model file, up to the dictionary. A short file raises ``struct.error``."""
    file.seek(struct.calcsize("<ii"))  # magic number and version
    dim, _, _, _, _, word_ngrams, loss, kind, bucket, minn, maxn, _, _ = _take(file, "12id")
    entries, words, labels, _, pruned = _take(file, "iiiqq")
    return ModelHeader(dim, word_ngrams, loss, kind, bucket, minn, maxn, entries, words, labels, pruned)


def _take(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack("<" + layout, file.read(struct.calcsize("<" + layout)))


def _model_size(file: BinaryIO, labels: list[str]) -> int:
    """Return the length that a model file must have."""
    header = read_header(file)
    labels += _read_labels(file, header.entries)
    file.seek(8 * max(header.pruned, 0), 1)
    for _ in ("input", "output"):
        (quantized,) = _take(file, "?")
        if quantized:
            (norms,) = _take(file, "?")
            rows, _, codes = _take(file, "qqi")
            file.seek(codes, 1)
            _skip_quantizer(file)
            if norms:
                file.seek(rows, 1)
                _skip_quantizer(file)
        else:
            rows, columns = _take(file, "qq")
            file.seek(4 * rows * columns, 1)
    return file.tell()


def _read_labels(file: BinaryIO, entries: int) -> list[str]:
    """Step over `entries` words and labels, each ended by a zero byte, a count of 8 bytes and a type of one."""
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


def _skip_quantizer(file: BinaryIO) -> None:
    dimensions, *_ = _take(file, "4i")
    file.seek(4 * 256 * dimensions, 1)
