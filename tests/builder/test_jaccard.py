"""Near duplicates that are verified on the exact Jaccard similarity of their shingles."""

from __future__ import annotations

import json
import random
from pathlib import Path

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.dedup.minhash import shingles
from pipeline.shards.manifest import Manifest

THRESHOLD = 0.8


def pairs(count: int) -> list[tuple[str, str]]:
    """Return texts with an edited copy of each, of a similarity about the threshold."""
    generator = random.Random(4)
    found = []
    for number in range(count):
        words = [f"w{generator.randrange(10**6)}" for _ in range(200)]
        copy = list(words)
        for place in generator.sample(range(0, 200, 6), generator.randint(1, 8)):
            copy[place] = "edited"
        found.append((f"n{number} " + " ".join(words), f"n{number} " + " ".join(copy)))
    return found


def jaccard(a: str, b: str) -> float:
    one, other = set(shingles(a)), set(shingles(b))
    return len(one & other) / len(one | other)


def built(inputs: Path, output: Path, verify: str, **options: object) -> Manifest:
    settings = {
        "tokenizer": "bytes",
        "rules": "none",
        "keep_rejected": True,
        "dedup_bands": 28,
        "dedup_rows": 4,
        **options,
    }
    return build(
        inputs, output, dedup_verify=verify, dedup_threshold=THRESHOLD, progress=Progress(quiet=True), **settings
    )


def dropped(output: Path) -> set[int]:
    lines = (output / "rejected.jsonl").read_text().splitlines()
    return {int(json.loads(line)["id"].split("-")[0]) for line in lines}


def test_exact_verification_drops_what_is_as_similar_as_asked_and_nothing_else(tmp_path: Path) -> None:
    every = pairs(300)
    lines = [{"id": f"{k}-{side}", "text": texts[side]} for side in (0, 1) for k, texts in enumerate(every)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    true = {k for k, (a, b) in enumerate(every) if jaccard(a, b) >= THRESHOLD}
    assert 50 < len(true) < 250
    built(tmp_path / "in.jsonl", tmp_path / "exact", "exact")
    built(tmp_path / "in.jsonl", tmp_path / "estimated", "signatures")
    assert dropped(tmp_path / "exact") == true
    estimated = dropped(tmp_path / "estimated")
    assert estimated != true
    assert len(estimated ^ true) < 60


def test_a_pair_exactly_on_the_threshold_is_a_duplicate_and_one_just_below_it_is_not(tmp_path: Path) -> None:
    lines, true = [], set()
    for k in range(40):
        words = [f"n{k}w{place}" for place in range(14 - k % 2)]
        texts = " ".join(words), " ".join(words[: 12 - k % 2])  # 8 of 10 shingles, or 7 of 9
        lines += [{"id": f"{k}-{side}", "text": text} for side, text in enumerate(texts)]
        true |= {k} if jaccard(*texts) == THRESHOLD else set()
    assert len(true) == 20
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    built(tmp_path / "in.jsonl", tmp_path / "out", "exact")
    assert dropped(tmp_path / "out") == true


def test_against_an_earlier_build_the_signatures_decide(tmp_path: Path) -> None:
    every = pairs(40)
    for side in (0, 1):
        lines = [{"id": f"{k}-{side}", "text": texts[side]} for k, texts in enumerate(every)]
        (tmp_path / f"{side}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    built(tmp_path / "0.jsonl", tmp_path / "first", "exact")
    second = [
        built(tmp_path / "1.jsonl", tmp_path / verify, verify, against=[str(tmp_path / "first")])
        for verify in ("exact", "signatures")
    ]
    assert second[0].counts["duplicates"] == second[1].counts["duplicates"]
    assert second[0].counts["duplicates"]["near"] > 5
