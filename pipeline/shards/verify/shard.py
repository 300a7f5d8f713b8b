"""Recomputes one shard from its bytes, without trust in the reader, the footer or the index."""

from __future__ import annotations

import hashlib
import mmap
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ShardwrightError
from ..format import STARTS_NAME, TABLE_NAME
from ..index import Footer, Index
from ..manifest import ShardInfo
from ..tar import CURE, map_file
from .findings import Contents, Problem, ShardCheck
from .index import CheckedIndex, check_index, read_index_members
from .members import Sample, find_members, read_samples, sample_at

_HASHED = 1 << 24


def check_shard(
    path: str | Path, expected: ShardInfo | None = None, contents: Contents | None = None, *, quick: bool = False
) -> ShardCheck:
    """Recompute everything that a shard of our format states; continue behind damage at the next sound header.

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
    members, whole = find_members(data, check)
    samples = read_samples(data, members, contents, check)
    # A shard that ends early has no index: one problem says so, not two.
    index = read_index_members(data, members, check) if whole or len(members) > len(samples) else None
    if index is not None:
        if whole and all(sample.items >= 0 for sample in samples):  # else the damage is reported already
            check_index(samples, index, check)
        if not quick:
            _check_documents(data, samples, index, contents, check)
    if expected is not None:
        _compare(check, expected, index.index.footer if index is not None else {})
    if not quick:
        check.sha256 = _sha256(data)
        if expected is not None and check.bytes == expected.bytes and check.sha256 != expected.sha256:
            _report_hash(check, expected)
    check.problems.sort(key=lambda problem: check.bytes if problem.offset is None else problem.offset)
    if check.omitted:
        check.problems.append(
            Problem(check.name, None, None, f"{check.omitted} more problems of this shard not listed")
        )
    return check


def _check_documents(
    data: mmap.mmap, samples: list[Sample], checked: CheckedIndex, contents: Contents, check: ShardCheck
) -> None:
    """Hold the tokens of every document to their checksum, the vocabulary and the end-of-text id."""
    index = checked.index
    width = index.dtype.itemsize
    ends = index.starts + index.lengths * width
    if (index.starts % width).any():
        check.add(STARTS_NAME, None, f"documents that are not aligned to their {width} bytes a token; {CURE}")
        return
    view = memoryview(data)
    tokens = np.frombuffer(view[: len(data) - len(data) % width], index.dtype)
    sums = checked.table.get("crc32")
    if sums is not None:
        for number, (start, end, wanted) in enumerate(zip(index.starts.tolist(), ends.tolist(), sums, strict=True)):
            if zlib.crc32(view[start:end]) != wanted:
                check.add(
                    sample_at(samples, start),
                    start,
                    f"the tokens of document {number} (bytes {start} to {end}) do not have the checksum {wanted} "
                    f"of the table; {CURE}",
                )
    else:
        check.add(TABLE_NAME, None, "the table has no column crc32 of the documents' checksums")
    filled = np.flatnonzero(index.lengths)
    first, stop = index.starts[filled] // width, ends[filled] // width
    if contents.vocab_size is not None and len(filled):
        # Maxima of [first, stop) at even places; the odd ones are of what lies between documents.
        most = np.maximum.reduceat(tokens, np.stack([first, stop], axis=1).ravel())[::2]
        _report(
            check,
            samples,
            index,
            filled[most >= contents.vocab_size],
            f"an id >= {contents.vocab_size}, the vocabulary",
        )
    if contents.eos_id is not None and len(ends):
        open_ended = filled[tokens[stop - 1] != contents.eos_id]
        _report(check, samples, index, open_ended, f"no end-of-text id {contents.eos_id} at the end")


def _report(check: ShardCheck, samples: list[Sample], index: Index, numbers: NDArray[np.int64], reason: str) -> None:
    """Add one problem for all documents that share a fault, placed at the first."""
    if len(numbers):
        number = int(numbers[0])
        start = int(index.starts[number])
        more = f", as have {len(numbers) - 1} more documents" if len(numbers) > 1 else ""
        check.add(sample_at(samples, start), start, f"document {number} has {reason}{more}")


def _compare(check: ShardCheck, expected: ShardInfo, footer: Footer) -> None:
    found: dict[str, Any] = {"bytes": check.bytes}
    found |= {name: footer.get(name) for name in ("documents", "tokens", "index_crc32", "table_crc32") if footer}
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


def _report_hash(check: ShardCheck, expected: ShardInfo) -> None:
    differs = f"sha256 {check.sha256}, but the manifest says {expected.sha256}"
    if check.problems:
        check.add(None, None, f"{differs}; {CURE}")
        return
    # Every other byte was compared with a checksum or with the one form it can have.
    check.add(None, None, f"{differs}; all else being sound, the manifest is of another build; {CURE}")
