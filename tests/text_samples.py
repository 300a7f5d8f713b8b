"""Small text files of every kind that several test files read."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

KINDS = ("jsonl", "jsonl.gz", "jsonl.zst", "csv", "parquet", "tar")


def make_texts(count: int, seed: int = 0, longest: int = 60) -> list[str]:
    """Return ``count`` different texts of 1 to ``longest`` words."""
    generator = random.Random(seed)
    words = ["to", "be", "or", "not", "that", "is", "the", "question", "Fluß", "été", "水"]
    return [f"{seed}.{n} " + " ".join(generator.choices(words, k=generator.randint(1, longest))) for n in range(count)]


def write_texts(path: Path, texts: Sequence[str]) -> Path:
    """Write texts as records of the kind that the path's ending names; ids are ``stem-number``."""
    kind = path.name.partition(".")[2]
    records = [{"text": text, "id": f"{path.name.partition('.')[0]}-{n}"} for n, text in enumerate(texts)]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    if kind == "jsonl":
        path.write_bytes(lines)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines, mtime=0))
    elif kind == "jsonl.zst":
        path.write_bytes(zstandard.compress(lines))
    elif kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "id"])
            writer.writeheader()
            writer.writerows(records)
    elif kind == "parquet":
        pq.write_table(pa.table({"text": list(texts), "id": [record["id"] for record in records]}), path)
    elif kind == "tar":
        write_tar(path, {f"{n:06d}.txt": text.encode() for n, text in enumerate(texts)})
    else:
        raise ValueError(kind)
    return path


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    """Write a tar with these members."""
    with tarfile.open(path, "w") as tar:
        for name, payload in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            tar.addfile(info, io.BytesIO(payload))
    return path


def spelled(ids: Any) -> str:
    """Return the text of the ids of the ``bytes`` tokenizer, without its end-of-text ids."""
    return bytes(int(id) - 3 for id in ids if int(id) > 2).decode("utf-8", "replace")


WORDS = "the of and that with people water through between something never another house began evening light".split()


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=12)) + "." for _ in range(count)]


def jsonl(path: Path, texts: list[str]) -> Path:
    lines = "\n".join(json.dumps({"id": f"page-{k}", "text": text}) for k, text in enumerate(texts))
    path.write_bytes(zstandard.compress(lines.encode()) if path.suffix == ".zst" else lines.encode())
    return path
