"""Copies without redacted documents of the files beside shards: texts, signatures, ``rejected.jsonl`` and the report."""

from __future__ import annotations

import copy
import io
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import orjson
import zstandard

from ...atomic import atomic_file
from ...builder.counts.samples import ID_CHARACTERS, NearestTexts
from ...builder.report.html import write_report
from ...builder.stages.drop_ids import DropIdsStage, compared
from ...builder.stages.registry import QUOTES
from ...shards.manifest import REJECTED_NAME, REPORT_NAME, SIGNATURES_NAME, TEXTS_NAME, Manifest
from ...text.fields import parse_fields
from ...text.hashes import text_hash

_DROPPED = DropIdsStage.drops.key
_KEPT = ("source", "language", "split")  # columns of texts, unless fields of these names are kept


class Removed(NamedTuple):
    """A redacted document as it was. Tokens and text are empty if they were gone when a killed redaction continued.

    ``text`` is decoded from the tokens if no file has it; `is_decoded` tells whether it then differs from the original text.
    """

    key: str
    id: str
    hash: str
    source: str
    language: str
    tokens: bytes
    text: str

    @property
    def is_decoded(self) -> bool:
        return bool(self.text) and text_hash(self.text) != self.hash

    def to_json(self) -> dict[str, str]:
        return {**self._asdict(), "tokens": self.tokens.hex()}

    @classmethod
    def of_json(cls, value: dict[str, str]) -> Removed:
        return cls(**{**value, "tokens": bytes.fromhex(value["tokens"])})  # type: ignore[arg-type]


class Mentions:
    """Finds records of the build that show redacted documents, duplicates of these, or passages of any document.

    ``listed``: names to redact, as `compared` returns them; the build may have dropped documents of these names.
    """

    def __init__(self, removed: Sequence[Removed], listed: Set[str]) -> None:
        self._names = {*listed, *(compared(one.id) for one in removed if one.id)}
        self._shown = {name[:ID_CHARACTERS] for name in self._names}
        self._hashes = {one.hash for one in removed if one.hash}

    def of(self, record: Mapping[str, Any], *, shown: bool = False) -> bool:
        """Return whether a record shows one of the documents, or words of a document that it does not name.

        Earlier releases wrote no kind, so their records may quote any document. ``shown``: ids of the record are cut.
        """
        if record.get("kind") is None or record["kind"] in QUOTES or record.get("hash") in self._hashes:
            return True
        named = {compared(str(record[name])) for name in ("id", "kept_id") if record.get(name)}
        return not named.isdisjoint(self._shown if shown else self._names)


def without_samples(manifest: Manifest, mentions: Mentions) -> dict[str, Any]:
    """Return the counts of a manifest without repeated passages and the samples that show redacted documents."""
    counts = dict(manifest.counts)
    if samples := counts.get("samples"):
        counts["samples"] = {
            k: [one for one in some if not mentions.of(one, shown=True)] for k, some in samples.items()
        }
    counts |= {name: [] for name in QUOTES & counts.keys()}
    counts.pop("widest_cluster", None)  # two texts, in datasets of earlier releases
    return counts


def dropped_counts(counts: dict[str, Any], documents: Sequence[Any], removed: Sequence[Removed]) -> dict[str, Any]:
    """Return the counts of a build as if a list of ids had dropped ``documents``. Histograms stay as they are."""
    counts = copy.deepcopy(counts)
    for document, one in zip(documents, removed, strict=True):
        groups = [counts.get("by_source", {}).get(one.source), counts.get("by_language", {}).get(one.language)]
        for group in (counts, *groups):
            if group is not None and "kept" in group:
                group["kept"] -= 1
                group["tokens"] -= document.tokens
                group["dropped"][_DROPPED] = group["dropped"].get(_DROPPED, 0) + 1
        if "kept_characters" in counts:
            counts["kept_characters"] -= len(one.text)
            of_rules = counts["dropped_characters"]
            of_rules[_DROPPED] = of_rules.get(_DROPPED, 0) + len(one.text)
    return counts


def cleaner(
    name: str, manifest: Manifest, numbers: Sequence[int], keys: Sequence[str], mentions: Mentions, *, drop: bool
) -> Callable[[Path, Path], None] | None:
    """Return the function that copies a file without the redacted documents; None if the file shows none of them.

    ``manifest`` is the new manifest. ``numbers`` are the redacted documents in the shard of a file of texts, ``keys`` the keys of
    all redacted documents. With ``drop``, their rows are removed from the texts.
    """
    folder = name.rpartition("/")[0]
    if folder == TEXTS_NAME:
        own = {field.name for field in parse_fields(manifest.recipe["settings"].get("keep_fields", []))}
        kept = {*_KEPT} - own
        return (lambda source, target: _clean_texts(source, target, {*numbers}, kept, drop)) if numbers else None
    if folder == SIGNATURES_NAME:
        return lambda source, target: _clean_rows(source, target, [int(key) for key in keys])
    if name == REJECTED_NAME:
        return lambda source, target: _clean_lines(source, target, mentions)
    if name == REPORT_NAME:
        nearest = NearestTexts()  # only the build knew the texts nearest to limits
        return lambda source, target: write_report(target.parent, manifest, nearest)
    return None


def texts_of(path: Path) -> list[str]:
    """Return the kept texts in a file."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return [text or "" for text in pq.read_table(path, columns=["text"])["text"].to_pylist()]
    with open(path, "rb") as file:
        return [orjson.loads(line)["text"] for line in _lines(file)]


def _lines(file: IO[bytes]) -> io.BufferedReader:
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file))


def _clean_texts(source: Path, target: Path, chosen: set[int], kept: Set[str], drop: bool) -> None:
    """Copy the texts of a shard. Redacted rows are dropped, or their texts become empty and all fields but ``kept`` null."""

    def cleaned(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value if name in kept else "" if name == "text" else None for name, value in row.items()}

    if source.suffix != ".parquet":
        with (
            open(source, "rb") as file,
            atomic_file(target) as out,
            zstandard.ZstdCompressor().stream_writer(out, closefd=False) as stream,
        ):
            for number, line in enumerate(_lines(file)):
                if number not in chosen:
                    stream.write(line)
                elif not drop:
                    stream.write(orjson.dumps(cleaned(orjson.loads(line)), option=orjson.OPT_APPEND_NEWLINE))
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 0
    with (
        pq.ParquetFile(source) as file,
        atomic_file(target) as out,
        pq.ParquetWriter(out, file.schema_arrow, compression="zstd") as writer,
    ):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            count = len(table)
            if chosen & {*range(first, first + count)}:
                rows = [
                    cleaned(row) if number in chosen else row
                    for number, row in enumerate(table.to_pylist(), first)
                    if not (drop and number in chosen)
                ]
                table = pa.Table.from_pylist(rows, file.schema_arrow)
            writer.write_table(table)
            first += count


def _clean_rows(source: Path, target: Path, rows: Sequence[int]) -> None:
    """Copy hashes or signatures. Rows of redacted documents become 0, which no text has."""
    target.unlink(missing_ok=True)  # a killed redaction may have left a file that may not be written
    shutil.copyfile(source, target)
    values = np.load(target, mmap_mode="r+")
    values[rows] = 0
    values.flush()


def _clean_lines(source: Path, target: Path, mentions: Mentions) -> None:
    with open(source, "rb") as file, atomic_file(target) as out:
        out.writelines(line for line in file if not mentions.of(orjson.loads(line)))
