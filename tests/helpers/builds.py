"""Builds with the settings that several test files share, and the digests of what they write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PosixPath
from typing import Any

from pipeline.builder.build import build
from pipeline.builder.transforms.user_functions import transform
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from pipeline.text.document import Document
from pipeline.text.tokens.tokenizer import load_tokenizer
from tests.helpers.shard_samples import Shard

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = {
    "tokenizer": "train:400",
    "language": "en=0.2",
    "rules": "gopher_quality",
    "val_fraction": 0.1,
}
PLAIN: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "language": (), "val_fraction": 0}


def halves(document: Document) -> list[Document]:
    middle = len(document.text) // 2
    return [Document(text, "", "", 0) for text in (document.text[:middle], document.text[middle:])]


HALVES = transform(halves, version="1")


def run(inputs: Any, output: str | Path, **options: Any) -> Manifest:
    """Build in this process: workers for each stage cost more than a small build. A test of workers states their number.

    They are forked, because pytest-xdist runs a thread, with which they would be spawned by default.
    """
    plain = {"progress": Progress(quiet=True), "workers": 1, "start_method": "fork"}
    return build(inputs, output, **{**plain, **SETTINGS, **options})


def run_plain(inputs: Any, output: str | Path, **options: Any) -> Manifest:
    """Build without rules, languages and validation, by the tokenizer of bytes."""
    return run(inputs, output, **{**PLAIN, **options})


def write_jsonl(path: Path, records: Iterable[Any]) -> Path:
    """Write records, or texts as records with the ids d0, d1 and so on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"d{k}", "text": each} if isinstance(each, str) else each for k, each in enumerate(records)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(output: Path, split: str = "train") -> dict[str, list[Any]]:
    """Return the columns of the shards of a split."""
    columns: dict[str, list[Any]] = {"id": []}
    for path in sorted(output.glob(f"{split}-*.tar")):
        for name, column in Shard(path).table().items():
            columns.setdefault(name, []).extend(column)
    return columns


def kept(output: Path) -> list[str]:
    """Return the texts of a dataset without their end-of-text ids, split by split."""
    decode = load_tokenizer(str(output)).decode
    shards = [
        Shard(output / info.name, info) for split in Manifest.read(output).splits.values() for info in split.shards
    ]
    return [decode(shard.document(j)[:-1].tolist()) for shard in shards for j in range(len(shard))]


def rejected(output: Path) -> list[dict[str, Any]]:
    """Return the lines of ``rejected.jsonl``."""
    return [json.loads(line) for line in (output / "rejected.jsonl").read_text().splitlines()]


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder by their names there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def digests(directory: Path) -> dict[str, str]:
    """sha256 of everything that identical builds share."""
    names = [path for path in sorted(directory.iterdir()) if path.is_file() and path.name != "run.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


class Built(PosixPath):
    """The directory of a dataset that `run_plain` built, and what it holds."""

    @classmethod
    def of(cls, folder: Path, records: Iterable[Any], name: str = "out", **options: Any) -> Built:
        """Build records, or texts, into a directory of this name in a folder."""
        run_plain(write_jsonl(folder / "in.jsonl", records), folder / name, **options)
        return cls(folder / name)

    @property
    def manifest(self) -> Manifest:
        return Manifest.read(self)

    @property
    def counts(self) -> dict[str, Any]:
        return self.manifest.counts

    @property
    def ids(self) -> list[str | None]:
        """The ids of the documents of the split ``train``."""
        return table(self)["id"]

    @property
    def kept(self) -> list[str]:
        return kept(self)

    @property
    def rejected(self) -> list[dict[str, Any]]:
        return rejected(self)

    @property
    def report(self) -> str:
        return (self / "report.html").read_text(encoding="utf-8")
