"""The index members of a shard, compared with its footer and with the samples; nothing of `pipeline.shards.index` is used."""

from __future__ import annotations

import json
import mmap
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..format import (
    FOOTER_NAME,
    INDEX_PREFIX,
    KEY_COLUMN,
    NPY_HEADER,
    STARTS_NAME,
    TABLE_NAME,
    TAIL,
    footer_payload,
    npy_header,
)
from ..tar import CURE, Member
from .findings import ShardCheck
from .members import INDEX_NAMES, Sample


@dataclass(slots=True)
class IndexMembers:
    """The index as the shard's own members give it; ``offset`` is where it begins in the file."""

    offset: int
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    dtype: np.dtype[Any]
    table: dict[str, list[Any]]
    crc32: int
    table_crc32: int


def read_index_members(data: mmap.mmap, members: list[Member], check: ShardCheck) -> IndexMembers | None:
    """Parse the index members and compare the footer with them; None where they cannot be used."""
    last = {member.name: member for member in members}
    missing = [name for name in INDEX_NAMES if name not in last]
    if missing:
        check.add(missing[0], None, f"the index lacks {', '.join(missing)}; {CURE}")
        return None
    starts_at, lengths_at, table_at, footer_at = (last[name] for name in INDEX_NAMES)
    starts = _integers(data, starts_at, "<u8", check)
    lengths = _integers(data, lengths_at, "<u4", check)
    table = _json_object(data, table_at, check, "table of documents") or {}
    if starts is None or lengths is None:
        return None
    if len(starts) != len(lengths):
        check.add(STARTS_NAME, starts_at.data, f"{len(starts)} starts for {len(lengths)} lengths; {CURE}")
        return None
    for name, column in table.items():
        if not isinstance(column, list) or len(column) != len(lengths):
            check.add(TABLE_NAME, table_at.data, f"column {name!r} does not hold {len(lengths)} values; {CURE}")
    payloads = [data[member.data : member.data + member.size] for member in (starts_at, lengths_at, table_at)]
    crc, table_crc = zlib.crc32(payloads[1], zlib.crc32(payloads[0])), zlib.crc32(payloads[2])
    footer = _json_object(data, footer_at, check, "footer")
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
        "table_crc32": footer.get("table_crc32"),
    }
    for name, value in wanted.items():
        if footer.get(name) != value:
            check.add(FOOTER_NAME, footer_at.data, f"it says {name} {footer.get(name)!r}, found {value!r}; {CURE}")
    if table_crc != footer.get("table_crc32"):
        reason = f"its checksum is {table_crc}, but the footer says table_crc32 {footer.get('table_crc32')!r}; {CURE}"
        check.add(TABLE_NAME, table_at.data, reason)
    if footer.get("dtype") not in ("<u2", "<u4"):
        check.add(FOOTER_NAME, footer_at.data, f"dtype {footer.get('dtype')!r} is none of <u2, <u4; {CURE}")
        return None
    if data[footer_at.data : footer_at.data + footer_at.size] != footer_payload(wanted):
        check.add(FOOTER_NAME, footer_at.data, f"the footer is not as this format writes it; {CURE}")
    if footer_at.offset != len(data) - TAIL:
        check.add(FOOTER_NAME, footer_at.offset, f"the footer does not lie {TAIL} bytes before the end; {CURE}")
    return IndexMembers(starts_at.offset, starts, lengths, np.dtype(footer["dtype"]), table, crc, table_crc)


def _integers(data: mmap.mmap, member: Member, dtype: str, check: ShardCheck) -> NDArray[np.int64] | None:
    count = (member.size - NPY_HEADER) // np.dtype(dtype).itemsize
    header = data[member.data : member.data + NPY_HEADER]
    if count < 0 or header != npy_header(dtype, count) or member.size != NPY_HEADER + count * int(dtype[2]):
        check.add(member.name, member.data, f"no npy array of {dtype} that fills its {member.size} bytes; {CURE}")
        return None
    return np.frombuffer(data[member.data + NPY_HEADER : member.data + member.size], dtype).astype(np.int64)


def _json_object(data: mmap.mmap, member: Member, check: ShardCheck, what: str) -> dict[str, Any] | None:
    """Return the JSON object that a member holds; a member that holds none is a problem, ``what`` it should be."""
    try:
        found = json.loads(data[member.data : member.data + member.size])
        if not isinstance(found, dict):
            raise ValueError(f"{type(found).__name__} instead of an object")
    except ValueError as error:
        check.add(member.name, member.data, f"no {what}: {error}; {CURE}")
        return None
    return found


def check_index(members: list[Member], samples: list[Sample], index: IndexMembers, check: ShardCheck) -> None:
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


def _check_keys(samples: list[Sample], index: IndexMembers, check: ShardCheck) -> None:
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
