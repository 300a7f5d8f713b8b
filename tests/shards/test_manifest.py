from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ManifestError
from pipeline.shards.manifest import Manifest, is_dataset
from tests.helpers.shard_samples import make_documents, write_dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path, [make_documents(5), make_documents(7, seed=1)])
    return tmp_path


def test_what_is_written_is_read_and_written_again_byte_for_byte(dataset: Path) -> None:
    before = (dataset / "manifest.json").read_bytes()
    manifest = Manifest.read(dataset)
    manifest.write(dataset)
    assert (dataset / "manifest.json").read_bytes() == before
    assert manifest.splits["train"].documents == 12


def test_a_directory_with_a_manifest_or_a_plan_holds_a_dataset(dataset: Path) -> None:
    assert is_dataset(dataset)
    for text in ("{", "[]", '{"format": "other"}'):
        (dataset / "manifest.json").write_text(text)
        assert not is_dataset(dataset)
    (dataset / "manifest.json").unlink()
    assert not is_dataset(dataset)
    (dataset / ".build").mkdir()
    (dataset / ".build" / "plan.json").touch()
    assert is_dataset(dataset)


def test_an_unknown_split_names_the_nearest(dataset: Path) -> None:
    manifest = Manifest.read(dataset)
    with pytest.raises(ManifestError, match=r"no split .trian. .*did you mean .train.*; it has train$"):
        manifest.split("trian")
    for name in ("train[:25%]", "train+val"):
        with pytest.raises(ManifestError, match=r"a split is a name; .*draws a share, .* it has train$"):
            manifest.split(name)


def test_the_greatest_vocabulary_and_end_of_text_id_of_a_dtype_are_read(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, [make_documents(3)])
    for vocab_size, eos_id in ((1, 0), (1 << 16, (1 << 16) - 1), (None, 0)):
        replace(manifest, tokenizer={**manifest.tokenizer, "vocab_size": vocab_size, "eos_id": eos_id}).write(tmp_path)
        assert Manifest.read(tmp_path).tokenizer["vocab_size"] == vocab_size


def of_shard(name: str, value: object) -> Callable[[Any], None]:
    """Return an edit of one field of the first shard."""
    return lambda m: m["splits"]["train"]["shards"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=2), "format version 2, but this release reads 3; .*build again"),
        (lambda m: m.update(version="3"), "format version '3'"),
        (lambda m: m.pop("extents"), "extents"),
        (lambda m: m["extents"].update(name="../extents.npz"), "plain file"),
        (lambda m: m["extents"].update(bytes=-1), "plain file"),
        (lambda m: m["extents"].pop("sha256"), "sha256"),
        (lambda m: m.update(format="tarball"), "tarball"),
        (lambda m: m.update(dtype="<i8"), "dtype '<i8' is none of <u2, <u4"),
        (lambda m: m.update(tokenizer="gpt2"), "tokenizer: 'gpt2' is not an object with fields; it was edited"),
        (lambda m: m["tokenizer"].update(vocab_size=0), "vocab_size 0 is no number from 1 to 65536, as .* as uint16"),
        (lambda m: m["tokenizer"].update(vocab_size=65_537), "vocab_size 65537 is no number from 1 to 65536"),
        (lambda m: m["tokenizer"].update(vocab_size=9.0), "vocab_size 9.0 is no number"),
        (lambda m: m["splits"]["train"].update(tokens=1), r"'train' states \(12, 1\) documents .*, its shards \(12, "),
        (of_shard("sha256", "1" * 64), "fingerprint"),
        (of_shard("name", "../x.tar"), "not a plain file name"),
        (of_shard("name", "/etc/passwd"), "not a plain file name"),
        (of_shard("bytes", "many"), "whole number"),
        (lambda m: m["splits"]["train"]["shards"][0].pop("sha256"), "sha256"),
        (of_shard("source", 7), "source must be text, got 7"),
        (of_shard("tokens", -1), r"whole numbers of at least 0, got \(5, -1, "),
        (lambda m: m.update(files=[{"name": "a/b/c", "bytes": 0, "sha256": ""}]), "files must name plain .*a/b/c"),
        (lambda m: m.pop("splits"), "incomplete or malformed: KeyError 'splits'"),
    ],
)
def test_an_edited_manifest_is_refused_with_the_value(dataset: Path, change: Any, message: str) -> None:
    value = json.loads((dataset / "manifest.json").read_text())
    change(value)
    text = json.dumps(value)
    for written, said in ((text, message), (text[: len(text) // 2], r"not JSON: \w")):
        (dataset / "manifest.json").write_text(written)
        with pytest.raises(ManifestError, match=said):
            Manifest.read(dataset)


def test_the_fingerprint_covers_contents_but_not_the_recipe(dataset: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(dataset)
    same = Manifest(manifest.dtype, manifest.tokenizer, manifest.splits, manifest.extents, recipe={"seed": 1})
    other = write_dataset(tmp_path / "other", [make_documents(5, seed=9)])
    assert same.fingerprint == manifest.fingerprint
    assert same.fingerprint != other.fingerprint


@pytest.mark.parametrize("eos_id", [None, -1, 1 << 16, 2**63, "0", True, 1.0])
def test_an_end_of_text_id_that_cannot_be_one_is_refused(tmp_path: Path, eos_id: object) -> None:
    manifest = write_dataset(tmp_path, [make_documents(3)])
    replace(manifest, tokenizer={**manifest.tokenizer, "eos_id": eos_id}).write(tmp_path)
    with pytest.raises(ManifestError, match=r"manifest\.json: .*eos_id .* from 0 to 65535"):
        Manifest.read(tmp_path)
    tokenizer = {name: value for name, value in manifest.tokenizer.items() if name != "eos_id"}
    replace(manifest, tokenizer=tokenizer).write(tmp_path)
    with pytest.raises(ManifestError, match="eos_id None"):
        Manifest.read(tmp_path)


def test_an_edit_of_any_field_of_a_manifest_is_refused(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, [make_documents(3)])
    recipe, counts = {"settings": {"rules": ["gopher"], "seed": 3}}, {"read": 3, "cut": {"c4": 1}}
    replace(manifest, recipe=recipe, counts=counts).write(tmp_path)
    path = tmp_path / "manifest.json"
    whole = json.loads(path.read_text())
    for edit in (
        {"recipe": {"settings": {"rules": [], "seed": 3}}},
        {"recipe": {}},
        {"counts": {"read": 3, "cut": {"c4": 2}}},
        {"inputs": [{"name": "x"}]},
        {"checksum": "0" * 64},
        {"more": 1},
    ):
        path.write_text(json.dumps({**whole, **edit}))
        with pytest.raises(ManifestError, match=r"checksum .* edited or damaged"):
            Manifest.read(tmp_path)
    del whole["checksum"]
    path.write_text(json.dumps(whole))
    assert Manifest.read(tmp_path).recipe["settings"]["seed"] == 3
