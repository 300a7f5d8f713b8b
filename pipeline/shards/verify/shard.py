"""Checks of one shard of this format: tokens are compared with checksums, every other byte with the only form it can have.

The index locates each member, and the bytes of the member are recomputed. If the index is damaged, headers are walked one by
one to the first damage.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ShardwrightError
from ..format import (
    BLOCK,
    FOOTER_NAME,
    HEADERS,
    KEY_COLUMN,
    LENGTHS_NAME,
    STARTS_NAME,
    TABLE_NAME,
    TAIL,
    footer_payload,
    member_header,
    npy_header,
    padding,
    wrong_key,
)
from ..index import Footer, ShardIndex, footer_of, parse_index, parse_table
from ..manifest import ShardInfo
from ..tar_members import REPAIR, TarDamage, walk
from .findings import ExpectedTokens, ShardCheck

T = TypeVar("T")


class _Member(NamedTuple):
    """A member's name, its offset, the bytes of its payload, and ``array``: its npy header if it holds tokens."""

    name: str
    offset: int
    size: int
    array: bytes = b""


def check_shard(
    data: mmap.mmap, check: ShardCheck, expected: ShardInfo | None, contents: ExpectedTokens, *, quick: bool
) -> ShardIndex | None:
    """Recompute everything that a shard states, add the problems to ``check``, and return its index if it is sound.

    ``quick`` reads headers, index and footer alone, no hash and no token.
    """

    def read(start: int, count: int) -> bytes:
        return data[start : start + count]

    tail = data[-TAIL:]
    footer = _parsed(check, lambda: footer_of(tail, len(data), check.name))
    index = _parsed(check, lambda: parse_index(footer, check.name, read)) if footer is not None else None
    if footer is None or index is None:
        check_walk(data, check)
        if not check.problems:
            check.add(FOOTER_NAME, None, f"no index footer at the end; {REPAIR}")
    else:
        _check_documents(data, check, index, _read_table(data, check, footer), contents, quick)
    if expected is not None and (footer is not None or len(data) != expected.bytes):
        _parsed(check, lambda: footer_of(tail, len(data), check.name, expected), None)
    if not quick:
        _check_hash(data, check, expected)
    return index


def check_walk(data: mmap.mmap, check: ShardCheck) -> None:
    """Add the first damage of a tar's headers to ``check``."""
    try:
        for _ in walk(data):
            pass
    except TarDamage as damage:
        check.add(damage.member or None, damage.offset, f"{damage}; {REPAIR}")


def _read_table(data: mmap.mmap, check: ShardCheck, footer: Footer) -> dict[str, list[Any]]:
    """Return the sound columns of the table of documents; add the problems of the others to ``check``."""
    at, size = footer["table"]
    raw = data[at : at + size]
    if (crc32 := zlib.crc32(raw)) != footer["table_crc32"]:
        reason = f"its checksum is {crc32}, but the footer says table_crc32 {footer['table_crc32']}; {REPAIR}"
        check.add(TABLE_NAME, at, reason)
    table = _parsed(check, lambda: parse_table(raw, check.name, at), TABLE_NAME) or {}
    columns = {}
    for name, column in table.items():
        if isinstance(column, list) and len(column) == footer["documents"]:
            columns[name] = column
        else:
            check.add(TABLE_NAME, at, f"column {name!r} does not hold {footer['documents']} values; {REPAIR}")
    for name in (KEY_COLUMN, "crc32"):
        if name not in table:
            check.add(TABLE_NAME, at, f"the table of documents has no column {name}; {REPAIR}")
    if (wrong := wrong_key(columns.get(KEY_COLUMN, []))) is not None:
        check.add(TABLE_NAME, at, wrong)
        del columns[KEY_COLUMN]
    return columns


def _check_documents(
    data: mmap.mmap,
    check: ShardCheck,
    index: ShardIndex,
    table: dict[str, list[Any]],
    contents: ExpectedTokens,
    quick: bool,
) -> None:
    """Compare members and the tokens of documents with the index and the table."""
    if contents.dtype is not None and index.dtype != np.dtype(contents.dtype):
        check.add(None, None, f"dtype {index.dtype.str}, but the manifest says {contents.dtype}")
    if footer_payload({**index.footer}) != data[-TAIL:][BLOCK : 2 * BLOCK]:
        check.add(FOOTER_NAME, len(data) - TAIL + BLOCK, f"the footer is not as this format writes it; {REPAIR}")
    keys = table.get(KEY_COLUMN)
    if keys:
        check.first_key, check.last_key = keys[0], keys[-1]
    ends = index.starts + index.lengths * index.dtype.itemsize
    is_first = np.ones(len(ends), bool)  # first of its member: any other document begins where the one before it ends
    is_first[1:] = index.starts[1:] != ends[:-1]
    of_tokens = _members_of_tokens(data, index, ends, is_first, keys)
    names = _check_members(data, check, itertools.chain(of_tokens, _members_of_index(index.footer, len(data))))
    if names is not None and not quick:
        of_documents = [names[member] for member in (np.cumsum(is_first) - 1).tolist()]
        _check_tokens(data, check, index, of_documents, table, contents)


