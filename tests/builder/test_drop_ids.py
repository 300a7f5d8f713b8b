"""Documents whose ids are listed are dropped, as any stage after dedup may drop documents: counted, sampled and reported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.limits import Limits
from pipeline.cli.main import run_command
from pipeline.errors import ConfigError
from pipeline.shards.manifest import Manifest
from pipeline.shards.reader import Shard
from pipeline.shards.verify.dataset import verify_dataset
from tests.corpus import english

SMALL = Limits(unit_bytes=20_000, smallest_unit_bytes=5_000, batch_records=10, partition_characters=10_000)
HALVES = """\
import pipeline


def halves(document):
    middle = len(document.text) // 2
    return [pipeline.Document(text, "", "", 0) for text in (document.text[:middle], document.text[middle:])]
"""


def make(source: Path, output: Path, **settings: Any) -> Manifest:
    given = {"tokenizer": "bytes", "rules": (), "val_fraction": 0, "start_method": "fork", "limits": SMALL}
    return build(source, output, progress=Progress(quiet=True), **{**given, **settings})


def ids(output: Path) -> list[str]:
    return [id for path in sorted(output.glob("*.tar")) for id in Shard(path).table()["id"]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """60 documents; each of d50 to d54 equals the one ten before it, and the last has no id."""
    records = [{"id": f"d{k}", "text": english(k - 10 * (50 <= k < 55), 8)} for k in range(60)]
    del records[59]["id"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path / "in.jsonl"


def listed(tmp_path: Path, *names: str) -> Path:
    (tmp_path / "gone.txt").write_text("\ufeff" + "\r\n".join(["", *names, " ", "of no document"]), encoding="utf-8")
    return tmp_path / "gone.txt"


def test_listed_documents_are_dropped_and_everything_tells_so(tmp_path: Path, source: Path) -> None:
    gone = listed(tmp_path, "d3", "d42", "d51", "in.jsonl:60")
    manifest = make(source, tmp_path / "out", drop_ids=str(gone), keep_rejected=True)
    # d52 is a duplicate of d42 and goes with it; d51 is dropped for d41, which stays.
    left = [f"d{k}" for k in range(59) if k not in (3, 42) and not 50 <= k < 55]
    assert ids(tmp_path / "out") == left
    counts = manifest.counts
    assert (counts["read"], counts["kept"], counts["duplicates"]) == (60, 52, {"exact": 5, "near": 0})
    assert counts["dropped"] == {"drop_ids": 3} == counts["by_source"][""]["dropped"]
    assert {sample["id"] for sample in counts["samples"]["drop_ids"]} == {"d3", "d42", "in.jsonl:60"}
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert {line["id"] for line in rejected if line["reason"] == "its id is in the list of drop_ids"} == {
        "d3",
        "d42",
        "in.jsonl:60",
    }
    report = (tmp_path / "out/report.html").read_text()
    assert report.index("near duplicates") < report.index("dropped by drop_ids") < report.index("documents kept")
    assert manifest.recipe["settings"]["drop_ids"] == "gone.txt"
    assert len(manifest.recipe["definitions"]["drop_ids"]) == 64
    assert list(verify_dataset(tmp_path / "out")) == []


def test_a_dry_run_drops_listed_documents_and_names_the_stages_that_a_sample_does_not_foresee(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = listed(tmp_path, "d3", "d42", "d51", "in.jsonl:60")
    flags = ["--output", str(tmp_path / "out"), "--tokenizer", "bytes", "--rules", "none", "--drop-ids", str(gone)]
    assert run_command("build", [str(source), *flags, "--dedup-lines", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\b52 +86\.7%  kept", said)
    assert re.search(r"\b3 +5\.0%  drop_ids", said)
    assert "not foreseen: how many more duplicates there are" in said
    assert "nothing was written" in said
    assert run_command("build", [str(source), *flags, "--no-dedup", "--dry-run"]) == 0
    assert "not foreseen" not in capsys.readouterr().out


def test_the_parts_of_a_listed_document_are_dropped(tmp_path: Path, source: Path) -> None:
    (tmp_path / "own_halves.py").write_text(HALVES)
    settings: dict[str, Any] = {"transforms": f"{tmp_path}/own_halves:halves", "dedup": False}
    make(source, tmp_path / "out", drop_ids=str(listed(tmp_path, "d3", "d4#2")), **settings)
    assert ids(tmp_path / "out")[4:9] == ["d2#1", "d2#2", "d4#1", "d5#1", "d5#2"]


def test_a_quota_is_filled_by_what_is_left(tmp_path: Path, source: Path) -> None:
    plain = make(source, tmp_path / "plain", max_tokens="2000", dedup=False)
    names = ids(tmp_path / "plain")
    gone = listed(tmp_path, *names)
    other = make(source, tmp_path / "out", max_tokens="2000", dedup=False, drop_ids=str(gone))
    assert not set(ids(tmp_path / "out")) & set(names)
    assert other.counts["dropped"]["drop_ids"] == plain.counts["kept"] > 0
    assert 0 < other.counts["tokens"] <= 2000


def test_a_list_that_cannot_be_read_is_refused_before_any_work(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ConfigError, match=r"drop_ids .*none\.txt: cannot be read: No such file"):
        make(source, tmp_path / "out", drop_ids=str(tmp_path / "none.txt"))
    (tmp_path / "utf16.txt").write_text("d3\n", encoding="utf-16")
    with pytest.raises(ConfigError, match=r"drop_ids .*utf16\.txt: not UTF-8 text"):
        make(source, tmp_path / "out", drop_ids=str(tmp_path / "utf16.txt"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_ids_are_compared_as_they_are_written_without_spaces_and_fractions_of_zero(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    given: list[Any] = [" spaced ", "7.0", "1.5", "007", "last"]
    numbers: list[Any] = [90071992547409930001, 90071992547409930002, 3.0, 4]
    rows = [{"id": id, "text": english(k, 8)} for k, id in enumerate([*given, *([] if kind == "parquet" else numbers)])]
    path = tmp_path / f"in.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    gone = listed(tmp_path, "spaced", "7", "1", "7.5", "90071992547409930001", "3", "4.0")
    manifest = make(path, tmp_path / "out", drop_ids=str(gone))
    assert ids(tmp_path / "out") == ["1.5", "007", "last"] + ["90071992547409930002"] * (kind != "parquet")
    assert manifest.counts["dropped"] == {"drop_ids": 2 if kind == "parquet" else 5}


def test_ids_that_a_table_holds_as_floats_are_those_that_a_list_has_as_numbers(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"id": [1.0, 2.0, None], "text": [english(k, 8) for k in range(3)]})
    manifest = make(frame, tmp_path / "out", drop_ids=str(listed(tmp_path, "2")))  # type: ignore[arg-type]
    assert manifest.counts["dropped"] == {"drop_ids": 1}


def test_listed_ids_that_match_nothing_are_counted_in_terminal_and_report(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--output", str(tmp_path / "out"), "--tokenizer", "bytes", "--rules", "none", "--val-fraction", "0"]
    gone = listed(tmp_path, "d3", "d51", "nowhere")
    assert run_command("build", [str(source), *flags, "--drop-ids", str(gone)]) == 0
    note = "drop_ids: 2 of 4 listed ids match no document that passed the filters: 'nowhere', 'of no document'"
    assert note in " ".join(capsys.readouterr().err.split())
    assert Manifest.read(tmp_path / "out").counts["notes"] == [note]
    report = (tmp_path / "out/report.html").read_text()
    assert "drop_ids: 2 of 4 listed ids match no document" in report
