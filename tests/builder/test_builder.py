"""A build writes the documents that it keeps and accounts for every other, with the same bytes whatever the workers."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from filters.language.language import LanguageIdentifier
from pipeline.builder.inputs import list_inputs
from pipeline.builder.limits import Limits
from pipeline.builder.plan import cut_units
from pipeline.errors import BuildError, ConfigError, InputError, PlanChangedError
from pipeline.shards.manifest import Manifest
from pipeline.shards.reader import Shard
from pipeline.shards.verify.dataset import verify_dataset
from pipeline.text.tokenizer.tokenizer import load_tokenizer
from tests.builds import ROOT, digests, run
from tests.corpus import documents, english


def test_what_is_built_verifies_and_leaves_no_work_behind(built: Path) -> None:
    assert list(verify_dataset(built)) == []
    assert not (built / ".build").exists()


def test_every_stage_adds_up_and_every_loss_has_a_reason(built: Path) -> None:
    counts = Manifest.read(built).counts
    assert counts["read"] == 301
    assert sum(counts["bad"].values()) == sum(counts["bad_by_source"].values()) == 2
    assert counts["dropped"] == {"words": 30, "language": 30}
    assert counts["duplicates"]["exact"] == 30
    assert counts["duplicates"]["near"] >= 20
    assert counts["read"] == sum(counts["dropped"].values()) + sum(counts["duplicates"].values()) + counts["kept"]
    assert sum(held["read"] for held in counts["by_language"].values()) == counts["read"]
    assert sum(held["kept"] for held in counts["by_source"].values()) == counts["kept"]


def test_shards_hold_the_kept_documents_in_input_order_with_their_origin(built: Path, inputs: list[str]) -> None:
    manifest, tokenizer = Manifest.read(built), load_tokenizer(str(built))
    texts = {record["id"]: record["text"] for record in documents()}
    seen = []
    for split in manifest.splits.values():
        for info in split.shards:
            shard = Shard(built / info.name, info)
            table = shard.table()
            for j, (name, file, line) in enumerate(zip(table["id"], table["file"], table["line"], strict=True)):
                ids = shard.document(j)
                assert ids[-1] == manifest.tokenizer["eos_id"]
                expected = english(10_000) if name == "f" else texts[name]
                assert tokenizer.decode(ids[:-1].tolist()) == expected
                seen.append((file, line))
    train = seen[: manifest.splits["train"].documents]
    assert train == sorted(train)
    assert len(set(seen)) == manifest.counts["kept"]


def test_the_stream_reads_every_token_that_webdataset_reads(built: Path) -> None:
    import webdataset

    paths = sorted(map(str, built.glob("train-*.tar")))
    plain = [sample["npy"] for sample in webdataset.WebDataset(paths, shardshuffle=False).decode()]
    ours = [item["input_ids"].numpy() for item in pipeline.ShardDataset(built, epochs=1).documents()]
    assert len(plain) == len(ours) > 50
    for a, b in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2, "start_method": "spawn"},
        {"workers": 3, "start_method": "fork"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_any_number_of_workers_gives_the_same_bytes(
    inputs: list[str], built: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    run(inputs, tmp_path / "shards", **options)
    assert digests(tmp_path / "shards") == digests(built)


def test_the_hash_seed_of_python_changes_nothing(inputs: list[str], built: Path, tmp_path: Path) -> None:
    flags = ["--tokenizer", "train:400", "--language", "en=0.2", "--rules", "gopher_quality", "--val-fraction", "0.1"]
    command = [
        sys.executable,
        str(ROOT / "scripts/build_shards.py"),
        *inputs,
        "--output",
        str(tmp_path / "shards"),
        *flags,
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True)
    assert digests(tmp_path / "shards") == digests(built)


def test_the_same_documents_come_out_of_every_format(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = documents(60)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "a.jsonl").write_text(lines)
    pq.write_table(pa.table({k: [r[k] for r in records] for k in ("id", "text")}), tmp_path / "a.parquet")
    found = []
    for name in ("a.jsonl", "a.parquet"):
        manifest = run(tmp_path / name, tmp_path / f"{name}.out", tokenizer="bytes")
        shards = [Shard(tmp_path / f"{name}.out" / i.name, i) for i in manifest.splits["train"].shards]
        found.append([shard.document(j).tolist() for shard in shards for j in range(len(shard))])
    assert found[0] == found[1] != []


def test_nothing_survives_is_a_valid_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "short"}\n')
    manifest = run(tmp_path / "in.jsonl", tmp_path / "out", tokenizer="bytes")
    assert manifest.splits["train"].documents == 0
    assert list(tmp_path.glob("out/*.tar")) == []
    assert sum(Manifest.read(tmp_path / "out").counts["dropped"].values()) == 1
    assert list(verify_dataset(tmp_path / "out")) == []


def test_special_tokens_in_text_never_become_their_ids(tmp_path: Path) -> None:
    text = english(1, 30) + " <|endoftext|> " + english(2, 30)
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": text}) + "\n")
    manifest = run(tmp_path / "in.jsonl", tmp_path / "out", val_fraction=0)
    shard = Shard(tmp_path / "out" / "train-000000.tar")
    ids = shard.document(0).tolist()
    assert ids.count(manifest.tokenizer["eos_id"]) == 1
    assert load_tokenizer(str(tmp_path / "out")).decode(ids[:-1]) == text


def test_documents_end_with_the_token_that_is_named(built: Path, tmp_path: Path) -> None:
    definition = json.loads((built / "tokenizer.json").read_text())
    number = max(definition["model"]["vocab"].values()) + 1
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": number, "content": "<|im_end|>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": english(1, 30)}) + "\n")
    settings = {"tokenizer": str(tmp_path / "tokenizer.json"), "val_fraction": 0}
    manifest = run(tmp_path / "in.jsonl", tmp_path / "out", eos="<|im_end|>", **settings)
    assert manifest.tokenizer["eos_id"] == number == Shard(tmp_path / "out" / "train-000000.tar").document(0)[-1]
    assert load_tokenizer(str(tmp_path / "out")).eos_id == number
    usual = run(tmp_path / "in.jsonl", tmp_path / "usual", **settings)
    assert usual.tokenizer["eos_id"] == definition["added_tokens"][0]["id"]
    with pytest.raises(PlanChangedError, match="eos"):
        run(tmp_path / "in.jsonl", tmp_path / "out", **settings)
    with pytest.raises(ConfigError, match="no token '<end>'"):
        run(tmp_path / "in.jsonl", tmp_path / "other", eos="<end>", **settings)
    with pytest.raises(ConfigError, match="leave --eos out"):
        run(tmp_path / "in.jsonl", tmp_path / "other", eos="<end>", val_fraction=0)


def test_a_document_stays_from_the_score_of_its_language_on_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": english(1, 30)}) + "\n")
    score = LanguageIdentifier().identify(english(1, 30)).score
    for number, (least, kept) in enumerate(((score, 1), (math.nextafter(score, 1), 0))):
        options = {"tokenizer": "bytes", "rules": (), "language": f"en={least!r}"}
        counts = run(tmp_path / "in.jsonl", tmp_path / str(number), **options).counts
        assert (counts["kept"], counts["dropped"]) == (kept, {} if kept else {"language_score": 1})


def test_bad_records_stop_the_build_where_asked_naming_line_and_cure(inputs: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.jsonl: line 61"):
        run(inputs, tmp_path / "out", on_error="stop")


def test_too_many_bad_records_end_the_build(inputs: list[str], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="more than 1 bad records"):
        run(inputs, tmp_path / "out", max_errors=1)


def test_rejected_documents_are_kept_with_their_reasons_where_asked(inputs: list[str], tmp_path: Path) -> None:
    limits = Limits(named_documents=7)  # whose keepers are named together
    manifest = run(inputs, tmp_path / "out", keep_rejected=True, limits=limits)
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    reasons = [line["reason"] for line in lines]
    assert sum(reason.startswith("words 2 < 50") for reason in reasons) == 30
    counts = manifest.counts
    lost = sum(sum(counts[name].values()) for name in ("dropped", "bad", "duplicates"))
    assert len(lines) == lost == counts["read"] - counts["kept"] + 2
    copies = {line["id"]: line["reason"] for line in lines if "duplicate" in line["reason"]}
    assert copies["doc-13"] == "exact duplicate of doc-10 (a.jsonl, line 3)"
    assert copies["doc-15"] == "near duplicate of doc-10 (a.jsonl, line 3)"


def test_line_numbers_are_true_in_files_cut_into_spans(tmp_path: Path) -> None:
    limits = Limits(smallest_unit_bytes=2_000)
    lines = [json.dumps({"text": english(k)}) for k in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join([lines[0], "", *lines[1:]]) + "\n")
    run(tmp_path / "in.jsonl", tmp_path / "out", tokenizer="bytes", val_fraction=0, workers=2, limits=limits)
    table = Shard(tmp_path / "out" / "train-000000.tar").table()
    assert table["line"] == [1, *range(3, 42)]
    assert table["id"] == [f"in.jsonl:{line}" for line in table["line"]]


def test_quotas_cut_a_source_to_its_tokens_and_say_so(tmp_path: Path) -> None:
    for name, start in (("wiki", 0), ("web", 500)):
        lines = "".join(json.dumps({"text": english(start + k)}) + "\n" for k in range(30))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    specs = [f"{name}={tmp_path}/{name}.jsonl" for name in ("wiki", "web")]
    whole = run(specs, tmp_path / "whole", tokenizer="bytes").counts["by_source"]
    quota = whole["web"]["tokens"] // 2
    cut = run(specs, tmp_path / "cut", tokenizer="bytes", max_tokens=f"web={quota}", keep_rejected=True).counts
    assert cut["by_source"]["wiki"] == whole["wiki"]
    assert quota * 0.8 < cut["by_source"]["web"]["tokens"] <= quota
    assert cut["dropped"]["max_tokens"] == cut["by_source"]["web"]["dropped"]["max_tokens"] == 60 - cut["kept"]
    assert list(verify_dataset(tmp_path / "cut")) == []
    assert (tmp_path / "cut" / "rejected.jsonl").read_text().count("max_tokens") == 60 - cut["kept"]
    with pytest.raises(ConfigError, match="did you mean 'web'"):
        run(specs, tmp_path / "other", tokenizer="bytes", max_tokens="wep=5")


def test_the_lanes_of_a_file_that_cannot_be_cut_share_its_parts_and_keep_its_order(tmp_path: Path) -> None:
    every = documents(400)
    with open(tmp_path / "in.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(every[0]))
        writer.writeheader()
        writer.writerows(every)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in every) + "{\n")
    subprocess.run(["gzip", "-k", str(tmp_path / "in.jsonl")], check=True)
    plain = run(tmp_path / "in.jsonl", tmp_path / "plain", tokenizer="bytes", val_fraction=0)
    limits = Limits(partition_characters=20_000, batch_records=5, lane_bytes=10_000)
    options: dict[str, Any] = {"tokenizer": "bytes", "val_fraction": 0, "workers": 2, "limits": limits}
    lanes = run(tmp_path / "in.jsonl.gz", tmp_path / "lanes", **options)
    assert len(cut_units(list_inputs([str(tmp_path / "in.jsonl.gz")]), limits)) > 2
    tables = [Shard(tmp_path / name / "train-000000.tar").table() for name in ("plain", "lanes")]
    assert tables[0]["id"] == tables[1]["id"]
    assert tables[0]["line"] == tables[1]["line"]
    assert lanes.counts["by_language"] == plain.counts["by_language"]
    assert lanes.counts["bad"] == {"invalid JSON": 1}
    [item] = lanes.inputs
    assert item["sha256"] == hashlib.sha256((tmp_path / "in.jsonl.gz").read_bytes()).hexdigest()
    assert len(cut_units(list_inputs([str(tmp_path / "in.csv")]), limits)) > 2
    one_lane = replace(limits, lane_bytes=1 << 30)
    run(tmp_path / "in.csv", tmp_path / "rows", **options)
    run(tmp_path / "in.csv", tmp_path / "one lane", **{**options, "limits": one_lane})
    assert digests(tmp_path / "rows") == digests(tmp_path / "one lane")


def test_the_report_shows_hostile_text_as_text(tmp_path: Path) -> None:
    text = "<script>alert(1)</script> " + english(1)
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": text}) + "\n")
    run(tmp_path / "in.jsonl", tmp_path / "out", tokenizer="bytes")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
