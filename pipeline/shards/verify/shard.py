"""One shard, recomputed from its bytes: nothing here trusts the reader, the footer or the index."""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ShardwrightError
from ..format import (
    BLOCK,
    END,
    FOOTER_NAME,
    INDEX_PREFIX,
    KEY_COLUMN,
    LENGTHS_NAME,
    NPY_HEADER,
    STARTS_NAME,
    TABLE_NAME,
    TAIL,
    footer_payload,
    member_header,
    npy_header,
    padding,
)
from ..manifest import ShardInfo
from ..npy import NpyError, parse_npy
from ..tar import CURE, Damage, Member, find_header, map_file, walk

INDEX_NAMES = (STARTS_NAME, LENGTHS_NAME, TABLE_NAME, FOOTER_NAME)
MAX_PROBLEMS = 50  # of one shard; a shard that is wrong throughout says so in few lines
_HASHED = 1 << 24


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and where: ``member`` and ``offset`` (bytes from the start of the file) are None where unknown."""

    shard: str
    member: str | None
    offset: int | None
    message: str

    def __str__(self) -> str:
        member = f", member {self.member}" if self.member else ""
        offset = f", byte {self.offset}" if self.offset is not None else ""
        return f"{self.shard}{member}{offset}: {self.message}"


@dataclass(frozen=True, slots=True)
class Contents:
    """What the manifest says of every document: dtype of the tokens, vocabulary size, end-of-text id."""

    dtype: str | None = None
    vocab_size: int | None = None
    eos_id: int | None = None


@dataclass(slots=True)
class ShardCheck:
    """The findings on one shard: its problems, and what was counted while looking for them."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    omitted: int = 0
    bytes: int = 0
    sha256: str | None = None
    first_key: str = ""
    last_key: str = ""

    def add(self, member: str | None, offset: int | None, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(self.name, member, offset, message))
        else:
            self.omitted += 1


@dataclass(slots=True)
class _Sample:
    """A member of tokens: where they begin, in bytes, and how many there are; -1 where its npy header is damaged."""

    name: str
    start: int
    items: int


def check_shard(
    path: str | Path, expected: ShardInfo | None = None, contents: Contents | None = None, *, quick: bool = False
) -> ShardCheck:
    """Recompute everything that a shard of our format states; go on behind damage where the next header is sound.

    ``quick`` reads headers, index and footer alone: no hash, no token is looked at.
    """
    check = ShardCheck(str(path))
    contents = contents or Contents()
    try:
        data = map_file(path)
    except (OSError, ShardwrightError) as error:
        check.add(None, 0 if isinstance(error, ShardwrightError) else None, str(error).removeprefix(f"{path}: "))
        return check
    check.bytes = len(data)
    members, whole = _walk(data, check)
    samples = _samples(data, members, contents, check)
    # Of a shard that ends early, nobody need be told that the end is missing.
    index = _index(data, members, check) if whole or len(members) > len(samples) else None
    if index is not None:
        if whole and all(sample.items >= 0 for sample in samples):  # else it is told what breaks the row
            _check_index(members, samples, index, check)
        if not quick:
            _check_documents(data, samples, index, contents, check)
    if expected is not None:
        _compare(check, expected, index)
    if not quick:
        check.sha256 = _sha256(data)
        if expected is not None and check.bytes == expected.bytes and check.sha256 != expected.sha256:
            _report_hash(check, expected, members)
    check.problems.sort(key=lambda problem: check.bytes if problem.offset is None else problem.offset)
    if check.omitted:
        check.problems.append(
            Problem(check.name, None, None, f"{check.omitted} more problems of this shard not listed")
        )
    return check


def _walk(data: mmap.mmap, check: ShardCheck) -> tuple[list[Member], bool]:
    """Return every member that can be found, and whether there is no break between them."""
    members: list[Member] = []
    position: int | None = 0
    whole = True
    while position is not None:
        damage = None
        for item in walk(data, position):
            if isinstance(item, Damage):
                damage = item
                check.add(item.member or None, item.offset, f"{item.reason}; {CURE}")
            else:
                members.append(item)
                _check_frame(data, item, check)
        if damage is None:
            break
        whole = False
        # The broken header lies at the end of the last member, or where this walk began.
        after = members[-1].data + members[-1].size if members else 0
        position = None if damage.cut else find_header(data, max(after + padding(after), position) + BLOCK)
    if position is not None:
        _check_end(data, members, check)
    return members, whole


