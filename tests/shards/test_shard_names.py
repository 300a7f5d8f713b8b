"""The paths, patterns and urls by which shards are named: which files are found in which order, or what the error says."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import fsspec
import pytest

import pipeline
from pipeline.errors import ConfigError, StorageError
from pipeline.objects.urls import is_remote, local_name
from pipeline.paths import natural_key
from pipeline.shards.shard_names import expand, expand_in_order, join
from pipeline.text.discovery import find_inputs
from tests.helpers.shard_samples import make_documents, write_documents


@pytest.mark.parametrize("odd", ["{a,b}", "[ab]", "a*", "a?", "{1..3}", "{", "{a"])
@pytest.mark.parametrize("spec", ["", "/x.tar", "/*.tar", "/[xy].t?r", "/{x..x}.tar"])
def test_the_name_of_a_folder_that_exists_means_that_folder_alone(tmp_path: Path, odd: str, spec: str) -> None:
    for name in ("a", "b", "ab", "1", odd):
        for folder in (tmp_path / name, tmp_path / name / odd):
            folder.mkdir(exist_ok=True, parents=True)
            (folder / "x.tar").touch()
            (folder / "x.jsonl").touch()
    for root in (f"{tmp_path}/{odd}", f"{tmp_path}/{odd}/{odd}"):
        shards = expand_in_order(root + spec)
        assert f"{root}/x.tar" in [shard.path for shard in shards]
        assert {os.path.dirname(shard.path) for shard in shards} == {root}
        files = find_inputs(root + spec.replace(".tar", ".json*").replace(".t?r", ".j*"))
        assert f"{root}/x.jsonl" in [str(file.path) for file in files]
        assert all(str(file.path).startswith(root) for file in files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ["train-1.tar", "train-2.tar", "train-10.tar", "val-000000.tar", "notes.txt", ".train-3.tar.9.tmp"]:
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train-5.tar").touch()
    return tmp_path


def names(found: list[str]) -> list[str]:
    return [Path(path).name for path in found]


def test_directories_globs_braces_and_lists_give_natural_order(folder: Path) -> None:
    train = ["train-1.tar", "train-2.tar", "train-10.tar"]
    assert names(expand(folder)) == [*train, "val-000000.tar"]
    assert names(expand(f"{folder}/train-*.tar")) == train
    assert names(expand(f"{folder}/train-{{1,2,10}}.tar")) == train
    assert names(expand(f"{folder}/train-[12].tar")) == train[:2]
    assert names(expand(f"{folder}/{{val,train}}-*.tar")) == [*train, "val-000000.tar"]
    assert names(expand(f"{folder}/**/train-*.tar")) == ["train-5.tar", *train]
    assert names(expand(f"file://{folder}/train-1.tar")) == ["train-1.tar"]
    wanted = expand(folder)
    assert expand([Path(path) for path in reversed(wanted)]) == wanted
    own = folder / "a{1,2}[x].tar"  # a name with braces
    own.touch()
    assert expand(own) == [str(own)]
    url = "https://host/a.tar?X-Signature=a%2Fb"  # and one with a query
    assert expand(url) == [url]
    assert len(expand("s3://bucket/d/train-{000000..000127}.tar")) == 128
    assert is_remote("gs://b/a.tar")
    assert not is_remote("C.tar")
    assert not is_remote("c:/a.tar")
    assert local_name("file:///a%20b.tar") == "/a b.tar"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{}/trian-*.tar", r"no file matches .*trian-\*\.tar.* holds notes.txt, sub, train-1.tar"),
        ("{}/train-{{1..3}}.tar", r"train-3\.tar of the 3 files that .* names was not found"),
        ("{}/none/a-{{0..9}}.tar", r"a-0.tar and 9 more of the 10 .* the directory .*none is not there"),
        ("{}/trian-1.tar", "did you mean 'train-1.tar'"),
        ("{}/zzz", r"holds notes\.txt, sub, train-1\.tar[^(]*$"),  # the names once, and no guess
        ("{}/train-{{0..99999999999}}.tar", "more than 1,000,000"),
        ("{}/{{0..9999}}{{0..9999}}.tar", "more than 1,000,000"),
        ("{}/train-{{1..3.tar", "write a range as"),
        ("pipe:cat x", "commands are never run"),
        ("simplecache::s3://b/x.tar", "chained urls"),
        ("http://host/x::s3://b/x.tar", "chained urls"),
        ("s3:/bucket/x.tar", r"lost a slash, probably in a pathlib\.Path; give it as text, s3://\.\.\."),
        ("s4://bucket/x.tar", "did you mean 's3'"),
        ("webhfds://host/x.tar", "did you mean 'webhdfs'"),  # a client that fsspec has
        ("house://bucket/x.tar", r"known: abfs, .*; a store of your own needs .* the group fsspec\.specs"),
        ("ssh://host/x.tar", "is not opened: it reads this machine, opens other urls or logs in"),
        ("local:///x.tar", "is not opened"),
        ("http://host/*.tar", "http servers cannot list"),
        ("file://otherhost/a.tar", "otherhost"),
        ("", "an empty path"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_there(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(spec.format(folder))


def test_nothing_and_twice_are_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match="empty list"):
        expand([])
    with pytest.raises(ConfigError, match=r"train-1\.tar is named twice"):
        expand([f"{folder}/train-*.tar", f"{folder}/train-1.tar"])
    with pytest.raises(ConfigError, match="is empty"):
        expand(tmp_path_factory.mktemp("bare"))
    (folder / "sub" / "train-5.tar").rename(folder / "sub" / "train-5.txt")
    with pytest.raises(ConfigError, match=r"which holds train-5\.txt"):
        expand(folder / "sub")


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """A folder as systems leave it: two tars, and beside them what is hidden, linked, compressed or below."""
    for number in range(2):
        write_documents(tmp_path / f"{number}.tar", make_documents(5, seed=number))
    for name in ("._0.tar", ".snapshot/0.tar", "sub/b.tar", "sub/.ipynb_checkpoints/b.tar", "b.tar.gz", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no tar")
    (tmp_path / "0-latest.tar").symlink_to("1.tar")
    return tmp_path


def test_a_folder_of_tars_gives_each_once_and_counts_what_it_leaves_out(tars: Path) -> None:
    wanted = {
        str(tars): "4 files left out: 0-latest.tar, ._0.tar, b.tar.gz, sub/b.tar. ",
        f"{tars}/*": "2 files left out: 0-latest.tar, b.tar.gz. ",
        f"{tars}/*.tar": "1 files left out: 0-latest.tar. ",
    }
    for spec, message in wanted.items():
        with pytest.warns(UserWarning, match="2 shards found, ") as caught:
            stream = pipeline.ShardDataset(spec, epochs=1)
        assert stream._data.documents == [5, 5]
        assert message in str(caught[0].message)
        assert caught[0].filename == __file__


TWICE = ("0.tar 0.tar", "0.tar ./0.tar", "{0,0}.tar", "sub/../1.tar 0-latest.tar", "?.tar 1.tar", ". 0.tar")


@pytest.mark.parametrize("names", TWICE)
def test_a_tar_that_is_named_twice_is_refused(tars: Path, monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    monkeypatch.chdir(tars)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a folder leaves out
        with pytest.raises(ConfigError, match=r"is named twice.*; name it once"):
            pipeline.ShardDataset(names.split())


def test_hidden_tars_are_read_where_they_are_named(tars: Path) -> None:
    for name in ("._0.tar", ".snapshot/0.tar"):
        (tars / name).unlink()
        write_documents(tars / name, make_documents(3))
    for spec in (tars / "._0.tar", f"{tars}/._*.tar", tars / ".snapshot", f"{tars}/.snapshot/*.tar"):
        assert pipeline.ShardDataset(spec, epochs=1)._data.documents == [3]


def test_hidden_objects_are_skipped_and_counted(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.tar", make_documents(4))
    files = fsspec.filesystem("memory")
    for name in ("a.tar", "._a.tar", "b.tar.gz", ".snapshot/a.tar"):
        files.pipe(f"/hidden/{name}", (tmp_path / "a.tar").read_bytes())
    for spec, message in (("", "2 files left out: ._a.tar, b.tar.gz"), ("/*.tar", "1 files left out: ._a.tar")):
        with pytest.warns(UserWarning, match=re.escape(message)):
            assert len(expand(f"memory://hidden{spec}")) == 1
    assert len(expand("memory://hidden/.snapshot/*.tar")) == len(expand("memory://hidden/._a.tar")) == 1


def test_remote_directories_and_globs_are_listed(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    for number in (10, 9):
        files.pipe(f"/listed/train-{number}.tar", b"")
    files.pipe("/listed/manifest.json", b"")
    wanted = ["memory:///listed/train-9.tar", "memory:///listed/train-10.tar"]
    found = expand("memory://listed/train-*.tar")
    assert [url.replace("memory://listed", "memory:///listed") for url in found] == wanted
    assert len(expand("memory://listed")) == 2
    with pytest.raises(ConfigError, match="no object matches"):
        expand("memory://listed/x*.tar")
    with pytest.raises((ConfigError, StorageError), match="no"):
        expand("memory://empty/")


def test_natural_order_is_total_and_by_value() -> None:
    wanted = ["1", "a1b2", "a1b10", "a01b10x", "a2", "a10", "b"]
    for seed in range(20):
        assert sorted(random.Random(seed).sample(wanted, len(wanted)), key=natural_key) == wanted
    assert sorted(["x-10", "x-9", "x-9a"], key=natural_key) == ["x-9", "x-9a", "x-10"]
    assert sorted(["7", "07"], key=natural_key) == sorted(["07", "7"], key=natural_key)


@pytest.mark.parametrize("name", ["../a.tar", "/etc/passwd", "a/b.tar", "..", ".", "", "a\\b", "a\0b", "x?y", "s3:x"])
def test_no_name_leads_out_of_its_directory(name: str) -> None:
    for directory in ("data", "s3://bucket/data"):
        with pytest.raises(ConfigError, match="not a plain file name"):
            join(directory, name)


def test_the_shards_room_loads_nothing_heavy_before_it_is_needed() -> None:
    rooms = "dataset_folder foreign index manifest tar_members shard_names writer shard_access shard_plan verify.dataset".split()
    code = f"import sys, {', '.join(f'pipeline.shards.{room}' for room in [*rooms, 'extents.table_file'])}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "fsspec", "s3fs", "aiohttp", "pyarrow", "numba", "transformers", "datasets", "webdataset"}
    assert heavy.isdisjoint(loaded)
