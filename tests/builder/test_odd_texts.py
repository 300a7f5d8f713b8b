"""Odd texts and ids through a whole build: each is kept, or dropped and counted, and none does harm to another."""

from __future__ import annotations

import resource
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.limits import Limits
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import ROOT, kept, rejected, run_plain, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.shard_samples import Shard


def run(folder: Path, records: list[dict[str, Any]], **options: Any) -> Manifest:
    return run_plain(write_jsonl(folder / "in.jsonl", records), folder / "out", **options)


EMPTY = ["", " \n\t ", "\x00", "\x00\x01 \x7f", "\u3000\u2003"]


@pytest.mark.parametrize("rules", ["none", "gopher,fineweb,c4,code,profanity"])
def test_texts_of_nothing_are_dropped_under_a_reason_whatever_the_rules(tmp_path: Path, rules: str) -> None:
    manifest = run(tmp_path, [{"text": text} for text in EMPTY], rules=rules, keep_rejected=True)
    assert (manifest.counts["read"], manifest.counts["kept"]) == (5, 0)
    assert manifest.counts["dropped"] == {"empty text": 5}
    assert [each["reason"] for each in rejected(tmp_path / "out")] == ["empty text"] * 5


def test_a_text_that_holds_nul_is_kept_without_it_or_byte_for_byte_where_asked(tmp_path: Path) -> None:
    text = "before\x00after " + english(0)
    for normalize, wanted in ((True, text.replace("\x00", "")), (False, text)):
        run(tmp_path / str(normalize), [{"text": text}, {"text": "\x00" * 5}], normalize=normalize)
        assert wanted in kept(tmp_path / str(normalize) / "out")


def test_texts_that_normalise_alike_are_exact_duplicates(tmp_path: Path) -> None:
    text = "Naïve café, Ångström, 각 " + english(1)
    forms = [unicodedata.normalize(form, text) for form in ("NFD", "NFC")]
    assert forms[0] != forms[1]
    ends = ["one line\r\nand two", "one line\nand two", "one line\rand two"]
    manifest = run(tmp_path, [{"text": form} for form in (*forms, *ends)])
    assert manifest.counts["duplicates"] == {"exact": 3, "near": 0}
    assert kept(tmp_path / "out") == [forms[1], ends[1]]


def test_short_texts_are_duplicates_only_of_their_likes(tmp_path: Path) -> None:
    texts = ["cat", "dog", "cat", "1", "2", "!", "?", "猫", "犬", "猫"]
    manifest = run(tmp_path, [{"text": text} for text in texts])
    assert kept(tmp_path / "out") == ["cat", "dog", "1", "2", "!", "?", "猫", "犬"]
    assert manifest.counts["duplicates"] == {"exact": 2, "near": 0}


def test_ids_of_any_kind_give_safe_keys_that_are_unique_over_all_shards(tmp_path: Path) -> None:
    import webdataset

    ids: list[Any] = ["a/b.c", "../up", "a b", "a b", "", "x" * 300, "é\n\x00", 7, None, "CON", "__index__/starts"]
    records = [{"id": id, "text": english(n)} for n, id in enumerate(ids * 8)]
    limits = Limits(partition_characters=4_000, batch_records=5)
    manifest = run(tmp_path, records, dedup=False, val_fraction=0.2, tokens_per_shard=9_000, limits=limits)
    assert len(manifest.splits["train"].shards) > 2
    assert list(verify_dataset(tmp_path / "out")) == []
    keys, origins = [], []
    for path in sorted((tmp_path / "out").glob("*.tar")):
        table = Shard(path).table()
        keys += table["key"]
        origins += table["id"]
        found = [sample["__key__"] for sample in webdataset.WebDataset(str(path), shardshuffle=False).decode()]
        assert found == table["key"]
    assert sorted(keys) == [f"{number:012d}" for number in range(len(records))]
    assert all(key.isascii() and key.isalnum() for key in keys)
    assert {"a/b.c", "../up", "a b", "x" * 300, "é\n\x00", "7", "CON"} <= set(origins)


def test_no_text_is_in_both_training_and_validation(tmp_path: Path) -> None:
    records = [{"text": english(n % 60)} for n in range(600)]
    limits = Limits(partition_characters=40_000, batch_records=20)
    manifest = run(tmp_path, records, dedup=False, val_fraction=0.3, limits=limits)
    assert manifest.counts["kept"] == 600
    texts = [set(_texts(tmp_path / "out", split)) for split in ("train", "val")]
    assert texts[0]
    assert texts[1]
    assert not texts[0] & texts[1]


def test_no_near_duplicates_are_parted_by_training_and_validation(tmp_path: Path) -> None:
    records = [{"text": english(n, 40) + more} for n in range(60) for more in ("", " And this.", " And that.")]
    manifest = run(tmp_path, records, val_fraction=0.3)
    assert manifest.counts["kept"] == 60
    assert min(split.documents for split in manifest.splits.values()) > 5
    heads = [{text[:200] for text in _texts(tmp_path / "out", split)} for split in ("train", "val")]
    assert not heads[0] & heads[1]


def _texts(output: Path, split: str) -> list[bytes]:
    shards = [Shard(path) for path in sorted(output.glob(f"{split}-*.tar"))]
    return [bytes(shard.document(n)[:-1].astype("u1")) for shard in shards for n in range(len(shard))]


def test_megabytes_without_a_space_take_bounded_time_and_memory(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = [letters[n % 26] + "".join(letters[(n * k + k // 7) % 26] for k in range(997)) for n in range(1, 3)]
    huge = [(text * 4_100)[:4_000_000] for text in texts] + ["漢字仮名" * 400_000]
    records = [{"text": text} for text in [*huge, *(english(n) for n in range(50))]]
    write_jsonl(tmp_path / "in.jsonl", records)
    command = [sys.executable, str(ROOT / "scripts/build_shards.py"), str(tmp_path / "in.jsonl"), "--quiet"]
    command += ["--output", str(tmp_path / "out"), "--tokenizer", "train:400", "--rules", "gopher", "--workers", "1"]
    limited = subprocess.run(command, preexec_fn=_four_gigabytes, capture_output=True, text=True, timeout=100)
    assert limited.returncode == 0, limited.stderr
    assert Manifest.read(tmp_path / "out").counts["read"] == 53


def _four_gigabytes() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
