"""Which bytes of a remote Parquet file are wanted: its footer, once, and the chunks of the columns that are read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from .remote_file import RANGE_BYTES, ByteRange, RemoteFile, cut_evenly, cut_growing, joined

_MAGIC = b"PAR1"
_TAIL_SHARE, _LEAST_TAIL, _MOST_TAIL = 256, 64 << 10, 1 << 20  # asked for at first: footers of large files are large
_KEPT, _KEPT_BYTES = 8, 32 << 20  # footers: the last ones whatever their size, and more while they are small
_FIRST_BYTES = 1 << 20
_PAGE_BYTES = 1_150_000  # unpacked, of most writers: a MiB and the value that reaches it
_HEADER_BYTES = 64 << 10  # what lies around it
_ARROW_ROWS = 1024  # of a page of Arrow's writer, at least


class _Footer(NamedTuple):
    """``metadata``, all bytes of the file where they came with it, else b'', and the bytes that were asked for."""

    metadata: Any
    whole: bytes
    size: int


class _Chunk(NamedTuple):
    """A column chunk: its bytes, and about how many of them its first page takes."""

    start: int
    stop: int
    page: int


class _Footers:
    """The footers of the files that were read last, for each unit of a file needs the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, _Footer] = OrderedDict()

    def get(self, key: Hashable) -> _Footer | None:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def keep(self, key: Hashable, footer: _Footer) -> None:
        with self._lock:
            self._held[key] = footer
            while len(self._held) > _KEPT and sum(each.size for each in self._held.values()) > _KEPT_BYTES:
                self._held.popitem(last=False)


_footers = _Footers()


def read_footer(file: RemoteFile) -> Any:
    """Return the metadata of a Parquet file, by one request or two; ``pyarrow.ArrowInvalid`` where it has none.

    A small file comes whole by that request, and the file reads no more of it.
    """
    if (footer := _footers.get(file.key)) is None:
        footer = _ask_footer(file)
        _footers.keep(file.key, footer)
    if footer.whole:
        file.hold(footer.whole)
    return footer.metadata


def _ask_footer(file: RemoteFile) -> _Footer:
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = file.size
    tail = _read(file, max(0, size - max(_LEAST_TAIL, min(_MOST_TAIL, size // _TAIL_SHARE))), size)
    if size < 12 or tail[-4:] != _MAGIC:
        raise pa.ArrowInvalid("no footer at its end")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length > size:
        raise pa.ArrowInvalid(f"a footer of {length:,} bytes in a file of {size:,}")
    whole = tail if len(tail) == size else b""
    if length > len(tail):
        tail = _read(file, size - length, size - len(tail)) + tail
    return _Footer(pq.read_metadata(pa.BufferReader(_MAGIC + tail[-length:])), whole, len(tail))


def expect_columns(file: RemoteFile, metadata: Any, columns: list[str], groups: Sequence[int]) -> None:
    """Say which ranges reading ``columns`` of some row groups takes.

    Neighbouring row groups are fetched together until they are worth a request. Where a file begins with little, the first
    piece of each column of the first row group is about a page.
    """
    schema = metadata.schema
    leaves = [n for n in range(len(schema)) if _is_wanted(schema.column(n).path, columns)]
    little = file.first_bytes < RANGE_BYTES
    by_arrow = str(metadata.created_by).startswith("parquet-cpp-arrow")
    bundles: list[list[list[ByteRange]]] = []
    held: list[_Chunk] = []
    for number in groups:
        group = metadata.row_group(number)
        held += [_chunk(group.column(leaf), by_arrow) for leaf in leaves]
        ranges = joined([(start, stop) for start, stop, _ in held])
        # Chunks that are no neighbours make a request each: few at first, so that the first rows are there soon.
        first = file.first_bytes if len(ranges) == 1 else min(file.first_bytes, _FIRST_BYTES)
        worth = min(RANGE_BYTES, first << len(bundles))
        if sum(stop - start for start, stop, _ in held) >= worth or number == groups[-1]:
            begins = little and not bundles
            bundles.append(_growing(held, file.first_bytes) if begins else [cut_evenly(*each) for each in ranges])
            held = []
    file.expect(bundles)


def _growing(chunks: Sequence[_Chunk], first: int) -> list[list[ByteRange]]:
    """Return chunks in pieces, of which the first holds a page; those of fewer than ``first`` bytes join their neighbours."""
    found: list[tuple[int, int, int]] = []  # start, stop, bytes of the first piece
    for start, stop, page in sorted(chunks):
        if found and found[-1][1] == start and start - found[-1][0] < first:
            start = found[-1][0]
            page += found.pop()[1] - start
        found.append((start, stop, page))
    return [cut_growing(start, stop, max(first, page)) for start, stop, page in found]


def _read(file: RemoteFile, start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def _is_wanted(path: str, columns: list[str]) -> bool:
    return any(path == column or path.startswith(f"{column}.") for column in columns)


def _chunk(column: Any, by_arrow: bool) -> _Chunk:
    """Return the bytes of a column chunk, its dictionary, if it has one, and its pages; and about those of its first page."""
    starts = [column.data_page_offset]
    if column.has_dictionary_page and column.dictionary_page_offset:
        starts.append(column.dictionary_page_offset)
    size, unpacked = column.total_compressed_size, max(1, column.total_uncompressed_size)
    page = max(_PAGE_BYTES, _ARROW_ROWS * unpacked // max(1, column.num_values) if by_arrow else 0)
    return _Chunk(min(starts), min(starts) + size, min(size, page * size // unpacked + _HEADER_BYTES))
