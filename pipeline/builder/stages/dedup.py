"""The dedup stage: hashes and signatures of all partitions -> which documents stay, in the memory of one bucket.

Its intermediate files, in ``dedup_work``, appear by rename:

    job.json                the `Job`, fixed before the first unit
    keys/000002.bin         unit: the keys of a group of documents, sorted (bands.py)
    edges/00-0003.npy       unit: the verified edges, uint32 [m, 2], in one bucket of the hashes (00) or of a band (01 and up)
    exact.npy, unique.npy   after the edges of 00: the first equal document of each (uint32), and whether it is the first
    highest.npy             unless the first document is kept: uint32 [2, documents], see `write_highest`
    members.npy             after the other edges: uint32 [2, m], the components and their texts (kept_texts.py)
    dropped/000004.npy      unit: the dropped texts of some components, and the text that each is dropped for, uint32 [m, 2]

Documents are numbered in input order, after the documents of earlier builds. The result of the stage is one directory of arrays
with an entry for each document that passed the filters:

    kind.npy            uint8: 0 stays, 1 exact, 2 near duplicate
    keeper.npy          int64: the document that is kept in its place; -1 is the last document of the earlier builds
    cluster_size.npy    int32: documents in its cluster
    starts.npy          int64 [partitions + 1]: where each partition's documents begin

A worker holds a bucket's keys and the signatures of some pairs, or a group's keys: some 20 MB in all, or 200 MB for the
larger groups of a thousand million documents. A larger component takes 0.3 kB a text while it is judged. While the parent joins
edges, no worker runs. It then holds 8 bytes a document, and a kill costs what it has joined. The work directory takes some 190
bytes a document, 8 more for each text in a component, and 8 more for each document if the longest or highest is kept. A bucket
is larger only if very many different texts agree on a whole band.
"""

from __future__ import annotations

import functools
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file, read_json, write_json
from ...atomic_directory import result_directory
from ...errors import BuildError
from ..counts.build_stats import BuildStats
from ..counts.sums import Counts
from ..dedup.bands import KeyFiles, buckets_for, group_rows_for, write_keys
from ..dedup.kept_texts import dropped_texts, whole_components, write_members
from ..dedup.lsh import equal_rows, roots_of, similar_rows, star_edges, write_clusters, write_highest
from ..dedup.row_files import Piece, Rows, npy_pieces
from ..limits import DEFAULT_LIMITS
from ..outcome import DUPLICATES
from ..partitions.partition import Partition, partition_rows, partitions
from ..partitions.partition_writer import MetadataColumn
from ..signature_store import fetch_earlier, redacted_earlier
from ..work.workspace import Workspace
from .section import Change, Section, Table
from .stage import Run, Stage, Step, once

MOST_DOCUMENTS = (1 << 32) - 1  # documents are numbered by uint32
_MEMBERS = 1 << 16  # texts of components that are judged in one unit, and the rest of the last component


