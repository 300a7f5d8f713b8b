"""Files that are one array of token ids: ``.npy``, and ``.bin`` without a header (nanoGPT) or with the header of llm.c.

The header of llm.c is 256 little-endian int32: a magic number, a version, the number of ids, then zeros
(https://github.com/karpathy/llm.c, dev/data/data_common.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DamagedInputError

_NPY = b"\x93NUMPY"
_LLMC_BYTES = 1024
_LLMC: dict[int, tuple[int, np.dtype[Any]]] = {
    20240520: (1, np.dtype("<u2")),
    20240801: (7, np.dtype("<u4")),
}  # by the magic number: version and dtype
_LLMC_EVALUATION = 20240522
_SAMPLE = 1 << 16  # ids that are looked at to check the dtype


def map_tokens(path: Path, dtype: str | np.dtype[Any] | None = None) -> NDArray[Any]:
    """Return the ids of a file, mapped. ``dtype`` is needed for a ``.bin`` without a header.

    Raises ``DamagedInputError`` if the file contradicts its name or ``dtype``, ``ConfigError`` if ``dtype`` is missing or wrong.
    """
    with open(path, "rb") as file:
        head = file.read(_LLMC_BYTES)
    if path.suffix.lower() == ".npy" or head.startswith(_NPY):
        return _map_npy(path, head)
    if is_llmc(path):
        return _map_llmc(path, head)
    if dtype is None:
        raise ConfigError(
            f"{path}: nothing says what its integers are; give their --dtype (dtype=), uint16 as nanoGPT writes, or uint32"
        )
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"{path}: cannot be read as integers of {dtype!r}: {error}") from None
    size = path.stat().st_size
    if size % kind.itemsize:
        raise DamagedInputError(
            f"{path}: {size} bytes are no whole number of {kind} ids; name another --dtype, or copy it again"
        )
    tokens = np.memmap(path, kind, "r") if size else np.empty(0, kind)
    _check_width(path, tokens)
    return tokens


def is_llmc(path: Path) -> bool:
    """Whether a file begins with the header of llm.c."""
    with open(path, "rb") as file:
        magic = int.from_bytes(file.read(4), "little")
    return magic in _LLMC or magic == _LLMC_EVALUATION


def _map_npy(path: Path, head: bytes) -> NDArray[Any]:
    if head and not head.startswith(_NPY):
        raise DamagedInputError(
            f"{path}: no header of NumPy, which begins with {_NPY!r} (found {head[:6]!r}); if the file holds ids alone, name "
            "it .bin and give their --dtype (dtype=)"
        )
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DamagedInputError(f"{path}: not a whole npy file ({error}); copy it again") from None
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise DamagedInputError(f"{path}: {array.dtype} of shape {array.shape}; ids must be a 1-D array of integers")
    return array


def _map_llmc(path: Path, head: bytes) -> NDArray[Any]:
    magic, version, count = np.frombuffer(head.ljust(12, b"\0")[:12], "<i4").tolist()
    if magic == _LLMC_EVALUATION:
        raise DamagedInputError(
            f"{path} holds the questions of an evaluation of llm.c, which are no documents; leave it out"
        )
    wanted, dtype = _LLMC[magic]
    if version != wanted:
        raise DamagedInputError(
            f"{path}: its llm.c header has version {version}, but version {wanted} is read; write the file again"
        )
    size, expected = path.stat().st_size, _LLMC_BYTES + count * dtype.itemsize
    if size != expected:
        raise DamagedInputError(
            f"{path}: {size} bytes, but {expected} for the {count} ids that its header states; copy it again"
        )
    return np.memmap(path, dtype, "r", _LLMC_BYTES) if count else np.empty(0, dtype)


def _check_width(path: Path, tokens: NDArray[Any]) -> None:
    """Raise ``DamagedInputError`` if ids of 32 bits are read as ids of 16 bits: every second id is then almost 0."""
    low, high = tokens[0:_SAMPLE:2], tokens[1:_SAMPLE:2]
    if tokens.dtype.itemsize == 2 and len(high) >= 32 and int(high.max()) < 16 < int(low.max()):
        raise DamagedInputError(
            f"{path}: every second uint16 is less than 16, as in ids of 32 bits; name --dtype uint32 (dtype=)"
        )
