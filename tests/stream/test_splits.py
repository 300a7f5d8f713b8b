"""A split belongs to its shards: however a dataset is named, a stream of one split holds no document of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import pipeline
from pipeline.cli.main import main
from pipeline.errors import ShardError
from pipeline.shards.manifest import EXTENTS_NAME, MANIFEST_NAME, Manifest, ShardInfo
from tests.helpers.faulty_server import running_server
from tests.helpers.shard_samples import EOS, make_documents, write_documents, write_manifest

SPLITS = {"train": 2, "val": 1}  # shards of each
DOCUMENTS = 20  # of each shard
NAMES = ["train-000000.tar", "train-000001.tar", "val-000000.tar"]


def write_splits(folder: Path, first: int, *, dtype: str = "<u2", **tokenizer: Any) -> Path:
    """Write a dataset whose documents, each of one id from ``first`` on, tell where they are from."""
    folder.mkdir(parents=True)
    splits: dict[str, list[ShardInfo]] = {}
    number = first
    for split, shards in SPLITS.items():
        infos = []
        for shard in range(shards):
            documents = [np.array([number + k, number + k, EOS], dtype) for k in range(DOCUMENTS)]
            infos.append(write_documents(folder / f"{split}-{shard:06d}.tar", documents, number - first, dtype=dtype))
            number += DOCUMENTS
        splits[split] = infos
    about = {"name": "test", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": EOS, "bos_id": None, **tokenizer}
    write_manifest(folder, splits, dtype=dtype, tokenizer=about)
    return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_splits(tmp_path / "one", 100)


def documents(*source: Any, **options: Any) -> list[int]:
    """Stream documents in order; return the id that each holds."""
    stream = pipeline.ShardDataset(*source, epochs=1, **options).documents()
    return [int(sample["input_ids"][0]) for sample in stream]


TRAIN, VAL = list(range(100, 140)), list(range(140, 160))


def spellings(folder: str) -> dict[str, Any]:
    return {
        "directory": folder,
        "list of a directory": [folder],
        "braces": f"{folder}/train-{{000000..000001}}.tar",
        "list of shards": [f"{folder}/{name}" for name in NAMES[:2]],
        "list out of order": [f"{folder}/{name}" for name in (NAMES[1], NAMES[0])],
    }


def patterns(folder: str) -> list[str]:
    return [f"{folder}/*.tar", f"{folder}/*-00000?.tar", f"{folder}/*", f"{folder}/[tv]*"]


def test_every_name_of_a_dataset_streams_its_split_alone(dataset: Path) -> None:
    state = pipeline.ShardDataset(dataset).shuffle(seed=1).pack(8).state_dict()
    for source in [*spellings(str(dataset)).values(), *patterns(str(dataset)), f"{dataset.parent}/**/*.tar"]:
        assert documents(source) == documents(source, "train") == TRAIN
        # It is the same stream, so its states are the same.
        pipeline.ShardDataset(source).shuffle(seed=1).pack(8).load_state_dict(state)
    for source in (dataset, [dataset], *patterns(str(dataset)), [dataset / NAMES[2]], dataset / NAMES[2]):
        assert documents(source, "val", verify=True) == VAL
    for source in (dataset, [dataset], *patterns(str(dataset)), [dataset / name for name in reversed(NAMES)]):
        assert documents(source, None) == TRAIN + VAL


@pytest.mark.parametrize("kind", ["http", "memory"])
def test_the_same_holds_afar(dataset: Path, tmp_path: Path, kind: str) -> None:
    files = {f"data/{path.name}": path.read_bytes() for path in dataset.iterdir()}
    with running_server() as server:
        server.files = files
        fsspec.filesystem("memory").pipe({f"/splits/{name}": raw for name, raw in files.items()})
        base = server.url("data") if kind == "http" else "memory://splits/data"
        cache = {"cache_dir": tmp_path / "cache"}
        for source in [*spellings(base).values(), *(patterns(base) if kind == "memory" else [])]:
            assert documents(source, **cache) == TRAIN
        assert documents([base], None, **cache) == TRAIN + VAL
        assert documents([base, str(dataset)], "val", **cache) == VAL + VAL
        with pytest.raises(pipeline.ConfigError, match=rf"{base}/val-000000\.tar: a shard of split 'val'"):
            documents(f"{base}/{{train-000000,val-000000}}.tar", **cache)
        with pytest.raises(pipeline.ManifestError, match=rf"{base}: no split 'test' .* it has train, val"):
            documents([base], "test", **cache)


@pytest.mark.parametrize("names", [NAMES, NAMES[2:], "{train-000000,val-000000}.tar", "val-*.tar", "link.tar"])
def test_a_listed_shard_of_another_split_is_refused_with_both_cures(dataset: Path, names: Any) -> None:
    (dataset.parent / "link.tar").symlink_to(dataset / NAMES[2])
    source = [dataset / name for name in names] if isinstance(names, list) else f"{dataset}/{names}"
    if names == "link.tar":  # in a folder without a manifest
        source = str(dataset.parent / "link.tar")
    message = (
        r"one/val-000000\.tar: a shard of split 'val', but split 'train' was asked for; write split='val' for .*, or "
        "split=None to read all"
    )
    with pytest.raises(pipeline.ConfigError, match=message):
        pipeline.ShardDataset(source)
    with pytest.raises(pipeline.ConfigError, match=message):  # beside a shard of the split, too
        pipeline.ShardDataset(source if isinstance(source, list) else [dataset / NAMES[1], source])
    with pytest.raises(pipeline.ConfigError, match=r"train-000000\.tar: .*split 'train', but split 'val'"):
        pipeline.ShardDataset([dataset / NAMES[0]], split="val")


@pytest.mark.parametrize("make", [lambda folder: folder, lambda folder: [folder], lambda folder: f"{folder}/*.tar"])
def test_an_unknown_split_lists_those_there_are(dataset: Path, make: Any) -> None:
    with pytest.raises(pipeline.ManifestError, match=r"'nonsense'.* it has train, val"):
        pipeline.ShardDataset(make(dataset), split="nonsense")
    with pytest.raises(pipeline.ConfigError, match=r"split must be the name .*or None"):
        pipeline.ShardDataset(make(dataset), split=["train", "val"])  # type: ignore[arg-type]


def test_tars_without_a_manifest_have_no_splits(dataset: Path) -> None:
    (dataset / MANIFEST_NAME).unlink()
    (dataset / EXTENTS_NAME).unlink()
    assert documents(dataset, None) == documents(f"{dataset}/*.tar", None) == TRAIN + VAL
    assert documents(f"{dataset}/train-*.tar") == TRAIN
    with pytest.raises(pipeline.ConfigError, match=r"no manifest\.json .*no split 'val'"):
        pipeline.ShardDataset(f"{dataset}/val-*.tar", split="val")


@pytest.mark.parametrize(
    "names", [NAMES, ["a/train_0.tar", "a/validation_0.tar"], ["Train0.tar", "eval0.tar", "test0.tar"]]
)
def test_tars_whose_names_show_several_splits_are_not_streamed_as_one(
    dataset: Path, tmp_path: Path, names: list[str]
) -> None:
    folder = tmp_path / "tars"
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((dataset / NAMES[number]).read_bytes())
    source = f"{folder}/**/*.tar"
    with pytest.raises(pipeline.ManifestError, match="show several splits"):
        pipeline.ShardDataset(source)
    assert sorted(documents(source, None)) == [*range(100, 100 + DOCUMENTS * len(names))]


def lost_manifest(dataset: Path, how: str) -> None:
    """Take a dataset its manifest, as hub snapshots, git-annex and copies of links do."""
    path = dataset / MANIFEST_NAME
    path.unlink()
    if how == "a dangling link":
        path.symlink_to("../blobs/0123")
    elif how == "a folder":
        path.mkdir()
    elif how == "another manifest":
        path.write_text("{}")


@pytest.mark.parametrize("how", ["a dangling link", "a folder", "another manifest", "nothing"])
def test_where_a_manifest_belongs_its_absence_is_an_error_and_no_leak(dataset: Path, how: str) -> None:
    lost_manifest(dataset, how)
    for source in (
        dataset,
        [dataset],
        [dataset / name for name in NAMES],
        f"{dataset}/train-*.tar",
        f"{dataset}/*.tar",
    ):
        for split in ("train", None):
            with pytest.raises(pipeline.ManifestError, match=r"manifest\.json"):
                pipeline.ShardDataset(source, split=split)


@pytest.mark.parametrize("status", ["403", "404"])
def test_a_manifest_afar_that_is_refused_or_missing_is_an_error(dataset: Path, status: str) -> None:
    with running_server() as server:
        url = server.serve(dataset)
        if status == "404":
            del server.files[f"data/{MANIFEST_NAME}"]
        else:
            server.forbidden.add(f"data/{MANIFEST_NAME}")
        for source in (url, [f"{url}/{name}" for name in NAMES]):
            error = pipeline.StorageError if status == "403" else pipeline.ManifestError
            with pytest.raises(error, match=rf"manifest\.json.*{'403' if status == '403' else ''}"):
                pipeline.ShardDataset(source, cache_dir=None, tries=2)


def test_shards_of_an_unfinished_build_are_refused(dataset: Path) -> None:
    (dataset / MANIFEST_NAME).unlink()
    (dataset / ".build").mkdir()
    (dataset / ".build" / "plan.json").write_text("{}")
    for source in (dataset, [dataset / NAMES[0]], f"{dataset}/*.tar"):
        with pytest.raises(pipeline.ManifestError, match="same build command again"):
            pipeline.ShardDataset(source)


def test_directories_are_joined_in_the_order_given(dataset: Path, tmp_path: Path) -> None:
    other = write_splits(tmp_path / "another", 300)
    assert documents([dataset, other], verify=True) == [*TRAIN, *range(300, 340)]
    assert documents([other, dataset]) == documents(f"{tmp_path}/{{another,one}}") == [*range(300, 340), *TRAIN]
    assert documents([f"{other}/*.tar", dataset / NAMES[1]]) == [*range(300, 340), *TRAIN[20:]]
    assert documents([dataset, other], "val") == [*VAL, *range(340, 360)]
    assert documents([dataset, other], None) == [*TRAIN, *VAL, *range(300, 360)]
    train, val = pipeline.ShardDataset([dataset, other], epochs=1).split(val=0.5)
    halves = [int(sample["input_ids"][0]) for half in (train, val) for sample in half.documents()]
    assert sorted(halves) == [*TRAIN, *range(300, 340)]


def test_a_state_of_other_splits_or_directories_is_refused(dataset: Path, tmp_path: Path) -> None:
    other = write_splits(tmp_path / "another", 300)

    def stream(source: Any, split: str | None = "train") -> pipeline.Stream:
        return pipeline.ShardDataset(source, split).shuffle(seed=0).pack(8).batch(2)

    state = stream(dataset).state_dict()
    sources: list[tuple[Any, ...]] = [(dataset, None), (dataset, "val"), ([dataset, other],), ([other, dataset],)]
    for source in sources:
        with pytest.raises(pipeline.StateError):
            stream(*source).load_state_dict(state)
    with pytest.raises(pipeline.StateError):
        stream([dataset, other]).load_state_dict(stream([other, dataset]).state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "<u4"}, r"one dtype, but .*/one has <u2, .*/another has <u4"),
        ({"sha256": "1" * 64}, r"one tokenizer \(sha256\), but .*/one has 0{64}, .*/another has 1{64}"),
        ({"eos_id": 7}, r"one end-of-text id, but .*/one has 0, .*/another has 7"),
    ],
)
def test_directories_that_differ_are_refused_with_both_values(
    dataset: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    other = write_splits(tmp_path / "another", 300, **options)
    for source in ([dataset, other], [dataset / NAMES[0], other / NAMES[0]]):
        with pytest.raises(pipeline.ConfigError, match=message):
            pipeline.ShardDataset(source)


def test_a_dataset_and_tars_without_a_manifest_make_no_stream(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    write_documents(tmp_path / "bare" / "a.tar", [np.array([1, EOS], "<u2")])
    with pytest.raises(pipeline.ConfigError, match=r"bare/a\.tar has no manifest\.json .*/one has one"):
        pipeline.ShardDataset([dataset, tmp_path / "bare"])


@pytest.fixture
def built(tmp_path: Path) -> Path:
    for name in ("wiki", "web"):
        lines = [json.dumps({"id": f"{name}-{k}", "text": f"{name} says {k} and {k * k}"}) for k in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    specs = [f"{name}={tmp_path}/{name}.jsonl" for name in ("wiki", "web")]
    pipeline.build(specs, tmp_path / "out", tokenizer="bytes", rules=(), val_fraction=0.2, workers=1)
    return tmp_path / "out"


def test_sources_and_mixes_hold_to_the_split(built: Path) -> None:
    manifest = Manifest.read(built)
    assert set(manifest.splits) == {"train", "val"}
    for source in (built, [built], f"{built}/*.tar"):
        for split in ("train", "val"):
            sources = pipeline.ShardDataset(source, split).sources()
            assert set(sources) == {"wiki", "web"}
            told = repr(pipeline.mix(sources, {"wiki": 1, "web": 1}).pack(8))
            for name in sources:
                count = sum(each.documents for each in manifest.split(split).shards if each.source == name)
                assert f"{name}: 1 shard, {count} documents" in told
        with pytest.raises(pipeline.ShardwrightError, match="it has train, val"):
            pipeline.ShardDataset(source, "vale").sources()
        with pytest.raises(pipeline.ConfigError, match=r"epochs of its own.*leave epochs out"):
            pipeline.ShardDataset(source, epochs=1).sources()


def test_the_commands_name_the_splits_that_there_are(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(built), "--split", "test"]) != 0
    assert "no split 'test' in this dataset; it has train, val" in capsys.readouterr().err
    key = f"{Manifest.read(built).split('train').documents:012d}"
    assert main(["inspect", str(built), "--key", key]) != 0
    assert "it may be in --split val" in capsys.readouterr().err
    assert main(["inspect", str(built), "--key", key, "--split", "val"]) == 0
    for names in ([built], sorted(built.glob("*.tar")), [f"{built}/*.tar"], [built / "val-000000.tar"]):
        assert main(["verify", *map(str, names)]) == 0  # of every split


def test_an_earlier_dataset_is_compared_with_all_its_splits(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["build", f"{tmp_path}/wiki.jsonl", "--rules", ""]
    command += "--tokenizer bytes --val-fraction 0 --workers 1".split()
    assert main([*command, "--output", str(tmp_path / "again"), "--against", f"{built},{built.parent}/./out"]) != 0
    assert "is named twice" in capsys.readouterr().err
    assert main([*command, "--output", str(tmp_path / "again"), "--against", f"{built}/train-000000.tar"]) != 0
    assert "give the directory of a dataset" in capsys.readouterr().err
    assert main([*command, "--output", str(tmp_path / "again"), "--against", str(built)]) == 1  # nothing is kept
    assert Manifest.read(tmp_path / "again").split("train").documents == 0


def test_a_manifest_makes_a_folder_shards_though_they_are_missing(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"train": [write_documents(tmp_path / "train-000000.tar", make_documents(5))]})
    (tmp_path / "train-000000.tar").unlink()
    with pytest.raises(ShardError, match=r"train-000000\.tar"):
        next(iter(pipeline.open_dataset(tmp_path).pack(4).batch(1)))
