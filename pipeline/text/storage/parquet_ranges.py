"""The bytes of a remote Parquet file to fetch: its footer, once, and the chunks of the columns that are read."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any

from .remote_file import ByteRange, RemoteFile

_KEPT_BYTES = 32 << 20  # most bytes of cached footers

_footers: dict[Hashable, Any] = {}  # each unit of a file needs the footer
_lock = threading.Lock()


def read_footer(file: RemoteFile) -> Any:
    """Return the metadata of a Parquet file, with one or two requests. Raises ``pyarrow.ArrowInvalid`` if it has none."""
    import pyarrow.parquet as pq

    with _lock:
        footer = _footers.pop(file.key, None)
    if footer is None:
        footer = pq.read_metadata(file)
    with _lock:
        _footers[file.key] = footer
        while len(_footers) > 1 and sum(footer.serialized_size for footer in _footers.values()) > _KEPT_BYTES:
            del _footers[next(iter(_footers))]
    return footer


def expect_columns(file: RemoteFile, metadata: Any, columns: list[str], groups: Sequence[int]) -> None:
    """Tell the file to expect reads of ``columns`` of some row groups: it fetches their chunks, group by group."""
    schema = metadata.schema
    paths = (schema.column(leaf).path for leaf in range(len(schema)))
    leaves = [leaf for leaf, path in enumerate(paths) if any(f"{path}.".startswith(f"{each}.") for each in columns)]
    file.expect([_chunk(metadata.row_group(number).column(leaf)) for leaf in leaves] for number in groups)


def _chunk(column: Any) -> ByteRange:
    """Return the bytes of a column chunk: its dictionary, if it has one, and its pages."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size
