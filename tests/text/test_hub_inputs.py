"""Datasets of the hub: how they are named, found by few calls of its API, read, and held to one commit."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from random import Random

import pytest

import pipeline
from pipeline.errors import InputError, ShardwrightError, StorageError
from pipeline.progress import Progress
from pipeline.text.discovery import find_inputs
from pipeline.text.readers.document_reader import split_file
from pipeline.text.storage.hub import HubFile
from pipeline.text.storage.hub_files import splits_by_name
from tests.helpers.input_server import COMMIT, InputServer
from tests.helpers.interruptions import interrupt_after
from tests.helpers.remote_inputs import QUICK, TEXTS, assert_nowhere, build, columns_file, only, shards_of, texts_of
from tests.helpers.text_samples import make_texts, write_texts


@pytest.fixture
def hub(server: InputServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InputServer:
    monkeypatch.setenv("HF_ENDPOINT", server.root)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server


CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*.parquet
- config_name: sample
  data_files:
  - split: train
    path: sample/*
  - split: test
    path: held/*.jsonl
---
# A card
"""


def fill(hub: InputServer, tmp_path: Path) -> None:
    for name in ("data/CC-1/000.parquet", "data/CC-1/001.parquet", "sample/000.parquet", "held/a.jsonl"):
        path = write_texts(tmp_path / f"x.{name.rpartition('.')[2]}", [f"{name} {text}" for text in TEXTS[:20]])
        hub.files[name] = path.read_bytes()
    hub.files["README.md"] = CARD


@pytest.mark.parametrize(
    ("rest", "names"),
    [
        ("", ["data/CC-1/000.parquet", "data/CC-1/001.parquet"]),
        ("@v1", ["data/CC-1/000.parquet", "data/CC-1/001.parquet"]),
        (":sample", ["sample/000.parquet"]),
        (":sample:test", ["held/a.jsonl"]),
        ("/held", ["held/a.jsonl"]),
        ("/**/*0.parquet", ["data/CC-1/000.parquet", "sample/000.parquet"]),
        ("@main/data/CC-1/001.parquet", ["data/CC-1/001.parquet"]),
    ],
)
def test_a_dataset_of_the_hub_is_named_by_config_and_split_or_path(
    hub: InputServer, tmp_path: Path, rest: str, names: list[str]
) -> None:
    fill(hub, tmp_path)
    files = find_inputs(f"hf://datasets/org/name{rest}", requests=QUICK)
    assert [file.name for file in files] == names
    for file in files:
        assert file.path == f"hf://datasets/org/name@{COMMIT}/{file.name}"
        assert texts_of(file) == [f"{file.name} {text}" for text in TEXTS[:20]]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("org/name:sampel", r"no configuration 'sampel' \(did you mean 'sample'\?\).*default, sample"),
        ("org/name:sampel", "as in hf://datasets/org/name:default$"),
        ("org/name:sample:tset", r"no split 'tset' \(did you mean 'test'\?\).*train, test"),
        ("org/name/dta", "no file matches"),
        ("org/name@v9", "Invalid rev id: v9; give a branch, a tag or a commit"),
        ("org/nam", "Repository not found; check the name; if the dataset is private, set HF_TOKEN"),
        ("org/name:a:b:c", "write hf://datasets/ID"),
    ],
)
def test_what_the_hub_lacks_is_said_with_the_cure(hub: InputServer, tmp_path: Path, spec: str, said: str) -> None:
    fill(hub, tmp_path)
    with pytest.raises(ShardwrightError, match=said):
        find_inputs(f"hf://datasets/{spec}", requests=QUICK)


def test_default_is_the_configuration_that_is_read_where_none_is_named(hub: InputServer, tmp_path: Path) -> None:
    fill(hub, tmp_path)
    hub.files["README.md"] = CARD.replace(b"config_name: default", b"config_name: all\n  default: true")
    named = [find_inputs(f"hf://datasets/org/name{rest}", requests=QUICK) for rest in ("", ":all", ":default")]
    assert len({tuple(file.name for file in files) for files in named}) == 1
    hub.files["README.md"] = CARD.replace(b"config_name: default", b"config_name: all")
    hub.commit = COMMIT[::-1]
    said = "several configurations, and none is the default; name one of all, sample, as in hf://datasets/org/name:all$"
    for rest in ("", ":default"):
        with pytest.raises(InputError, match=said):
            find_inputs(f"hf://datasets/org/name{rest}", requests=QUICK)


