"""Damage of every kind to real shards and datasets is named by verify."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.progress import Progress
from pipeline.shards.format import footer_payload, member_header
from pipeline.shards.manifest import FileInfo, Manifest
from pipeline.shards.tar_members import Member
from pipeline.shards.verify.dataset import Problem, verify_dataset, verify_shard
from pipeline.shards.verify.findings import MAX_PROBLEMS, ExpectedTokens
from tests.helpers import shard_samples
from tests.helpers.shard_samples import (
    EOS,
    Shard,
    flip,
    flipped,
    make_documents,
    scan_tar,
    write_dataset,
    write_documents,
)


def one(problems: list[Problem], text: str) -> Problem:
    """The only problem that speaks of ``text``."""
    found = [problem for problem in problems if text in problem.message]
    assert len(found) == 1, problems
    return found[0]


@pytest.mark.parametrize("options", [{}, {"tokens_per_sample": 60}])
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_a_sound_shard_has_no_problem(path: Path, options: dict[str, int], dtype: str) -> None:
    documents = [*make_documents(9, dtype=dtype), np.zeros(0, dtype), *make_documents(9, seed=1, dtype=dtype)]
    info = write_documents(path, documents, table={"id": [str(j) for j in range(19)]}, **options)
    assert verify_shard(path, info, ExpectedTokens(dtype, 60_000, EOS)) == verify_shard(path) == []
    info = write_documents(path, [], dtype=dtype)
    assert verify_shard(path, info, ExpectedTokens(dtype, 10, 0)) == []


CUTS: dict[str, Callable[[Member, int], int]] = {
    "in no byte": lambda member, size: 0,
    "between members": lambda member, size: member.offset,
    "in a header": lambda member, size: member.offset + 77,
    "in a payload": lambda member, size: member.data + 130,
    "in the end blocks": lambda member, size: size - 512,
    "of the last byte": lambda member, size: size - 1,
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_is_found_at_its_byte(path: Path, cut: str) -> None:
    info = write_documents(path, make_documents(12, seed=3))
    size = CUTS[cut](scan_tar(path)[4], info.bytes)
    path.write_bytes(path.read_bytes()[:size])
    for expected in (info, None):
        problems = [*verify_shard(path, expected), *verify_shard(path, expected, quick=True)]
        assert sum(problem.offset == size for problem in problems) >= 2, problems
        assert not any("sha256" in problem.message for problem in problems)
        if size:
            said = f"{size} bytes, but the manifest says {info.bytes}; copy"
            assert sum(said in problem.message for problem in problems) == (0 if expected is None else 2)


def test_missing_files_and_appended_bytes_are_found(path: Path) -> None:
    assert verify_shard(path)
    info = write_documents(path, make_documents(12))
    for extra in (b"x", bytes(512), bytes(10240)):
        path.write_bytes(path.read_bytes()[: info.bytes] + extra)
        assert verify_shard(path, info)
        assert verify_shard(path)


def test_damage_is_pinned_to_members_and_hides_none_after_it(path: Path) -> None:
    info = write_documents(path, make_documents(12, seed=3))
    members = scan_tar(path)
    raw = bytearray(flipped(path.read_bytes(), members[5].offset + 10, members[9].data + 128))
    raw[members[2].offset : members[2].data] = bytes(512)
    path.write_bytes(raw)
    found = [(problem.member, problem.offset) for problem in verify_shard(path)]
    at = ((members[2], 0), (members[5], 0), (members[9], 128 + 512))
    assert found == [(member.name, member.offset + offset) for member, offset in at]
    assert "another build" not in one(verify_shard(path, info), "sha256").message


def test_damage_in_a_group_of_documents_names_the_document_and_its_member(path: Path) -> None:
    info = write_documents(path, make_documents(40), tokens_per_sample=100)
    start = int(Shard(path, info).starts[17]) * 2
    flip(path, start)
    problem = one(verify_shard(path), "document 17 ")
    assert "checksum" in problem.message
    assert (problem.member, problem.offset) == ([m.name for m in scan_tar(path) if m.data < start][-1], start)
    assert verify_shard(path, info, quick=True) == []


@pytest.mark.parametrize("name", ["starts", "lengths", "footer"])
def test_a_flipped_byte_of_index_or_footer_names_it(path: Path, name: str) -> None:
    write_documents(path, make_documents(12))
    member = next(member for member in scan_tar(path) if member.name == f"__index__/{name}")
    flip(path, member.data + member.size // 2)
    for quick in (False, True):
        assert any(problem.member == "__index__/footer" for problem in verify_shard(path, quick=quick))


def test_a_changed_table_is_found_by_its_checksum_and_its_keys(path: Path) -> None:
    write_documents(path, make_documents(3), table={"id": ["first", "second", "third"]})
    path.write_bytes(path.read_bytes().replace(b"second", b"sekond").replace(b'"000000000002"', b'"000000000007"'))
    problems = verify_shard(path)
    assert one(problems, "table_crc32").member == "__index__/documents"
    assert one(problems, "it names '000000000002.npy'").member == "000000000007.npy"


def test_a_whole_shard_of_another_build_is_told_apart(tmp_path: Path) -> None:
    documents = [np.arange(5, dtype="<u2"), np.arange(9, dtype="<u2")]
    info = write_documents(tmp_path / "a.tar", documents)
    write_documents(tmp_path / "b.tar", [document + 1 for document in documents])
    one(verify_shard(tmp_path / "b.tar", info, quick=True), "table_crc32")
    one(verify_shard(tmp_path / "a.tar", info._replace(sha256="0" * 64)), "the manifest belongs to another build")


@settings(max_examples=150)
@given(data=st.data())
def test_any_changed_byte_anywhere_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("flip") / "train-000000.tar"
    info = write_documents(path, make_documents(4, seed=9), table={"id": ["a", "b", "c", "d"]})
    raw, at = bytearray(path.read_bytes()), data.draw(st.integers(0, info.bytes - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    assert len(verify_shard(path, info)) >= 2, at
    assert verify_shard(path), at


def test_tokens_outside_the_vocabulary_and_open_ends_are_counted(path: Path) -> None:
    documents = [np.array(ids, "<u2") for ids in ([5, 0], [70, 0], [3], [99, 1])]
    info = write_documents(path, documents)
    problems = verify_shard(path, info, ExpectedTokens("<u2", 70, 0))
    beyond = one(problems, "id >= 70")
    assert beyond.member == "000000000001.npy"
    assert "document 1 " in beyond.message
    assert "1 more documents" in beyond.message
    assert "document 2 " in one(problems, "no end-of-text id 0").message
    assert len(problems) == 2
    (alone,) = verify_shard(path, info, ExpectedTokens("<u2", 99, 0, ends=False))
    assert alone.message == "document 3 has an id >= 99, the vocabulary"
    assert "<u4" in verify_shard(path, info, ExpectedTokens("<u4"))[0].message


def edit_footer(raw: bytearray, footer: Member, **changed: Any) -> None:
    fields = json.loads(raw[footer.data : footer.data + 512]) | changed
    raw[footer.data : footer.data + 512] = footer_payload(fields)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bytes": 7}, "13312 bytes, but its footer says 7; copy it again"),
        ({"documents": 4}, "byte 8704: index sizes do not fit 4 documents"),
        ({"starts": [8704, 153]}, "byte 8704: index sizes do not fit 3 documents"),
        ({"lengths": [9216, 140]}, "byte 8704: index sizes do not fit 3 documents"),
        ({"tokens": 1000}, "byte 9728: documents hold 2701 tokens, but the footer says 1000"),
        ({"index_crc32": 7}, "but its footer says 7; copy it again"),
        ({"dtype": "<u4"}, "byte 8704: the index points outside the samples"),
        ({"table": [11265, 0]}, "ValueError: the index is outside the file"),
        ({"table": [0, 11265]}, "ValueError: the index is outside the file"),
        ({"table": [1, 2, 3]}, "ValueError: the index is outside the file"),
        ({"table": [0, True]}, "ValueError: fields of wrong types or values"),
        ({"dtype": "<i8"}, "ValueError: fields of wrong types or values"),
        ({"format": "tar"}, "ValueError: fields of wrong types or values"),
        ({"tokens": -1}, "ValueError: fields of wrong types or values"),
        ({"table": None}, "TypeError: "),
        ({"version": 2}, "shard format 2, but this release reads 1"),
    ],
)
def test_a_footer_that_states_what_cannot_be_is_named(path: Path, changed: dict[str, Any], said: str) -> None:
    write_documents(path, [np.arange(n, dtype="<u2") for n in (900, 1, 1800)])
    footer, raw = scan_tar(path)[-1], bytearray(path.read_bytes())
    edit_footer(raw, footer, **changed)
    path.write_bytes(raw)
    for quick in (False, True):
        assert one(verify_shard(path, quick=quick), said).member == footer.name
    sound = write_documents(path, make_documents(3))
    head, brace, rest = path.read_bytes().replace(b',"dtype"', b', "dtype"').rpartition(b"} ")
    path.write_bytes(head + brace[:1] + rest)
    problem = one(verify_shard(path), "the footer is not as this format writes it; copy it again")
    assert (problem.member, problem.offset) == (footer.name, sound.bytes - 1536)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"[]", ["table of documents: no columns by name", "no column key", "no column crc32"]),
        (b'{"key"', ["table of documents: Expecting ':' ", "no column key", "no column crc32"]),
        (b'{"key":[1,2,3],"crc32":[1,2,3]}', ["key 1 must be 1 to 95 ASCII characters"]),
        (b'{"key":["a"],"crc32":7}', ["'key' does not hold 3 values; copy", "'crc32' does not hold 3 values; copy"]),
    ],
)
def test_a_table_that_holds_no_columns_of_the_documents_is_named(path: Path, table: bytes, said: list[str]) -> None:
    write_documents(path, make_documents(3))
    (first, *_, member, footer), raw = scan_tar(path), bytearray(path.read_bytes())
    payload = table.ljust(member.size)
    raw[member.data : member.data + member.size] = payload
    edit_footer(raw, footer, table_crc32=zlib.crc32(payload))
    path.write_bytes(raw)
    problems = verify_shard(path, quick=True)
    assert {one(problems, message).member for message in said} == {member.name}
    assert len(problems) == len(said)
    path.write_bytes(b"\xff" * 100 + raw[100:])  # a name that no header can have
    assert one(verify_shard(path, quick=True), r"(it names '\\xff").offset == first.offset


@pytest.mark.parametrize(("group", "change"), [(0, 2), (0, 512), (1000, 2)])
def test_an_index_that_moves_a_document_is_found(path: Path, group: int, change: int) -> None:
    write_documents(path, make_documents(5, longest=9), tokens_per_sample=group)
    (*_, starts, lengths, _, footer), raw = scan_tar(path), bytearray(path.read_bytes())
    np.frombuffer(raw, "<u8", 5, starts.data + 128)[3] += np.uint64(change)
    payloads = [raw[member.data : member.data + member.size] for member in (starts, lengths)]
    edit_footer(raw, footer, index_crc32=zlib.crc32(payloads[1], zlib.crc32(payloads[0])))
    path.write_bytes(raw)
    for quick in (False, True):
        one(verify_shard(path, quick=quick), "the member before it ends at byte")


@pytest.mark.parametrize(("key", "reason"), [("000000000002", "ascend"), ("0", "ascend"), ("a.b", "without dots")])
def test_a_key_that_is_out_of_order_twice_or_dotted_is_named(path: Path, key: str, reason: str) -> None:
    write_documents(path, make_documents(5), table={"id": ["a", "b", "c", "d", "#" * len(key)]})
    (*_, member, _, _, table, footer), raw = scan_tar(path), bytearray(path.read_bytes())
    raw[member.offset : member.data] = member_header(f"{key}.npy", member.size)
    payload = raw[table.data : table.data + table.size].replace(b'"000000000004"', f'"{key}"'.encode())
    payload = payload.replace(b"#" * len(key), b"#" * 12)
    raw[table.data : table.data + table.size] = payload
    edit_footer(raw, footer, table_crc32=zlib.crc32(payload))
    path.write_bytes(raw)
    (problem,) = verify_shard(path)
    assert (problem.member, problem.offset) == (table.name, table.data)
    assert reason in problem.message


def test_a_shard_wrong_throughout_is_told_briefly(path: Path) -> None:
    write_documents(path, make_documents(3 * MAX_PROBLEMS))
    flip(path, *(member.data + 128 for member in scan_tar(path)[: 3 * MAX_PROBLEMS]))
    problems = verify_shard(path)
    assert len(problems) == MAX_PROBLEMS + 1
    assert "100 more problems" in problems[-1].message


def test_a_tar_of_another_tool_is_held_to_a_scan(tmp_path: Path) -> None:
    path = tmp_path / "web.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for key in "ab":
            writer.write({"__key__": key, "npy": np.arange(5, dtype="<u2")})
    assert verify_shard(path) == []
    path.write_bytes(path.read_bytes()[: scan_tar(path)[1].offset])
    (problem,) = verify_shard(path)
    assert (problem.member, problem.offset) == ("a.npy", path.stat().st_size)


# Datasets


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(8, seed=seed) for seed in range(3)])
    return folder


def messages(folder: Path, **options: Any) -> list[str]:
    return [problem.message for problem in verify_dataset(folder, **options)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sound_dataset_has_no_problem_and_does_not_change(dataset: Path, workers: int) -> None:
    progress = Progress(quiet=True)
    before = sorted(dataset.iterdir())
    assert list(verify_dataset(dataset, workers=workers, progress=progress, process_bytes=1)) == []
    assert progress.bytes == sum(path.stat().st_size for path in dataset.glob("*.tar"))
    assert sorted(dataset.iterdir()) == before


def test_missing_extra_swapped_and_left_over_files_are_named(dataset: Path) -> None:
    first, second = dataset / "train-000000.tar", dataset / "train-000001.tar"
    first.rename(dataset / "x")
    second.rename(first)
    (dataset / "x").rename(second)
    (dataset / "train-000002.tar").rename(dataset / "train-000009.tar")
    (dataset / ".train-000003.tar.77.tmp").write_bytes(b"half")
    (dataset / ".build").mkdir()
    (dataset / ".build" / "plan.json").write_text("{}")
    (dataset / "tokenizer.json").write_text("{}")
    found: dict[str, str] = {}
    for problem in verify_dataset(dataset):
        found[Path(problem.shard).name] = found.get(Path(problem.shard).name, "") + problem.message
    for name, said in (
        ("train-000000.tar", "it holds what the manifest calls train-000001.tar: shards were swapped"),
        ("train-000001.tar", "it holds what the manifest calls train-000000.tar"),
        ("train-000002.tar", "not there"),
        ("train-000009.tar", "does not name"),
        (".train-000003.tar.77.tmp", "killed while writing"),
        (".build", "left by a build"),
        ("tokenizer.json", "ids would decode to other text"),
    ):
        assert said in found.pop(name)
    assert found == {}


def test_files_beside_the_shards_are_held_to_the_manifest(dataset: Path) -> None:
    (dataset / "texts").mkdir()
    for name in ("whole", "other", "longer", "unnamed"):
        (dataset / "texts" / name).write_bytes(b"abc")
    sound = FileInfo.of(dataset / "texts" / "whole", "texts/whole")
    files = [sound, sound._replace(name="texts/other", sha256="0" * 64), sound._replace(name="texts/longer", bytes=2)]
    files += [sound._replace(name=name) for name in ("texts/gone", "report.html")]  # a report may be removed
    replace(Manifest.read(dataset), files=tuple(files)).write(dataset)
    said = {
        "texts/other": f"sha256 {sound.sha256}, but the manifest says {'0' * 64}; copy it again",
        "texts/longer": "3 bytes, but the manifest says 2; copy it again",
        "texts/gone": "the manifest names this file, but it is not there; copy it again",
        "texts/unnamed": "the manifest does not name this file; remove it",
    }
    for quick, names in ((False, {*said}), (True, {*said} - {"texts/other"})):
        problems = verify_dataset(dataset, quick=quick)
        found = {problem.shard.removeprefix(f"{dataset}/"): problem.message for problem in problems}
        assert found == {name: said[name] for name in names}
    with pytest.raises(ConfigError, match=r"workers must be .*1 or more, got 0"):
        messages(dataset, workers=0)
    with pytest.raises(ConfigError, match=r"manifest\.json is a file.*give the directory of a dataset"):
        messages(dataset / "manifest.json")


def test_the_lock_of_a_build_is_no_problem_of_a_complete_dataset(dataset: Path) -> None:
    (dataset / ".build").mkdir()
    (dataset / ".build" / "lock").write_text("")
    assert messages(dataset) == []
    (dataset / "manifest.json").unlink()
    said = "left by a build or redaction that did not finish; the same build command again completes it"
    assert said in messages(dataset)


def test_a_key_in_two_shards_is_named(tmp_path: Path) -> None:
    firsts = {"train-000000.tar": 0, "train-000001.tar": 4, "train-000002.tar": 9}
    infos = [write_documents(tmp_path / name, make_documents(5), first) for name, first in firsts.items()]
    shard_samples.write_manifest(tmp_path, {"train": infos})
    problem = one(list(verify_dataset(tmp_path)), "also in")
    assert problem.member == "000000000004.npy"
    assert problem.shard.endswith("train-000001.tar")


def test_shards_are_checked_without_a_sound_manifest(dataset: Path) -> None:
    value = json.loads((dataset / "manifest.json").read_text())
    value["splits"]["train"]["shards"][0]["tokens"] += 1
    (dataset / "manifest.json").write_text(json.dumps(value))
    flip(dataset / "train-000002.tar", 512 + 128)
    for _ in range(2):
        problems = list(verify_dataset(dataset))
        assert [Path(problem.shard).name for problem in problems] == ["manifest.json", "train-000002.tar"]
        (dataset / "manifest.json").unlink(missing_ok=True)


def test_manifest_numbers_that_cannot_be_or_do_not_add_up_are_named(dataset: Path) -> None:
    manifest = Manifest.read(dataset)
    train = manifest.split("train")
    counts = {"read": 30, "dropped": {"length": 4}, "duplicates": {"exact": 2}, "kept": 24, "tokens": train.tokens}
    groups = {"web": {"read": 3, "added": 1, "dropped": {}, "kept": 4}, "wiki": {"read": 1, "dropped": {}, "kept": 0}}
    read, source = "documents were read and 0 added, but", "documents of source 'wiki' were read and 0 added, but"
    for changed, said in (
        ({}, []),
        ({"tokens": 1}, [f"counts say tokens 1, but the splits hold {train.tokens}"]),
        ({"read": 31}, [f"counts say 31 {read} 4 dropped, 2 duplicates and 24 kept make 30"]),
        ({"by_source": groups}, [f"counts say 1 {source} 0 dropped, 0 duplicates and 0 kept make 0"]),
    ):
        replace(manifest, counts={**counts, **changed}).write(dataset)
        assert messages(dataset, quick=True) == said
    tokenizer = {**manifest.tokenizer, "eos_id": manifest.tokenizer["vocab_size"] - 1}
    shard_samples.write_manifest(dataset, {"train": train.shards}, tokenizer=tokenizer)
    assert messages(dataset, quick=True) == []
    tokenizer["eos_id"] += 1
    shard_samples.write_manifest(dataset, {"train": train.shards, "val": train.shards[:1]}, tokenizer=tokenizer)
    found = " ".join(messages(dataset, quick=True))
    assert f"eos_id {tokenizer['eos_id']} is outside its vocabulary of {tokenizer['eos_id']}" in found
    assert "train-000000.tar is in split 'val' and in 'train'" in found
