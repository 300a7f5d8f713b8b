from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from pipeline.builder.dedup.minhash import MinHasher, shingles
from scripts import bench_growth
from scripts.bench.growth import edit, watch
from scripts.bench.synthetic import PIECE, synthetic
from tests.corpus import english

HOLD = "import sys, time; held = bytearray({0} << 20); time.sleep({1})"


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells the memory of processes")
def test_the_memory_of_all_processes_counts_at_one_moment() -> None:
    child = f"subprocess.Popen([sys.executable, '-c', {HOLD.format(100, 1.5)!r}])"
    peak = watch([sys.executable, "-c", f"import subprocess; {HOLD.format(50, 0)}; {child}.wait()"])
    assert 150 < peak.own / 2**20 < 200
    assert peak.own <= peak.proportional < 250 << 20
    assert peak.seconds > 1.5


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        watch([sys.executable, "-c", "raise SystemExit(3)"])


def test_copies_keep_their_duplicates_and_are_none_of_each_other() -> None:
    texts = [english(1, 40), english(1, 40) + " and more", english(2, 40)]
    kinds = [[edit(number)(text) for text in texts] for number in range(16)]
    assert kinds[0] == texts
    for number, copies in enumerate(kinds):
        first, second, _ = (set(shingles(text)) for text in copies)
        assert len(first & second) / len(first | second) > 0.9
        for other in kinds[:number]:
            held = set(shingles(other[0]))
            assert len(first & held) / len(first | held) < 0.5


def test_synthetic_documents_hold_the_duplicates_that_are_promised() -> None:
    every = [synthetic(number) for number in range(3)]
    hashes, signatures = (np.concatenate(rows) for rows in zip(*every, strict=True))
    agree = (signatures[: len(every[0][0])] == every[1][1]).mean(axis=1)
    exact = (hashes[: len(every[0][0])] == every[1][0]).all(axis=1)
    assert 0.06 < exact.mean() < 0.1
    assert 0.12 < ((agree > 0.85) & ~exact).mean() < 0.2
    assert signatures.shape[1] == MinHasher().num_perm


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells the memory of processes")
def test_the_bench_of_dedup_alone_shows_growth(capfd: pytest.CaptureFixture[str]) -> None:
    assert bench_growth.main(["--synthetic", f"{PIECE},{2 * PIECE}", "--workers", "1"]) == 0
    shown = capfd.readouterr().out
    assert re.search(rf" {PIECE:,}  documents, 100\.0% stay", shown)
    assert re.search(
        rf"{2 * PIECE:,}  documents, 8\d\.\d% stay\n +\d+\.\d\d  x the CPU of one of {PIECE:,} documents", shown
    )


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells the memory of processes")
def test_the_bench_of_whole_builds_shows_growth(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [orjson.dumps({"id": str(k), "text": english(k % 30, 10)}) for k in range(40)]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    assert bench_growth.main([str(tmp_path / "in.jsonl"), "--scales", "1,2", "--rules", "none"]) == 0
    shown = capfd.readouterr().out
    assert re.search(r" 80  documents, 75\.0% stay\n.*\n +-?\d+\.\d  bytes of memory .* over 40;", shown)
