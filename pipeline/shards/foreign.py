"""Token tars of other tools. A scan of their headers makes an index, which is kept for later runs."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import atomic_file
from ..errors import ConfigError, CorruptShardError, ShardError
from ..user_cache import make_private
from .index import ShardIndex
from .npy import MAX_HEADER, NpyError, NpyHeader, parse_npy
from .tar_members import REPAIR, Member, map_file, walk_or_raise

INDEX_VERSION = 4
_EDGE = 1 << 20
_SAMPLED = 512  # bytes at each end of a document's tokens
# As webdataset splits names: directories keep their dots; the key ends at the first dot of the file's name.
# Hidden files (macOS writes "._x" beside "x") are no samples here; webdataset gives all of them one key.
_SAMPLE = re.compile(r"((?:.*/|)[^./]+)\.([^/]*)\Z", re.DOTALL)
_SKIPPED = re.compile(r"__[^/]*__(?:$|/)")  # members that webdataset skips as metadata


def foreign_index(path: str | Path, cache_dir: str | Path | None = None) -> ShardIndex:
    """Return the index of a plain webdataset tar: the kept one, or one from a scan of the tar.

    Each sample's tokens are its ``.npy`` field, or its only field whose name ends in ``.npy``: a 1-D little-endian array. All
    have one dtype: uint8, uint16, int32, uint32 or int64. The index is kept beside the tar as ``.NAME.index.npz``, or in
    ``cache_dir`` if the tar's folder cannot be written. The tar is scanned again if its size, its time, or its first or last
    MiB changes.

    ``contents`` of the index is a hash of what the scan reads: the key and the field of each sample, and the first and last 512
    bytes of its tokens, which are all bytes of a short document. A copy of a tar has the same hash, since times do not count.

    Raises the errors of `walk_or_raise` if the tar is damaged. Raises ``ShardError`` with shard, member and byte if keys repeat
    or are scattered, a sample has no tokens, or an array holds no token ids.
    """
    path = Path(path)
    with map_file(path) as data:
        mark = _mark(path, data)
        files = _index_files(path, cache_dir)
        for file in files:
            if (index := _load(file, mark)) is not None:
                return index
        index = scan_index(data, str(path))
    for file in files:
        if _save(file, index, mark):
            break
    return index


def sample_parts(name: str) -> tuple[str, str] | None:
    """Split a member's name into sample key and field as webdataset does; None for a member that is no sample.

    >>> sample_parts("web.v1/0001.tokens.npy")
    ('web.v1/0001', 'tokens.npy')
    >>> sample_parts("README") is None, sample_parts("__meta__/a.json") is None
    (True, True)
    """
    match = None if _SKIPPED.match(name) else _SAMPLE.match(name)
    return (match[1], match[2].lower()) if match else None


def _index_files(path: Path, cache_dir: str | Path | None) -> list[Path]:
    """Return the files in which the index of a tar may be kept, the preferred one first."""
    files = [path.with_name(f".{path.name}.index.npz")]
    if cache_dir is not None:
        # A hash of the whole path is in the name: two tars of one name have two indexes.
        whole = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
        files.append(Path(cache_dir) / "index" / f"{path.name}.{whole}.npz")
    return files


def _mark(path: Path, data: mmap.mmap) -> str:
    """Return a text that changes with the tar: its size, its time, a hash of its first and last MiB."""
    edges = hashlib.blake2b(data[:_EDGE], digest_size=16)
    edges.update(data[max(0, len(data) - _EDGE) :])
    return f"{INDEX_VERSION} {len(data)} {path.stat().st_mtime_ns} {edges.hexdigest()}"


def _load(file: Path, mark: str) -> ShardIndex | None:
    """Return a kept index; None if it is missing, damaged or of another tar, since it is only a cache."""
    try:
        with np.load(file, allow_pickle=False) as kept:
            if str(kept["mark"]) != mark:
                return None
            index = ShardIndex(kept["starts"], kept["lengths"], np.dtype(str(kept["dtype"])), {}, str(kept["contents"]))
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
        return None
    sound = index.starts.dtype == index.lengths.dtype == np.int64
    return index if sound and index.starts.shape == index.lengths.shape else None


def _save(path: Path, index: ShardIndex, mark: str) -> bool:
    texts = {"mark": mark, "dtype": index.dtype.str, "contents": index.contents}
    try:
        make_private(path.parent)
        with atomic_file(path) as file:
            arrays = {name: np.array(text) for name, text in texts.items()}
            np.savez(file, allow_pickle=False, starts=index.starts, lengths=index.lengths, **arrays)
    except (OSError, ConfigError):  # a read-only folder, a full disk, a directory of this name
        return False
    return True


def scan_index(data: mmap.mmap, path: str) -> ShardIndex:
    """Return the index of a mapped tar from a scan; errors call the tar ``path``."""
    starts: list[int] = []
    lengths: list[int] = []
    dtype: np.dtype[Any] | None = None
    field = None
    contents = hashlib.blake2b(digest_size=16)
    for key, fields in _samples(data, path):
        field = field or _token_field(path, key, fields)
        if field not in fields:
            first = next(iter(fields.values()))
            raise ShardError(
                f"{path}: sample {key!r}, byte {first.offset}: no field .{field}, only {_listed(fields)}; "
                "every sample must hold tokens under one field"
            )
        member = fields[field]
        header = _header(data, path, member)
        if dtype is None:
            dtype = header.dtype
        elif header.dtype != dtype:
            raise ShardError(
                f"{path}: member {member.name!r}, byte {member.data}: dtype {header.dtype}, but the members before "
                f"have {dtype}; store all tokens of a dataset in one dtype"
            )
        starts.append(member.data + header.size)
        lengths.append(header.items)
        contents.update(f"{member.name} {header.items}\n".encode("utf-8", "surrogateescape"))
        begin, end = starts[-1], starts[-1] + header.items * header.dtype.itemsize
        contents.update(data[begin : min(end, begin + _SAMPLED)])
        contents.update(data[max(begin, end - _SAMPLED) : end])
    if dtype is None:
        raise ShardError(f"{path}: no samples in this tar: no member is named KEY.npy; is it a token shard?")
    return ShardIndex(np.array(starts, np.int64), np.array(lengths, np.int64), dtype, {}, contents.hexdigest())


def _samples(data: mmap.mmap, path: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Group the members of a tar by key; members of one key must be neighbours."""
    seen: dict[str, int] = {}
    current: str | None = None
    fields: dict[str, Member] = {}
    for member in walk_or_raise(data, path):
        parts = sample_parts(member.name)
        if parts is None or member.kind == b"5":
            continue
        if not member.is_file:
            raise ShardError(
                f"{path}: member {member.name!r}, byte {member.offset}: a link or device, which holds no data; "
                "make the tar with --dereference --hard-dereference"
            )
        key, field = parts
        if key != current:
            if current is not None:
                yield current, fields
            if key in seen:
                raise ShardError(
                    f"{path}: member {member.name!r}, byte {member.offset}: key {key!r} came before, at byte "
                    f"{seen[key]}, and other samples are between; members of a sample must be neighbours, keys unique"
                )
            seen[key] = member.offset
            current, fields = key, {}
        if field in fields:
            raise ShardError(
                f"{path}: member {member.name!r}, byte {member.offset}: duplicate of the member at byte "
                f"{fields[field].offset}; keys must be unique"
            )
        fields[field] = member
    if current is not None:
        yield current, fields


