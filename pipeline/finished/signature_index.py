"""Documents that may be alike, by datasketch's `MinHashLSH` over the signatures that a dataset keeps.

datasketch's own hash tables take 5.3 KB of memory and 47 µs a document. Here a table is two sorted arrays of 12 bytes a document,
in which `MinHashLSH` looks up bands. So an index of a million documents takes 180 MB, and opens from files at once.

    INDEX/index.json     what it belongs to: hashes of the dataset's signatures and manifest, bands and rows
    INDEX/keys.npy       uint64 [1 + bands, documents], increasing in each row: first halves of text hashes, then keys of bands
    INDEX/numbers.npy    uint32 [1 + bands, documents], the document of each key
    INDEX/hashes.npy, INDEX/signatures.npy    copies of the dataset's files, if it is at a url
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasketch import LeanMinHash, MinHashLSH
from numpy.typing import NDArray

from ..atomic import read_json, write_json
from ..atomic_directory import discard_whole, result_directory
from ..builder.dedup.kernels import band_keys
from ..builder.dedup.minhash import SEED
from ..builder.dedup.row_files import PIECE_ROWS
from ..builder.signature_store import FILES, fetch_signatures, signature_files
from ..errors import ConfigError, CorruptShardError
from ..progress import Progress
from ..shards.dataset_folder import REPAIR
from ..shards.manifest import SIGNATURES_NAME
from .documents import DatasetDocuments

ENTRY_BYTES = 12  # of a document in a table
_INDEX, _KEYS, _NUMBERS = "index.json", "keys.npy", "numbers.npy"


class BandTable(NamedTuple):
    """A hash table of one band for `MinHashLSH`: increasing ``keys``, and the ``numbers`` of their documents."""

    keys: NDArray[np.uint64]
    numbers: NDArray[np.uint32]

    def get(self, values: bytes) -> list[int]:
        """Return the documents with these values in the band. datasketch gives the values as big-endian bytes."""
        signature = np.frombuffer(values, ">u4").astype(np.uint32)[np.newaxis]
        key, empty = np.empty((1, 1), np.uint64), np.empty((1, 1), np.bool_)
        band_keys(signature, signature.shape[1], key, empty)
        return [] if empty[0, 0] else self.at(key[0, 0])

    def at(self, key: np.uint64) -> list[int]:
        begin, end = np.searchsorted(self.keys, key, "left"), np.searchsorted(self.keys, key, "right")
        found: list[int] = self.numbers[begin:end].tolist()
        return found


class SignatureIndex:
    """Finds documents by the hash and the signature of a text.

    ``hashes`` are uint8 ``[documents, 16]``, ``signatures`` uint32 ``[documents, values]``. ``tables`` are the table of the
    hashes, then a table for each band of ``rows`` values.
    """

    def __init__(
        self, hashes: NDArray[np.uint8], signatures: NDArray[np.uint32], tables: list[BandTable], rows: int
    ) -> None:
        self.hashes, self.signatures = hashes, signatures
        self._by_hash, *bands = tables
        self._lsh = MinHashLSH(num_perm=signatures.shape[1], params=(len(bands), rows))
        self._lsh.hashtables = bands

    def equal(self, text_hash: NDArray[np.uint8]) -> list[int]:
        """Return the documents whose text has this hash."""
        return [n for n in self._by_hash.at(text_hash.view("<u8")[0]) if (self.hashes[n] == text_hash).all()]

    def alike(self, signature: NDArray[np.uint32]) -> dict[int, float]:
        """Return each document that agrees on a whole band, with the share of values on which it agrees."""
        sketch = LeanMinHash(seed=SEED, hashvalues=signature, scheme="affine32")  # the permutations of `minhash`
        numbers = sorted(self._lsh.query(sketch))
        shares = (self.signatures[numbers] == signature).mean(axis=1)
        return dict(zip(numbers, shares.tolist(), strict=True))


def open_index(documents: DatasetDocuments, directory: str | Path | None, progress: Progress) -> SignatureIndex:
    """Return the index of a dataset.

    ``directory`` keeps the tables for later calls. They are made again if the dataset has changed. Without a directory, they are
    made in memory. Raises ``ConfigError`` if the dataset keeps no signatures, or if ``directory`` holds other files.
    """
    signature_files(documents.folder.base, documents.manifest)
    bands, rows = documents.settings["dedup_bands"], documents.settings["dedup_rows"]
    if bands < 2:
        raise ConfigError(
            f"{documents.folder.base}: dedup_bands {bands}, but a search needs 2; build with more --dedup-bands"
        )
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="shardwright-") as temporary:
            hashes, signatures = _signatures(documents, Path(temporary))
            tables = _make_tables(hashes, signatures, bands, rows, progress)
            return SignatureIndex(hashes, signatures, tables, rows)
    path = Path(directory).absolute()
    if path.exists() and not _is_index(path):
        raise ConfigError(f"{path}: this is no index; name an index, or a new directory")
    if (opened := _open_tables(documents, path)) is None:
        if path.exists():
            progress.say(f"{path}: the index is damaged, or the dataset has changed; the index is made again")
        discard_whole(path)
        with result_directory(path) as made:
            tables = _make_tables(*_signatures(documents, made), bands, rows, progress)
            np.save(made / _KEYS, np.stack([table.keys for table in tables]))
            np.save(made / _NUMBERS, np.stack([table.numbers for table in tables]))
            write_json(made / _INDEX, _identity(documents))
        opened = _open_tables(documents, path)
        assert opened is not None
    return SignatureIndex(*_signatures(documents, path), opened, rows)


def _is_index(path: Path) -> bool:
    """Return whether a directory has the files of an index, all of them and no others, so that it may be removed."""
    names = {file.name for file in path.iterdir()} if path.is_dir() else set[str]()
    return {_INDEX, _KEYS, _NUMBERS} <= names <= {_INDEX, _KEYS, _NUMBERS, *FILES}


def _identity(documents: DatasetDocuments) -> dict[str, Any]:
    """Return what the tables of an index depend on. Builds of other words or other settings have other signatures."""
    files = signature_files(documents.folder.base, documents.manifest)
    settings = {name: documents.settings[name] for name in ("dedup_bands", "dedup_rows")}
    return {"dataset": documents.manifest.fingerprint, "files": {info.name: info.sha256 for info in files}, **settings}


def _open_tables(documents: DatasetDocuments, path: Path) -> list[BandTable] | None:
    """Return the tables of an index; None if it is missing, damaged, or of another dataset."""
    copied = signature_files(documents.folder.base, documents.manifest) if documents.folder.remote else []
    try:
        if read_json(path / _INDEX) != _identity(documents):
            return None
        if any((path / Path(info.name).name).stat().st_size != info.bytes for info in copied):
            return None
        keys, numbers = (np.load(path / name, mmap_mode="r") for name in (_KEYS, _NUMBERS))
        return [BandTable(*pair) for pair in zip(keys, numbers, strict=True)]
    except (OSError, ValueError, EOFError):
        return None


def _signatures(documents: DatasetDocuments, directory: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return the hashes and the signatures of all documents. If they are at a url, they are copied to ``directory`` once."""
    folder = Path(documents.folder.base, SIGNATURES_NAME)
    if documents.folder.remote:
        folder = directory
        if not (folder / FILES[0]).exists():
            fetch_signatures(documents.folder.base, documents.manifest, folder, documents.folder.requests)
    try:
        hashes, signatures = (np.load(folder / name, mmap_mode="r") for name in FILES)
    except (ValueError, EOFError) as error:
        raise CorruptShardError(f"{folder}: the signatures are damaged ({error}); {REPAIR}") from error
    if len(hashes) != len(signatures) or len(hashes) < len(documents):  # later drops leave more hashes than documents
        raise CorruptShardError(
            f"{folder}: {len(hashes)} hashes and {len(signatures)} signatures, but the dataset has {len(documents)} documents; "
            f"{REPAIR}"
        )
    return hashes, signatures


def _make_tables(
    hashes: NDArray[np.uint8], signatures: NDArray[np.uint32], bands: int, rows: int, progress: Progress
) -> list[BandTable]:
    """Return the tables of all documents: the table of the hashes, then a table for each band."""
    count = len(hashes)
    progress.say(f"index: {count:,} documents, {count * ENTRY_BYTES * (1 + bands) / 1e6:,.0f} MB of memory")
    keys, empty = np.empty((1 + bands, count), np.uint64), np.empty((bands, count), np.bool_)
    keys[0] = np.ascontiguousarray(hashes).view("<u8")[:, 0]
    pieces = [slice(begin, min(count, begin + PIECE_ROWS)) for begin in range(0, count, PIECE_ROWS)]
    with progress.each("index", pieces, lambda piece: piece.stop - piece.start, "documents") as each:
        for piece in each:
            band_keys(np.array(signatures[piece]), rows, keys[1:, piece], empty[:, piece])
    tables = []
    for row in keys:
        order = np.argsort(row, kind="stable").astype(np.uint32)
        tables.append(BandTable(row[order], order))
    return tables
