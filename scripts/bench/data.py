"""Generated datasets, texts and tokenizers, written unless they exist."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from pipeline.shards.extents.table_file import write_table
from pipeline.shards.manifest import Manifest, Split
from pipeline.shards.shard_access import ShardAccess
from pipeline.shards.writer import write_shard
from pipeline.text.readers.document_reader import Document, DocumentReader, find_inputs
from pipeline.text.tokens.tokenizer import train_tokenizer
from pipeline.text.where import Where
from scripts.demo import write_corpus

SEQ_LEN, BATCH = 2048, 32
TOKENS_PER_BATCH = SEQ_LEN * BATCH
TOKENIZER = {"name": "bench", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": 0, "bos_id": None, "special_ids": {}}


def dataset(
    directory: Path, *, shards: int, documents: int, median: int, copies: int = 1, group: int = 1 << 20
) -> Path:
    """Return a dataset of random tokens: each shard has ``documents`` with log-normal lengths, as in web text.

    Neighbours share members of ``group`` tokens (0: one document a member). Each shard is listed ``copies`` times by hard
    links with other names, so the disk holds less than the dataset's size.
    """
    path = directory / "shards" / f"{shards}x{copies}-{documents}-{median}-{group}"
    if (path / "manifest.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    infos, tables = [], []
    for number in range(shards):
        lengths = np.minimum(generator.lognormal(np.log(median), 0.9, documents) + 1, 20_000).astype(np.int64)
        tokens = generator.integers(1, 60_000, int(lengths.sum())).astype("<u2")
        keys = [f"{number:06d}{document:08d}" for document in range(documents)]
        original = path / f"original-{number:06d}.tar"
        info, table = write_shard(original, tokens=tokens, lengths=lengths, keys=keys, tokens_per_sample=group)
        for copy in range(copies):
            listed = f"train-{number * copies + copy:06d}.tar"
            (path / listed).unlink(missing_ok=True)
            os.link(original, path / listed)
            infos.append(info._replace(name=listed))
            tables.append(table)
        original.unlink()
    Manifest("<u2", TOKENIZER, {"train": Split(tuple(infos))}, write_table(path, tables, "<u2")).write(path)
    return path


def flat_tokens(path: Path) -> NDArray[np.uint16]:
    """Return all tokens of a dataset as one memory-mapped file, as for nanoGPT."""
    file = path / "tokens.bin"
    if not file.exists():
        with file.open("wb") as out:
            for info in Manifest.read(path).split("train").shards:
                index = ShardAccess(use_cache=False).index(str(path / info.name))
                raw = np.fromfile(path / info.name, np.uint8)
                for start, length in zip(index.starts, index.lengths * index.dtype.itemsize, strict=True):
                    out.write(raw[start : start + length].tobytes())
    return np.memmap(file, dtype="<u2", mode="r")


def text_files(directory: Path, texts: str | None) -> list[str]:
    """Return the files of a glob, by default those of the demo's corpus."""
    if texts:
        return sorted(glob.glob(texts))
    if not (directory / "texts").is_dir():
        write_corpus(directory / "texts")
    return sorted(map(str, (directory / "texts").iterdir()))


def tokenizer_folder(directory: Path, files: Sequence[str]) -> Path:
    """Return the folder of a BPE of 32,000 ids. If it does not exist, train it on the beginning of the first file."""
    path = directory / f"tokenizer-{sum(map(os.path.getsize, files))}"
    if not (path / "tokenizer.json").exists():
        train_tokenizer(list(islice(read_lines(files[:1]), 4_000)), 32_000).save(path)
    return path


def read_lines(files: Sequence[str]) -> Iterator[str]:
    """Yield the texts of ``.jsonl.zst`` files, read with only zstandard and orjson."""
    for file in files:
        with open(file, "rb") as raw:
            for line in io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw), 1 << 20):
                yield orjson.loads(line)["text"]


def read_inputs(inputs: Sequence[str], where: str | None = None) -> Iterator[Document]:
    """Yield the documents of files, directories or globs that ``where`` selects, without bad records."""
    for file in find_inputs(inputs):
        records = DocumentReader(file, where=Where.parse(where) if where else None)
        yield from (record for record in records if isinstance(record, Document))