@dataclass(frozen=True)
class Job:
    """A search for duplicates: its documents and its settings. ``hashes`` and ``signatures`` are files of equally many rows.

    The first ``before`` documents belong to earlier builds: they are always kept, and others are their duplicates.
    """

    hashes: tuple[Piece, ...]
    signatures: tuple[Piece, ...]
    num_perm: int
    bands: int
    rows: int
    threshold: float
    before: int = 0
    buckets: int = 1
    group_rows: int = DEFAULT_LIMITS.group_rows

    def write(self, folder: Path) -> None:
        for name in ("keys", "edges", "dropped"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        write_json(folder / "job.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Job:
        value = read_json(folder / "job.json")
        for name in ("hashes", "signatures"):
            value[name] = tuple(Piece(*piece) for piece in value[name])
        return cls(**value)


@dataclass(frozen=True)
class _OpenJob:
    """A job with its open files. ``groups``: the range of pieces that each key file covers."""

    folder: Path
    job: Job
    hashes: Rows[np.uint8]
    signatures: Rows[np.uint32]
    groups: tuple[tuple[int, int], ...]
    keys: KeyFiles


@functools.lru_cache(maxsize=1)
def _read_job(folder: Path, mtime_ns: int) -> _OpenJob:
    job = Job.read(folder)
    hashes, signatures = Rows(job.hashes, 16, np.uint8), Rows(job.signatures, job.num_perm, np.uint32)
    groups, first = [], 0
    for last in range(1, len(job.hashes) + 1):
        if hashes.starts[last] - hashes.starts[first] >= job.group_rows or last == len(job.hashes):
            groups.append((first, last))
            first = last
    paths = [folder / "keys" / f"{group:06d}.bin" for group in range(len(groups))]
    starts = [int(hashes.starts[first]) for first, _ in groups] + [len(hashes)]
    return _OpenJob(folder, job, hashes, signatures, tuple(groups), KeyFiles(paths, starts, job.bands + 1, job.buckets))


def _open_job(folder: Path) -> _OpenJob:
    return _read_job(folder, (folder / "job.json").stat().st_mtime_ns)


def keys_unit(folder: Path, group: int) -> None:
    """Write the sorted keys of a group of documents."""
    opened = _open_job(folder)
    job, pieces = opened.job, range(*opened.groups[group])
    hashes = np.concatenate([opened.hashes.read(piece) for piece in pieces])
    write_keys(opened.keys.paths[group], hashes, map(opened.signatures.read, pieces), job.bands, job.rows, job.buckets)


def edges_unit(folder: Path, unit: tuple[int, int]) -> None:
    """Write the verified edges of one bucket. A unit is the number of a list (0: hashes, k: band k - 1) and a bucket of it."""
    opened = _open_job(folder)
    job, (number, bucket) = opened.job, unit
    if number == 0:
        keys, similar = opened.keys.read(number, bucket), equal_rows(opened.hashes)
    else:
        keys = opened.keys.read(number, bucket, np.load(folder / "unique.npy", mmap_mode="r"))
        similar = similar_rows(opened.signatures, job.threshold)
    edges = list(star_edges(*keys, similar))
    with atomic_file(_edges_path(folder, unit)) as file:
        np.save(file, np.concatenate([np.zeros((0, 2), np.uint32), *edges]))


def dropped_unit(folder: Path, unit: int) -> None:
    """Write which texts of some components are dropped, and the text that each is dropped for."""
    opened, members = _open_job(folder), np.load(folder / "members.npy", mmap_mode="r")
    roots, texts = members[:, whole_components(members[0], range(unit * _MEMBERS, (unit + 1) * _MEMBERS))]
    job, highest = opened.job, folder / "highest.npy"
    numbers = np.load(highest, mmap_mode="r")[1][texts] if highest.exists() else np.zeros(len(texts), np.uint32)
    scheme = job.bands, job.rows, job.threshold
    dropped = dropped_texts(roots, texts, numbers, opened.signatures, *scheme, before=job.before)
    with atomic_file(_dropped_path(folder, unit)) as file:
        np.save(file, dropped)


def _dropped_path(folder: Path, unit: int) -> Path:
    return folder / "dropped" / f"{unit:06d}.npy"


def _edges_path(folder: Path, unit: tuple[int, int]) -> Path:
    return folder / "edges" / f"{unit[0]:02d}-{unit[1]:04d}.npy"


class Duplicates(NamedTuple):
    """What was found for each document, uint32 ``[n]``: the text that stays in its cluster, its own text, and the document that
    stays of a text (None: the first one). A text is named by its first document. The last two are memory maps.
    """

    roots: NDArray[np.uint32]
    exact: NDArray[np.uint32]
    best: NDArray[np.uint32] | None


def find_duplicates(
    folder: Path, make: Callable[[Step[Any]], object], numbers: Iterable[NDArray[np.int64]] | None = None
) -> Duplicates:
    """Do the job of a folder by steps that ``make`` runs.

    ``numbers`` are those of the documents after the earlier builds', in order: higher ones are to be kept. None: earlier ones.
    """
    opened = _open_job(folder)
    lists, paths, highest = range(opened.keys.lists), opened.keys.paths, folder / "highest.npy"
    make(_step(folder, "band keys", keys_unit, range(len(paths)), paths.__getitem__))
    across = _edges(opened, range(1), "exact duplicates", make)
    make(once(folder / "unique.npy", _write_exact, opened, across))
    exact = np.load(folder / "exact.npy", mmap_mode="r")
    if numbers is not None:
        make(once(highest, write_highest, highest, exact, opened.job.before, numbers))
    near = _edges(opened, lists[1:], "near duplicates", make)
    make(once(folder / "members.npy", write_members, folder / "members.npy", exact, near))
    members = np.load(folder / "members.npy", mmap_mode="r").shape[1]
    units, path_of = range(-(-members // _MEMBERS)), functools.partial(_dropped_path, folder)
    make(_step(folder, "kept texts", dropped_unit, units, path_of))
    roots = np.array(exact)
    for dropped in map(np.load, map(path_of, units)):
        roots[dropped[:, 0]] = dropped[:, 1]
    return Duplicates(roots_of(roots, []), exact, None if numbers is None else np.load(highest, mmap_mode="r")[0])


def _step(
    folder: Path, name: str, function: Callable[[Path, Any], None], units: Sequence[Any], makes: Callable[[Any], Path]
) -> Step[Any]:
    return Step(
        name=name, units=units, function=functools.partial(function, folder), makes=makes, prepare=prepare_dedup
    )


def _write_exact(opened: _OpenJob, across: Iterable[NDArray[np.uint32]]) -> None:
    """Write the first equal document of each document, and then which documents are the first."""
    every = np.arange(len(opened.hashes), dtype=np.uint32)
    exact = roots_of(every.copy(), itertools.chain(opened.keys.repeats(), across))
    for name, array in ("exact", exact), ("unique", exact == every):
        with atomic_file(opened.folder / f"{name}.npy") as file:
            np.save(file, array)


def _edges(
    opened: _OpenJob, lists: Iterable[int], name: str, make: Callable[[Step[Any]], object]
) -> Iterator[NDArray[np.uint32]]:
    """Find the edges within every bucket of some lists; return them all, a bucket at a time."""
    units = [(number, bucket) for number in lists for bucket in range(opened.job.buckets)]
    path_of = functools.partial(_edges_path, opened.folder)
    make(_step(opened.folder, name, edges_unit, units, path_of))
    return map(np.load, map(path_of, units))


class DedupStage(Stage):
    """Finds exact and near duplicates over the whole input."""

    name = "dedup"

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        yield once(run.workspace.folder(self.name), _dedup, run)

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        """Return the sizes of clusters of more than one text."""
        counted = read_json(workspace.folder(self.name) / "counts.json")
        stats.duplicates, stats.cluster_sizes = counted["duplicates"], counted["cluster_sizes"]
        stats.notes += [
            f"{name}: {count:,} of its documents were redacted or dropped, and texts like these are no duplicates of it; "
            "list their ids in --drop-ids to keep them out"
            for name, count in redacted_earlier(workspace).items()
        ]
        return {"near_cluster_sizes": counted["near_cluster_sizes"]}

    def section(self, counts: Mapping[str, Any]) -> Section:
        duplicates, characters = counts.get("duplicates", {}), counts.get("duplicate_characters", {})
        changes = [
            Change(f"{kind} duplicates", duplicates[kind], characters[kind]) for kind in DUPLICATES if duplicates
        ]
        if not (classes := size_classes(counts.get("near_cluster_sizes", {}))):
            return Section(changes=changes)
        listed = ", ".join(f"{clusters:,} of {sizes}" for sizes, clusters, _ in classes)
        number = sum(clusters for _, clusters, _ in classes)
        table = Table(
            "Clusters of near duplicates",
            "One text of each stays, and the others were dropped for it.",
            ("documents in a cluster", "clusters", "documents"),
            classes,
        )
        line = f"{number:,}  clusters of near duplicates; by documents: {listed}"
        return Section(changes=changes, lines=[line], tables=[table])


def size_classes(sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return the sizes 2, 3 to 4, 5 to 8 and so on, each with its number of clusters and of documents in these clusters.

    >>> size_classes({"2": 7, "3": 1, "4": 1, "8": 1})
    [('2', 7, 14), ('3 to 4', 2, 7), ('5 to 8', 1, 8)]
    """
    clusters, documents = Counter[int](), Counter[int]()
    for size, number in sizes.items():
        power = (int(size) - 1).bit_length()
        clusters[power] += number
        documents[power] += number * int(size)
    names = {power: f"{(1 << power - 1) + 1:,} to {1 << power:,}" if power > 1 else "2" for power in sorted(clusters)}
    return [(name, clusters[power], documents[power]) for power, name in names.items()]


def positions(partition: Partition) -> slice:
    """Return the range of a partition's documents among the documents of all partitions."""
    starts = _load(partition.workspace, "starts")
    return slice(int(starts[partition.number]), int(starts[partition.number + 1]))


def duplicate_kinds(partition: Partition) -> NDArray[np.uint8]:
    """Return for each document of a partition whether it stays, or which kind of duplicate it is."""
    return np.asarray(_load(partition.workspace, "kind")[positions(partition)])


def cluster_sizes(partition: Partition) -> NDArray[np.int32]:
    """Return for each document of a partition how many documents its cluster has."""
    return np.asarray(_load(partition.workspace, "cluster_size")[positions(partition)])


def load_keepers(workspace: Workspace) -> tuple[NDArray[np.uint8], NDArray[np.int64], int]:
    """Return ``kind.npy``, ``keeper.npy``, and the number of documents of earlier builds."""
    before = read_json(workspace.folder(DedupStage.name) / "counts.json")["before"]
    return _load(workspace, "kind"), _load(workspace, "keeper"), before


def _load(workspace: Workspace, name: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(workspace.folder(DedupStage.name) / f"{name}.npy", mmap_mode="r")
    return array


def _dedup(run: Run) -> None:
    workspace, recipe = run.workspace, run.plan.recipe
    hashes = partition_rows(workspace, "hashes", 16, np.uint8)
    folder, n = workspace.folder("dedup_work"), len(hashes)
    job = _job(run, hashes) if recipe.dedup and n else None
    with result_directory(workspace.folder(DedupStage.name)) as directory:
        np.save(directory / "starts.npy", hashes.starts)
        if job is not None:
            before = job.before
            job.write(folder)
            found = find_duplicates(folder, run.make, _compared_numbers(workspace))
        else:
            before, alone = 0, np.arange(n, dtype=np.uint32)
            found = Duplicates(alone, alone, None)
        counts = {"before": before, **write_clusters(directory, found.roots, found.exact, before, found.best)}
        write_json(directory / "counts.json", counts)
    shutil.rmtree(folder, ignore_errors=True)


def _job(run: Run, hashes: Rows[np.uint8]) -> Job:
    """Return the job of a build, with the documents of the earlier builds that it is compared with."""
    workspace, recipe, limits = run.workspace, run.plan.recipe, run.plan.limits
    signatures = partition_rows(workspace, "signatures", recipe.permutations, np.uint32)
    earlier = fetch_earlier(workspace, run.plan.credentials.requests)
    first = [[p for at in earlier for p in npy_pieces(at / f"{name}.npy")] for name in ("hashes", "signatures")]
    before = sum(piece.rows for piece in first[0])
    documents = before + len(hashes)
    if documents > MOST_DOCUMENTS:
        raise BuildError(
            f"{documents:,} documents, but dedup numbers at most {MOST_DOCUMENTS:,}; split the input over several builds"
        )
    return Job(
        hashes=(*first[0], *hashes.pieces),
        signatures=(*first[1], *signatures.pieces),
        num_perm=recipe.permutations,
        bands=recipe.dedup_bands,
        rows=recipe.dedup_rows,
        threshold=recipe.dedup_threshold,
        before=before,
        buckets=buckets_for(documents, limits.bucket_bytes),
        group_rows=group_rows_for(documents, limits.group_rows),
    )


def _compared_numbers(workspace: Workspace) -> Iterator[NDArray[np.int64]] | None:
    """Return the numbers of the documents of each partition: a cluster keeps its highest. None if it keeps its first document."""
    recipe = workspace.plan.recipe
    if recipe.kept_by is not None:
        return _scores(workspace, recipe.kept_by)
    if recipe.dedup_keep == "longest":
        return (partition.array("characters", np.int64) for partition in partitions(workspace))
    return None


def _scores(workspace: Workspace, field: str) -> Iterator[NDArray[np.int64]]:
    """Yield the ranks of the values of a kept field, partition by partition."""
    metadata = MetadataColumn(workspace.plan.recipe.keep_fields)
    for partition in partitions(workspace):
        values = metadata.decode(partition.values("metadata")["metadata"])
        yield ranks(values[field])


def ranks(values: Sequence[object]) -> NDArray[np.int64]:
    """Return 32-bit integers that sort as the values do in float32. Values that are not numbers sort first.

    >>> np.argsort(ranks([2, None, -1.5, float("-inf"), "5"]), kind="stable").tolist()
    [1, 4, 3, 2, 0]
    """
    numbers = [value if isinstance(value, int | float) and not isinstance(value, bool) else np.nan for value in values]
    with np.errstate(over="ignore"):
        floats = np.array(numbers, np.float64).astype(np.float32) + np.float32(0)  # -0 equals 0
    bits = floats.view(np.uint32)
    ordered = np.where(bits >> 31 == 1, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(floats), 0, ordered).astype(np.int64)


def prepare_dedup() -> None:
    """Load compiled kernels, before workers are forked."""
    from ..dedup import kernels  # noqa: F401
