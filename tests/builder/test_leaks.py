"""The report says how much of validation is in training, as comparing all runs of 13 words of both would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pipeline
from filters.words import words
from pipeline.builder.stages import leaks
from pipeline.builder.stages.leaks import leaks_text
from pipeline.finished.documents import DatasetDocuments
from tests.helpers.builds import Built, digests, run_plain, write_jsonl
from tests.helpers.corpus import WORDS

RUN = 13


def prose(seed: int, count: int) -> str:
    generator = random.Random(seed)
    return " ".join(generator.choices([word + ending for word in WORDS for ending in ("", "s", "ing", "ed")], k=count))


def texts_of(output: Path) -> dict[str, list[str]]:
    documents = DatasetDocuments(output)
    texts: dict[str, list[str]] = {"train": [], "val": []}
    for split, shard in documents.shards():
        texts[split] += [text for batch in documents.texts(shard) for text in batch]
    return texts


def oracle(texts: dict[str, list[str]]) -> dict[str, int]:
    def runs(found: Sequence[str]) -> list[tuple[str, ...]]:
        return [tuple(found[k : k + RUN]) for k in range(len(found) - RUN + 1)]

    training = {run for text in texts["train"] for run in runs([word for word, *_ in words(text)])}
    equal = mostly = total = shared = 0
    for text in texts["val"]:
        found = [word for word, *_ in words(text)]
        covered = [False] * len(found)
        for k, run in enumerate(runs(found)):
            if run in training:
                covered[k : k + RUN] = [True] * RUN
        total, shared = total + len(found), shared + sum(covered)
        equal += text in texts["train"]
        mostly += text not in texts["train"] and any(covered) and sum(covered) >= 0.8 * len(found)
    number = len(texts["val"])
    counts = {"documents": number, "of": number, "equal": equal, "mostly": mostly}
    return counts | {"words": total, "shared_words": shared}


def corpus() -> list[str]:
    """Documents of which some quote others: a sentence, most of them, or 12 words, which are too few."""
    texts = [prose(k, 20 + 3 * k if k % 2 else 20) for k in range(80)]
    for k in range(0, 80, 2):
        source, size = texts[(k + 31) % 80].split(), (12, 13, 30, 500)[k // 2 % 4]
        texts[k] += " " + " ".join(source[2 : 2 + size])
    return [*texts, "too short", "人们为什么在夜里看见那么多的星星" * 3, "人们为什么在夜里看见那么多的星星。为什么"]


@pytest.mark.parametrize("tokenizer", ["bytes", "train:500"])
def test_the_counts_are_those_of_all_runs_of_words(tmp_path: Path, tokenizer: str) -> None:
    out = Built.of(tmp_path, corpus(), val_fraction=0.3, tokenizer=tokenizer, dedup=False)
    expected = oracle(texts_of(out))
    assert out.counts["leaks"] == expected
    assert 0 < expected["mostly"] < expected["documents"]
    page = out.report
    assert leaks_text(expected) in page


def test_documents_beyond_a_quota_are_in_neither_split(tmp_path: Path) -> None:
    out = Built.of(tmp_path, corpus(), val_fraction=0.3, max_tokens=12_000)
    texts = texts_of(out)
    assert sum(map(len, texts.values())) < 60
    assert out.counts["leaks"] == oracle(texts)


def test_a_part_of_another_document_with_the_same_text_is_equal(tmp_path: Path) -> None:
    """Equal documents share a split, but parts have the split of their wholes."""
    (tmp_path / "parts.py").write_text(
        "from dataclasses import replace\n\nfrom pipeline import transform\n\n\n"
        "@transform\ndef parts(document):\n"
        "    return [replace(document, text=part) for part in document.text.split('\\n\\n')]\n"
    )
    same = [prose(k, 30) for k in range(4)]
    whole = [f"{prose(100 + k, 40)}\n\n{same[k % 4]}" for k in range(40)]
    options: dict[str, Any] = {"transforms": [f"{tmp_path / 'parts'}:parts"], "dedup": False, "val_fraction": 0.3}
    out = Built.of(tmp_path, whole, **options)
    expected = oracle(texts_of(out))
    assert out.counts["leaks"] == expected
    assert expected["equal"] > 3


def test_workers_and_cuts_of_units_do_not_change_the_counts(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", corpus())
    made = []
    for number, options in enumerate([{"workers": 1}, {"workers": 2}]):
        made.append(run_plain(source, tmp_path / f"out{number}", val_fraction=0.3, **options).counts["leaks"])
    assert made[0] == made[1]
    assert digests(tmp_path / "out0") == digests(tmp_path / "out1")


def test_much_validation_is_compared_in_part(tmp_path: Path) -> None:
    out = Built.of(tmp_path, [f"{prose(k, 7_000)} {prose(k + 1, 100)}" for k in range(30)], val_fraction=0.9)
    found = out.counts["leaks"]
    assert out.manifest.splits["val"].tokens > leaks.MOST_TOKENS
    assert 3 < found["documents"] < found["of"] == out.manifest.splits["val"].documents
    assert found["words"] == pytest.approx(7_100 * found["documents"], rel=0.01)
    assert 0 < found["shared_words"] < 200 * found["documents"]


def test_a_build_without_validation_compares_nothing(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", corpus())
    assert "leaks" not in run_plain(source, tmp_path / "out", val_fraction=0).counts
    assert pipeline.Manifest.read(tmp_path / "out").counts["kept"] > 60
