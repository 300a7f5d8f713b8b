"""A build writes the documents that it keeps and accounts for every other, with the same bytes whatever the workers."""

from __future__ import annotations

import csv
import gzip
import hashlib
import itertools
import json
import math
import resource
import subprocess
import sys
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from filters.language.identifier import LanguageIdentifier
from pipeline.builder.limits import Limits
from pipeline.builder.plan import make_plan
from pipeline.builder.recipe import Recipe
from pipeline.errors import BuildError, ConfigError, InputError, PlanChangedError
from pipeline.shards.manifest import MANIFEST_NAME, Manifest
from pipeline.shards.verify.dataset import verify_dataset
from pipeline.text.tokens.tokenizer import load_tokenizer
from tests.helpers import interpreters
from tests.helpers.builds import ROOT, Built, digests, kept, rejected, run, run_plain, table, write_jsonl
from tests.helpers.corpus import documents, english
from tests.helpers.shard_samples import Shard


def test_what_is_built_verifies_and_every_loss_has_a_reason(built: Path) -> None:
    assert list(verify_dataset(built)) == []
    assert not (built / ".build").exists()
    counts = Manifest.read(built).counts
    assert counts["read"] == 301
    assert sum(counts["bad"].values()) == sum(counts["bad_by_source"].values()) == 2
    assert counts["dropped"] == {"words": 30, "language": 30}
    assert counts["duplicates"]["exact"] == 30
    assert counts["duplicates"]["near"] >= 20
    assert counts["read"] == sum(counts["dropped"].values()) + sum(counts["duplicates"].values()) + counts["kept"]
    assert sum(held["read"] for held in counts["by_language"].values()) == counts["read"]
    assert sum(held["kept"] for held in counts["by_source"].values()) == counts["kept"]


def test_shards_hold_the_kept_documents_in_input_order_with_their_origin(built: Path) -> None:
    manifest, tokenizer = Manifest.read(built), load_tokenizer(str(built))
    texts = {record["id"]: record["text"] for record in documents()}
    seen = []
    for split in manifest.splits.values():
        for info in split.shards:
            shard = Shard(built / info.name, info)
            columns = shard.table()
            for j, (name, file, line) in enumerate(zip(columns["id"], columns["file"], columns["line"], strict=True)):
                ids = shard.document(j)
                assert ids[-1] == manifest.tokenizer["eos_id"]
                expected = english(10_000) if name == "f" else texts[name]
                assert tokenizer.decode(ids[:-1].tolist()) == expected
                seen.append((file, line))
    train = seen[: manifest.splits["train"].documents]
    assert train == sorted(train)
    assert len(set(seen)) == manifest.counts["kept"]


def test_a_trained_tokenizer_has_special_tokens_for_fill_in_the_middle(tmp_path: Path) -> None:
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    options = {"tokenizer": "train:300", "special_tokens": ",".join(marks), "reserve": 1}
    out = Built.of(tmp_path, [english(seed) for seed in range(9)], **options)
    special = ["<|endoftext|>", *marks, "<|reserved_special_token_0|>"]
    assert out.manifest.tokenizer["special_ids"] == {name: id for id, name in enumerate(special)}
    assert out.manifest.tokenizer["vocab_size"] == 300
    assert out.manifest.recipe["settings"]["special_tokens"] == marks
    data = pipeline.ShardDataset(out, epochs=1)
    rows = data.map_documents(pipeline.fim(data.tokenizer, rate=1)).documents().batch(1)
    assert all((row["input_ids"][0, 0], row["input_ids"][0, -1]) == (1, 0) for row in rows)


def test_the_stream_reads_every_token_that_webdataset_reads(built: Path) -> None:
    import webdataset

    paths = sorted(map(str, built.glob("train-*.tar")))
    plain = [sample["npy"] for sample in webdataset.WebDataset(paths, shardshuffle=False).decode()]
    ours = [item["input_ids"].numpy() for item in pipeline.ShardDataset(built, epochs=1).documents()]
    assert len(plain) == len(ours) > 50
    for a, b in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.nightly)])
def test_any_number_of_workers_changes_no_byte(inputs: list[str], built: Path, tmp_path: Path, method: str) -> None:
    run(inputs, tmp_path / "out", workers=2, start_method=method)
    assert digests(tmp_path / "out") == digests(built)