ALL = ["data/CC-1/000.parquet", "data/CC-1/001.parquet", "held/a.jsonl", "sample/000.parquet"]


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ("data_files: sample/*.parquet", ["sample/000.parquet"]),
        ("data_files: ./sample/*", ["sample/000.parquet"]),
        ("data_files: [sample/*, held/*]", ["held/a.jsonl", "sample/000.parquet"]),
        ("data_files: {test: held/*, train: [sample/*]}", ["sample/000.parquet"]),
        ("data_files: [{path: sample/*}, {split: test, path: held/*}]", ["sample/000.parquet"]),
        ("data_files: [{split: dev, path: [held/*, sample/*]}]", ["held/a.jsonl", "sample/000.parquet"]),
        ("data_dir: /data/", ALL[:2]),
        ("data_dir: data\n  data_files: CC-1/*1.parquet", ["data/CC-1/001.parquet"]),
        ("data_files: '*/{000,a}.*'", ALL[2:]),
    ],
)
def test_a_card_names_files_in_every_form(hub: InputServer, tmp_path: Path, config: str, names: list[str]) -> None:
    fill(hub, tmp_path)
    hub.files["README.md"] = f"---\nconfigs:\n- config_name: own\n  {config}\n---\n".encode()
    assert [file.name for file in find_inputs("hf://datasets/org/name:own", requests=QUICK)] == names
    assert [file.name for file in find_inputs("hf://datasets/org/name", requests=QUICK)] == names
    hub.commit = COMMIT[::-1]
    for card in ("---\nconfigs: [\n---\n", "---\nconfigs: 7\n---\n", "# A card"):
        hub.files["README.md"], hub.commit = card.encode(), hub.commit[1:] + hub.commit[0]
        assert [file.name for file in find_inputs("hf://datasets/org/name:default", requests=QUICK)] == ALL
        with pytest.raises(InputError, match=r"no configuration 'own': .*card names none.*leave it out"):
            find_inputs("hf://datasets/org/name:own", requests=QUICK)


