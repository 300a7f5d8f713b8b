"""Inputs are read as one thing: hashed whole, and never taken for the same when they changed on the way."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.builder.limits import Limits
from pipeline.errors import InputError, PlanChangedError, ShardwrightError
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import digests, rejected, run_plain, table, write_jsonl
from tests.helpers.corpus import WORDS, english, write_inputs
from tests.helpers.format_samples import FORMATS
from tests.helpers.interruptions import Units, interrupt_after

TEXTS = [english(number) for number in range(60)]
SMALL_UNITS = Limits(smallest_unit_bytes=2_000, lane_bytes=2_000)


def test_the_manifest_holds_the_sha256_of_every_file_cut_or_not(tmp_path: Path) -> None:
    files = [Path(path) for path in write_inputs(tmp_path / "in")]
    manifest = run_plain(tmp_path / "in", tmp_path / "out", limits=SMALL_UNITS)
    wanted = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert {item["name"]: item["sha256"] for item in manifest.inputs} == wanted


def test_a_file_that_was_not_read_to_its_end_has_no_hash(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", TEXTS)
    data = gzip.compress(write_jsonl(tmp_path / "b.jsonl", TEXTS).read_bytes())
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(data[: len(data) // 2])
    limited = run_plain(tmp_path / "in", tmp_path / "limited", limit=3, limits=SMALL_UNITS)
    assert [item["sha256"] for item in limited.inputs] == [None, None]
    manifest = run_plain(tmp_path / "in", tmp_path / "damaged", on_error="skip", limits=SMALL_UNITS)
    assert [item["sha256"] is None for item in manifest.inputs] == [False, True]


def append(path: Path) -> None:
    with open(path, "a") as file:
        file.write('{"text": "one more"}\n')


def reverse(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::-1]))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (append, r"in\.jsonl: it changed during the build: [\d,]+ bytes of .* before, now [\d,]+ bytes"),
        (reverse, r"in\.jsonl: it changed during the build"),
        (truncate, r"in\.jsonl: it changed during the build"),
        (Path.unlink, r"in\.jsonl: cannot be read.*No such file"),
    ],
)
def test_a_file_that_changes_ends_the_build(tmp_path: Path, change: Callable[[Path], None], said: str) -> None:
    path, on_error = write_jsonl(tmp_path / "in.jsonl", TEXTS), "skip"  # which passes over damage
    whole = run_plain(path, tmp_path / "whole", on_error=on_error)
    kept = shutil.copy2(path, tmp_path / "kept.jsonl")

    def change_after_the_plan(name: str) -> None:
        if name == "plan":
            change(path)

    with pytest.raises(InputError, match=said):
        run_plain(path, tmp_path / "out", on_error=on_error, after_stage=change_after_the_plan)
    shutil.copy2(kept, path)
    assert run_plain(path, tmp_path / "out", on_error=on_error).fingerprint == whole.fingerprint
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_change_between_two_runs_is_named_with_both_values_and_the_cure(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", map(english, range(20)))
    before = path.stat().st_size
    with pytest.raises(KeyboardInterrupt):
        run_plain(path, tmp_path / "out", after_stage=interrupt_after("ingest"))
    append(path)
    with pytest.raises(PlanChangedError) as refused:
        run_plain(path, tmp_path / "out")
    message = str(refused.value)
    assert f"inputs: in.jsonl: bytes: was {before}, now {path.stat().st_size}" in message
    assert 'inputs: in.jsonl: modified: was "20' in message
    assert "inputs: in.jsonl: sha256 of its first and last MiB: was" in message
    assert "--overwrite to start over" in message


def test_inputs_may_move_between_two_runs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", TEXTS)
    whole = run_plain(tmp_path / "in", tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_plain(tmp_path / "in", tmp_path / "out", after_stage=interrupt_after("plan"))
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    assert run_plain(tmp_path / "elsewhere", tmp_path / "out").fingerprint == whole.fingerprint


# Damaged files under ``on_error="skip"``: what can be read is kept, what no checksum confirms is counted, aloud.


# Large enough that a stream is unpacked in several pieces: the one in which damage shows gives nothing.
DAMAGED = [" ".join(random.Random(k).choices(WORDS, k=20_000)) for k in range(60)]
LINES = [json.dumps({"id": f"d{k}", "text": text}).encode() + b"\n" for k, text in enumerate(DAMAGED)]
PACK = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


def run_damaged(inputs: Any, output: Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"on_error": "skip", "dedup": False, **options})


def wrong_sum(data: bytes) -> bytes:
    """Change a byte of the checksum, which lies at the end: nearly all can be read, and none is confirmed."""
    return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:] if data[:1] == b"\x1f" else data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("ending", PACK)
def test_documents_that_no_checksum_confirms_are_kept_and_counted(tmp_path: Path, ending: str) -> None:
    whole, broken = PACK[ending](b"".join(LINES[:20])), wrong_sum(PACK[ending](b"".join(LINES[20:50])))
    name = f"broken.jsonl{ending}"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(whole + broken)
    (tmp_path / "in" / "good.jsonl").write_bytes(b"".join(LINES[50:]))
    manifest = run_damaged(tmp_path / "in", tmp_path / "out", keep_rejected=True)
    (damaged,) = manifest.counts["damaged"]
    doubted = damaged["unconfirmed"]
    assert 0 < doubted <= 30
    assert (manifest.counts["kept"], manifest.counts["bad"]) == (30 + doubted, {"file that cannot be read further": 1})
    assert (damaged["file"], damaged["line"]) == (name, 21 + doubted)
    assert f"near byte {len(whole + broken)}" in damaged["fault"]
    assert "no checksum confirms those after line 20" in damaged["fault"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"1 damaged file was not read to its end, and {doubted} documents read before that may be altered" in page
    assert html.escape(damaged["fault"]) in page.replace("&#39;", "&#x27;")
    (line,) = rejected(tmp_path / "out")
    assert (line["file"], line["line"]) == (name, 21 + doubted)
    assert damaged["fault"] in line["reason"]
    assert str(tmp_path) not in json.dumps([damaged, line])  # it would differ where the inputs lie elsewhere


def test_a_file_of_which_no_checksum_confirms_anything_names_no_line(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(wrong_sum(PACK[".gz"](b"".join(LINES))))
    (damaged,) = run_damaged(tmp_path / "in.jsonl.gz", tmp_path / "out").counts["damaged"]
    assert damaged["fault"].endswith("of which no checksum confirms any")


def test_a_cut_file_gives_what_came_before_the_cut(tmp_path: Path) -> None:
    ending = ".zst"
    data = PACK[ending](b"".join(LINES[:20])) + PACK[ending](b"".join(LINES[20:]))[:-9]
    (tmp_path / f"a.jsonl{ending}").write_bytes(data)
    manifest = run_damaged(tmp_path / f"a.jsonl{ending}", tmp_path / "out")
    (damaged,) = manifest.counts["damaged"]
    assert f"cut off at byte {len(data)}" in damaged["fault"]
    assert damaged["unconfirmed"] == manifest.counts["kept"] - 20
    (tmp_path / f"b.jsonl{ending}").write_bytes(PACK[ending](b"".join(LINES)) + b"stray")
    (damaged,) = run_damaged(tmp_path / f"b.jsonl{ending}", tmp_path / "stray").counts["damaged"]
    assert damaged["unconfirmed"] == 0
    assert "stray bytes" in damaged["fault"]


@pytest.mark.nightly
def test_lanes_and_workers_count_damage_once(tmp_path: Path) -> None:
    limits = Limits(lane_bytes=500, partition_characters=800_000, batch_records=4)
    (tmp_path / "a.jsonl.gz").write_bytes(wrong_sum(gzip.compress(b"".join(LINES))))
    manifest = run_damaged(tmp_path / "a.jsonl.gz", tmp_path / "one", limits=limits)
    assert [each["unconfirmed"] for each in manifest.counts["damaged"]] == [manifest.counts["kept"]]
    assert len(manifest.counts["damaged"]) == manifest.counts["bad"]["file that cannot be read further"] == 1
    run_damaged(tmp_path / "a.jsonl.gz", tmp_path / "two", workers=2, limits=limits)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_a_damaged_file_ends_the_build_or_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(wrong_sum(gzip.compress(b"".join(LINES))))
    with pytest.raises(InputError, match=r"a\.jsonl\.gz: corrupt gzip data near byte .* --on-error skip"):
        run_damaged(tmp_path / "a.jsonl.gz", tmp_path / "out", on_error="records")
    assert not (tmp_path / "out" / "manifest.json").exists()
    run_damaged(tmp_path / "a.jsonl.gz", tmp_path / "out", progress=Progress(), overwrite=True)
    assert "warning: 1 damaged file was not read to its end, and" in " ".join(capsys.readouterr().err.split())


# Files broken at random: each gives a sound dataset that counts what it lost, or an error that names the file.


PAIRS = [(f"d{k}", english(k, 8) + " é中" * (k % 3)) for k in range(40)]
NAMES = "x.jsonl x.JSONL.GZ x.jsonl.zst x.json x.csv x.parquet x.arrow x.tar x.warc x.warc.gz".split()


def mutate(data: bytes, generator: random.Random) -> bytes:
    """Break a file as disks, networks and other people's scripts do: bytes change, vanish or come, or all the rest is cut."""
    raw = bytearray(data)
    for _ in range(generator.choice([1, 1, 2, 5])):
        at = generator.randrange(max(1, len(raw)))
        lost, new = generator.choice([(1, 1), (16, 16), (len(raw), 0), (0, 20), (40, 0)])
        raw[at : at + lost] = generator.randbytes(new)
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


