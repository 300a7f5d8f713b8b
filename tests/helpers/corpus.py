"""A small corpus with everything a build meets: duplicates, junk, other languages, bad records, several formats."""

from __future__ import annotations

import csv
import gzip
import random
from pathlib import Path

import orjson
import zstandard

WORDS = (
    "the to of and that have with be time people way water day part sound work place year live back give most very after"
    " thing name good sentence man think say great where help through much before line right too mean old any same tell"
    " boy follow came want show also around form three small set put end does another well large must big even such"
).split()
GERMAN = (
    "Die Stadt liegt an einem Fluss und hat viele alte Häuser. Im Sommer kommen Besucher aus aller Welt, um die Kirche und"
    " den Markt zu sehen. Am Abend sitzen die Menschen vor den Gasthäusern und reden über den Tag, der zu Ende geht. "
)


def english(seed: int, sentences: int = 20) -> str:
    """Return text that reads as English to a language identifier and to Gopher's rules."""
    generator = random.Random(seed)
    found = []
    for _ in range(sentences):
        words = generator.choices(WORDS, k=generator.randint(6, 14))
        found.append(" ".join(words).capitalize() + ".")
    return " ".join(found)


def documents(count: int = 300) -> list[dict[str, str]]:
    """Return ``count`` records: each tenth an exact duplicate, an edited one, too short, or German."""
    found = []
    for number in range(count):
        text = english(number, 12 + number % 30)
        match number % 10:
            case 3:
                text = english(number - 3, 12 + (number - 3) % 30)
            case 5:
                text = english(number - 5, 12 + (number - 5) % 30) + " And one more."
            case 7:
                text = "Too short."
            case 9:
                text = GERMAN * 2 + str(number)
        found.append({"id": f"doc-{number}", "text": text})
    return found


def write_inputs(directory: Path, count: int = 300) -> list[str]:
    """Write the corpus as jsonl, jsonl.gz, jsonl.zst, parquet, csv and txt; return the paths in input order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir(parents=True, exist_ok=True)
    every = documents(count)
    parts = [every[k::5] for k in range(5)]
    lines = [b"".join(orjson.dumps(record) + b"\n" for record in part) for part in parts]
    (directory / "a.jsonl").write_bytes(lines[0] + b'{"id": "cut", "text": \n{"id": "none"}\n')
    (directory / "b.jsonl.gz").write_bytes(gzip.compress(lines[1], mtime=0))
    (directory / "c.jsonl.zst").write_bytes(zstandard.compress(lines[2]))
    columns = {name: [record[name] for record in parts[3]] for name in ("id", "text")}
    pq.write_table(pa.table(columns), directory / "d.parquet")
    with open(directory / "e.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(parts[4])
    (directory / "f.txt").write_text(english(10_000), encoding="utf-8")
    return [str(path) for path in sorted(directory.iterdir())]
