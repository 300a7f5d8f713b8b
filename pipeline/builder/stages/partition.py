"""What the filter stage leaves on disk: units hold parts, and every later stage works part by part.

    filter/000012/0000/     a part: some documents of unit 12, in input order
        documents.arrow     those that passed: text, id, span, line, language, score, characters
        hashes.bin          uint8 [passed, 16], the hash of each text
        signatures.bin      uint32 [passed, permutations], its MinHash signature
        passages.bin        uint64, sorted: every hash of a line or paragraph, where repeated ones will be cut
        rejected.jsonl      what could not be read, and what was dropped (with --keep-rejected)
        counts.json         everything counted
    filter/000012/done.json the unit is done: its parts, and lines and hashes of its spans
    parts.json              all units are: every part in input order
    repeats/parts/000034/   the 34th of all parts once more, without repeated passages (repeats.py): then this one counts,
                            and the documents.arrow that it was made of goes

A unit is what can be read by itself; a part is bounded by its text, so that a large compressed file, which can only be
read from its start, neither needs memory for all of it nor loses all of it to a kill, and several units, its lanes, can
share its parts.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...atomic import write_json
from ...text.document import made_id
from ..dedup.minhash import MinHasher, text_hashes
from ..dedup.row_files import Piece, Rows
from ..dedup.segments import Passages
from ..plan import Plan, load_plan

DONE = "done.json"
PARTS = "parts.json"
_ROWS = 512  # documents hashed and written together
_CHARACTERS = 1 << 22  # or fewer, when they hold so much text


class Row(NamedTuple):
    """A document that passed the filters."""

    text: str
    id: str
    span: int
    line: int
    language: str
    score: float
    characters: int


class PartWriter:
    """Writes the documents of a part, a batch at a time."""

    def __init__(
        self, directory: Path, hasher: MinHasher | None, find: Callable[[Sequence[str]], Passages] | None = None
    ) -> None:
        """``hasher`` signs texts; ``find`` finds the passages whose hashes are noted."""
        import pyarrow as pa

        fields = {"text": pa.large_string(), "id": pa.large_string(), "span": pa.int32(), "line": pa.int64()}
        more = {"language": pa.large_string(), "score": pa.float32(), "characters": pa.int64()}
        self._schema = pa.schema(fields | more)
        self._directory = directory
        self._hasher = hasher
        self._find = find
        self._passages: list[NDArray[np.uint64]] = []
        self._rows: list[Row] = []
        self._held = 0

    def __enter__(self) -> PartWriter:
        import pyarrow as pa

        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._arrow = pa.ipc.new_file(str(documents_path(self._directory)), self._schema, options=options)
        self._hashes = open(self._directory / "hashes.bin", "wb")
        self._signatures = open(self._directory / "signatures.bin", "wb")
        return self

    def add(self, row: Row) -> None:
        self._rows.append(row)
        self._held += row.characters
        if len(self._rows) >= _ROWS or self._held >= _CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        columns = list(zip(*self._rows, strict=True))
        texts = list(columns[0])
        text_hashes(texts).tofile(self._hashes)
        if self._hasher is not None:
            self._hasher.signatures(texts).tofile(self._signatures)
        if self._find is not None:
            self._passages.append(np.unique(self._find(texts).hashes))
        arrays = [_column(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)]
        self._arrow.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._rows, self._held = [], 0

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._flush()
                if self._find is not None:
                    joined = np.concatenate([np.zeros(0, np.uint64), *self._passages])
                    np.unique(joined).tofile(self._directory / "passages.bin")
        finally:
            self._arrow.close()
            self._hashes.close()
            self._signatures.close()


def _column(values: Sequence[Any], kind: Any) -> Any:
    """Return values as an arrow array. ``pa.array`` would import pandas where that is installed, for 0.3 s a worker."""
    import pyarrow as pa

    if kind != pa.large_string():
        numbers = np.array(values, kind.to_pandas_dtype())
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def unit_path(work: Path, number: int) -> Path:
    return work / "filter" / f"{number:06d}"


def part_folder(unit: Path, part: int) -> Path:
    return unit / f"{part:04d}"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def list_parts(work: Path, plan: Plan) -> None:
    """Write what the finished units hold: every part in input order, and for every span its first line and hash.

    ``damaged`` tells of every file that could not be read to its end where, why, and how many ``unconfirmed`` documents
    were read before that was known: no checksum vouches for them.
    """
    found: list[tuple[int, int, int]] = []
    first_lines, digests = [], []
    damaged = []
    lines: dict[int, int] = {}  # of each input, before the span at hand
    for number, unit in enumerate(plan.units):
        done = read_json(unit_path(work, number) / DONE)
        # The lanes of a file take turns at its parts.
        found += [(number - unit[0].lane, part, number) for part in done["parts"]]
        befores, hashes = [], []
        for span, read in itertools.zip_longest(unit, done["spans"]):
            befores.append(lines.get(span.input, 0))
            if span.lane == span.lanes - 1:
                lines[span.input] = befores[-1] + (read["lines"] if read else 0)
            hashes.append(read["sha256"] if read else None)
            if read and read["damage"] and span.lane == 0:
                line = read["damage"]["line"] + befores[-1]
                damaged.append({"file": plan.inputs[span.input].name, **read["damage"], "line": line})
        first_lines.append(befores)
        digests.append(hashes)
    parts = [[number, part] for _, part, number in sorted(found)]
    read_over = {"first_lines": first_lines, "sha256": digests, "damaged": damaged}
    write_json(work / PARTS, {"parts": parts, **read_over})


@functools.lru_cache(maxsize=2)
def _listed(work: Path, mtime_ns: int) -> dict[str, Any]:
    return read_json(work / PARTS)


def listed(work: Path) -> dict[str, Any]:
    """Return what ``list_parts`` wrote, read once in each process."""
    return _listed(work, (work / PARTS).stat().st_mtime_ns)


def all_parts(work: Path) -> list[list[int]]:
    """Return ``[unit, number within it]`` of every part, in input order."""
    return listed(work)["parts"]


def filtered_path(work: Path, part: int) -> Path:
    """Return the directory of a part as the filters left it, by its place among all parts."""
    unit, number = all_parts(work)[part]
    return part_folder(unit_path(work, unit), number)


def cut_path(work: Path, part: int) -> Path:
    """Return the directory of a part without the passages that stood before."""
    return work / "repeats" / "parts" / f"{part:06d}"


def part_path(work: Path, part: int) -> Path:
    """Return the directory of a part as dedup and all later stages read it."""
    return cut_path(work, part) if load_plan(work).recipe.passage_kinds else filtered_path(work, part)


def documents_path(part: Path) -> Path:
    """Return the file of the documents in a part's directory."""
    return part / "documents.arrow"


