"""WebDataset tars of text: each sample is one record, with the keys and fields that webdataset gives."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import InputError
from tests.helpers.builds import run_plain, table
from tests.helpers.format_samples import tar_of

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
    for _ in stream.filter(lambda record: seen.append(record) or True, name="see").documents():
        pass
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
    for sample in webdataset.WebDataset(str(path), shardshuffle=False).decode():
        if "txt" in sample:
            expected[sample["__key__"]] = (sample["txt"], sample.get("cls"), sample.get("en.txt"))
    fields = ("cls:int", "en.txt:str", "__key__:str")
    read = documents(path, text_key="txt", fields=fields, on_error="records")
    found = {each.id: (each.text, each.metadata["cls"], each.metadata["en.txt"]) for each in read}
    assert found == expected
    assert all(each.metadata["__key__"] == each.id for each in read)


def test_the_text_is_the_txt_member_or_a_field_of_the_json_member(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    inner = {"text": "of the json", "url": "u", "id": "inner", "deep": {"url": "v"}}
    members = {"1.txt": b"of the txt", "1.json": json.dumps(inner).encode(), "2.json": json.dumps(inner).encode()}
    path.write_bytes(tar_of(members))
    assert [(each.id, each.text, each.line) for each in documents(path)] == [
        ("1", "of the txt", 1),
        ("2", "of the json", 2),
    ]
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