def _token_field(path: str, key: str, fields: dict[str, Member]) -> str:
    if "npy" in fields:
        return "npy"
    named = [field for field in fields if field.endswith(".npy")]
    if len(named) > 1:
        raise ConfigError(
            f"{path}: sample {key!r} has {len(named)} fields of arrays ({_listed(named)}); "
            "name the one that holds the tokens .npy"
        )
    if not named:
        raise ShardError(
            f"{path}: sample {key!r} has no field .npy, only {_listed(fields)}; tokens are read from .npy, "
            "text (.txt, .json, .jsonl) through TextDataset"
        )
    return named[0]


def _header(data: mmap.mmap, path: str, member: Member) -> NpyHeader:
    try:
        header = parse_npy(data[member.data : member.data + min(member.size, MAX_HEADER + 12)], member.size)
    except NpyError as error:
        raise CorruptShardError(f"{path}: member {member.name!r}, byte {member.data}: {error}; {REPAIR}") from error
    if (member.data + header.size) % header.dtype.itemsize:
        raise ShardError(
            f"{path}: member {member.name!r}, byte {member.data}: tokens at byte {member.data + header.size} are not "
            f"aligned to their {header.dtype.itemsize} bytes; write the array with numpy.save"
        )
    return header


def _listed(fields: dict[str, Member] | list[str]) -> str:
    return ", ".join(f".{field}" for field in fields)
