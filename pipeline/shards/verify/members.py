"""The members of a shard: every header, npy header and padding byte, and the order of keys."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from ..format import (
    BLOCK,
    END,
    FOOTER_NAME,
    INDEX_PREFIX,
    LENGTHS_NAME,
    NPY_HEADER,
    STARTS_NAME,
    TABLE_NAME,
    member_header,
    npy_header,
    padding,
)
from ..npy import NpyError, parse_npy
from ..tar import CURE, Member, TarDamage, find_header, walk
from .findings import Contents, ShardCheck

INDEX_NAMES = (STARTS_NAME, LENGTHS_NAME, TABLE_NAME, FOOTER_NAME)


@dataclass(slots=True)
class Sample:
    """A member of tokens: where they begin, in bytes, and how many there are; -1 where its npy header is damaged."""

    name: str
    start: int
    items: int


def find_members(data: mmap.mmap, check: ShardCheck) -> tuple[list[Member], bool]:
    """Return every member that can be found, and whether there is no break between them."""
    members: list[Member] = []
    position: int | None = 0
    whole = True
    while position is not None:
        damage = None
        for item in walk(data, position):
            if isinstance(item, TarDamage):
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


def read_samples(data: mmap.mmap, members: list[Member], contents: Contents, check: ShardCheck) -> list[Sample]:
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
                samples.append(Sample(member.name, member.data + NPY_HEADER, -1))
                continue
            if header != npy_header(dtype, items):
                check.add(member.name, member.data, f"its npy header is not as this format writes it; {CURE}")
        if contents.dtype is not None and dtype != np.dtype(contents.dtype):
            check.add(member.name, member.data, f"dtype {dtype.str}, but the manifest says {contents.dtype}")
        usual = dtype
        samples.append(Sample(member.name, member.data + NPY_HEADER, items))
    check.last_key = before
    return samples


def sample_at(samples: list[Sample], start: int) -> str | None:
    """Return the name of the last sample that begins at or before byte ``start``."""
    at = bisect_right(samples, start, key=lambda sample: sample.start)
    return samples[at - 1].name if at else None
