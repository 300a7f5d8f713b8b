"""Files broken at random: each gives a sound dataset that counts what it lost, or an error that names the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ShardwrightError
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import run_plain
from tests.helpers.corpus import english
from tests.helpers.format_samples import FORMATS

PAIRS = [(f"d{k}", english(k, 8) + " é中" * (k % 3)) for k in range(40)]
NAMES = (
    "x.jsonl",
    "x.JSONL.GZ",
    "x.jsonl.zst",
    "x.json",
    "x.csv",
    "x.parquet",
    "x.arrow",
    "x.tar",
    "x.warc",
    "x.warc.gz",
)


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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_a_broken_file_is_counted_or_named_and_never_more(tmp_path: Path, name: str) -> None:
    generator = random.Random(name)
    for number in range(2):
        (tmp_path / name).write_bytes(mutate(FORMATS[name](PAIRS), generator))
        output = tmp_path / f"out-{number}"
        settings: dict[str, Any] = {"rules": generator.choice(["none", "c4"]), "val_fraction": 0.1}
        settings["on_error"] = generator.choice(["stop", "records", "skip"])
        manifest, refusal = None, ""
        try:
            manifest = run_plain(tmp_path / name, output, **settings)
        except ShardwrightError as error:
            refusal = str(error)
        if manifest is None:
            assert name in refusal
            assert not (output / "manifest.json").exists()
            continue
        counts = manifest.counts
        assert counts["read"] == counts["kept"] + sum(counts["dropped"].values()) + sum(counts["duplicates"].values())
        assert list(verify_dataset(output)) == []
