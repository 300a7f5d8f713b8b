"""Damaged files under ``on_error="skip"``: what can be read is kept, what no checksum confirms is counted, aloud."""

from __future__ import annotations

import gzip
import html
import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.builder.limits import Limits
from pipeline.errors import InputError
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from tests.helpers.builds import digests, rejected, run_plain
from tests.helpers.corpus import WORDS

# Large enough that a stream is unpacked in several pieces: the one in which damage shows gives nothing.
TEXTS = [" ".join(random.Random(k).choices(WORDS, k=20_000)) for k in range(60)]
LINES = [json.dumps({"id": f"d{k}", "text": text}).encode() + b"\n" for k, text in enumerate(TEXTS)]
PACK = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
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
    manifest = run(tmp_path / "in", tmp_path / "out", keep_rejected=True)
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
    (damaged,) = run(tmp_path / "in.jsonl.gz", tmp_path / "out").counts["damaged"]
    assert damaged["fault"].endswith("of which no checksum confirms any")


def test_a_cut_file_gives_what_came_before_the_cut(tmp_path: Path) -> None:
    ending = ".zst"
    data = PACK[ending](b"".join(LINES[:20])) + PACK[ending](b"".join(LINES[20:]))[:-9]
    (tmp_path / f"a.jsonl{ending}").write_bytes(data)
    manifest = run(tmp_path / f"a.jsonl{ending}", tmp_path / "out")
    (damaged,) = manifest.counts["damaged"]
    assert f"cut off at byte {len(data)}" in damaged["fault"]
    assert damaged["unconfirmed"] == manifest.counts["kept"] - 20
    (tmp_path / f"b.jsonl{ending}").write_bytes(PACK[ending](b"".join(LINES)) + b"stray")
    (damaged,) = run(tmp_path / f"b.jsonl{ending}", tmp_path / "stray").counts["damaged"]
    assert damaged["unconfirmed"] == 0
    assert "stray bytes" in damaged["fault"]


@pytest.mark.nightly
def test_lanes_and_workers_count_damage_once(tmp_path: Path) -> None:
    limits = Limits(lane_bytes=500, partition_characters=800_000, batch_records=4)
    (tmp_path / "a.jsonl.gz").write_bytes(wrong_sum(gzip.compress(b"".join(LINES))))
    manifest = run(tmp_path / "a.jsonl.gz", tmp_path / "one", limits=limits)
    assert [each["unconfirmed"] for each in manifest.counts["damaged"]] == [manifest.counts["kept"]]
    assert len(manifest.counts["damaged"]) == manifest.counts["bad"]["file that cannot be read further"] == 1
    run(tmp_path / "a.jsonl.gz", tmp_path / "two", workers=2, limits=limits)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_a_damaged_file_ends_the_build_or_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(wrong_sum(gzip.compress(b"".join(LINES))))
    with pytest.raises(InputError, match=r"a\.jsonl\.gz: corrupt gzip data near byte .* --on-error skip"):
        run(tmp_path / "a.jsonl.gz", tmp_path / "out", on_error="records")
    assert not (tmp_path / "out" / "manifest.json").exists()
    run(tmp_path / "a.jsonl.gz", tmp_path / "out", progress=Progress(), overwrite=True)
    assert "warning: 1 damaged file was not read to its end, and" in " ".join(capsys.readouterr().err.split())