def test_the_hash_seed_of_python_changes_nothing(inputs: list[str], built: Path, tmp_path: Path) -> None:
    flags = ["--tokenizer", "train:400", "--language", "en=0.2", "--rules", "gopher_quality", "--val-fraction", "0.1"]
    command = [ROOT / "scripts/build_shards.py", *inputs, "--output", tmp_path / "shards", *flags]
    done = interpreters.run(*command, variables={"PYTHONHASHSEED": "77"})
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "shards") == digests(built)


def test_nothing_survives_is_a_valid_empty_dataset(tmp_path: Path) -> None:
    out = Built.of(tmp_path, ["short"], rules="gopher")
    assert out.manifest.splits["train"].documents == 0
    assert list(out.glob("*.tar")) == []
    assert "documents read" in out.report
    assert sum(out.counts["dropped"].values()) == 1
    assert list(verify_dataset(out)) == []


def test_special_tokens_in_text_never_become_their_ids(tmp_path: Path) -> None:
    text = english(1, 30) + " <|endoftext|> " + english(2, 30)
    manifest = run(write_jsonl(tmp_path / "in.jsonl", [text]), tmp_path / "out", val_fraction=0)
    ids = Shard(tmp_path / "out" / "train-000000.tar").document(0).tolist()
    assert ids.count(manifest.tokenizer["eos_id"]) == 1
    assert load_tokenizer(str(tmp_path / "out")).decode(ids[:-1]) == text


def test_documents_end_with_the_token_that_is_named(built: Path, tmp_path: Path) -> None:
    definition = json.loads((built / "tokenizer.json").read_text())
    number = max(definition["model"]["vocab"].values()) + 1
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": number, "content": "<|im_end|>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    source = write_jsonl(tmp_path / "in.jsonl", [english(1, 30)])
    named = {"tokenizer": str(tmp_path / "tokenizer.json")}
    manifest = run_plain(source, tmp_path / "out", eos="<|im_end|>", **named)
    assert manifest.tokenizer["eos_id"] == number == Shard(tmp_path / "out" / "train-000000.tar").document(0)[-1]
    assert load_tokenizer(str(tmp_path / "out")).eos_id == number
    usual = run_plain(source, tmp_path / "usual", **named)
    assert usual.tokenizer["eos_id"] == definition["added_tokens"][0]["id"]
    with pytest.raises(PlanChangedError, match="eos"):
        run_plain(source, tmp_path / "out", **named)
    with pytest.raises(ConfigError, match="no token '<end>'"):
        run_plain(source, tmp_path / "other", eos="<end>", **named)


def test_a_document_stays_from_the_score_of_its_language_on_that_is_asked_for(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [english(1, 30)])
    score = LanguageIdentifier().identify(english(1, 30)).score
    for number, (least, stays) in enumerate(((score, 1), (math.nextafter(score, 1), 0))):
        counts = run_plain(source, tmp_path / str(number), language=f"en={least!r}").counts
        assert (counts["kept"], counts["dropped"]) == (stays, {} if stays else {"language_score": 1})
    assert table(tmp_path / "0")["score"] == [round(score, 4)]
    assert round(score, 3) != round(score, 4)