def test_a_gated_dataset_opens_with_a_token_for_its_server_alone(
    hub: InputServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(hub, tmp_path)
    hub.gated, hub.token = True, "hf_SECRET"
    with pytest.raises(StorageError, match=r"org/name is restricted.*ask for access at .*set HF_TOKEN"):
        find_inputs("hf://datasets/org/name", requests=QUICK)
    monkeypatch.setenv("HF_TOKEN", " hf_SECRET\n")  # as `export HF_TOKEN=$(cat FILE)` may leave it
    assert texts_of(find_inputs("hf://datasets/org/name", requests=QUICK)[0])
    assert all("authorization" not in each.headers for each in hub.asked if each.path.startswith("/cdn/"))
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("hf_SECRET\n")
    assert len(find_inputs("hf://datasets/org/name", requests=QUICK)) == 2
    (tmp_path / "home" / "token").write_text("hf_OTHER\n")
    (tmp_path / "elsewhere").write_text("hf_SECRET\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert len(find_inputs("hf://datasets/org/name", requests=QUICK)) == 2
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(StorageError, match="HF_TOKEN is not set"):
        find_inputs("hf://datasets/org/name", requests=QUICK)


def test_each_file_is_resolved_once_until_its_address_expires(hub: InputServer) -> None:
    hub.files["data/train-00000-of-00001.parquet"] = columns_file(6000, 500)
    file = only("hf://datasets/org/name")
    for span in split_file(file, 4_000_000):
        texts_of(file, span)
    assert hub.count("/datasets/org/name/resolve/") == 1
    assert hub.count("/cdn/") > 4
    hub.asked.clear()
    hub.files, hub.commit = {"data/train-00000-of-00001.b.parquet": columns_file(6000, 400)}, "beef" * 10
    hub.uses = 8
    file = only("hf://datasets/org/name")
    assert len(texts_of(file)) == 6000
    assert hub.count("/datasets/org/name/resolve/") > 1


def test_a_first_batch_resolves_each_file_of_the_hub_once(hub: InputServer, tmp_path: Path) -> None:
    for number in range(12):
        name = f"data/train-{number:05}-of-00012.parquet"
        hub.files[name] = write_texts(tmp_path / "x.parquet", make_texts(100, number)).read_bytes()
    data = pipeline.TextDataset("hf://datasets/org/name", "bytes")
    next(iter(data.shuffle(seed=1).pack(64).batch(2)))
    assert hub.count("/api/") == 2
    assert 0 < hub.count("/cdn/") <= 25  # the footer and the columns of each
    assert hub.count("/datasets/") <= 12  # where it is, by another
    assert hub.connections <= 18  # sixteen requests are in flight at most


def test_a_first_batch_of_many_files_asks_for_the_beginning_of_each(hub: InputServer, tmp_path: Path) -> None:
    for number in range(8):
        random = Random(number)
        texts = [random.randbytes(1_000).hex() for _ in range(3_000)]  # half a byte in each of their characters
        name = f"data/train-{number:05}-of-00008.jsonl.zst"
        hub.files[name] = write_texts(tmp_path / "x.jsonl.zst", texts).read_bytes()
    data = pipeline.TextDataset("hf://datasets/org/name", "bytes")
    next(iter(data.shuffle(seed=1, lanes=16).pack(64).batch(2)))
    assert hub.count("/datasets/org/name/resolve/") == 8
    assert sum(each.sent for each in hub.asked) < 0.6 * sum(map(len, hub.files.values()))


def test_the_ranks_of_a_machine_ask_once_for_the_files_of_a_commit(hub: InputServer, tmp_path: Path) -> None:
    hub.files |= {f"data/part-{number:05}.jsonl": b'{"text": "x"}\n' for number in range(2_500)}
    found = [find_inputs("hf://datasets/org/name", requests=QUICK) for _ in range(8)]
    assert [len(files) for files in found] == [2_500] * 8
    assert hub.count("/api/") == 8 + 3
    (kept,) = (tmp_path / "kept").rglob("listing.json")
    assert kept.parent.stat().st_mode & 0o077 == 0
    kept.write_bytes(kept.read_bytes()[:-9])  # as a disk that was full may leave it
    assert find_inputs("hf://datasets/org/name", requests=QUICK) == found[0]
    assert hub.count("/api/") == 9 + 6


def test_the_hub_is_waited_for_as_it_asks(hub: InputServer, tmp_path: Path) -> None:
    import time

    fill(hub, tmp_path)
    file = find_inputs("hf://datasets/org/name:sample:test", requests=QUICK)[0]
    hub.faults = ['429|RateLimit="resolvers";r=0;t=1']
    began = time.monotonic()
    assert len(texts_of(file)) == 20
    assert time.monotonic() - began >= 1.5


def test_a_build_checks_the_hash_of_the_listing_and_writes_no_token(
    hub: InputServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["data/train.jsonl.zst"] = write_texts(tmp_path / "x.jsonl.zst", TEXTS).read_bytes()
    hub.gated, hub.token = True, "USERPASSWORD"
    monkeypatch.setenv("HF_TOKEN", "USERPASSWORD")
    manifest = build("hf://datasets/org/name", tmp_path / "out")
    assert_nowhere(tmp_path / "out", "")
    assert manifest.inputs[0]["sha256"] == manifest.inputs[0]["version"]
    hub.wrong_hashes, hub.commit = True, "beef" * 10
    with pytest.raises(InputError, match=r"bytes have sha256 \w+.* listing says"):
        build("hf://datasets/org/name", tmp_path / "wrong")


def test_another_commit_than_the_pinned_one_is_refused(hub: InputServer, tmp_path: Path) -> None:
    fill(hub, tmp_path)
    hub.files["data/CC-1/000.parquet"] = write_texts(tmp_path / "x.parquet", ["of one commit alone"]).read_bytes()
    file = find_inputs("hf://datasets/org/name", requests=QUICK)[0]
    hub.files[file.name] = hub.files["sample/000.parquet"]
    with pytest.raises(InputError, match="it changed since it was listed"):
        texts_of(file)


def test_a_file_that_the_hub_no_longer_has_is_named(hub: InputServer, tmp_path: Path) -> None:
    fill(hub, tmp_path)
    file = find_inputs("hf://datasets/org/name:sample:test", requests=QUICK)[0]
    hub.faults = ["418"] * 9
    said = rf"held/a.jsonl: the hub says: 418 .*; look at {hub.root}/datasets/org/name$"
    with pytest.raises(StorageError, match=said):
        texts_of(file)
    hub.faults = []
    del hub.files[file.name]
    with pytest.raises(StorageError, match=r"held/a.jsonl: the hub says: .*check the path.*/org/name/tree/main"):
        texts_of(file)


def test_a_build_goes_on_with_its_commit_where_the_branch_has_moved_since(
    hub: InputServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files["data/train.jsonl.zst"] = write_texts(tmp_path / "x.jsonl.zst", TEXTS).read_bytes()
    whole = build("hf://datasets/org/name", tmp_path / "whole")
    stop = interrupt_after("ingest")
    with pytest.raises(KeyboardInterrupt):
        build("hf://datasets/org/name", tmp_path / "out", after_stage=stop)
    hub.moved_to = "d00d" + "0" * 36
    said = f"hf://datasets/org/name@main: continued with commit {COMMIT}"
    assert shards_of(build("hf://datasets/org/name", tmp_path / "out", progress=Progress())) == shards_of(whole)
    assert said in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        build("hf://datasets/org/name@v1", tmp_path / "tag", after_stage=stop)
    for settings in ({"overwrite": True}, {}):  # started over, and another revision than at first
        hub.asked.clear()
        with pytest.raises(ShardwrightError):
            build("hf://datasets/org/name", tmp_path / "tag", **settings)
        assert hub.count(f"/api/datasets/org/name/tree/{hub.moved_to}") >= 1


def test_without_a_card_the_names_of_files_tell_the_splits() -> None:
    sharded = [f"data/train-0000{number}-of-00002-ab.parquet" for number in range(2)]
    for expected in (
        {"train": sharded, "dev": ["data/dev-00000-of-00001.parquet"]},
        {"train": ["a/train/x.jsonl"], "test": ["a/test/x.jsonl"]},
        {"validation": ["my_valid_0.jsonl"], "train": ["my-train.jsonl"]},
        {"train": ["x.jsonl", "y/z.jsonl", "contest.jsonl"]},
    ):
        others = ["other.jsonl"] * ("dev" in expected)  # a file that tells no split, next to files that do
        files = [HubFile(name, 1, "0", "") for name in [*chain(*expected.values()), *others]]
        found = {split: [file.path for file in some] for split, some in splits_by_name(files).items()}
        assert found == expected
