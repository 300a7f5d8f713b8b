"""Which bytes of a remote Parquet file are wanted: its footer, once, and the chunks of the columns that are read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from .remote_file import RANGE_BYTES, ByteRange, RemoteFile, parts_of

_MAGIC = b"PAR1"
_TAIL_SHARE, _LEAST_TAIL, _MOST_TAIL = 256, 64 << 10, 1 << 20  # asked for at first: footers of large files are large
_KEPT, _KEPT_BYTES = 8, 32 << 20  # footers: the last ones whatever their size, and more while they are small


class _Footer(NamedTuple):
    """``metadata``, all bytes of the file where they came with it, else b'', and the bytes that were asked for."""

    metadata: Any
    whole: bytes
    size: int


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
    """State which bytes reading ``columns`` of some row groups takes: the chunks of these columns, group by group."""
    schema = metadata.schema
    leaves = [n for n in range(len(schema)) if _is_wanted(schema.column(n).path, columns)]
    pieces, first = [], file.first_bytes
    for number in groups:
        group = metadata.row_group(number)
        pieces.append(parts_of([_chunk(group.column(leaf)) for leaf in leaves], first))
        first = RANGE_BYTES
    file.expect(pieces)


def _read(file: RemoteFile, start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def _is_wanted(path: str, columns: list[str]) -> bool:
    return any(path == column or path.startswith(f"{column}.") for column in columns)


def _chunk(column: Any) -> ByteRange:
    """Return the bytes of a column chunk: its dictionary, if it has one, and its pages."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size
