"""However a function of the user ends, and whatever it returns, the build ends with an error that names it and the document."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import BuildError, ConfigError
from pipeline.text.document import Document
from tests import interpreters
from tests.builder.test_transforms import ROOT, kept, make, write_records

TEXTS = ["One.", "Two.", "Three.", "Four.", "Five.", "Six."]


class Unpicklable(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__(f"{first} and {second}")
        self.held = lambda: None


def named(function: Any, **options: Any) -> Any:
    return pipeline.transform(lambda *found: function(*found), name="f", version="1", **options)


def raises(error: BaseException) -> Any:
    def function(document: Any) -> Any:
        raise error

    return function


def sets(**fields: Any) -> Any:
    def function(document: Document) -> Document:
        for name, value in fields.items():
            document.__setattr__(name, value)
        return document

    return function


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises(SystemExit(0)), "raised SystemExit: 0"),
        (raises(KeyboardInterrupt("mine")), "raised KeyboardInterrupt: mine"),
        (raises(GeneratorExit()), "raised GeneratorExit"),
        (raises(Unpicklable(1, 2)), "raised Unpicklable: 1 and 2"),
        (sets(source="web"), "set its source to 'web' of type str.* name sources where inputs are named"),
        (
            sets(id="other"),
            "set its id to 'other' of type str, which stays as it was read; put it into document.metadata",
        ),
        (sets(id=7), "set its id to 7 of type int"),
        (sets(id="\ud800"), "set its id to "),
        (sets(line="one"), "set its line to 'one' of type str"),
        (sets(language="en"), "set its language to 'en'"),
        (sets(metadata=None), "set its metadata to None of type NoneType; it must be a dict"),
        (lambda document: pipeline.Drop("\udfff"), "returned a Drop with a lone surrogate at character 0"),
        (lambda document: replace(document, id="other"), "returned a document of id 'other'"),
        (lambda document: [document, replace(document, source="web")], "returned a document of source 'web'"),
    ],
)
def test_each_end_and_each_wrong_value_names_the_function_and_the_document(
    tmp_path: Path, function: Any, said: str
) -> None:
    for name in ("a", "b"):
        write_records(tmp_path / f"{name}.jsonl", TEXTS[:1])
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    small = pipeline.builder.limits.Limits(unit_bytes=10, smallest_unit_bytes=1)
    workers = 2 if said.startswith("raised") else 1  # an error is pickled on its way from a worker
    with pytest.raises(BuildError, match=rf"[ab]\.jsonl: line 1: document 'd0': transform 'f' {said}"):
        make(files, tmp_path / "out", transforms=[named(function)], workers=workers, start_method="fork", limits=small)  # type: ignore[arg-type]


def test_a_worker_that_a_function_ends_is_not_put_down_to_memory(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    with pytest.raises(
        BuildError, match=r"died \(exit status 0\) 3 times .* as os\._exit does in a transform"
    ) as caught:
        make(source, tmp_path / "out", transforms=[named(lambda document: os._exit(0))], workers=2, start_method="fork")
    assert "memory" not in str(caught.value)


def test_a_class_that_cannot_be_made_and_a_module_that_ends_the_program_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own_broken.py").write_text("class Model:\n    def __init__(self):\n        raise SystemExit(0)\n")
    (tmp_path / "own_ending.py").write_text("import sys\nsys.exit(0)\n")
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    with pytest.raises(ConfigError, match="transform 'own_broken:Model': its class raised SystemExit: 0"):
        make(source, tmp_path / "out", transforms=[f"{tmp_path}/own_broken:Model"])
    with pytest.raises(ConfigError, match=r"module 'own_ending' .*cannot be imported: SystemExit: 0"):
        make(source, tmp_path / "out", transforms=[f"{tmp_path}/own_ending:f"])


def test_the_command_ends_with_an_error_where_a_transform_calls_exit(tmp_path: Path) -> None:
    (tmp_path / "own_exit.py").write_text("import sys\n\ndef leave(document):\n    sys.exit(0)\n")
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    given = ["--transforms", f"{tmp_path}/own_exit:leave", "--rules", "none", "--tokenizer", "bytes", "--output"]
    for more in (["--workers", "2"], ["--dry-run"]):
        done = interpreters.run(ROOT / "scripts/build_shards.py", source, *given, tmp_path / "out", *more)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        assert "transform 'own_exit:leave' raised SystemExit: 0" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "function",
    [
        lambda documents: sorted(documents, key=lambda each: each.text),
        lambda documents: [replace(each) for each in reversed(documents)],
        lambda documents: [[each, each] for each in reversed(documents)],
    ],
)
def test_a_batch_that_is_returned_in_another_order_is_refused(tmp_path: Path, function: Any) -> None:
    source = write_records(tmp_path / "in.jsonl", TEXTS)
    with pytest.raises(
        BuildError, match=r"transform 'f' returned a document of id 'd.' of type str in its place; it must"
    ):
        make(source, tmp_path / "out", transforms=[named(function, batch=16)])
    copied = named(lambda documents: [replace(each, text=each.text.upper()) for each in documents], batch=16)
    make(source, tmp_path / "out", transforms=[copied], overwrite=True)
    assert kept(tmp_path / "out") == [text.upper() for text in TEXTS]


def windows(document: Document) -> list[Document]:
    words = document.text.split()
    return [Document(" ".join(words[first : first + 20]), "", "", 0) for first in range(0, len(words) - 10, 10)]


@pytest.mark.parametrize("options", [{"dedup": False}, {"dedup": True, "dedup_lines": True, "workers": 2}])
def test_all_parts_of_a_document_go_to_the_same_split(tmp_path: Path, options: dict[str, Any]) -> None:
    texts = [" ".join(f"w{number}x{k}" for k in range(60)) for number in range(200)]
    source = write_records(tmp_path / "in.jsonl", [*texts, *(f"whole {k}" for k in range(200)), texts[0]])

    def cut(document: Document) -> Any:
        return document if document.text.startswith("whole") else windows(document)

    again = pipeline.transform(lambda document: windows(document)[:1] or document, name="again", version="1")
    small = pipeline.builder.limits.Limits(partition_characters=3_000, batch_records=20)
    given = {"transforms": [named(cut), again], "val_fraction": 0.3, "limits": small, "start_method": "fork", **options}
    manifest = make(source, tmp_path / "out", **given)
    sides: dict[str, set[str]] = {}
    for split in ("train", "val"):
        for info in manifest.splits[split].shards:
            for id in pipeline.shards.reader.Shard(tmp_path / "out" / info.name).table()["id"]:
                sides.setdefault(id.partition("#")[0], set()).add(split)
    assert len(sides) == 400 + (not options["dedup"])
    assert all(len(found) == 1 for found in sides.values())
    assert sides["d0"] == sides.get("d400", sides["d0"])  # documents of equal texts go together
    assert 80 < sum(found == {"val"} for found in sides.values()) < 160