def _check_frame(data: mmap.mmap, member: Member, check: ShardCheck) -> None:
    """Hold a member's header and padding to the one form that this format writes."""
    try:
        sound = data[member.offset : member.offset + BLOCK] == member_header(member.name, member.size)
    except ValueError:
        sound = False
    if member.data != member.offset + BLOCK or not sound:
        check.add(member.name, member.offset, f"its header is not as this format writes it; {CURE}")
    end = member.data + member.size
    zeros = data[end : end + padding(member.size)]
    if zeros.strip(b"\0"):
        at = end + len(zeros) - len(zeros.lstrip(b"\0"))
        check.add(member.name, at, f"padding behind the payload that is not zero; {CURE}")


def _check_end(data: mmap.mmap, members: list[Member], check: ShardCheck) -> None:
    end = members[-1].data + members[-1].size if members else 0
    end += padding(end) + len(END)
    if len(data) > end:
        check.add(None, end, f"{len(data) - end} bytes after the two zero blocks that end a shard; {CURE}")
    if [member.name for member in members[-len(INDEX_NAMES) :]] != list(INDEX_NAMES):
        check.add(None, None, f"its last members are not {', '.join(INDEX_NAMES)}; {CURE}")


def _samples(data: mmap.mmap, members: list[Member], contents: Contents, check: ShardCheck) -> list[_Sample]:
    """Return the members of tokens whose npy headers are sound; note wrong headers, keys and order."""
    samples = []
    before = ""
    usual = np.dtype("<u2")  # as the member before had it: most headers need no parsing
    for member in members:
        if member.name.startswith(INDEX_PREFIX):
            if member.name not in INDEX_NAMES:
                check.add(member.name, member.offset, "a member that this format does not have")
            continue
        key, dot, ending = member.name.partition(".")
        if not key or dot + ending != ".npy" or "/" in key or not member.is_file:
            check.add(member.name, member.offset, "no sample: samples are files named KEY.npy, without dots in KEY")
            continue
        if key <= before:
            reason = "the same key twice" if key == before else f"key out of order, after {before!r}"
            check.add(member.name, member.offset, f"{reason}; keys ascend and are unique")
        before = max(before, key)
        check.first_key = min(check.first_key or key, key)
        header = data[member.data : member.data + min(NPY_HEADER, member.size)]
        items = (member.size - NPY_HEADER) // usual.itemsize
        dtype = usual
        if header != npy_header(usual, items) or member.size != NPY_HEADER + items * usual.itemsize:
            try:
                dtype, items, _ = parse_npy(header, member.size)
            except NpyError as error:
                check.add(member.name, member.data, f"{error}; {CURE}")
                samples.append(_Sample(member.name, member.data + NPY_HEADER, -1))
                continue
            if header != npy_header(dtype, items):
                check.add(member.name, member.data, f"its npy header is not as this format writes it; {CURE}")
        if contents.dtype is not None and dtype != np.dtype(contents.dtype):
            check.add(member.name, member.data, f"dtype {dtype.str}, but the manifest says {contents.dtype}")
        usual = dtype
        samples.append(_Sample(member.name, member.data + NPY_HEADER, items))
    check.last_key = before
    return samples


@dataclass(slots=True)
class _Index:
    """The index as the shard's own members give it; ``offset`` is where it begins in the file."""

    offset: int
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    dtype: np.dtype[Any]
    table: dict[str, list[Any]]
    crc32: int


