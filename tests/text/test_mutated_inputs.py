"""Files broken at random: each gives a sound dataset that counts what it lost, or an error that names the file."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.errors import ShardwrightError
from pipeline.shards.verify.dataset import verify_dataset
from tests.corpus import english

DOCUMENTS = [{"id": f"d{k}", "text": english(k, 8) + " é中" * (k % 3)} for k in range(40)]
LINES = b"".join(json.dumps(each, ensure_ascii=k % 2 > 0).encode() + b"\n" for k, each in enumerate(DOCUMENTS))
CSV = ("id,text\n" + "".join(f'{each["id"]},"{each["text"]}"\n' for each in DOCUMENTS)).encode()


def parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    table = pa.table({name: [each[name] for each in DOCUMENTS] for name in ("id", "text")})
    pq.write_table(table, sink, row_group_size=13)
    return bytes(sink.getvalue())


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for each in DOCUMENTS:
            member = tarfile.TarInfo(f"{each['id']}.txt")
            member.size = len(each["text"].encode())
            made.addfile(member, io.BytesIO(each["text"].encode()))
    return file.getvalue()


FILES = {
    "a.jsonl": lambda: LINES,
    "a.jsonl.gz": lambda: gzip.compress(LINES, mtime=0),
    "a.jsonl.zst": lambda: zstandard.ZstdCompressor(write_checksum=True).compress(LINES),
    "a.json": lambda: json.dumps(DOCUMENTS).encode(),
    "a.csv": lambda: CSV,
    "a.txt": lambda: DOCUMENTS[0]["text"].encode(),
    "a.parquet": parquet,
    "a.tar": tar,
}


def mutate(data: bytes, generator: random.Random) -> bytes:
    """Break a file as disks, networks and other people's scripts do."""
    raw = bytearray(data)
    for _ in range(generator.choice([1, 1, 2, 5])):
        at = generator.randrange(max(1, len(raw)))
        match generator.choice(["flip", "zero", "cut", "insert", "lose", "repeat"]):
            case "flip" if raw:
                raw[at] ^= 1 << generator.randrange(8)
            case "zero":
                raw[at : at + 16] = bytes(len(raw[at : at + 16]))
            case "cut":
                del raw[at:]
            case "insert":
                raw[at:at] = generator.randbytes(generator.randrange(20))
            case "lose":
                del raw[at : at + generator.randrange(40)]
            case "repeat":
                raw[at:at] = raw[at : at + generator.randrange(200)]
    return bytes(raw)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("ignore")
def test_a_broken_file_is_counted_or_named_and_never_more(tmp_path: Path, name: str) -> None:
    generator = random.Random(name)
    for number in range(4):
        (tmp_path / name).write_bytes(mutate(FILES[name](), generator))
        output = tmp_path / f"out-{number}"
        settings: dict[str, Any] = {
            "tokenizer": "bytes",
            "rules": generator.choice(["none", "c4"]),
            "val_fraction": 0.1,
        }
        settings["on_error"] = generator.choice(["stop", "records", "skip"])
        manifest, refusal = None, ""
        try:
            manifest = build(tmp_path / name, output, progress=Progress(quiet=True), **settings)
        except ShardwrightError as error:
            refusal = str(error)
        if manifest is None:
            assert name in refusal
            assert not (output / "manifest.json").exists()
            continue
        counts = manifest.counts
        assert counts["read"] == counts["kept"] + sum(counts["dropped"].values()) + sum(counts["duplicates"].values())
        assert list(verify_dataset(output)) == []