def test_bad_records_stop_the_build_where_asked_or_where_they_are_too_many(inputs: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.jsonl: line 61"):
        run(inputs, tmp_path / "out", on_error="stop")
    with pytest.raises(BuildError, match=r"more than 1 bad records, such as .*\.jsonl: line \d+"):
        run(inputs, tmp_path / "out", max_errors=1)
    for name in ("a", "b"):  # a unit each, none of which has too many
        (tmp_path / f"{name}.jsonl").write_text('{"body": "to be"}\n')
    limits = Limits(smallest_unit_bytes=1, unit_bytes=1)
    with pytest.raises(BuildError, match=r"more than 1 bad records, .*a\.jsonl: line 1: no field 'text'.* 'body'"):
        run_plain([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "two", max_errors=1, limits=limits)


def bad_of_100(folder: Path, bad: int, **options: Any) -> dict[str, int]:
    good = [english(k) for k in range(options.pop("records", 100) - bad)]
    path = write_jsonl(folder / "in.jsonl", [*good, *[{}] * bad])
    return run_plain(path, folder / str(bad), dedup=False, **options).counts["bad"]


def test_more_than_a_tenth_of_bad_records_ends_a_build(tmp_path: Path) -> None:
    assert sum(bad_of_100(tmp_path, 10).values()) == 10
    with pytest.raises(BuildError, match=r"11 of 100 records are bad, .*line 90.* --max-errors 0\.2 "):
        bad_of_100(tmp_path, 11)
    for number, options in enumerate([{"records": 99}, {"max_errors": 0.2}, {"on_error": "skip"}], 12):
        assert sum(bad_of_100(tmp_path, number, **options).values()) == number


def test_rejected_documents_are_kept_with_their_reasons_where_asked(inputs: list[str], tmp_path: Path) -> None:
    limits = Limits(named_documents=7)  # whose keepers are named together
    counts = run(inputs, tmp_path / "out", keep_rejected=True, limits=limits).counts
    lines = rejected(tmp_path / "out")
    assert sum(line["reason"].startswith("words 2 < 50") for line in lines) == 30
    lost = sum(sum(counts[name].values()) for name in ("dropped", "bad", "duplicates"))
    assert len(lines) == lost == counts["read"] - counts["kept"] + 2
    copies = {line["id"]: line["reason"] for line in lines if "duplicate" in line["reason"]}
    assert copies["doc-13"] == "exact duplicate of doc-10 (a.jsonl, line 3)"
    assert copies["doc-15"] == "near duplicate of doc-10 (a.jsonl, line 3)"


def test_line_numbers_are_true_in_files_cut_into_spans(tmp_path: Path) -> None:
    lines = [json.dumps({"text": english(k)}) for k in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join([lines[0], "", *lines[1:]]) + "\n")
    run_plain(tmp_path / "in.jsonl", tmp_path / "out", limits=Limits(smallest_unit_bytes=2_000))
    columns = table(tmp_path / "out")
    assert columns["line"] == [1, *range(3, 42)]
    assert columns["id"] == [f"in.jsonl:{line}" for line in columns["line"]]


def test_lanes_of_a_file_that_cannot_be_cut_keep_its_order(tmp_path: Path) -> None:
    every = documents(100)
    with open(tmp_path / "in.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(every[0]))
        writer.writeheader()
        writer.writerows(every)
    lines = (write_jsonl(tmp_path / "in.jsonl", every).read_text() + "{\n").encode()
    (tmp_path / "in.jsonl").write_bytes(lines)
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines))
    limits = Limits(partition_characters=20_000, batch_records=5, lane_bytes=5_000)
    options: dict[str, Any] = {"rules": "gopher_quality", "limits": limits}
    for name in ("in.jsonl.gz", "in.csv"):
        assert len(make_plan([str(tmp_path / name)], Recipe(), limits=limits).units) > 2
    plain = run_plain(tmp_path / "in.jsonl", tmp_path / "plain", rules="gopher_quality")
    lanes = run_plain(tmp_path / "in.jsonl.gz", tmp_path / "lanes", **options)
    tables = [table(tmp_path / name) for name in ("plain", "lanes")]
    assert (tables[0]["id"], tables[0]["line"]) == (tables[1]["id"], tables[1]["line"])
    assert lanes.counts["by_language"] == plain.counts["by_language"]
    assert lanes.counts["bad"] == {"invalid JSON": 1}
    assert lanes.inputs[0]["sha256"] == hashlib.sha256((tmp_path / "in.jsonl.gz").read_bytes()).hexdigest()
    run_plain(tmp_path / "in.csv", tmp_path / "rows", **options, workers=2)
    run_plain(tmp_path / "in.csv", tmp_path / "one", **{**options, "limits": replace(limits, lane_bytes=1 << 30)})
    assert digests(tmp_path / "rows") == digests(tmp_path / "one")


# Named inputs keep their names from the command line to the mixture: each shard holds one source's documents.


SETTINGS: dict[str, Any] = {"val_fraction": 0.1, "tokens_per_shard": 6_000}
FIRST = {"wiki": 0, "web": 1_000, "code": 2_000}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    texts = {name: [f"{name} {english(first + k, 10)}" for k in range(70)] for name, first in FIRST.items()}
    return {name: write_jsonl(folder / f"{name}.jsonl", some) for name, some in texts.items()}


@pytest.fixture(scope="module")
def of_sources(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "out"
    run_plain(sources, output, **SETTINGS)
    return output


def test_each_shard_holds_one_source_and_says_which(of_sources: Path) -> None:
    manifest = Manifest.read(of_sources)
    for split in manifest.splits.values():
        assert {info.source for info in split.shards} == set(FIRST)
        for info in split.shards:
            assert set(Shard(of_sources / info.name).table()["source"]) == {info.source}
    by_source = Counter[str]()
    for info in manifest.shards:
        by_source[info.source] += info.tokens
    assert by_source == {name: held["tokens"] for name, held in manifest.counts["by_source"].items()}
    for name in FIRST:
        sizes = [info.tokens for info in manifest.split("train").shards if info.source == name]
        assert len(sizes) > 2
        assert max(sizes) - min(sizes) < 0.25 * SETTINGS["tokens_per_shard"]
    assert list(verify_dataset(of_sources)) == []


def test_the_sources_of_one_build_are_mixed_by_their_names(tmp_path: Path) -> None:
    letters = {"wiki": "w", "web": "b", "code": "c"}
    texts = {name: [letter * (300 + k) for k in range(40)] for name, letter in letters.items()}
    files = {name: write_jsonl(tmp_path / f"{name}.jsonl", some) for name, some in texts.items()}
    run_plain(files, tmp_path / "out", tokens_per_shard=6_000)
    sources = pipeline.ShardDataset(tmp_path / "out").sources()
    assert list(sources) == list(letters)
    weights = {"wiki": 0.5, "web": 0.25, "code": 0.25}
    stream = pipeline.mix(sources, weights=weights).shuffle(seed=0, lanes=1).pack(32).batch(16).numpy()
    seen = Counter(int(row.max()) - 3 for batch in itertools.islice(iter(stream), 256) for row in batch["input_ids"])
    assert {name: seen[ord(letter)] / seen.total() for name, letter in letters.items()} == weights


def test_a_source_streams_its_own_documents_and_has_a_fingerprint_of_its_own(of_sources: Path) -> None:
    whole = pipeline.ShardDataset(of_sources, split="val")
    sources = whole.sources()
    counts = Manifest.read(of_sources)
    for name, source in sources.items():
        wanted = sum(info.documents for info in counts.split("val").shards if info.source == name)
        assert sum(source._data.documents) == wanted
    prints = {source._data.fingerprint for source in [whole, *sources.values()]}
    assert len(prints) == len(FIRST) + 1


def test_inputs_that_take_turns_give_a_shard_each_time(sources: dict[str, Path], tmp_path: Path) -> None:
    order = ["wiki", "web", "wiki"]
    (tmp_path / "more.jsonl").write_text(sources["code"].read_text())
    specs = [f"wiki={sources['wiki']}", f"web={sources['web']}", f"wiki={tmp_path}/more.jsonl"]
    manifest = run_plain(specs, tmp_path / "out", tokens_per_shard=10**6)
    assert [info.source for info in manifest.split("train").shards] == order
    assert pipeline.ShardDataset(tmp_path / "out").sources()["wiki"]._data.documents == [70, 70]
    assert list(verify_dataset(tmp_path / "out")) == []


def test_inputs_without_names_have_no_sources_to_mix(
    sources: dict[str, Path], of_sources: Path, tmp_path: Path
) -> None:
    run_plain(list(sources.values()), tmp_path / "out")
    assert "source" not in json.loads((tmp_path / "out" / MANIFEST_NAME).read_text())["splits"]["train"]["shards"][0]
    with pytest.raises(ConfigError, match=r"name inputs when you build.* wiki=wiki/"):
        pipeline.ShardDataset(tmp_path / "out").sources()
    with pytest.raises(ConfigError, match="leave epochs out"):
        pipeline.ShardDataset(of_sources, epochs=1).sources()


# Odd texts and ids through a whole build: each is kept, or dropped and counted, and none does harm to another.


def run_odd(folder: Path, records: list[dict[str, Any]], **options: Any) -> Manifest:
    return run_plain(write_jsonl(folder / "in.jsonl", records), folder / "out", **options)


EMPTY = ["", " \n\t ", "\x00", "\x00\x01 \x7f", "\u3000\u2003"]


@pytest.mark.parametrize("rules", ["none", "gopher,fineweb,c4,code,profanity"])
def test_texts_of_nothing_are_dropped_under_a_reason_whatever_the_rules(tmp_path: Path, rules: str) -> None:
    manifest = run_odd(tmp_path, [{"text": text} for text in EMPTY], rules=rules, keep_rejected=True)
    assert (manifest.counts["read"], manifest.counts["kept"]) == (5, 0)
    assert manifest.counts["dropped"] == {"empty text": 5}
    assert [each["reason"] for each in rejected(tmp_path / "out")] == ["empty text"] * 5


def test_a_text_that_holds_nul_is_kept_without_it_or_byte_for_byte_where_asked(tmp_path: Path) -> None:
    text = "before\x00after " + english(0)
    for normalize, wanted in ((True, text.replace("\x00", "")), (False, text)):
        run_odd(tmp_path / str(normalize), [{"text": text}, {"text": "\x00" * 5}], normalize=normalize)
        assert wanted in kept(tmp_path / str(normalize) / "out")


def test_texts_that_normalise_alike_are_exact_duplicates(tmp_path: Path) -> None:
    text = "Naïve café, Ångström, 각 " + english(1)
    forms = [unicodedata.normalize(form, text) for form in ("NFD", "NFC")]
    assert forms[0] != forms[1]
    ends = ["one line\r\nand two", "one line\nand two", "one line\rand two"]
    manifest = run_odd(tmp_path, [{"text": form} for form in (*forms, *ends)])
    assert manifest.counts["duplicates"] == {"exact": 3, "near": 0}
    assert kept(tmp_path / "out") == [forms[1], ends[1]]


def test_short_texts_are_duplicates_only_of_their_likes(tmp_path: Path) -> None:
    texts = ["cat", "dog", "cat", "1", "2", "!", "?", "猫", "犬", "猫"]
    manifest = run_odd(tmp_path, [{"text": text} for text in texts])
    assert kept(tmp_path / "out") == ["cat", "dog", "1", "2", "!", "?", "猫", "犬"]
    assert manifest.counts["duplicates"] == {"exact": 2, "near": 0}


def test_ids_of_any_kind_give_safe_keys_that_are_unique_over_all_shards(tmp_path: Path) -> None:
    import webdataset

    ids: list[Any] = ["a/b.c", "../up", "a b", "a b", "", "x" * 300, "é\n\x00", 7, None, "CON", "__index__/starts"]
    records = [{"id": id, "text": english(n)} for n, id in enumerate(ids * 8)]
    limits = Limits(partition_characters=4_000, batch_records=5)
    manifest = run_odd(tmp_path, records, dedup=False, val_fraction=0.2, tokens_per_shard=9_000, limits=limits)
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
    manifest = run_odd(tmp_path, records, dedup=False, val_fraction=0.3, limits=limits)
    assert manifest.counts["kept"] == 600
    train, val = (set(_texts(tmp_path / "out", split)) for split in ("train", "val"))
    assert train
    assert val
    assert not train & val


def test_no_near_duplicates_are_parted_by_training_and_validation(tmp_path: Path) -> None:
    records = [{"text": english(n, 40) + more} for n in range(60) for more in ("", " And this.", " And that.")]
    manifest = run_odd(tmp_path, records, val_fraction=0.3)
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
    huge = [(text * 2_100)[:2_000_000] for text in texts] + ["漢字仮名" * 300_000]
    records = [{"text": text} for text in [*huge, *(english(n) for n in range(50))]]
    write_jsonl(tmp_path / "in.jsonl", records)
    command = [sys.executable, str(ROOT / "scripts/build_shards.py"), str(tmp_path / "in.jsonl"), "--quiet"]
    command += ["--output", str(tmp_path / "out"), "--tokenizer", "train:400", "--rules", "gopher", "--workers", "1"]
    limited = subprocess.run(command, preexec_fn=_four_gigabytes, capture_output=True, text=True, timeout=100)
    assert limited.returncode == 0, limited.stderr
    assert Manifest.read(tmp_path / "out").counts["read"] == 53


def _four_gigabytes() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
