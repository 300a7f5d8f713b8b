"""Partitions: bounded numbers of documents that the units of the ingest stage write.

Every later stage works on one partition at a time. The module of a stage also has the functions that read its results.

    ingest/000012/0000/     a partition: some documents of unit 12, in input order
        documents.arrow     the documents that passed: the columns of `partition_writer.PassedDocument`
        hashes.bin          uint8 [passed, 16], the hash of each text
        signatures.bin      uint32 [passed, permutations], the MinHash signature of each text
        passages.bin        uint64, sorted: the hashes of lines or paragraphs, if repeated ones are to be cut
        matches.npy         int64 [n, 2]: a document, and an n-gram of an evaluation set that it has (--decontaminate)
        rejected.jsonl      records that could not be read, and dropped documents (with --keep-rejected)
        counts.json         everything counted so far
    ingest/000012/done.json the unit is done: its partitions, and lines and hashes of its spans; done-9000.json if a
                            quota lets it read only the first 9,000 bytes
    round/partitions.json   all units are done: every partition in input order
    round/STAGE/partitions/000034/      a later edition of partition 34, by a stage that edits texts: the files that it changes

An edition holds only the files that its stage changed, so the current state of a file is in the latest edition that has it.
``rejected.jsonl`` is different, because stages add to it: each edition has the lines of its own stage, and all of them count.

The text of a partition is bounded, since a large compressed file can only be read from its start. So the file does not fill the
memory, and a kill does not lose all work on it. Several units, the lanes of the file, share its partitions.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from ...atomic import read_json, write_json
from ...text.document import made_id
from ..counts.build_stats import DamagedFile
from ..counts.samples import Sample
from ..counts.sums import Counts
from ..dedup.row_files import Piece, Rows, Scalar
from ..work.workspace import Workspace

INGEST = "ingest"
PARTITIONS = "partitions.json"
DOCUMENTS = "documents.arrow"
MATCHES = "matches.npy"
COUNTS = "counts.json"
HELD = "held"


@dataclass(frozen=True, slots=True)
class Partition:
    """Some documents that passed the filters, by the number of the partition in input order.

    With the name of a stage, the documents are as they were ``before`` this stage edits them.
    """

    workspace: Workspace
    number: int
    before: str = ""

    def __str__(self) -> str:
        return f"partition {self.number}"

    @property
    def unit(self) -> int:
        """The number of the ingest unit that wrote the partition."""
        return self.unit_and_number[0]

    @property
    def unit_and_number(self) -> tuple[int, int]:
        """The number of the unit, and of the partition in the unit. The lanes of a file number their partitions together."""
        unit, number = partition_table(self.workspace)["partitions"][self.number]
        return unit, number

    @property
    def source(self) -> str:
        """The source of the documents: a unit reads files of one source."""
        plan = self.workspace.plan
        return plan.inputs[plan.units[self.unit][0].input].source

    @property
    def editions(self) -> list[Path]:
        """The folders of its editions, in the order of the stages. A folder exists once its stage has written it."""
        unit, number = self.unit_and_number
        stages = itertools.takewhile(lambda stage: stage != self.before, self.workspace.plan.editing)
        return [unit_folder(self.workspace, unit) / partition_name(number), *map(self.edition, stages)]

    def edition(self, stage: str) -> Path:
        """Return the folder that a stage writes, if it edits texts."""
        return self.workspace.folder(stage) / "partitions" / f"{self.number:06d}"

    def path(self, name: str) -> Path:
        """Return the path of a file in the latest edition that wrote it."""
        paths = [folder / name for folder in self.editions]
        return next(filter(Path.exists, reversed(paths)), paths[0])

    @property
    def bytes(self) -> int:
        return self.path(DOCUMENTS).stat().st_size

    @property
    def counts(self) -> Counts:
        return Counts.read(self.path(COUNTS))

    def batches(self, *names: str) -> Iterator[Any]:
        """Yield the record batches of its documents, with only the columns named, in that order."""
        import pyarrow as pa

        with pa.memory_map(str(self.path(DOCUMENTS))) as source:
            schema = pa.ipc.open_file(source).schema
            options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
            reader = pa.ipc.open_file(source, options=options)
            for batch in range(reader.num_record_batches):
                yield reader.get_batch(batch).select(list(names))

    def texts(self, rows: Sequence[int]) -> Iterator[str]:
        """Yield the texts of some documents, whose rows ascend, a record batch at a time."""
        first = 0
        for batch in self.batches("text"):
            column = batch.column(0)
            begin, end = bisect_left(rows, first), bisect_left(rows, first + len(column))
            yield from (column[row - first].as_py() for row in rows[begin:end])
            first += len(column)

    def array(self, name: str, dtype: type[Scalar]) -> NDArray[Scalar]:
        """Return a whole column as an array."""
        # to_numpy would import pandas if it is installed.
        columns = [batch.column(name) for batch in self.batches(name)]
        arrays = [np.frombuffer(c.buffers()[1], dtype)[c.offset : c.offset + len(c)] for c in columns]
        return np.concatenate([np.zeros(0, dtype), *arrays])

    def values(self, *names: str) -> dict[str, list[Any]]:
        """Return whole columns as lists."""
        values: dict[str, list[Any]] = {name: [] for name in names}
        for batch in self.batches(*names):
            for name in names:
                values[name] += batch.column(name).to_pylist()
        return values

    def origins(self) -> Origins:
        return Origins(self)

    @property
    def held_path(self) -> Path:
        """The file of the hashes of the texts that the dataset holds, uint8 ``[n, 16]``."""
        held = self.path(f"{HELD}.bin")
        return held if held.exists() else self.path("hashes.bin")

    @property
    def hashes(self) -> NDArray[np.uint8]:
        """The hash of each text before passages are cut, uint8 ``[n, 16]``. Draws depend on it."""
        return np.fromfile(self.path("hashes.bin"), np.uint8).reshape(-1, 16)

    @property
    def origins_hashes(self) -> NDArray[np.uint8]:
        """The hash of the original text of each document. Parts that a transform split off share the hash of their whole."""
        hashes, origins = self.hashes, self.values("origin")["origin"]
        if not any(origins):
            return hashes
        parts = [number for number, origin in enumerate(origins) if origin]
        hashes[parts] = np.frombuffer(bytes.fromhex("".join(origins)), np.uint8).reshape(-1, 16)
        return hashes


def unit_folder(workspace: Workspace, unit: int) -> Path:
    """Return the directory of a unit of the ingest stage."""
    return workspace.root / INGEST / f"{unit:06d}"


def done_path(workspace: Workspace, unit: int, most_bytes: int | None) -> Path:
    """Return the file whose existence says that a unit has read ``most_bytes`` of its input; None: all of it."""
    return unit_folder(workspace, unit) / ("done.json" if most_bytes is None else f"done-{most_bytes}.json")


def partition_name(number: int) -> str:
    """Return the name of a partition within its unit."""
    return f"{number:04d}"


def write_partition_table(workspace: Workspace, read: Mapping[int, int | None]) -> None:
    """Write the table of the units that were ``read``: every partition in input order, and each span's first line and hash.

    ``damaged`` lists every file that could not be read to its end: where and why reading stopped, and how many documents
    before that line are ``unconfirmed``, because no checksum covers them. ``left_out`` has notes on tar members that were
    left out.
    """
    plan = workspace.plan
    written: list[tuple[int, int, int]] = []
    first_lines, digests = [], []
    damaged, left_out = [], []
    lines: dict[int, int] = {}  # of each input, before the current span
    for number, unit in enumerate(plan.units):
        path = done_path(workspace, number, read.get(number))
        done = read_json(path) if number in read else {"partitions": [], "spans": []}
        # The lanes of a file take turns at its partitions.
        written += [(number - unit[0].lane, partition, number) for partition in done["partitions"]]
        befores, hashes = [], []
        for span, summary in itertools.zip_longest(unit, done["spans"]):
            befores.append(lines.get(span.input, 0))
            if span.lane == span.lanes - 1:
                lines[span.input] = befores[-1] + (summary["lines"] if summary else 0)
            hashes.append(summary["sha256"] if summary else None)
            if summary is None or span.lane:
                continue
            left_out += [summary["left_out"]] if summary["left_out"] else []
            if summary["damage"]:
                line = summary["damage"]["line"] + befores[-1]
                damaged.append({"file": plan.inputs[span.input].name, **summary["damage"], "line": line})
        first_lines.append(befores)
        digests.append(hashes)
    partitions = [[number, partition] for _, partition, number in sorted(written)]
    read_over = {"first_lines": first_lines, "sha256": digests, "damaged": damaged, "left_out": left_out}
    write_json(workspace.round / PARTITIONS, {"partitions": partitions, **read_over})


class PartitionTable(TypedDict):
    """The table that `write_partition_table` writes.

    ``partitions``: the unit of each partition, and its number in the unit. For each span of each unit, ``first_lines`` is
    the number of lines of its file before it, and ``sha256`` the hash of the bytes that were read.
    """

    partitions: list[tuple[int, int]]
    first_lines: list[list[int]]
    sha256: list[list[str | None]]
    damaged: list[DamagedFile]
    left_out: list[str]


def partition_table(workspace: Workspace) -> PartitionTable:
    """Return what `write_partition_table` wrote, read once in each process."""
    path = workspace.round / PARTITIONS
    return _read_table(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read_table(path: Path, mtime_ns: int) -> PartitionTable:
    table: PartitionTable = read_json(path)
    return table


def partitions(workspace: Workspace, before: str = "") -> list[Partition]:
    """Return all partitions, in input order; with the name of a stage, as they were ``before`` it edits them."""
    return [Partition(workspace, number, before) for number in range(len(partition_table(workspace)["partitions"]))]


def partition_rows(workspace: Workspace, name: str, width: int, dtype: type[Scalar]) -> Rows[Scalar]:
    """Return the rows of one kind of all documents that passed, a piece for each partition.

    Kinds are hashes, signatures, and held: hashes of the texts as the dataset holds them, without the passages that were cut.
    """
    every = partitions(workspace)
    counts = [partition.path("hashes.bin").stat().st_size // 16 for partition in every]
    paths = [str(each.held_path if name == HELD else each.path(f"{name}.bin")) for each in every]
    pieces = [Piece(path, 0, count) for path, count in zip(paths, counts, strict=True)]
    return Rows(pieces, width, dtype)


class Origin(NamedTuple):
    """Where a document came from."""

    id: str
    file: str
    line: int
    source: str


class Origins:
    """Where the documents of a partition came from, by row. Lines are counted from the start of the file."""

    def __init__(self, partition: Partition) -> None:
        self._source = partition.source
        self._first_lines = partition_table(partition.workspace)["first_lines"][partition.unit]
        self._values = partition.values("id", "part", "file", "span", "line")

    def __getitem__(self, row: int) -> Origin:
        id, part, file, span, line = (self._values[name][row] for name in ("id", "part", "file", "span", "line"))
        line += self._first_lines[span]
        return Origin((id or made_id(file, line)) + part, file, line, self._source)


def locate(partition: Partition, record: Sample) -> Sample:
    """Return the line of a rejected record with its line number counted from the start of the file."""
    record["line"] += partition_table(partition.workspace)["first_lines"][partition.unit][record.pop("span")]
    part = record.pop("part", "")
    if "id" in record:
        record["id"] = (record["id"] or made_id(record["file"], record["line"])) + part
    return record
