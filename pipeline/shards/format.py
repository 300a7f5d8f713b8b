"""The shard format, version 1.

A shard is a plain ustar tar. Offsets are bytes from the start of the file, integers in arrays are
little-endian, every member starts at a multiple of 512 and is padded with zeros to one.

    member                  payload
    <key>.npy               one sample: a 1-D npy array (format 1.0) of token ids, <u2 or <u4,
    ...                     each document closed by the end-of-text id
    __index__/starts        npy <u8: byte offset of each document's first token
    __index__/lengths       npy <u4: tokens of each document
    __index__/documents     JSON: one list per column, each as long as `lengths`: `key` is the first, `crc32` (zlib's
                            CRC-32 of the document's tokens) the last; between them provenance
    __index__/footer        JSON padded with spaces to 512 bytes (below)
    end                     two zero blocks, nothing after them

- Samples come first, in document order. Keys are unique over the dataset, hold no dots, and sort in
  file order. A sample holds one document, or several neighbours when small documents are grouped:
  `starts` and `lengths` keep them apart either way. A document of no tokens has a length of 0.
- The footer is the 512 bytes that end 1,024 bytes before the end of the file, after a header of 512:
  one read of the last 2,048 bytes finds the index, in a local file or a remote object. Its fields:
  `format` ("shardwright"), `version`, `dtype` ("<u2" or "<u4"), `documents`, `tokens`, `bytes` (size of the
  file), `starts`, `lengths` and `table` (each `[offset, size]` of a payload), `index_crc32` (zlib's CRC-32
  of the payload of `starts`, then of `lengths`) and `table_crc32` (that of the payload of `documents`, which holds
  the key and the checksum of every document: shards of other contents have another one).
- Names: the `__` prefix makes webdataset skip the index, and the lack of a dot makes Hugging Face
  `datasets` and Energon skip it (with `.npy` on its end, `datasets` takes it for a sample and fails).
- Headers carry mode 0644, and 0 for mtime, uid and gid; there are no PAX headers: the same documents give
  the same bytes. The npy header is 128 bytes, so tokens are aligned for any dtype.

A writer MUST NOT let a shard appear under its final name before it is whole. A reader MUST refuse a file
whose size, footer or index disagree, and MAY check the whole by the sha256 that the manifest holds.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

FORMAT_NAME = "shardwright"
COLUMN = "column:"  # prefix of the columns that hold fields of records, and of rules on such fields
FORMAT_VERSION = 1
BLOCK = 512
NPY_HEADER = 128
HEADERS = BLOCK + NPY_HEADER  # bytes from the header of a member to the first item of its array
END = bytes(2 * BLOCK)
TAIL = 4 * BLOCK  # footer header, footer, two zero blocks

INDEX_PREFIX = "__index__/"
STARTS_NAME = INDEX_PREFIX + "starts"
LENGTHS_NAME = INDEX_PREFIX + "lengths"
TABLE_NAME = INDEX_PREFIX + "documents"
KEY_COLUMN = "key"
FOOTER_NAME = INDEX_PREFIX + "footer"

TOKEN_DTYPES = ("<u2", "<u4")
MAX_KEY = 95  # ustar names hold 100 bytes; ".npy" and a spare one


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the stored dtype for token ids below ``vocab_size``: uint16 while they fit, else uint32.

    >>> str(token_dtype(65_536)), str(token_dtype(65_537))
    ('uint16', 'uint32')
    """
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def wrong_key(keys: Sequence[str]) -> str | None:
    """Return what is wrong with the first bad key of a shard: it is no key, or does not ascend. None if all keys are good.

    >>> wrong_key(["a", "b"]), wrong_key(["a", "a"])
    (None, "keys must ascend, but 'a' follows 'a'")
    >>> wrong_key([""])
    "key '' must be 1 to 95 ASCII characters without dots or slashes, not starting with '__'"
    """
    before = ""
    for key in keys:
        plain = isinstance(key, str) and key.isascii() and "." not in key and "/" not in key
        if not plain or not 0 < len(key) <= MAX_KEY or key.startswith("__"):
            return (
                f"key {key!r} must be 1 to {MAX_KEY} ASCII characters without dots or slashes, not starting with '__'"
            )
        if key <= before:
            return f"keys must ascend, but {key!r} follows {before!r}"
        before = key
    return None


def padding(size: int) -> int:
    """Return how many zeros bring ``size`` bytes to a multiple of 512."""
    return -size % BLOCK


def member_header(name: str, size: int) -> bytes:
    """Return the 512-byte ustar header of a regular file of ``size`` bytes, without time or owner.

    Raises ``ValueError`` if the size is 8 GiB or more, or the name is longer than 100 bytes: ustar cannot hold them.
    """
    raw = name.encode("ascii")
    if len(raw) > 100 or size >= 1 << 33:
        raise ValueError(f"ustar holds names up to 100 bytes and sizes below 8 GiB, got {name!r} of {size}")
    fields = b"0000644\x000000000\x000000000\x00" + b"%011o\x00" % size + b"00000000000\x00"
    head = raw.ljust(100, b"\0") + fields + b" " * 8 + b"0" + bytes(100) + b"ustar\x0000"
    header = bytearray(head.ljust(BLOCK, b"\0"))
    # Adler-32's low half is 1 + the sum of the bytes while that is below 65,521, and 512 ASCII bytes stay below it.
    header[148:156] = b"%06o\0 " % ((zlib.adler32(header) & 0xFFFF) - 1)
    return bytes(header)


def npy_header(dtype: np.dtype[Any] | str, count: int) -> bytes:
    """Return the 128-byte npy (format 1.0) header of a 1-D array of ``count`` items.

    >>> len(npy_header("<u2", 1000))
    128
    """
    text = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': ({count},), }}"
    body = text.ljust(NPY_HEADER - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def footer_payload(fields: dict[str, Any]) -> bytes:
    """Return ``fields`` as JSON padded with spaces to the 512 bytes of a footer."""
    text = json.dumps({"format": FORMAT_NAME, "version": FORMAT_VERSION, **fields}, separators=(",", ":"))
    return text.encode().ljust(BLOCK)