# ``limit`` reads the first records of the input, with all workers, and which these are depends on no worker.


FILES, RECORDS = 8, 25
UNITS = Limits(unit_bytes=10_000, smallest_unit_bytes=10_000)  # one or two a file
MEASURE = """
import os, pathlib, time
def seen(page):
    pathlib.Path(__file__).with_name(str(os.getpid())).touch()
    time.sleep(0.01)
    return 1.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limit")
    for number in range(FILES):
        texts = (f"{number} {k} {english(100 * number + k, 9)}" for k in range(RECORDS))
        rows = ({"id": f"{number}-{k}", "text": text} for k, text in enumerate(texts))
        path = write_jsonl(folder / f"{number}.jsonl", rows)
        assert 10_000 < path.stat().st_size < 20_000
    return folder


def run_all(inputs: Any, output: Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"dedup": False, "limits": UNITS, **options})


@pytest.mark.parametrize("limit", [pytest.param(25, marks=pytest.mark.nightly), 130])
def test_the_first_records_are_read_whatever_the_workers(folder: Path, tmp_path: Path, limit: int) -> None:
    for workers in (1, 3):
        run_all(folder, tmp_path / str(workers), limit=limit, workers=workers)
    every = [f"{number}-{k}" for number in range(FILES) for k in range(RECORDS)]
    assert table(tmp_path / "1")["id"] == every[:limit]
    assert digests(tmp_path / "1") == digests(tmp_path / "3")


@pytest.mark.nightly
def test_all_workers_filter_under_a_limit_and_an_interrupted_build_goes_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "seen_measure.py").write_text(MEASURE)
    (tmp_path / "rules.toml").write_text('"seen_measure:seen" = { min = 0 }\n')
    settings: dict[str, Any] = {"limit": 160, "workers": 2, "rules": str(tmp_path / "rules.toml")}

    def interrupt(name: str, count: int) -> None:
        if (name, count) == ("ingest", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(folder, tmp_path / "out", progress=Units(interrupt), **settings)
    assert run_all(folder, tmp_path / "out", **settings).counts["read"] == 160
    assert len([path for path in tmp_path.iterdir() if path.name.isdecimal()]) >= 2
    run_all(folder, tmp_path / "whole", **settings)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def damaged(folder: Path, target: Path) -> Path:
    """Copy the files, the fourth of them compressed and cut off."""
    target.mkdir()
    for path in folder.glob("*.jsonl"):
        (target / path.name).write_bytes(path.read_bytes())
    data = gzip.compress((target / "3.jsonl").read_bytes())
    (target / "3.jsonl").unlink()
    (target / "3.jsonl.gz").write_bytes(data[: len(data) // 2])
    return target


def test_a_fault_beyond_the_limit_is_not_met_and_one_before_it_is(folder: Path, tmp_path: Path) -> None:
    inputs = damaged(folder, tmp_path / "in")
    assert run_all(inputs, tmp_path / "before", limit=75).counts["read"] == 75
    with pytest.raises(InputError, match=r"3\.jsonl\.gz: .*cut off"):
        run_all(inputs, tmp_path / "after", limit=101)
    manifest = run_all(inputs, tmp_path / "skip", limit=101, on_error="skip")
    assert manifest.counts["read"] + sum(manifest.counts["bad"].values()) == 101
    run_all(inputs, tmp_path / "skip 3", limit=101, workers=3, on_error="skip")
    assert digests(tmp_path / "skip") == digests(tmp_path / "skip 3")


@pytest.mark.parametrize("ending", [pytest.param(".jsonl", marks=pytest.mark.nightly), ".jsonl.gz"])
def test_a_limit_falls_within_pieces_of_one_file(tmp_path: Path, ending: str) -> None:
    lines = [json.dumps({"id": str(k), "text": f"{k} {os.urandom(500).hex()}"}) for k in range(300)]
    data = "\n".join(lines).encode()
    (tmp_path / f"in{ending}").write_bytes(gzip.compress(data, 1) if ending.endswith(".gz") else data)
    for workers in (1, 2):
        run_all(tmp_path / f"in{ending}", tmp_path / str(workers), limit=111, workers=workers)
    assert table(tmp_path / "1")["id"] == [str(k) for k in range(111)]
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_files_beyond_the_limit_are_not_read_at_the_start(tmp_path: Path) -> None:
    inputs = [write_jsonl(tmp_path / f"{name}.jsonl", (f"{name} {n} " * 9 for n in range(2000))) for name in "abc"]
    manifest = run_all(inputs, tmp_path / "out", limit=1)
    assert [bool(item["ends"]) for item in manifest.inputs] == [True, False, False]
    assert run_all(inputs, tmp_path / "out", limit=1).fingerprint == manifest.fingerprint
    (tmp_path / "c.jsonl").write_text("changed")
    with pytest.raises(PlanChangedError, match=r"inputs: c\.jsonl: bytes: was"):
        run_all(inputs, tmp_path / "out", limit=1)
