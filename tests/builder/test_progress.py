"""Progress of a build: bars that count what is done inside units, and estimates of a dry run."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest

from pipeline.progress import Progress
from tests.helpers.builds import run_plain
from tests.helpers.commands import Says
from tests.helpers.interruptions import Units
from tests.helpers.terminals import on_terminal
from tests.helpers.text_samples import jsonl, sentences


@pytest.mark.nightly
def test_progress_counts_bytes_inside_a_single_compressed_file(tmp_path: Path) -> None:
    draw = random.Random(1)
    texts = ["".join(draw.choices("abcdefghij klmnopqrst", k=4000)) for _ in range(1500)]
    path = jsonl(tmp_path / "one.jsonl.zst", texts)
    assert path.stat().st_size > 3 << 20
    progress = Units()
    run_plain(path, tmp_path / "out", dedup=False, progress=progress)
    assert progress.amounts["ingest"] == progress.totals["ingest"] == path.stat().st_size
    assert progress.counts["ingest"] >= 3


def test_no_other_bar_is_drawn_over_that_of_a_tokenizers_merges(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "in.jsonl", sentences(400))
    command = [sys.executable, "-m", "pipeline", "build", str(path), "--output", str(tmp_path / "out")]
    command += ["--tokenizer", "train:300", "--rules", "none", "--workers", "1"]
    lines = on_terminal(command)
    said = next(number for number, line in enumerate(lines) if line.startswith("train tokenizer: 300 tokens, on "))
    merges = [number for number, line in enumerate(lines) if "Compute merges" in line]
    assert merges
    bars = [number for number, line in enumerate(lines) if re.search(r"[━╸]", line)]
    assert not [number for number in bars if said < number < merges[-1]]


def test_a_tokenizer_of_fewer_ids_than_asked_for_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = jsonl(tmp_path / "in.jsonl", ["one text of a few words", "another text of a few words"])
    for size, is_short in ((30_000, True), (260, False)):
        output = tmp_path / str(size)
        manifest = run_plain(path, output, dedup=False, tokenizer=f"train:{size}", progress=Progress())
        made = manifest.tokenizer["vocab_size"]
        assert (made < size) == is_short
        said = f"{made:,} ids, not {size:,}: the text has no more pairs" in capsys.readouterr().err
        in_report = f"train:{size} of {made:,} ids (no more pairs" in (output / "report.html").read_text()
        assert said == in_report == is_short


def test_a_dry_run_counts_what_is_kept_for_a_tokenizer_to_train(tmp_path: Path, says: Says) -> None:
    texts = sentences(400)
    path = jsonl(tmp_path / "in.jsonl", [*texts, *(f"{number} of few words" for number in range(400))])
    (tmp_path / "own.toml").write_text("words = { min = 10 }\n")
    flags = ["--output", f"{tmp_path}/out", "--rules", f"{tmp_path}/own.toml", "--workers", "1", "--dry-run"]
    tokens = f"{sum(map(len, texts)) / 4_200:.3g} k (at 4.2 characters a token"
    assert f"tokens   about {tokens}" in says(0, "build", path, *flags, "--tokenizer", "train:400").out


def test_a_dry_run_expects_the_tokens_that_the_build_makes(tmp_path: Path, says: Says) -> None:
    path = jsonl(tmp_path / "in.jsonl.zst", [" ".join(sentences(15, seed)) for seed in range(3000)])
    flags = [str(path), "--output", str(tmp_path / "out"), "--tokenizer", "bytes", "--rules", "gopher_quality"]
    out = says(0, "build", *flags, "--dry-run", "--workers", "2").out
    tokens = float(re.search(r"tokens   about ([\d.]+) M,", out)[1]) * 1e6  # type: ignore[index]
    disk = float(re.search(r"disk     about ([\d.]+) MB for the dataset", out)[1]) * 1e6  # type: ignore[index]
    more = float(re.search(r"and ([\d.]+) MB more while", out)[1]) * 1e6  # type: ignore[index]
    assert re.search(r"time     about \d+ (s|min) with 2 workers", out)
    assert not (tmp_path / "out").exists()
    work: list[int] = []

    def weigh(_: str) -> None:
        files = (file for file in (tmp_path / "out/.build").rglob("*") if file.is_file())
        work.append(sum(file.stat().st_size for file in files))

    manifest = run_plain(path, tmp_path / "out", rules="gopher_quality", after_stage=weigh)
    assert more == pytest.approx(max(work), rel=0.5)
    made = sum(split.tokens for split in manifest.splits.values())
    written = sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert tokens == pytest.approx(made, rel=0.1)
    assert disk == pytest.approx(written, rel=0.35)


UNTRAINED = "about 23.6 k (at 4.2 characters a token: it is not trained yet), of 99 k characters in 3 k"


@pytest.mark.parametrize(
    ("flags", "tokens", "disk"),
    [
        ("bytes", "about 102 k, of 99 k characters in 3 k", "2 MB for the dataset, and 313 kB"),
        ("bytes --dedup-paragraphs", "about 102 k, of 99 k characters in 3 k", "2 MB for the dataset, and 422 kB"),
        ("bytes --limit 100", "about 3.4 k, of 3.3 k characters in 100 ", "66.8 kB for the dataset, and 10.4 kB"),
        ("bytes --max-tokens 500", "about 500 , of 485  characters in 15 ", "9.82 kB for the dataset, and 1.53 kB"),
        ("train:65536 --reserve 2 --special-tokens <|a|>", UNTRAINED, "1.85 MB for the dataset, and 156 kB"),
        ("train:65537", UNTRAINED, "1.89 MB for the dataset, and 203 kB"),
    ],
)
def test_a_dry_run_foresees_limits_quotas_and_tokenizers(
    flags: str, tokens: str, disk: str, tmp_path: Path, says: Says
) -> None:
    path = jsonl(tmp_path / "in.jsonl", [f"{k:05d} is a number of five digits." for k in range(3000)])
    always = [path, "--output", tmp_path / "out", "--rules", "none", "--workers", 1, "--dry-run", "--tokenizer"]
    out = re.sub(
        r"about \d+ s with 1 worker,", "about S s with 1 worker,", says(0, "build", *always, *flags.split()).out
    )
    assert out == (
        "1 input files, 0.2 MB, 1 units of work\nof a sample of 1,000 records:\n   1,000  100.0%  kept\n"
        f"expected of the whole input, from this sample:\n  tokens   {tokens} documents\n"
        f"  disk     about {disk} more while the build runs\n  time     about S s with 1 worker, on this machine when idle\n"
        "not foreseen: further duplicates, which only the whole input shows\nnothing was written\n"
    )
