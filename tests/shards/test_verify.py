"""Damage of every kind to real shards is named by verify, and cuts, sizes, footer and index at open as well."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ShardError
from pipeline.shards.manifest import Manifest, ShardInfo
from pipeline.shards.reader import Shard
from pipeline.shards.tar import scan_tar
from pipeline.shards.verify.dataset import Problem, verify_dataset, verify_shard
from pipeline.shards.verify.findings import MAX_PROBLEMS, Contents
from pipeline.shards.verify.shard import check_shard
from tests.shard_samples import EOS, make_documents, write_dataset, write_documents, write_manifest


@pytest.fixture
def shard(tmp_path: Path) -> tuple[Path, ShardInfo]:
    path = tmp_path / "train-000000.tar"
    return path, write_documents(path, make_documents(12, seed=3))


def flip(path: Path, at: int, bit: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= bit
    path.write_bytes(raw)


def one(problems: list[Problem], text: str) -> Problem:
    """The only problem that speaks of ``text``."""
    found = [problem for problem in problems if text in problem.message]
    assert len(found) == 1, problems
    return found[0]


@pytest.mark.parametrize("options", [{}, {"tokens_per_sample": 60}])
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_a_sound_shard_has_no_problem(tmp_path: Path, options: dict[str, int], dtype: str) -> None:
    path = tmp_path / "a.tar"
    documents = [*make_documents(9, dtype=dtype), np.zeros(0, dtype), *make_documents(9, seed=1, dtype=dtype)]
    info = write_documents(path, documents, table={"id": [str(j) for j in range(19)]}, **options)
    assert verify_shard(path, info, Contents(dtype, 60_000, EOS)) == []
    assert verify_shard(path) == []


def test_a_shard_without_documents_is_sound(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", [])
    assert verify_shard(tmp_path / "a.tar", info, Contents("<u2", 10, 0)) == []


@pytest.mark.parametrize("place", ["boundary", "header", "payload", "end", "last byte"])
def test_a_cut_is_found_by_verify_and_at_open(shard: tuple[Path, ShardInfo], place: str) -> None:
    path, info = shard
    member = scan_tar(path)[4]
    size = {
        "boundary": member.offset,
        "header": member.offset + 77,
        "payload": member.data + 130,
        "end": info.bytes - 512,
        "last byte": info.bytes - 1,
    }[place]
    path.write_bytes(path.read_bytes()[:size])
    for expected in (info, None):
        problems = verify_shard(path, expected)
        assert any(problem.offset == size and problem.member for problem in problems), problems
        with pytest.raises(ShardError):
            Shard(path, expected)


def test_a_flipped_token_is_pinned_to_its_document_without_a_manifest(shard: tuple[Path, ShardInfo]) -> None:
    path, info = shard
    member = scan_tar(path)[7]
    flip(path, member.data + member.size - 1)
    problem = one(verify_shard(path), "checksum")
    assert problem.member == member.name
    assert problem.offset == member.data + 128
    assert "sha256" in one(verify_shard(path, info), "sha256").message


def test_damage_in_a_group_of_documents_names_the_member_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    info = write_documents(path, make_documents(40), tokens_per_sample=100)
    index = Shard(path, info)
    flip(path, int(index.starts[17]) * 2)
    problem = one(verify_shard(path), "checksum")
    member = [member for member in scan_tar(path) if member.data < int(index.starts[17]) * 2][-1]
    assert "document 17 " in problem.message
    assert (problem.member, problem.offset) == (member.name, int(index.starts[17]) * 2)


def test_damage_does_not_hide_what_lies_behind_it(shard: tuple[Path, ShardInfo]) -> None:
    path, _ = shard
    members = scan_tar(path)
    raw = bytearray(path.read_bytes())
    raw[members[2].offset : members[2].offset + 512] = bytes(512)
    raw[members[5].offset + 10] ^= 1
    raw[members[9].data + 128] ^= 1
    path.write_bytes(raw)
    problems = verify_shard(path)
    assert [problem.offset for problem in problems] == [
        members[2].offset,
        members[5].offset,
        members[9].data + 128,
    ]
    assert [problem.member for problem in problems] == [members[j].name for j in (1, 4, 9)]


def test_a_zeroed_payload_block_is_found(shard: tuple[Path, ShardInfo]) -> None:
    path, _ = shard
    member = scan_tar(path)[3]
    raw = bytearray(path.read_bytes())
    raw[member.data : member.data + 512] = bytes(512)
    path.write_bytes(raw)
    assert {problem.member for problem in verify_shard(path)} == {member.name}


def test_appended_bytes_are_found_by_verify_and_at_open(shard: tuple[Path, ShardInfo]) -> None:
    path, info = shard
    for extra in (b"x", bytes(512), bytes(10240)):
        path.write_bytes(path.read_bytes()[: info.bytes] + extra)
        assert verify_shard(path, info)
        assert verify_shard(path)
        with pytest.raises(ShardError):
            Shard(path, info)


@pytest.mark.parametrize("name", ["starts", "lengths", "footer"])
def test_a_flipped_byte_of_index_or_footer_names_it(shard: tuple[Path, ShardInfo], name: str) -> None:
    path, info = shard
    member = next(member for member in scan_tar(path) if member.name == f"__index__/{name}")
    flip(path, member.data + member.size // 2)
    problems = verify_shard(path)
    assert any(problem.member in (member.name, "__index__/footer") for problem in problems), problems
    if name != "footer":
        with pytest.raises(ShardError):
            Shard(path, info)


def test_a_changed_table_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    info = write_documents(path, make_documents(3), table={"id": ["first", "second", "third"]})
    path.write_bytes(path.read_bytes().replace(b"second", b"sekond"))
    assert one(verify_shard(path), "table_crc32").member == "__index__/documents"
    assert "sha256" in verify_shard(path, info)[-1].message


def test_a_whole_shard_of_another_build_is_told_from_the_one_that_the_manifest_names(tmp_path: Path) -> None:
    documents = [np.arange(5, dtype="<u2"), np.arange(9, dtype="<u2")]
    info = write_documents(tmp_path / "a.tar", documents)
    write_documents(tmp_path / "b.tar", [document + 1 for document in documents])
    one(verify_shard(tmp_path / "b.tar", info, quick=True), "table_crc32")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_changed_byte_anywhere_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("flip") / "train-000000.tar"
    info = write_documents(path, make_documents(4, seed=9), table={"id": ["a", "b", "c", "d"]})
    at = data.draw(st.integers(0, info.bytes - 1))
    bit = data.draw(st.sampled_from([0, 3, 7]) | st.none())
    flip(path, at, data.draw(st.integers(1, 255)) if bit is None else 1 << bit)
    assert len(verify_shard(path, info)) >= 2, (at, bit)
    assert verify_shard(path), (at, bit)


def test_tokens_outside_the_vocabulary_and_open_ends_are_counted(tmp_path: Path) -> None:
    documents = [np.array(ids, "<u2") for ids in ([5, 0], [70, 0], [3], [99, 1])]
    path = tmp_path / "a.tar"
    info = write_documents(path, documents)
    problems = verify_shard(path, info, Contents("<u2", 70, 0))
    beyond = one(problems, "id >= 70")
    assert beyond.member == "000000000001.npy"
    assert "document 1 " in beyond.message
    assert "1 more documents" in beyond.message
    assert "document 2 " in one(problems, "no end-of-text id 0").message
    assert len(problems) == 2
    assert "<u4" in verify_shard(path, info, Contents("<u4"))[0].message


def test_keys_out_of_order_twice_and_dotted_are_named(tmp_path: Path, shard: tuple[Path, ShardInfo]) -> None:
    path, info = shard
    members = scan_tar(path)
    raw = bytearray(path.read_bytes())
    from pipeline.shards.format import member_header

    for j, name in [(3, members[2].name), (6, "a.b.npy"), (9, "000000000000.npy")]:
        raw[members[j].offset : members[j].data] = member_header(name, members[j].size)
    path.write_bytes(raw)
    problems = verify_shard(path)
    assert one(problems, "the same key twice").offset == members[3].offset
    assert one(problems, "no sample").member == "a.b.npy"
    assert one(problems, "out of order").offset == members[9].offset
    assert "sha256" in one(verify_shard(path, info), "sha256").message


def test_a_shard_wrong_throughout_is_told_briefly(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_documents(path, make_documents(3 * MAX_PROBLEMS))
    raw = bytearray(path.read_bytes())
    for member in scan_tar(path)[: 3 * MAX_PROBLEMS]:
        raw[member.data + 128] ^= 1
    path.write_bytes(raw)
    problems = verify_shard(path)
    assert len(problems) == MAX_PROBLEMS + 1
    assert "100 more problems" in problems[-1].message


def test_quick_reads_no_tokens_but_finds_cuts(shard: tuple[Path, ShardInfo]) -> None:
    path, info = shard
    member = scan_tar(path)[7]
    flip(path, member.data + member.size - 1)
    assert check_shard(path, info, quick=True).problems == []
    path.write_bytes(path.read_bytes()[:-1024])
    assert check_shard(path, info, quick=True).problems


def test_a_missing_and_an_empty_file_are_problems(tmp_path: Path) -> None:
    assert verify_shard(tmp_path / "none.tar")
    (tmp_path / "empty.tar").write_bytes(b"")
    assert "empty" in verify_shard(tmp_path / "empty.tar")[0].message


# Datasets


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(8, seed=seed) for seed in range(3)])
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sound_dataset_has_no_problem_and_progress_reaches_the_end(dataset: Path, workers: int) -> None:
    seen: list[tuple[int, int]] = []
    found = verify_dataset(dataset, workers=workers, progress=lambda *at: seen.append(at), process_bytes=1)
    assert list(found) == []
    assert len(seen) == 3
    assert seen[-1][0] == seen[-1][1] == sum(path.stat().st_size for path in dataset.glob("*.tar"))


def test_swapped_shards_are_named_for_what_they_hold(dataset: Path) -> None:
    first, second = dataset / "train-000000.tar", dataset / "train-000001.tar"
    first.rename(dataset / "x")
    second.rename(first)
    (dataset / "x").rename(second)
    problems = list(verify_dataset(dataset))
    swaps = [problem for problem in problems if "swapped" in problem.message]
    assert [(problem.shard, "train-00000" in problem.message) for problem in swaps] == [
        (str(first), True),
        (str(second), True),
    ]
    with pytest.raises(ShardError):
        Shard(first, Manifest.read(dataset).split("train").shards[0])


def test_missing_extra_and_left_over_files_are_named(dataset: Path) -> None:
    (dataset / "train-000001.tar").rename(dataset / "train-000009.tar")
    (dataset / ".train-000003.tar.77.tmp").write_bytes(b"half")
    (dataset / ".build").mkdir()
    (dataset / ".build" / "plan.json").write_text("{}")
    found = {Path(problem.shard).name: problem.message for problem in verify_dataset(dataset)}
    assert set(found) == {"train-000001.tar", "train-000009.tar", ".train-000003.tar.77.tmp", ".build"}
    assert "not there" in found["train-000001.tar"]
    assert "does not name" in found["train-000009.tar"]


def test_the_lock_of_a_build_command_says_nothing_against_a_complete_dataset(dataset: Path) -> None:
    (dataset / ".build").mkdir()
    (dataset / ".build" / "lock").write_text("")
    assert list(verify_dataset(dataset)) == []
    (dataset / "manifest.json").unlink()
    found = [problem.message for problem in verify_dataset(dataset) if problem.shard.endswith(".build")]
    assert found == ["left by a build that did not finish; the same build command again completes it"]


def test_a_key_in_two_shards_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    infos = [
        write_documents(folder / "train-000000.tar", make_documents(5), 0),
        write_documents(folder / "train-000001.tar", make_documents(5), 4),
        write_documents(folder / "train-000002.tar", make_documents(5), 9),
    ]
    write_manifest(folder, {"train": infos})
    problem = one(list(verify_dataset(folder)), "also in")
    assert problem.member == "000000000004.npy"
    assert problem.shard.endswith("train-000001.tar")


def test_a_manifest_that_is_missing_or_edited_is_a_problem_and_shards_are_still_checked(dataset: Path) -> None:
    value = json.loads((dataset / "manifest.json").read_text())
    value["splits"]["train"]["shards"][0]["tokens"] += 1
    (dataset / "manifest.json").write_text(json.dumps(value))
    flip(dataset / "train-000002.tar", 512 + 128)
    for _ in range(2):
        problems = list(verify_dataset(dataset))
        assert [Path(problem.shard).name for problem in problems] == ["manifest.json", "train-000002.tar"]
        (dataset / "manifest.json").unlink(missing_ok=True)


def test_manifest_numbers_that_cannot_be_are_named(dataset: Path) -> None:
    manifest = Manifest.read(dataset)
    tokenizer = {**manifest.tokenizer, "eos_id": 70_000}
    shards = manifest.split("train").shards
    write_manifest(dataset, {"train": shards, "val": shards[:1]}, tokenizer=tokenizer)
    messages = [problem.message for problem in verify_dataset(dataset, quick=True)]
    assert any("eos_id 70000" in message for message in messages)
    assert any("train-000000.tar is in split 'val' and in 'train'" in message for message in messages)


def test_counts_that_do_not_add_up_are_named(dataset: Path) -> None:
    manifest = Manifest.read(dataset)
    held = manifest.split("train")
    counts = {"read": 30, "dropped": {"length": 4}, "duplicates": {"exact": 2}, "kept": 24, "tokens": held.tokens}
    replace(manifest, counts=counts).write(dataset)
    assert list(verify_dataset(dataset)) == []
    replace(manifest, counts={**counts, "read": 31, "tokens": 1}).write(dataset)
    messages = [problem.message for problem in verify_dataset(dataset)]
    assert messages == [
        f"counts say tokens 1, but the splits hold {held.tokens}",
        "counts say 31 documents were read and 0 added, but 4 dropped, 2 duplicates and 24 kept make 30",
    ]
    groups = {"web": {"read": 3, "added": 1, "dropped": {}, "kept": 4}, "wiki": {"read": 1, "dropped": {}, "kept": 0}}
    replace(manifest, counts={**counts, "by_source": groups}).write(dataset)
    messages = [problem.message for problem in verify_dataset(dataset)]
    said = (
        "counts say 1 documents of source 'wiki' were read and 0 added, but 0 dropped, 0 duplicates and 0 kept make 0"
    )
    assert messages == [said]


def test_another_tokenizer_than_the_manifests_is_named(dataset: Path) -> None:
    (dataset / "tokenizer.json").write_text("{}")
    (problem,) = verify_dataset(dataset, quick=True)
    assert problem.shard.endswith("tokenizer.json")
    assert "0000" in problem.message


def test_a_tar_of_another_tool_is_held_to_a_scan(tmp_path: Path) -> None:
    import webdataset

    path = tmp_path / "web.tar"
    with webdataset.TarWriter(str(path)) as writer:
        writer.write({"__key__": "a", "npy": np.arange(5, dtype="<u2")})
        writer.write({"__key__": "b", "npy": np.arange(5, dtype="<u2")})
    assert verify_shard(path) == []
    path.write_bytes(path.read_bytes()[: scan_tar(path)[1].offset])
    (problem,) = verify_shard(path)
    assert (problem.member, problem.offset) == ("a.npy", path.stat().st_size)


def test_verify_changes_nothing_on_disk(dataset: Path) -> None:
    copy = dataset.with_name("copy")
    shutil.copytree(dataset, copy)
    list(verify_dataset(dataset, workers=2))
    assert sorted(path.name for path in dataset.iterdir()) == sorted(path.name for path in copy.iterdir())


def test_a_key_in_the_table_that_is_not_the_members_is_named(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", make_documents(4))
    raw = (tmp_path / "a.tar").read_bytes().replace(b'"000000000002"', b'"000000000007"')
    (tmp_path / "a.tar").write_bytes(raw)
    problems = verify_shard(tmp_path / "a.tar")
    assert len(problems) == 2
    one(problems, "document 2 has the key '000000000007', but its member is 000000000002.npy")
    assert info.bytes == len(raw)