def _index(data: mmap.mmap, members: list[Member], check: ShardCheck) -> _Index | None:
    """Parse the index members and hold the footer to them; None where they cannot be used."""
    last = {member.name: member for member in members}
    missing = [name for name in INDEX_NAMES if name not in last]
    if missing:
        check.add(missing[0], None, f"the index lacks {', '.join(missing)}; {CURE}")
        return None
    starts_at, lengths_at, table_at, footer_at = (last[name] for name in INDEX_NAMES)
    starts = _integers(data, starts_at, "<u8", check)
    lengths = _integers(data, lengths_at, "<u4", check)
    table = _table(data, table_at, check)
    if starts is None or lengths is None:
        return None
    if len(starts) != len(lengths):
        check.add(STARTS_NAME, starts_at.data, f"{len(starts)} starts for {len(lengths)} lengths; {CURE}")
        return None
    for name, column in table.items():
        if not isinstance(column, list) or len(column) != len(lengths):
            check.add(TABLE_NAME, table_at.data, f"column {name!r} does not hold {len(lengths)} values; {CURE}")
    payloads = (data[member.data : member.data + member.size] for member in (starts_at, lengths_at))
    crc = zlib.crc32(next(payloads))
    crc = zlib.crc32(next(payloads), crc)
    footer = _footer(data, footer_at, check)
    if footer is None:
        return None
    wanted = {
        "dtype": footer.get("dtype"),
        "documents": len(lengths),
        "tokens": int(lengths.sum()),
        "bytes": len(data),
        "starts": [starts_at.data, starts_at.size],
        "lengths": [lengths_at.data, lengths_at.size],
        "table": [table_at.data, table_at.size],
        "index_crc32": crc,
    }
    for name, value in wanted.items():
        if footer.get(name) != value:
            check.add(FOOTER_NAME, footer_at.data, f"it says {name} {footer.get(name)!r}, found {value!r}; {CURE}")
    if footer.get("dtype") not in ("<u2", "<u4"):
        check.add(FOOTER_NAME, footer_at.data, f"dtype {footer.get('dtype')!r} is none of <u2, <u4; {CURE}")
        return None
    if data[footer_at.data : footer_at.data + footer_at.size] != footer_payload(wanted):
        check.add(FOOTER_NAME, footer_at.data, f"the footer is not as this format writes it; {CURE}")
    if footer_at.offset != len(data) - TAIL:
        check.add(FOOTER_NAME, footer_at.offset, f"the footer does not lie {TAIL} bytes before the end; {CURE}")
    return _Index(starts_at.offset, starts, lengths, np.dtype(footer["dtype"]), table, crc)


def _integers(data: mmap.mmap, member: Member, dtype: str, check: ShardCheck) -> NDArray[np.int64] | None:
    count = (member.size - NPY_HEADER) // np.dtype(dtype).itemsize
    header = data[member.data : member.data + NPY_HEADER]
    if count < 0 or header != npy_header(dtype, count) or member.size != NPY_HEADER + count * int(dtype[2]):
        check.add(member.name, member.data, f"no npy array of {dtype} that fills its {member.size} bytes; {CURE}")
        return None
    return np.frombuffer(data[member.data + NPY_HEADER : member.data + member.size], dtype).astype(np.int64)


def _table(data: mmap.mmap, member: Member, check: ShardCheck) -> dict[str, list[Any]]:
    try:
        table = json.loads(data[member.data : member.data + member.size])
        if not isinstance(table, dict):
            raise ValueError(f"{type(table).__name__} instead of columns")
    except ValueError as error:
        check.add(member.name, member.data, f"no table of documents: {error}; {CURE}")
        return {}
    return table


def _footer(data: mmap.mmap, member: Member, check: ShardCheck) -> dict[str, Any] | None:
    try:
        footer = json.loads(data[member.data : member.data + member.size])
        if not isinstance(footer, dict):
            raise ValueError(f"{type(footer).__name__} instead of fields")
    except ValueError as error:
        check.add(member.name, member.data, f"no footer: {error}; {CURE}")
        return None
    return footer


def _check_index(members: list[Member], samples: list[_Sample], index: _Index, check: ShardCheck) -> None:
    """Hold starts and lengths to the members: documents tile each sample from its first token to its last."""
    width = index.dtype.itemsize
    begins = {sample.start: sample for sample in samples}
    at = limit = -1
    at_index = {member.name: member.data for member in members if member.name.startswith(INDEX_PREFIX)}
    name = None
    for number, (start, length) in enumerate(zip(index.starts.tolist(), index.lengths.tolist(), strict=True)):
        if start != at or start + length * width > limit:
            sample = begins.pop(start, None)
            if sample is None or (at != limit and at >= 0) or length > sample.items:
                place = at_index[STARTS_NAME] + NPY_HEADER + 8 * number
                check.add(
                    STARTS_NAME, place, f"document {number} (byte {start}, {length} tokens) is not where a member's are"
                )
                return
            at, limit, name = start, start + sample.items * width, sample.name
        at += length * width
    if at != limit:
        check.add(name, at, f"its last {(limit - at) // width} tokens belong to no document of the index")
    for sample in begins.values():
        if sample.items:
            check.add(sample.name, sample.start, "a sample that the index does not name")
    _check_keys(samples, index, check)