def _members_of_tokens(
    data: mmap.mmap, index: ShardIndex, ends: NDArray[np.int64], is_first: NDArray[np.bool_], keys: list[str] | None
) -> Iterator[_Member]:
    """Yield the members that hold documents. The table names them; without a table, their own headers do."""
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(ends))[: len(firsts)] - 1
    spans = zip(firsts.tolist(), index.starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
    for number, start, end in spans:
        offset = start - HEADERS
        name = _name_at(data, offset) if keys is None else f"{keys[number]}.npy"
        array = npy_header(index.dtype, (end - start) // index.dtype.itemsize)
        yield _Member(name, offset, end - offset - BLOCK, array)


def _members_of_index(footer: Footer, size: int) -> Iterator[_Member]:
    for name, (at, length) in (
        (STARTS_NAME, footer["starts"]),
        (LENGTHS_NAME, footer["lengths"]),
        (TABLE_NAME, footer["table"]),
        (FOOTER_NAME, (size - TAIL + BLOCK, BLOCK)),
    ):
        yield _Member(name, at - BLOCK, length)


def _check_members(data: mmap.mmap, check: ShardCheck, members: Iterable[_Member]) -> list[str] | None:
    """Compare headers and padding with the format; return the names, None if a member does not follow the one before."""
    names = []
    position = 0
    for name, offset, size, array in members:
        if offset != position:
            check.add(name, offset, f"the member before it ends at byte {position}; {REPAIR}")
            return None
        names.append(name)
        if data[offset : offset + BLOCK] != _header(name, size):
            actual = _name_at(data, offset)
            check.add(name, offset, f"its header is not as this format writes it (it names {actual!r}); {REPAIR}")
        begin = offset + BLOCK
        if data[begin : begin + len(array)] != array:
            check.add(name, begin, f"its npy header is not as this format writes it; {REPAIR}")
        end = begin + size
        position = end + padding(size)
        if (zeros := data[end:position]).strip(b"\0"):
            at = end + len(zeros) - len(zeros.lstrip(b"\0"))
            check.add(name, at, f"padding after the payload is not zero; {REPAIR}")
    return names


def _header(name: str, size: int) -> bytes:
    """Return the header of a member; b"" if no header can hold its name or size."""
    try:
        return member_header(name, size)
    except ValueError:
        return b""


def _name_at(data: mmap.mmap, offset: int) -> str:
    """Return the name in the header at an offset."""
    return data[offset : offset + 100].split(b"\0")[0].decode("ascii", "backslashreplace")


def _check_tokens(
    data: mmap.mmap,
    check: ShardCheck,
    index: ShardIndex,
    names: list[str],
    table: dict[str, list[Any]],
    contents: ExpectedTokens,
) -> None:
    """Compare the tokens of every document with checksum, vocabulary and end-of-text id; ``names``: their members."""
    width = index.dtype.itemsize
    ends = index.starts + index.lengths * width
    view = memoryview(data)
    spans = zip(index.starts.tolist(), ends.tolist(), table.get("crc32", []), strict=False)
    for number, (start, end, wanted) in enumerate(spans):
        if zlib.crc32(view[start:end]) != wanted:
            reason = f"(bytes {start} to {end}) do not have the checksum {wanted} that the table states; {REPAIR}"
            check.add(names[number], start, f"the tokens of document {number} {reason}")

    def report(numbers: NDArray[np.int64], reason: str) -> None:
        """Add one problem, at the first of these documents, which share a fault."""
        if len(numbers):
            number, more = int(numbers[0]), len(numbers) - 1
            others = f"; the same is true of {more} more documents" if more else ""
            check.add(names[number], int(index.starts[number]), f"document {number} has {reason}{others}")

    tokens = np.frombuffer(view[: len(data) - len(data) % width], index.dtype)
    filled = np.flatnonzero(index.lengths)
    first, stop = index.starts[filled] // width, ends[filled] // width
    if contents.vocab_size is not None and len(filled):
        # Even items are the maxima of documents; odd items are the maxima of the bytes between two documents.
        most = np.maximum.reduceat(tokens, np.stack([first, stop], axis=1).ravel())[::2]
        report(filled[most >= contents.vocab_size], f"an id >= {contents.vocab_size}, the vocabulary")
    if contents.eos_id is not None:
        if contents.ends:
            open_ended = filled[tokens[stop - 1] != contents.eos_id]
            report(open_ended, f"no end-of-text id {contents.eos_id} at the end")
        ids = (tokens[index.starts[n] // width : ends[n] // width] for n in contents.redacted)
        left = [n for n, some in zip(contents.redacted, ids, strict=True) if (some != contents.eos_id).any()]
        report(np.array(left, np.int64), f"tokens, but the manifest says that it was redacted; {REPAIR}")


def _check_hash(data: mmap.mmap, check: ShardCheck, expected: ShardInfo | None) -> None:
    check.sha256 = hashlib.sha256(data).hexdigest()
    if expected is not None and len(data) == expected.bytes and check.sha256 != expected.sha256:
        # Every other byte was compared with a checksum or with the only form it can have.
        whole = "" if check.problems else "all else is sound, so the manifest belongs to another build; "
        reason = f"sha256 {check.sha256}, but the manifest says {expected.sha256}; {whole}{REPAIR}"
        check.add(None, None, reason)


def _parsed(check: ShardCheck, parse: Callable[[], T], member: str | None = FOOTER_NAME) -> T | None:
    """Return what ``parse`` returns; None after an error, which is added as a problem of ``member``."""
    try:
        return parse()
    except ShardwrightError as error:
        check.add_error(error, member)
        return None
