"""The benches run, on little data, and measure what they say."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.builder.dedup.minhash import shingles
from scripts import (
    bench_build,
    bench_contamination,
    bench_dedup,
    bench_find,
    bench_growth,
    bench_lancedb,
    bench_leaks,
    bench_pages,
    bench_stream,
    bench_text,
)
from scripts.bench import child
from scripts.bench.process import watch
from scripts.bench.remote import certificate, serving
from scripts.bench.synthetic import PIECE, synthetic
from tests.helpers.corpus import english
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.text_samples import make_texts, write_texts

linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells memory of processes")


@linux
def test_a_child_measures_shards_splits_mixes_and_text(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(3_000, longest=300)])
    data = str(tmp_path / "data")
    texts = str(write_texts(tmp_path / "a.jsonl", make_texts(3_000)))
    other = {"data": [texts], "tokenizer": "bytes"}
    for request in ({"data": data}, {"data": data, "val": 0.5}, {"data": [data, data]}, other):
        measured = child.main({**request, "seconds": 0.01, "warm": 0.0})
        assert min(measured[key] for key in ("batches", "first", "seconds", "memory")) > 0, request


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_server_is_read_over_https_and_counts_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "data", [make_documents(3_000, longest=300)])
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate()))
    size = (tmp_path / "data" / "train-000000.tar").stat().st_size
    for tls in (False, True):
        with serving(tmp_path / "data", tls=tls) as url:
            measured = child.main({"data": url, "counts": url, "seconds": 0.1, "warm": 0.0})
        assert size / 2 < measured["before_first"]["bytes"] + measured["after"]["bytes"] < 5 * size  # of some epochs


@pytest.mark.nightly
def test_a_child_that_fails_gives_its_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=str(tmp_path)):
        child.run_child({"data": str(tmp_path / "none")})


def test_a_part_that_is_not_there_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench_stream.main(["sped"])
    assert "no part 'sped'; there are speed" in capsys.readouterr().err


@linux
def test_the_memory_of_all_processes_counts_at_one_moment() -> None:
    hold = "import sys, time; data = bytearray({0} << 20); time.sleep({1})"
    started = f"subprocess.Popen([sys.executable, '-c', {hold.format(100, 1.5)!r}])"
    peak = watch([sys.executable, "-c", f"import subprocess; {hold.format(50, 0)}; {started}.wait()"])
    assert 150 < peak.memory / 2**20 < 200
    assert peak.seconds > 1.5
    with pytest.raises(subprocess.CalledProcessError):
        watch([sys.executable, "-c", "raise SystemExit(3)"])


def similarity(first: str, second: str) -> float:
    one, other = set(shingles(first)), set(shingles(second))
    return len(one & other) / len(one | other)


def test_copies_keep_their_duplicates_and_are_none_of_each_other() -> None:
    texts = [english(1, 40), english(1, 40) + " and more"]
    copies = [[bench_growth.edit(number)(text) for text in texts] for number in range(9)]
    assert copies[0] == texts
    for number, (first, second) in enumerate(copies):
        assert similarity(first, second) > 0.9
        assert all(similarity(first, other) < 0.5 for other, _ in copies[:number])


def test_the_bench_of_dedup_knows_all_true_pairs_and_scripts() -> None:
    texts = [english(k % 3, 9) + english(k, 3) for k in range(9)] + ["one two", "One, two", ""]
    texts += bench_dedup.edited_copies(texts, 9)
    a, b, found = bench_dedup.true_pairs(texts)
    pairs = [pair for pair in itertools.combinations(range(20), 2) if pair[1] != 11]
    true = {pair: similarity(*(texts[k] for k in pair)) for pair in pairs}
    expected = {pair: value for pair, value in true.items() if value >= bench_dedup.LEAST}
    assert dict(zip(zip(a.tolist(), b.tolist(), strict=True), found, strict=True)) == pytest.approx(expected)
    letters = ["a", "ж", "ب", "क", "ש", "ก", "語", "語語語かな", "カ", "말", "α", "1"]
    scripts = "Latin Cyrillic Arabic Devanagari Hebrew Thai Han Kana Kana Hangul Greek".split()
    assert list(map(bench_dedup.script_of, letters)) == [*scripts, ""]


@pytest.mark.nightly
@linux
def test_the_bench_of_dedup_alone_finds_the_duplicates_that_it_made(capfd: pytest.CaptureFixture[str]) -> None:
    hashes, signatures = (np.concatenate(rows) for rows in zip(*map(synthetic, range(2)), strict=True))
    same = (hashes[:PIECE] == hashes[PIECE:]).all(axis=1)
    near = (signatures[:PIECE] == signatures[PIECE:]).mean(axis=1) > 0.85
    made = 1 - np.count_nonzero(same | near) / len(hashes)
    assert 0.06 < same.mean() < 0.1
    assert bench_growth.main(["--synthetic", f"{PIECE},{2 * PIECE}", "--workers", "1"]) == 0
    rows = re.findall(r"\| ([\d,]+) +\| ([\d.]+)% ", capfd.readouterr().out)
    assert rows[0] == (f"{PIECE:,}", "100.0")
    assert float(rows[1][1]) == pytest.approx(100 * made, abs=0.5)


@pytest.mark.nightly
@linux
def test_the_benches_of_builds_print_their_tables(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = str(write_texts(tmp_path / "in.jsonl", [english(k % 30, 10) for k in range(40)]))
    assert bench_growth.main([source, "--scales", "1,2", "--rules", "none"]) == 0
    assert re.search(r"\| 80 +\| 75\.0%", capfd.readouterr().out)
    flags = ["--rounds", "1", "--workers", "1", "--vocab-size", "300"]
    assert bench_build.main([source, *flags]) == 0
    assert re.search(r"\| documents/s +\| [\d.]+ ", capfd.readouterr().out)


@pytest.mark.nightly
@linux
def test_the_bench_of_texts_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        write_texts(tmp_path / f"{number}.jsonl.zst", [english(k, 200) for k in range(400)])
    flags = ["--texts", str(tmp_path / "*.zst"), "--directory", str(tmp_path / "made"), "--rounds", "1"]
    assert bench_text.main(["speed", "remote", "ways", *flags]) == 0
    shown = capsys.readouterr().out
    for row in ("a stream, rules gopher", "resumed after 20 batches", "in memory"):
        assert re.search(rf"\| {row} +\| [\d.]+ ", shown)
    assert "a build pays after" in shown


def test_the_bench_of_pages_prints_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        (tmp_path / f"{number}.html").write_text(
            f"<html><body><main><p>{english(number, 100)}</p></main></body></html>"
        )
    assert bench_pages.main([f"{tmp_path}/*.html", "--rounds", "1"]) == 0
    assert re.search(r"\| a build's reader, resiliparse +\| [\d.,]+ ", capsys.readouterr().out)


def test_leaks_of_every_way_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = str(write_texts(tmp_path / "a.jsonl", [english(k, 12) for k in range(300)]))
    assert bench_contamination.main([texts, "--items", "6"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"\| 6 of 6 \(100\.0%\)", out)) == 9
    assert len(re.findall(r"\| 0 of \d+ \(0\.0%\)", out)) >= 2


def test_the_report_of_planted_leaks_is_held_to_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = str(write_texts(tmp_path / "a.jsonl", [english(k, 12) for k in range(600)]))
    assert bench_leaks.main([texts, "--plant", "3", "--tokenizer", "bytes"]) == 0
    rows = re.findall(r"\| (none|passages|whole) +\| (\d+) of \2 +\| ([\d.]+%) +\| \3 ", capsys.readouterr().out)
    assert [row[0] for row in rows] == ["none", "passages", "whole"]


def test_find_is_compared_with_every_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = str(write_texts(tmp_path / "a.jsonl", [english(k) for k in range(40)]))
    assert bench_find.main([texts, "--copies", "30"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"index of 40 documents", out)
    assert re.search(r"(9\d|100)\.\d\d%  of [12]\d documents with a similarity >= 0\.8 were found", out)


def test_the_bench_of_lancedb_counts_what_a_resume_loses_and_what_damage_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("lancedb")
    assert bench_lancedb.main(["--documents", "200", "--splits", "6"]) == 0
    out = capsys.readouterr().out
    assert "rows after a resume on as many ranks" in out
    assert "2 -> 3 ranks                                  | 0 tokens lost, 0 repeated" in out
    assert len(re.findall(r"no error; [1-9][\d,]* tokens lost", out)) == 2


def test_the_bench_of_lancedb_counts_lost_and_repeated_tokens() -> None:
    rows = [np.array([2, 3, 4]), np.array([5, 6, 1])]
    parts = [np.array([2, 3, 4]), np.array([4, 5, 7])]
    assert bench_lancedb._difference([rows], [parts]) == "1 tokens lost, 1 repeated"