def part_slice(work: Path, part: int) -> slice:
    """Return where a part's documents stand among those of all parts."""
    starts = np.load(work / "dedup" / "starts.npy", mmap_mode="r")
    return slice(int(starts[part]), int(starts[part + 1]))


def part_rows(work: Path, name: str, width: int, dtype: DTypeLike) -> Rows:
    """Return the rows of one kind (hashes, signatures) of all documents that passed the filters, a piece for each part."""
    folders = [part_path(work, part) for part in range(len(all_parts(work)))]
    counts = [(folder / "hashes.bin").stat().st_size // 16 for folder in folders]
    pieces = [Piece(str(folder / f"{name}.bin"), 0, count) for folder, count in zip(folders, counts, strict=True)]
    return Rows(pieces, width, dtype)


def read_columns(work: Path, part: int, *names: str) -> Iterator[Any]:
    """Yield the record batches of a part's documents, with only the columns named, in that order."""
    return read_batches(part_path(work, part), *names)


def read_batches(path: Path, *names: str) -> Iterator[Any]:
    """Yield the record batches of the documents in a part's directory, with only the columns named, in that order."""
    import pyarrow as pa

    with pa.memory_map(str(documents_path(path))) as source:
        schema = pa.ipc.open_file(source).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
        reader = pa.ipc.open_file(source, options=options)
        for batch in range(reader.num_record_batches):
            yield reader.get_batch(batch).select(list(names))


def column_numbers(work: Path, part: int, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a whole column of a part as an array."""
    # Not by to_numpy, which imports pandas where that is installed.
    columns = [batch.column(name) for batch in read_columns(work, part, name)]
    arrays = [np.frombuffer(c.buffers()[1], dtype)[c.offset : c.offset + len(c)] for c in columns]
    return np.concatenate([np.zeros(0, dtype), *arrays])


def column_values(work: Path, part: int, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return whole columns of a part as lists."""
    values: dict[str, list[Any]] = {name: [] for name in names}
    for batch in read_columns(work, part, *names):
        for name in names:
            values[name] += batch.column(name).to_pylist()
    return values


class Origin(NamedTuple):
    """Where a document came from."""

    id: str
    file: str
    line: int
    source: str


class Origins:
    """Where the documents of a part came from, by row; lines are those of whole files."""

    def __init__(self, work: Path, part: int) -> None:
        self._plan = load_plan(work)
        self._unit = all_parts(work)[part][0]
        self._first_lines = listed(work)["first_lines"][self._unit]
        self._values = column_values(work, part, ["id", "span", "line"])

    def __getitem__(self, row: int) -> Origin:
        span = self._values["span"][row]
        item = self._plan.inputs[self._plan.units[self._unit][span].input]
        line = self._values["line"][row] + self._first_lines[span]
        return Origin(self._values["id"][row] or made_id(item.name, line), item.name, line, item.source)
