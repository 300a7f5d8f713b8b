"""Small text files of every kind that several test files read."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

from tests.helpers.format_samples import as_csv, as_gzip, as_jsonl, as_members, as_parquet, as_zst, tar_of, warc_pages


def make_texts(count: int, seed: int = 0, longest: int = 60) -> list[str]:
    """Return ``count`` different texts of 1 to ``longest`` words."""
    generator = random.Random(seed)
    words = ["to", "be", "or", "not", "that", "is", "the", "question", "Fluß", "été", "水"]
    return [f"{seed}.{n} " + " ".join(generator.choices(words, k=generator.randint(1, longest))) for n in range(count)]


_WRITERS = {
    "jsonl": as_jsonl,
    "jsonl.gz": lambda pairs: as_gzip(as_jsonl(pairs)),
    "jsonl.zst": lambda pairs: as_zst(as_jsonl(pairs)),
    "csv": as_csv,
    "parquet": partial(as_parquet, rows_per_group=1 << 20),
    "warc.gz": lambda pairs: as_members(warc_pages(pairs)),
    "tar": lambda pairs: tar_of({f"{n:06d}.txt": text.encode() for n, (_, text) in enumerate(pairs)}),
}
KINDS = tuple(_WRITERS)


def write_texts(path: Path, texts: Sequence[str]) -> Path:
    """Write texts as records of the kind that the path's ending names; ids are ``stem-number``."""
    stem, _, kind = path.name.partition(".")
    path.write_bytes(_WRITERS[kind]([(f"{stem}-{n}", text) for n, text in enumerate(texts)]))
    return path


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write a tar with these members."""
    path.write_bytes(tar_of(members))
    return path


def spelled(ids: Any) -> str:
    """Return the text of the ids of the ``bytes`` tokenizer, without its end-of-text ids."""
    return bytes(int(id) - 3 for id in ids if int(id) > 2).decode("utf-8", "replace")


WORDS = "the of and that with people water through between something never another house began evening light".split()


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=12)) + "." for _ in range(count)]


def write_sources(directory: Path, counts: Mapping[str, int]) -> Path:
    """Write a file of so many texts for each source, ``NAME.jsonl``; texts of source ``n`` begin with ``n.``."""
    for seed, (name, count) in enumerate(counts.items()):
        jsonl(directory / f"{name}.jsonl", make_texts(count, seed, 20))
    return directory


def jsonl(path: Path, texts: list[str]) -> Path:
    lines = "\n".join(json.dumps({"id": f"page-{k}", "text": text}) for k, text in enumerate(texts))
    path.write_bytes(zstandard.compress(lines.encode()) if path.suffix == ".zst" else lines.encode())
    return path
