"""The index of a shard, read as readers do, and held to the members that were found."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ShardwrightError
from ..format import (
    BLOCK,
    FOOTER_NAME,
    KEY_COLUMN,
    LENGTHS_NAME,
    NPY_HEADER,
    STARTS_NAME,
    TABLE_NAME,
    TAIL,
    footer_payload,
)
from ..index import Index, footer_of, parse_index, parse_table
from ..tar import CURE, Member
from .findings import ShardCheck
from .members import Sample

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckedIndex:
    """The index of a shard, and its table of documents, empty where that is damaged."""

    index: Index
    table: dict[str, list[Any]]


def read_index_members(data: mmap.mmap, members: list[Member], check: ShardCheck) -> CheckedIndex | None:
    """Parse footer, index and table, and hold the footer to the members; None where they cannot be used."""

    def read(start: int, count: int) -> bytes:
        return data[start : start + count]

    footer_at = len(data) - TAIL + BLOCK
    footer = _parsed(check, FOOTER_NAME, lambda: footer_of(read, len(data), check.name))
    if footer is None:
        if not check.problems:
            check.add(FOOTER_NAME, None, f"no index footer at the end; {CURE}")
        return None
    fields = {name: value for name, value in footer.items() if name not in ("format", "version")}
    if read(footer_at, BLOCK) != footer_payload(fields):
        check.add(FOOTER_NAME, footer_at, f"the footer is not as this format writes it; {CURE}")
    spans = {member.name: [member.data, member.size] for member in members}
    for name, span in (
        (STARTS_NAME, footer["starts"]),
        (LENGTHS_NAME, footer["lengths"]),
        (TABLE_NAME, footer["table"]),
    ):
        if span != spans.get(name):
            check.add(FOOTER_NAME, footer_at, f"it says that {name} is at {span}, found {spans.get(name)}; {CURE}")
    index = _parsed(check, FOOTER_NAME, lambda: parse_index(footer, check.name, read))
    at, size = footer["table"]
    if (crc32 := zlib.crc32(read(at, size))) != footer["table_crc32"]:
        reason = f"its checksum is {crc32}, but the footer says table_crc32 {footer['table_crc32']}; {CURE}"
        check.add(TABLE_NAME, at, reason)
    table = _parsed(check, TABLE_NAME, lambda: parse_table(read(at, size), check.name, at)) or {}
    for name, column in table.items():
        if not isinstance(column, list) or len(column) != footer["documents"]:
            check.add(TABLE_NAME, at, f"column {name!r} does not hold {footer['documents']} values; {CURE}")
            table = {}
            break
    return None if index is None else CheckedIndex(index, table)


def check_index(samples: list[Sample], checked: CheckedIndex, check: ShardCheck) -> None:
    """Hold starts, lengths and keys to the samples: documents tile each sample from its first token to its last."""
    index = checked.index
    begins = np.array([sample.start for sample in samples], np.int64)
    items = np.array([sample.items for sample in samples], np.int64)
    owners = np.searchsorted(begins, index.starts, side="right") - 1  # the sample that each document begins in
    is_first = np.diff(owners, prepend=-2) != 0
    ends = index.starts + index.lengths * index.dtype.itemsize
    wrong = np.diff(owners, prepend=0) < 0
    if len(samples):
        wrong |= index.starts != np.where(is_first, begins[owners], np.concatenate([[0], ends])[:-1])
        wrong |= index.lengths > items[owners]
    else:
        wrong |= True
    if wrong.any():
        number = int(np.argmax(wrong))
        reason = f"document {number} (byte {index.starts[number]}, {index.lengths[number]} tokens) is not where a member's are"
        check.add(STARTS_NAME, index.footer["starts"][0] + NPY_HEADER + 8 * number, reason)
        return
    missing = items - np.bincount(owners, index.lengths, len(samples)).astype(np.int64)
    for sample, count in zip(samples, missing.tolist(), strict=True):
        if count:
            check.add(
                sample.name, sample.start, f"{count} of its {sample.items} tokens belong to no document of the index"
            )
    _check_keys(samples, owners, np.flatnonzero(is_first), checked.table.get(KEY_COLUMN), check)


def _check_keys(
    samples: list[Sample],
    owners: NDArray[np.int64],
    firsts: NDArray[np.int64],
    keys: list[Any] | None,
    check: ShardCheck,
) -> None:
    """Hold the keys of the table to the names of the samples that begin with their documents."""
    if keys is None:
        check.add(TABLE_NAME, None, "the table has no column key of the documents' keys")
        return
    for number, name in zip(firsts.tolist(), (samples[owner].name for owner in owners[firsts]), strict=True):
        if name != f"{keys[number]}.npy":
            check.add(
                TABLE_NAME, None, f"document {number} has the key {keys[number]!r}, but its member is {name}; {CURE}"
            )
            return


def _parsed(check: ShardCheck, member: str, parse: Callable[[], T]) -> T | None:
    """Return what is parsed; an error is a problem of ``member``."""
    try:
        return parse()
    except ShardwrightError as error:
        check.add_error(error, member)
        return None
