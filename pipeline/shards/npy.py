"""A strict parser of npy headers: it reads dtype and length of a member's tokens without numpy's loader or pickle."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"\x93NUMPY"
MAX_HEADER = 4096  # a 1-D array's header needs under 100 bytes; a longer one is damaged

# Other widths and byte orders are refused: a memory map returns tokens as they are stored.
_DTYPES = {"|u1": "|u1", "<u1": "|u1", "<u2": "<u2", "<i4": "<i4", "<u4": "<u4", "<i8": "<i8"}
# The form that numpy writes; the general parser takes twenty times as long.
_USUAL = re.compile(
    rb"\{'descr': '([<|>=\w]{2,8})', 'fortran_order': (?:False|True), 'shape': \((\d{1,15}),\), \} *\n?\Z"
)


class NpyError(ValueError):
    """A payload is no 1-D npy array of token ids; the message is the reason alone."""


class NpyHeader(NamedTuple):
    """``dtype``: of the items; ``items``: how many; ``size``: the bytes of the header, before the first item."""

    dtype: np.dtype[Any]
    items: int
    size: int


def parse_npy(head: bytes, payload_size: int) -> NpyHeader:
    """Return the npy header in ``head``, the first bytes of a payload of ``payload_size`` bytes.

    It may have version 1, 2 or 3. The array must be 1-D, of little-endian uint8, uint16, int32, uint32 or int64, and fill the
    payload exactly. ``head`` should hold ``MAX_HEADER + 12`` bytes or the whole payload. Raises ``NpyError`` with the reason.

    >>> from pipeline.shards.format import npy_header
    >>> parse_npy(npy_header("<u2", 1000), 128 + 2000)
    NpyHeader(dtype=dtype('uint16'), items=1000, size=128)
    """
    if not head.startswith(MAGIC) or len(head) < 12:
        raise NpyError(f"no npy array: it begins with {head[:8]!r}")
    major, minor = head[6], head[7]
    if major not in (1, 2, 3) or minor != 0:
        raise NpyError(f"npy version {major}.{minor}, but 1.0, 2.0 and 3.0 are known")
    begin = 10 if major == 1 else 12
    length = int.from_bytes(head[8:begin], "little")
    if length > MAX_HEADER:
        raise NpyError(f"npy header of {length} bytes, more than the {MAX_HEADER} that a 1-D array may take")
    text = head[begin : begin + length]
    if len(text) < length:
        raise NpyError(f"npy header of {length} bytes in a payload of {payload_size}")
    descr, shape = _fields(text)
    if descr not in _DTYPES:
        raise NpyError(f"dtype {descr!r}, but token ids are uint8, uint16, int32, uint32 or int64, little-endian")
    if len(shape) != 1:
        raise NpyError(f"shape {shape}, but token ids are a 1-D array")
    dtype, size = np.dtype(_DTYPES[descr]), begin + length
    if size + shape[0] * dtype.itemsize != payload_size:
        needed = size + shape[0] * dtype.itemsize
        raise NpyError(
            f"{shape[0]} items of {dtype} take {needed} bytes with the header, the payload is {payload_size}"
        )
    return NpyHeader(dtype, shape[0], size)


def _fields(text: bytes) -> tuple[str, tuple[int, ...]]:
    usual = _USUAL.match(text)
    if usual:
        return usual[1].decode(), (int(usual[2]),)
    try:
        value = ast.literal_eval(text.decode("utf-8"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise NpyError(f"npy header is no literal: {text[:60]!r}") from error
    if not isinstance(value, dict) or set(value) != {"descr", "fortran_order", "shape"}:
        raise NpyError(f"npy header does not state descr, fortran_order and shape alone: {text[:60]!r}")
    descr, shape = value["descr"], value["shape"]
    if not isinstance(descr, str) or not isinstance(value["fortran_order"], bool):
        raise NpyError(f"npy header describes no plain array: {text[:60]!r}")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise NpyError(f"npy header has no valid shape: {text[:60]!r}")
    return descr, shape