def _check_keys(samples: list[_Sample], index: _Index, check: ShardCheck) -> None:
    """Hold the keys of the table to the names of the samples that begin with their documents."""
    keys = index.table.get(KEY_COLUMN)
    if not isinstance(keys, list) or len(keys) != len(index.starts):
        check.add(TABLE_NAME, None, "the table has no column key of the documents' keys")
        return
    names = {sample.start: sample.name for sample in samples}
    for number, (start, key) in enumerate(zip(index.starts.tolist(), keys, strict=True)):
        name = names.pop(start, None)
        if name is not None and name != f"{key}.npy":
            check.add(TABLE_NAME, None, f"document {number} has the key {key!r}, but its member is {name}; {CURE}")
            return


def _check_documents(
    data: mmap.mmap, samples: list[_Sample], index: _Index, contents: Contents, check: ShardCheck
) -> None:
    """Hold the tokens of every document to their checksum, the vocabulary and the end-of-text id."""
    width = index.dtype.itemsize
    ends = index.starts + index.lengths * width
    if len(ends) and (index.starts.min() < 0 or int(ends.max()) > index.offset or (index.starts % width).any()):
        check.add(STARTS_NAME, index.offset, f"the index points outside the samples; {CURE}")
        return
    view = memoryview(data)
    tokens = np.frombuffer(view[: len(data) - len(data) % width], index.dtype)
    sums = index.table.get("crc32")
    if isinstance(sums, list) and len(sums) == len(ends):
        for number, (start, end, wanted) in enumerate(zip(index.starts.tolist(), ends.tolist(), sums, strict=True)):
            if zlib.crc32(view[start:end]) != wanted:
                check.add(
                    _sample_at(samples, start),
                    start,
                    f"the tokens of document {number} (bytes {start} to {end}) do not have the checksum {wanted} "
                    f"of the table; {CURE}",
                )
    else:
        check.add(TABLE_NAME, None, "the table has no column crc32 of the documents' checksums")
    held = np.flatnonzero(index.lengths)
    first, stop = index.starts[held] // width, ends[held] // width
    if contents.vocab_size is not None and len(held):
        # Maxima of [first, stop) at even places; the odd ones are of what lies between documents.
        most = np.maximum.reduceat(tokens, np.stack([first, stop], axis=1).ravel())[::2]
        _report(
            check, samples, index, held[most >= contents.vocab_size], f"an id >= {contents.vocab_size}, the vocabulary"
        )
    if contents.eos_id is not None and len(ends):
        open_ended = held[tokens[stop - 1] != contents.eos_id]
        _report(check, samples, index, open_ended, f"no end-of-text id {contents.eos_id} at the end")


def _report(check: ShardCheck, samples: list[_Sample], index: _Index, numbers: NDArray[np.int64], reason: str) -> None:
    """Add one problem for all documents that share a fault, placed at the first."""
    if len(numbers):
        number = int(numbers[0])
        start = int(index.starts[number])
        more = f", as have {len(numbers) - 1} more documents" if len(numbers) > 1 else ""
        check.add(_sample_at(samples, start), start, f"document {number} has {reason}{more}")


def _sample_at(samples: list[_Sample], start: int) -> str | None:
    """Return the name of the last sample that begins at or before byte ``start``."""
    at = bisect_right(samples, start, key=lambda sample: sample.start)
    return samples[at - 1].name if at else None


def _compare(check: ShardCheck, expected: ShardInfo, index: _Index | None) -> None:
    found = {"bytes": check.bytes}
    if index is not None:
        tokens = int(index.lengths.sum())
        found |= {"documents": len(index.lengths), "tokens": tokens, "index_crc32": index.crc32}
    for name, value in found.items():
        wanted = getattr(expected, name)
        if value != wanted:
            check.add(None, None, f"{name} {value}, but the manifest says {wanted}; {CURE}")


def _sha256(data: mmap.mmap) -> str:
    digest = hashlib.sha256()
    view = memoryview(data)
    for start in range(0, len(view), _HASHED):
        digest.update(view[start : start + _HASHED])
    return digest.hexdigest()


def _report_hash(check: ShardCheck, expected: ShardInfo, members: list[Member]) -> None:
    differs = f"sha256 {check.sha256}, but the manifest says {expected.sha256}"
    if check.problems:
        check.add(None, None, f"{differs}; {CURE}")
        return
    # Every other byte is held to a checksum or to the one form it can have.
    at = next((member.data for member in members if member.name == TABLE_NAME), None)
    reason = "all else being sound, the table of documents was changed, or the manifest is of another build"
    check.add(TABLE_NAME, at, f"{differs}; {reason}; {CURE}")
