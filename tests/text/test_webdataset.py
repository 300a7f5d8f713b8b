"""WebDataset tars of text: each sample is one record, with the keys and fields that webdataset gives."""

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
import webdataset
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.builder.limits import Limits
from pipeline.builder.plan import make_plan
from pipeline.builder.recipe import Recipe
from pipeline.cli.main import run_command
from pipeline.errors import DamagedInputError, InputError
from pipeline.shards.manifest import Manifest
from pipeline.text.readers.document_reader import DocumentReader
from tests.helpers.builds import run_plain, table
from tests.helpers.format_samples import FORMATS, tar_of
from tests.helpers.input_server import running_inputs
from tests.helpers.remote_inputs import only
from tests.helpers.text_samples import write_tar

VALUES: dict[str, Any] = {
    "txt": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).map(str.encode),
    "json": st.one_of(
        st.dictionaries(st.sampled_from(["url", "text", "id"]), st.text("ab", max_size=3)),
        st.lists(st.integers(), max_size=2),
    ).map(lambda value: json.dumps(value).encode()),
    "cls": st.integers(-9, 9).map(lambda value: str(value).encode()),
    "en.TXT": st.sampled_from([b"one", b"two"]),
    "jpg": st.just(b"\xff\xd8"),
}
SAMPLES = st.dictionaries(
    st.sampled_from(["1", "a.b/1", "a/2", "x y", "__meta__", "é"]),
    st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5, unique=True),
    min_size=1,
)


def documents(path: Path | str, **options: Any) -> list[Any]:
    """Return the records that a stream of texts reads of a file."""
    seen: list[Any] = []
    stream = pipeline.TextDataset(str(path), "bytes", epochs=1, format="webdataset", **options)
    list(stream.filter(lambda record: seen.append(record) or True, name="see").documents())
    return seen


@settings(max_examples=30, deadline=None)
@given(samples=SAMPLES, data=st.data())
@pytest.mark.filterwarnings("ignore:.*left out")
def test_samples_have_the_keys_and_fields_of_webdataset(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, list[str]], data: Any
) -> None:
    path = tmp_path_factory.mktemp("wds") / "a.tar"
    members = {f"{key}.{field}": data.draw(VALUES[field]) for key, fields in samples.items() for field in fields}
    path.write_bytes(tar_of({**members, "z.txt": b"last"}))
    expected = {}
    samples = webdataset.WebDataset(str(path), shardshuffle=False).decode()
    expected = {
        each["__key__"]: (each["txt"], each.get("cls"), each.get("en.txt")) for each in samples if "txt" in each
    }
    read = documents(path, text_key="txt", fields=("cls:int", "en.txt:str", "__key__:str"), on_error="records")
    found = {each.id: (each.text, each.metadata["cls"], each.metadata["en.txt"]) for each in read}
    assert found == expected
    assert all(each.metadata["__key__"] == each.id for each in read)


def test_the_text_is_the_txt_member_or_a_field_of_the_json_member(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    inner = {"text": "of the json", "url": "u", "id": "inner", "deep": {"url": "v"}}
    members = {"1.txt": b"of the txt", "1.json": json.dumps(inner).encode(), "2.json": json.dumps(inner).encode()}
    path.write_bytes(tar_of(members))
    found = [(each.id, each.text, each.line) for each in documents(path)]
    assert found == [("1", "of the txt", 1), ("2", "of the json", 2)]
    [first, _] = documents(path, text_key="json.text", id_key="json.id", fields=("url:str", "deep.url:str"))
    assert (first.id, first.text, first.metadata) == ("inner", "of the json", {"url": "u", "deep.url": "v"})


def test_a_build_reads_each_sample_of_a_tar_as_one_document(tmp_path: Path) -> None:
    for name, pack in (("a-000000.tar", bytes), ("a-000001.tar.gz", gzip.compress)):
        fields = ("txt", "cls", "json", "jpg")
        members = {f"{name[:8]}/{n}.{field}": f"{n}".encode() for n in range(5) for field in fields}
        (tmp_path / name).write_bytes(pack(tar_of(members)))
    paths = [str(tmp_path / "a-000000.tar"), str(tmp_path / "a-000001.tar.gz")]
    output = tmp_path / "out"
    run_plain(paths, output, format="webdataset", keep_fields=("cls:int",), dedup=False)
    columns = table(output)
    expected = [(f"a-00000{tar}/{n}", n) for tar in range(2) for n in range(5)]
    assert sorted(zip(columns["id"], columns["column:cls"], strict=True)) == expected


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"1.json": b"{]", "1.txt": b"a"}, "member whose content does not fit its ending.*1.json"),
        ({"1.cls": b"three", "1.txt": b"a"}, "1.cls: invalid literal"),
        ({"1.txt": b"\xff"}, "1.txt: 'utf-8' codec"),
        ({"1.json": b"[" * 100_000, "1.txt": b"a"}, "1.json: maximum recursion"),
        ({"1.cls": b"3"}, "no field 'text'.*'cls'"),
    ],
)
def test_a_sample_that_cannot_be_used_is_named(tmp_path: Path, members: dict[str, bytes], reason: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of({"0.txt": b"zero", **members, "2.txt": b"two"}))
    with pytest.raises(InputError, match=f"(?s)line 2.*{reason}"):
        documents(path)
    assert [each.text for each in documents(path, on_error="records")] == ["zero", "two"]


def test_a_member_twice_in_a_sample_is_an_error_as_it_is_in_webdataset(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("1.txt"))
    with pytest.raises(InputError, match=r"a member twice in one sample.*1\.txt"):
        documents(path)
    with pytest.raises(ValueError, match="duplicate file name"):
        list(webdataset.WebDataset(str(path), shardshuffle=False))


def test_a_tar_without_samples_of_text_says_which_members_samples_have(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of({"1.jpg": b"\xff", "README": b""}))
    with pytest.raises(InputError, match=r"no sample .*members such as txt"):
        documents(path)


def test_samples_that_are_whole_before_a_cut_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of({f"{n}.txt": b"some text" for n in range(4)})[: 1024 * 3 + 600])
    with pytest.raises(InputError, match=r"a\.tar"):
        documents(path)
    # The third sample may have had more members.
    assert [each.id for each in documents(path, on_error="skip")] == ["0", "1"]


# Members of a tar are read as files of a folder are: by their endings, compressed or not; what is left out is said.


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
