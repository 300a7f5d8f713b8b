"""Rows of one width in many files, read as one array that is never whole in memory, nor mapped whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import BuildError

Scalar = TypeVar("Scalar", bound=np.generic)

PIECE_ROWS = 1 << 14  # rows of a file that are read at once
_SPARSE = 16  # a piece is read row by row if fewer than one in so many of its rows is wanted


class Piece(NamedTuple):
    """Rows of a file that begin at the byte ``offset``."""

    path: str
    offset: int
    rows: int


class Rows(Generic[Scalar]):
    """The rows of many files, one after the other.

    ``starts`` (int64 ``[pieces + 1]``) are the first rows of the pieces, and the number of all rows.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "rows"
    >>> np.arange(6, dtype=np.uint32).tofile(path)
    >>> rows = Rows([Piece(str(path), 0, 2), Piece(str(path), 16, 1)], 2, np.uint32)
    >>> rows.take(np.array([0, 2])).tolist()
    [[0, 1], [4, 5]]
    """

    def __init__(self, pieces: Sequence[Piece], width: int, dtype: type[Scalar]) -> None:
        self.pieces = tuple(pieces)
        self.width = width
        self.dtype = np.dtype(dtype)
        self.starts = np.cumsum([0, *(piece.rows for piece in pieces)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, number: int) -> NDArray[Scalar]:
        """Return the rows of one piece. Raises ``BuildError`` if its file is too short."""
        piece = self.pieces[number]
        count = piece.rows * self.width
        values = np.fromfile(piece.path, self.dtype, count, offset=piece.offset)
        if len(values) < count:
            raise BuildError(
                f"{piece.path}: {len(values) * self.dtype.itemsize} bytes after byte {piece.offset}, but {piece.rows} rows "
                f"need {count * self.dtype.itemsize}; the file was cut after it was written, so start over with --overwrite"
            )
        return values.reshape(-1, self.width)

    def take(self, row_numbers: NDArray[np.integer]) -> NDArray[Scalar]:
        """Return the rows of these numbers, which must increase. Each file is read once, in order."""
        values = np.empty((len(row_numbers), self.width), self.dtype)
        bounds = np.searchsorted(row_numbers, self.starts.astype(row_numbers.dtype))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            mine = slice(bounds[number], bounds[number + 1])
            rows = row_numbers[mine].astype(np.int64) - self.starts[number]
            if len(rows) * _SPARSE > self.pieces[number].rows:
                values[mine] = self.read(number)[rows]
            else:
                values[mine] = self._read_rows(number, rows)
        return values

    def _read_rows(self, number: int, rows: NDArray[np.int64]) -> NDArray[Scalar]:
        """Read rows one by one: for few rows, this is faster than mapping the file."""
        piece, size = self.pieces[number], self.width * self.dtype.itemsize
        handle = os.open(piece.path, os.O_RDONLY)
        try:
            read = b"".join(os.pread(handle, size, offset) for offset in (piece.offset + rows * size).tolist())
        finally:
            os.close(handle)
        if len(read) < len(rows) * size:
            self.read(number)  # raises the error for a file that was cut
        return np.frombuffer(read, self.dtype).reshape(-1, self.width)


def npy_pieces(path: Path) -> Iterator[Piece]:
    """Cut the rows of an npy file into pieces of bounded size."""
    array = np.load(path, mmap_mode="r")
    assert isinstance(array, np.memmap)
    for begin in range(0, len(array), PIECE_ROWS):
        offset = array.offset + begin * array.strides[0]
        yield Piece(str(path), offset, min(PIECE_ROWS, len(array) - begin))


def write_npy(file: IO[bytes], shape: tuple[int, ...], dtype: DTypeLike, chunks: Iterable[NDArray[np.generic]]) -> None:
    """Write an npy array chunk by chunk."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for chunk in chunks:
        file.write(np.ascontiguousarray(chunk, dtype).data)
