"""Members of a tar are read as files of a folder are: by their endings, compressed or not; what is left out is said."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

import pipeline
from pipeline.builder.limits import Limits
from pipeline.builder.plan import make_plan
from pipeline.builder.recipe import Recipe
from pipeline.cli.main import run_command
from pipeline.errors import DamagedInputError, InputError
from pipeline.shards.manifest import Manifest
from pipeline.text.readers.document_reader import DocumentReader
from tests.helpers.builds import run_plain, table
from tests.helpers.format_samples import FORMATS
from tests.helpers.input_server import running_inputs
from tests.helpers.remote_inputs import only
from tests.helpers.text_samples import write_tar

RECORDS = [{"text": f"Record number {n} of a part."} for n in range(1000)]
LINES = "".join(json.dumps(each) + "\n" for each in RECORDS).encode()
MEMBERS = {
    "README": b"No ending.",
    "README.txt": b"Read me.",
    "data/part0.jsonl": LINES,
    "DOC.TXT": b"In capitals.",
    "b/c.txt.gz": gzip.compress(b"Packed."),
    "b/d.jsonl.zst": zstandard.compress(b'{"id": "own", "text": "Packed record."}\n'),
    "e.json": b'{\n "text": "One object\\nover lines."\n}',
    "f.json": b'[{"text": "Of an array."}, {"text": 7}]',
    "._README.txt": b"\0\1 hidden",
    ".cache/a.txt": b"hidden",
    "__MACOSX/a.txt": b"hidden",
    "inner.tar": b"",
    "picture.jpg": b"\xff",
}


def make(source: Path | str, output: Path, **settings: Any) -> Manifest:
    return run_plain(source, output, **{"dedup": False, **settings})


def origins(output: Path) -> list[tuple[str, str, int]]:
    """Return id, file and line of each document."""
    columns = table(output)
    return sorted(zip(columns["id"], columns["file"], columns["line"], strict=True))


def pile(path: Path, members: Mapping[str, bytes] = MEMBERS) -> Path:
    """Write a tar with folders, a link and a device among its members."""
    write_tar(path, dict(members))
    with tarfile.open(path, "a") as tar:
        for name, kind in (("data", tarfile.DIRTYPE), ("link.txt", tarfile.SYMTYPE), ("null.txt", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "README.txt"
            tar.addfile(info)
    return path


def test_each_member_gives_the_documents_of_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pile(tmp_path / "pile.tar")
    flags = ["--tokenizer", "bytes", "--rules", "none", "--val-fraction", "0", "--no-dedup", "--workers", "1"]
    assert run_command("build", [str(path), "--output", str(tmp_path / "out"), *flags]) == 0
    manifest = Manifest.read(tmp_path / "out")
    assert manifest.counts["read"] == manifest.counts["kept"] == 1_006
    assert manifest.counts["bad"] == {"'text' is a number, not text": 1}
    parts = [(f"pile.tar/data/part0.jsonl:{n}", "pile.tar/data/part0.jsonl", n) for n in range(1, 1001)]
    others = [
        ("DOC", "pile.tar/DOC.TXT", 1),
        ("README", "pile.tar/README.txt", 1),
        ("b/c", "pile.tar/b/c.txt.gz", 1),
        ("own", "pile.tar/b/d.jsonl.zst", 1),
        ("pile.tar/e.json:1", "pile.tar/e.json", 1),
        ("pile.tar/f.json:1", "pile.tar/f.json", 1),
    ]
    assert origins(tmp_path / "out") == sorted(parts + others)
    note = (
        "pile.tar: 5 members were left out (an unknown ending, a tar, a link or a device): "
        "README, inner.tar, picture.jpg, link.txt, null.txt"
    )
    assert " ".join(capsys.readouterr().err.split()).count(note) == 1
    assert note in (tmp_path / "out/report.html").read_text()
    assert manifest.counts["notes"] == [note]
    limits = Limits(lane_bytes=10_000, partition_characters=5_000, batch_records=5)
    lanes = make(path, tmp_path / "lanes", limits=limits, workers=2)
    assert (origins(tmp_path / "lanes"), lanes.counts["notes"]) == (origins(tmp_path / "out"), [note])
    assert len(make_plan([str(path)], Recipe(), limits=limits).units) > 2

    seen: list[str] = []
    stream = pipeline.TextDataset(path, "bytes", epochs=1, on_error="records")
    with pytest.warns(UserWarning, match=r"pile\.tar: 5 members were left out .*: README, inner\.tar"):
        assert len(list(stream.filter(lambda document: seen.append(document.id) is None).documents())) == 1_006
    assert sorted(seen) == [id for id, _, _ in origins(tmp_path / "out")]


@pytest.mark.parametrize("name", sorted(name for name in FORMATS if ".tar" not in name and ".tgz" not in name))
def test_every_format_is_read_as_a_member_here_and_from_a_server(tmp_path: Path, name: str) -> None:
    payload = FORMATS[name]([("a", "The first text."), ("b", "The second one.")])
    path = write_tar(tmp_path / "pile.tar", {"./sub/" + name.upper(): payload, "after.txt": b"After it."})
    here = list(DocumentReader(only(str(path))))
    assert [record.file for record in here].count("pile.tar/after.txt") == 1
    assert len(here) >= 2
    with running_inputs(tmp_path) as server:
        assert list(DocumentReader(only(server.url("pile.tar")))) == here


def test_a_member_that_is_cut_is_a_bad_record_and_those_after_it_are_read(tmp_path: Path) -> None:
    members = {"a.jsonl.bz2": bz2.compress(LINES)[:-20], "b.csv": b"no,column\n1,2\n", "c.txt": b"Whole."}
    alone = write_tar(tmp_path / "one.tar", {"b.csv": members["b.csv"]})
    said = r"one\.tar/b\.csv: line 2: member that cannot be read further: no column 'text'"
    with pytest.raises(InputError, match=said):
        make(alone, tmp_path / "stopped", on_error="stop")
    manifest = make(write_tar(tmp_path / "pile.tar", members), tmp_path / "out")
    assert manifest.counts["bad"] == {"member that cannot be read further": 2}
    assert "pile.tar/c.txt" in [file for _, file, _ in origins(tmp_path / "out")]


def test_a_tar_of_which_no_member_can_be_read_names_what_it_holds(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "pile.tar", {"a.jpg": b"1", ".b.txt": b"2"})
    with pytest.raises(DamagedInputError, match=r"pile\.tar: no member .*only a\.jpg"):
        make(path, tmp_path / "out")


def test_a_compressed_tar_gives_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    plain = pile(tmp_path / "in/pile.tar")
    (tmp_path / "in/pile.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    make(plain, tmp_path / "plain")
    limits = Limits(lane_bytes=1_000, partition_characters=5_000, batch_records=5)
    make(tmp_path / "in/pile.tar.gz", tmp_path / "packed", limits=limits, workers=2)
    found = origins(tmp_path / "packed")
    packed = [(id.replace(".gz", ""), file.replace(".tar.gz", ".tar"), line) for id, file, line in found]
    assert packed == [(id.replace(".gz", ""), file, line) for id, file, line in origins(tmp_path / "plain")]
    with running_inputs(tmp_path / "in") as server:
        make(server.url("pile.tar.gz"), tmp_path / "far")
    assert origins(tmp_path / "far") == origins(tmp_path / "packed")


def test_names_that_are_not_utf8_are_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "pile.tar"
    with tarfile.open(path, "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("caf\xe9.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"Text."))
    make(path, tmp_path / "out")
    assert origins(tmp_path / "out") == [(r"caf\xe9", r"pile.tar/caf\xe9.txt", 1)]
